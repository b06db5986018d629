"""A Kubernetes cluster on loopback."""

from ml_diagnostics_testing.kubernetes.pods import Command, Pod
from ml_diagnostics_testing.kubernetes.server import KubernetesServer

__all__ = ["Command", "KubernetesServer", "Pod"]
