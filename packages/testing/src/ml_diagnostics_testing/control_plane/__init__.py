"""The control plane of machine learning runs on loopback: Google's API, and that of a self-hosted one."""

from ml_diagnostics_testing.control_plane.self_hosted import SelfHostedServer
from ml_diagnostics_testing.control_plane.server import ControlPlaneServer

__all__ = ["ControlPlaneServer", "SelfHostedServer"]
