"""Kubernetes: which workload a pod belongs to, and the variables by which a run in it knows that."""
