"""The control plane of machine learning runs on loopback: Google's API, and that of a self-hosted one."""

from .self_hosted import SelfHostedServer
from .server import ControlPlaneServer

__all__ = ["ControlPlaneServer", "SelfHostedServer"]
