"""A rehearsal of a job of Kubernetes on this machine: each pod is a process. Nothing of a cluster is changed."""
