"""The companion: a process beside the job that outlives it; and a small helper beside jobs without one.

A block starts the companion in `_collect.companion`, and the helper in `_collect.dump_requests`. They are connected by
the socket of `ml_diagnostics_common.sidecar`; the timer's dumps arrive over a pipe.

main       the companion's main program: a loop over everything that it receives, until the end of the job
job        the job as a process: signals to it, and if it is stuck
requests   requests for stack traces that the job's Python does not answer; the helper's main program
output     the timer's dumps, each after its header, to the trace file or the console
hangs      the job's progress, read once a second, and the response to a hang; `learned_file` keeps its pauses
endings    the job's exit reason, from its exit status, the kernel's memory events and what it wrote last
step_summary   the steps of ten seconds: pure
process_state  the state of a stuck job, as the kernel shows it
console    the last lines that the job printed
sigterm    the job's handler of SIGTERM
fast_fail  reports to the star, and the end of the job once another one has failed; `fast_fail_job` is the job's part
log        entries to the journal and to Cloud Logging
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

__all__ = ["RUN_BY", "CompanionSettings"]

RUN_BY: Final = "ML_DIAGNOSTICS_RUN_BY"
"""Environment variable: the pid of the process that started the job and records its end, so the companion does not."""


class CompanionSettings(NamedTuple):
    """The settings of a companion; a named tuple, since a dataclass would cost the companion two megabytes."""

    interval_seconds: float
    """The seconds between two dumps of the timer, for their header."""
    trace_path: str | None
    """The file that dumps go to, and that faults and signals are written to directly; None: the console."""
    is_shipped: bool
    """True to send entries to Cloud Logging, if there is one; they go to the journal in any case."""
    main_thread_signal: int | None = None
    """The signal on which the job dumps its main thread alone."""
    dump_signal: int | None = None
    """The signal on which the job dumps all its threads."""
    progress_path: str | None = None
    """The job's progress page; None: hangs are not detected."""
    hang: Mapping[str, Any] | None = None
    """The numbers, texts and booleans of the HangConfig."""
    fast_fail: Mapping[str, Any] | None = None
    """The numbers and booleans of the FastFailConfig; None: fast-fail is off."""
    most_bytes: int = 64 * 2**20
    """The size up to which dumps of the timer are written to the trace file."""
    trace_bytes: int = 0
    """The size of the trace file when the block started."""
    labels: Mapping[str, str] = {}
    """The labels of entries; later messages may change them."""
    is_end_recorded: bool = False
    """True if the job's parent records its end, so that the companion does not."""

    @classmethod
    def from_json(cls, settings: Mapping[str, Any]) -> CompanionSettings:
        """Return the settings of a job; those that a later version has added are left out."""
        return cls(**{name: value for name, value in settings.items() if name in cls._fields})
