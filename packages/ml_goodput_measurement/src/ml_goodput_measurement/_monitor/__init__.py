"""Uploads a job's goodput while it runs, from a process of its own.

monitor            the calls of a trainer
uploaders          the uploads that are on, and the process that does them, restarted if it dies
~~~~~~~~~~~~~~~~~  a socket: see `ml_diagnostics_common.sidecar`
helper             the process's main program: commands, deadlines and the trainer's death
snapshot_schedule  the times and contents of snapshots
sinks              one exporter, its failures, and when to try it again
settings           shared by both sides
"""
