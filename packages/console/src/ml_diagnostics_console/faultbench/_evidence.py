"""Evidence that the bench has collected of a job from outside: exit codes, states of the kernel, marks, output."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

__all__ = ["Evidence", "ProcessEvidence", "Sample"]


class Sample(NamedTuple):
    """The state of one process at one moment."""

    monotonic_ns: int
    state: str
    """The state of the main thread: R, S, D, T, t or Z; empty once it is gone."""
    wait_channel: str
    cpu_seconds: float
    step: int
    phase: str


@dataclass
class ProcessEvidence:
    """One process of a job.

    Attributes:
        index: Its index in the job.
        pid: Its process id; 0 if it has not started.
        exit_status: Its exit code, negative for a signal; None if the bench ended it.
        ended_ns: When it ended, by the bench's monotonic clock; None if the bench ended it.
        samples: Its states since the injection.
        output: The end of what it printed.
    """

    index: int
    pid: int = 0
    exit_status: int | None = None
    ended_ns: int | None = None
    samples: list[Sample] = field(default_factory=list)
    output: str = ""

    @property
    def signal_name(self) -> str:
        """The signal that ended it; empty if none did."""
        if self.exit_status is None or self.exit_status >= 0:
            return ""
        return signal.Signals(-self.exit_status).name


@dataclass
class Evidence:
    """One job, since the injection.

    Attributes:
        culprit: The index of the process to blame; None if all are, or none.
        step: The step of the injection.
        processes: All processes of the last attempt.
        events: Reports of trainers, in order: `what`, `index`, `step`.
        attempts: The number of attempts.
    """

    culprit: int | None
    step: int
    processes: list[ProcessEvidence]
    events: Sequence[dict[str, Any]] = ()
    attempts: int = 1

    @property
    def guilty(self) -> ProcessEvidence:
        """The process to blame; the first if all are."""
        wanted = self.culprit or 0
        return next((process for process in self.processes if process.index == wanted), self.processes[0])

    def happened(self, what: str) -> bool:
        """Return True if a trainer has reported this."""
        return any(event["what"] == what for event in self.events)
