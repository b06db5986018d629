"""One process of a run as it is shown."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ml_diagnostics_common.raised_exception import RaisedException
from ml_diagnostics_common.story import ProcessEnd, Role

__all__ = ["ProcessView", "State"]


class State(str, enum.Enum):
    """The state of a run, an attempt or a process."""

    ACTIVE = "ACTIVE"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    STALE = "STALE"
    """No end is recorded, and there were no events for three minutes."""
    UNKNOWN = "UNKNOWN"

    @property
    def has_ended(self) -> bool:
        """True if it is known to have ended."""
        return self in (State.COMPLETED, State.FAILED)


@dataclass
class ProcessView:
    """One process of one attempt.

    Attributes:
        attempt: The attempt of the run, from 1.
        host: The host's name.
        process_index: The index of the process in the run.
        process_count: The number of processes of the run, by its entries.
        pid: The process id.
        state: The state of the process.
        reason: The exit reason.
        started_ns: The time of its first event, in ns since 1970.
        last_event_ns: The time of its last event.
        address: The host's address for other hosts; empty if it is not known.
        profiler_port: The port of its profiler server; None if there is none.
        capture_folder: The folder for profiles of this process that other programs take, each in its own folder.
        capture_name: The name of its file in such a folder.
        step: The last step with a metric; None if it is not known.
        traceback: The exception that ended it, and linked ones.
        file_systems: The file systems that the exception is about: `path`, `free_bytes`, `total_bytes`, `free_inodes`.
        is_gone: True if it has exited and recorded no end.
        has_own_end: True if it has recorded its end itself.
        end: Its end, with what its companion recorded.
        role: Its part in the end of the attempt.
        is_first_cause: True if the attempt failed because of it, as far as that is known.
    """

    attempt: int
    host: str
    process_index: int | None
    process_count: int
    pid: int
    state: State
    reason: str
    started_ns: int
    last_event_ns: int
    address: str = ""
    profiler_port: int | None = None
    capture_folder: str = ""
    capture_name: str = ""
    step: int | None = None
    traceback: tuple[RaisedException, ...] = ()
    file_systems: tuple[Mapping[str, Any], ...] = ()
    is_gone: bool = False
    has_own_end: bool = False
    end: ProcessEnd = field(default_factory=ProcessEnd)
    role: Role = Role.NONE
    is_first_cause: bool = False

    @property
    def name(self) -> str:
        """A name for people: host-3 (process 3)."""
        return self.host if self.process_index is None else f"{self.host} (process {self.process_index})"
