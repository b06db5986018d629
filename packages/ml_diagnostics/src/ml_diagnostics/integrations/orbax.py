"""Orbax: a logger of its checkpoint managers that records saves and restores."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ml_diagnostics_common.guard import guarded

from ml_diagnostics import current
from ml_diagnostics.integrations._training import requires

with requires("orbax", "orbax-checkpoint"):
    from orbax.checkpoint.logging import AbstractLogger

__all__ = ["CheckpointLogger"]

_METRICS = (
    ("save", "checkpoint_manager_blocking_duration_secs", "checkpoint_save_seconds"),
    ("restore", "checkpoint_manager_duration_secs", "checkpoint_restore_seconds"),
)
"""The kind of an entry, its duration, and the name of the metric."""


class CheckpointLogger(AbstractLogger):
    """Record the saves and restores of a checkpoint manager in the job of the process.

        ocp.CheckpointManager(directory, logger=CheckpointLogger())

    The time that they block the job is in its goodput, and each one is a value of a metric: `checkpoint_save_seconds`
    or `checkpoint_restore_seconds`, at its step. Outside of a job it records nothing.
    """

    @guarded
    def log_entry(self, msg: Any, *args: Any, **kwargs: Any) -> None:
        """Record an entry of Orbax; called by Orbax."""
        job = current()
        if job.recorder is not None:
            from ml_goodput_measurement.goodput import CheckpointLogger as Goodput

            Goodput(job.recorder).log_entry(msg)
        for kind, duration, metric in _METRICS:
            if isinstance(msg, Mapping) and msg.get("event_type") == kind and msg.get(duration) is not None:
                job.log({metric: msg[duration]}, step=msg.get("step"))
