"""Loopback servers that only our own tests use: Compute Engine, Kubernetes, ssh, the control plane of runs."""
