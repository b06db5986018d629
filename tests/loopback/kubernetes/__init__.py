"""A Kubernetes cluster on loopback."""

from .pods import Command, Pod
from .server import KubernetesServer

__all__ = ["Command", "KubernetesServer", "Pod"]
