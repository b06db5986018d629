"""The run of this process, to which all recordings belong."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from google_cloud_mldiagnostics._recording.run_log import RunLog
    from google_cloud_mldiagnostics._run_state.registration import Registration
    from google_cloud_mldiagnostics.mlrun_types import MLRun

__all__ = ["ActiveRun", "active_run", "set_active_run"]


@dataclass
class ActiveRun:
    """The run of this process, for recording, measuring and profiling.

    Attributes:
        run: The object that `machinelearning_run` returned.
        log: The log of the run's entries.
        folder: The folder of the run on this machine.
        host: This host's name.
        process_index: The index of this process in the run.
        process_count: The number of processes of the run.
        pid: The process that started it; a forked child does not belong to the run.
        is_local: True if profiles go to the run's folder by default: there is no cloud, or none was found so far.
        registration: The thread that reports to the control planes; it is never waited for.
        profiler_port: The port of this process's profiler server; None while there is none.
        known_metrics: The metrics that `metrics.record` has prepared, of those that this process records without
            `record_on_all_hosts`: by name, and by the `MetricType` of that name.
    """

    run: MLRun
    log: RunLog
    folder: Path
    host: str
    process_index: int
    process_count: int
    pid: int
    is_local: bool
    registration: Registration | None = None
    profiler_port: int | None = None
    known_metrics: dict[Any, Any] = field(default_factory=dict)


_active_run_of_this_process: ActiveRun | None = None
_known_metrics: dict[Any, Any] | None = None
"""The active run's; None if there is none, or another process records its metrics."""


def active_run() -> ActiveRun | None:
    """Return the run that `machinelearning_run` started last, if it has not ended."""
    return _active_run_of_this_process


def set_active_run(run: ActiveRun | None) -> None:
    """Set the run of this process, or none."""
    global _active_run_of_this_process, _known_metrics
    _active_run_of_this_process = run
    _known_metrics = None if run is None or run.process_index else run.known_metrics
