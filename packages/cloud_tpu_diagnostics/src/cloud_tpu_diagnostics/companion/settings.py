"""What a companion is told at its start."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

__all__ = ["CompanionSettings"]


class CompanionSettings(NamedTuple):
    """What a companion is told at its start; a named tuple, as a dataclass would cost the companion two megabytes."""

    job_pid: int
    interval_seconds: float
    """Between two dumps of the timer: the header line says it."""
    trace_path: str | None
    """Where dumps go, and what faults and signals write to directly; None: dumps go to the console."""
    is_shipped: bool
    """Whether entries go to Cloud Logging, where there is one; they go to the journal in any case."""
    main_thread_signal: int | None = None
    """Has the job dump its main thread alone."""
    dump_signal: int | None = None
    """Has the job dump all its threads."""
    progress_path: str | None = None
    """The job's progress page; None: hangs are not watched for."""
    hang: Mapping[str, Any] | None = None
    """The fields of the HangConfig that are numbers, texts and booleans."""
    most_bytes: int = 64 * 2**20
    """What the trace file may grow to by dumps of the timer."""

    def to_json(self) -> dict[str, Any]:
        """Returns it in the types of JSON."""
        return self._asdict()

    @classmethod
    def from_json(cls, settings: Mapping[str, Any]) -> CompanionSettings:
        """Returns what `to_json` was called on; what a later version added is passed over."""
        return cls(**{name: value for name, value in settings.items() if name in cls._fields})
