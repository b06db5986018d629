"""Who wrote a segment: this process, one that lives, or one that is gone and left its rest to others."""

from __future__ import annotations

import enum
import os
from typing import NamedTuple

from ml_diagnostics_common.journal.own_journals import host_name, is_writer_of_this_process
from ml_diagnostics_common.processes import process_started_ns

__all__ = ["Owner", "WriterName", "owner"]

_SLACK_NS = 2_000_000_000


class Owner(enum.Enum):
    """What became of the process that a writer belongs to."""

    US = "this process"
    ALIVE = "another process of this host, which lives"
    GONE = "a process of this host that has ended"
    UNKNOWN = "a process of another host"


class WriterName(NamedTuple):
    """The parts of a writer's name."""

    host: str
    pid: int
    started_ns: int

    @classmethod
    def parse(cls, writer: str) -> WriterName | None:
        """`host-pid-start-n`, or None for anything else."""
        parts = writer.rsplit("-", 3)
        if len(parts) != 4 or not all(part.isdecimal() for part in parts[1:]):
            return None
        return cls(parts[0], int(parts[1]), int(parts[2]))


def owner(writer: str) -> Owner:
    """Tells whose a writer is. A pid that was used before (in a container, always) is told by its start.

    Our own are known by name: what clocks say of them changes when somebody sets the clock.
    """
    if is_writer_of_this_process(writer):
        return Owner.US
    name = WriterName.parse(writer)
    if name is None or name.host != host_name():
        return Owner.UNKNOWN
    started_ns = process_started_ns(name.pid)
    if started_ns is None or name.started_ns < started_ns - _SLACK_NS:
        return Owner.GONE
    # With our pid and not ours: of another container, or the clock was put back since.
    return Owner.UNKNOWN if name.pid == os.getpid() else Owner.ALIVE
