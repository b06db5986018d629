"""A shell, or a command, on a host of a job: `mldiagnostics ssh`.

routes    how a host is reached: kubectl exec, gcloud, ssh, or not at all and why: pure
running   the program of a route, and why it failed
"""
