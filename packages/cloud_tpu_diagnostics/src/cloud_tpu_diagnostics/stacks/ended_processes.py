"""Which processes of this host are gone, and how they ended, as far as a companion recorded it."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

from ml_diagnostics_common.child_process import process_started_ns
from ml_diagnostics_common.entry import LogEntry
from ml_diagnostics_common.environment import diagnostics_directory, identity
from ml_diagnostics_common.reader import JournalReader, count_unreadable, note_of_unreadable

from cloud_tpu_diagnostics.entries import JOB_ENDED, LOG_ID
from cloud_tpu_diagnostics.grouping import ProcessDump

__all__ = ["Endings", "is_gone", "with_endings"]

_SLACK_NS: Final = 5_000_000_000
"""Between the clock of the kernel, in whole seconds, times of files, and times of entries."""


def is_gone(dump: ProcessDump) -> bool:
    """Return True if the process was one of this host and is not any more, or its id is that of a later one."""
    if dump.host != identity().host or dump.pid <= 0:
        return False
    started_ns = process_started_ns(dump.pid)
    return started_ns is None or started_ns > dump.time_ns + _SLACK_NS


class Endings:
    """How processes ended, by host and pid, as companions recorded it; the oldest first."""

    def __init__(self) -> None:
        self._by_process: dict[tuple[str, str], list[tuple[int, dict[str, Any]]]] = {}

    @classmethod
    def of_journal(cls, notes: list[str]) -> Endings:
        """Read the journal.

        Args:
            notes: Gets what could not be read.
        """
        endings, reader = cls(), JournalReader(LOG_ID, root=diagnostics_directory())
        for _ in endings.noted(itertools.chain.from_iterable(reader.read_new())):
            pass
        unreadable = count_unreadable(reader.skipped)
        if unreadable:
            notes.append(note_of_unreadable(unreadable))
        return endings

    def noted(self, entries: Iterable[LogEntry]) -> Iterator[LogEntry]:
        """Yield entries in the order of time, and keep those that record an end."""
        for entry in entries:
            if entry.payload.get("kind") == JOB_ENDED:
                labels = entry.context.labels
                process = labels.get("host", ""), labels.get("pid", "")
                self._by_process.setdefault(process, []).append((entry.timestamp_ns, entry.payload))
            yield entry

    def of(self, dump: ProcessDump) -> list[tuple[int, dict[str, Any]]]:
        """Return the times and payloads of the ends recorded for a process id."""
        return self._by_process.get((dump.host, str(dump.pid)), [])


def with_endings(
    dumps: Sequence[ProcessDump],
    is_over: Callable[[ProcessDump], bool] = is_gone,
    *,
    endings: Endings | None = None,
    notes: list[str] | None = None,
) -> list[ProcessDump]:
    """Return the dumps, those of processes that are gone with how these ended.

    Args:
        dumps: The newest of each process.
        is_over: Tells whether a process without a known end writes no more stacks.
        endings: How processes ended; None reads the journal if a process is over.
        notes: Gets what could not be read then.
    """
    over = {(dump.host, dump.pid) for dump in dumps if not dump.ended and is_over(dump)}
    if not over:
        return list(dumps)
    known = Endings.of_journal(notes if notes is not None else []) if endings is None else endings
    return [_with_ending(dump, known.of(dump)) if (dump.host, dump.pid) in over else dump for dump in dumps]


def _with_ending(dump: ProcessDump, endings: Iterable[tuple[int, dict[str, Any]]]) -> ProcessDump:
    later = (payload for time_ns, payload in endings if time_ns >= dump.time_ns - _SLACK_NS)
    payload = next(later, None)
    if payload is not None:
        ended = str(payload.get("message") or payload.get("how") or "how is not known")
        return dump._replace(ended=ended, has_ended_well=payload.get("how") == "clean")
    last = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(dump.time_ns / 1e9))
    if is_gone(dump):
        return dump._replace(ended=f"gone: process {dump.pid} exited without recording its end; last event at {last}")
    return dump._replace(ended=f"process {dump.pid} has left diagnose(); last event at {last}")
