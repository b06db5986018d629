"""Cloud Logging as an `EntryReader`: every entry of a log once, however late it arrives, within a quota.

Entries are yielded in the order of their timestamps, page by page. An entry that arrives late is yielded when it is
found, after younger ones: the caller must accept any order, as a ledger does. Late entries are found by

* the overlap: each read starts `overlap_seconds` before the newest entry of the last one;
* gaps: our entries carry their writer and number, and a number that was passed over is requested by name;
* the sweep: every few minutes, whatever Cloud Logging has received since the last sweep, however old its
  timestamp. The rest of a job that was killed last week may be shipped today.

Duplicates are detected by insertId: exactly and without a time limit for entries that went through a journal, by a
window of ids for entries of other writers (the public package, Orbax), which are read as well.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from ml_diagnostics_common.cloud_logging._filters import (
    FASTEST_CLOCK_NS,
    LONGEST_RETENTION_NS,
    entries_filter,
    gaps_filter,
    late_entries_filter,
    log_filter,
)
from ml_diagnostics_common.cloud_logging._queries import PageReader, QueryTooWideError
from ml_diagnostics_common.cloud_logging._transport import Page
from ml_diagnostics_common.entry import LogEntry, SeenSequences, make_insert_id

__all__ = ["CloudLoggingReader", "GapSchedule"]

_SECOND = 1_000_000_000
_SLICES = 8
_NARROWEST_NS = 600 * _SECOND
_PRUNE_ABOVE = 20_000
_POSITION_SCHEMA = 1
_MOST_STRETCHES = 20

_Stretch: TypeAlias = tuple[int, int]
"""The first and last of the sequence numbers that are missing."""


@dataclass
class _Asked:
    """The requests for one writer; the cursor cycles through its stretches, and a cycle is one attempt."""

    stretches: Sequence[_Stretch]
    cursor: int = 0
    attempts: int = 0
    next_seconds: float = 0.0

    def take(self, most: int) -> list[_Stretch]:
        """Return the next stretches; after the last one the next cycle starts."""
        taken = [stretch for stretch in self.stretches if stretch[0] >= self.cursor][:most]
        self.cursor = taken[-1][1] + 1
        if self.cursor > self.stretches[-1][0]:
            self.cursor = 0
            self.attempts += 1
        return taken


@dataclass
class GapSchedule:
    """Schedules requests for gaps: at once, then with growing waits, for ever: an entry may be shipped days later.

    All gaps that are due fit one request, so a gap that is never filled (its entry was refused, or its disk failed)
    costs one request in `longest_seconds`.

    Attributes:
        first_seconds: The wait after the first request.
        longest_seconds: The longest wait.
    """

    first_seconds: float = 10.0
    longest_seconds: float = 600.0
    _writers: dict[str, _Asked] = field(default_factory=dict)

    def due(self, gaps: Mapping[str, Sequence[_Stretch]], now_seconds: float) -> dict[str, list[_Stretch]]:
        """Return the stretches to request now; they count as requested.

        Args:
            gaps: For each writer the (first, last) sequence numbers that are missing.
            now_seconds: Monotonic seconds.

        Returns:
            Stretches by writer, at most 20 in all; the next call returns others.
        """
        self._writers = {writer: asked for writer, asked in self._writers.items() if writer in gaps}
        due: dict[str, list[_Stretch]] = {}
        left = _MOST_STRETCHES
        for writer, stretches in gaps.items():
            asked = self._writers.setdefault(writer, _Asked(stretches))
            if left == 0 or now_seconds < asked.next_seconds:
                continue
            if asked.stretches != stretches:
                asked.stretches, asked.attempts = stretches, 0
                asked.cursor = min(asked.cursor, stretches[-1][0])
            due[writer] = asked.take(left)
            left -= len(due[writer])
            wait = self.first_seconds * 2.0 ** min(max(0, asked.attempts - 1), 30)
            asked.next_seconds = now_seconds + min(self.longest_seconds, wait)
        return due


class CloudLoggingReader:
    """Read one log of one project, and of one job in it, from a position.

    Args:
        pages: Requests the pages.
        log_id: The log's id, as the recorder was given it.
        job_name: Only entries with this job in their payload; None is every job.
        resource_labels: Only entries with a monitored resource that has one of the values of each of these labels, at
            any severity; None is all entries of severity INFO. All or none of a writer's entries have them.
        start_time_ns: Nothing of this time or older is read; None is all that Cloud Logging keeps.
        position: A result of `position()`, in this process or another.
        overlap_seconds: How far back each read starts.
        sweep_seconds: How often late entries of any age are requested.
        clock_ns: Wall clock, ns.
        clock: Monotonic clock, seconds.

    Attributes:
        skipped: Counts by reason the entries that were read and not yielded.
    """

    def __init__(
        self,
        pages: PageReader,
        log_id: str,
        *,
        job_name: str | None = None,
        resource_labels: Mapping[str, Set[str]] | None = None,
        start_time_ns: int | None = None,
        position: Mapping[str, Any] | None = None,
        overlap_seconds: float = 60.0,
        sweep_seconds: float = 300.0,
        clock_ns: Callable[[], int] = time.time_ns,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.skipped = pages.skipped
        self._pages = pages
        self._log_id, self._job_name = log_id, job_name
        self._resource_labels = resource_labels or {}
        self._selection = log_filter(pages.project, log_id, job_name, resource_labels)
        self._start_ns = start_time_ns
        self._overlap_ns = round(overlap_seconds * _SECOND)
        self._sweep_ns = round(sweep_seconds * _SECOND)
        self._clock_ns, self._clock = clock_ns, clock
        self._gaps = GapSchedule()
        self._reached_ns: int | None = None
        self._swept_ns: int | None = None
        self._seen = SeenSequences()
        # Entries that no journal wrote: insertId -> (timestamp, time received).
        self._others: dict[str, tuple[int, int]] = {}
        self._prune_above = _PRUNE_ABOVE
        if position and position.get("schema") == _POSITION_SCHEMA:
            self._resume(position)

    def read_new(self) -> Iterator[list[LogEntry]]:
        """Yield what was not yielded before, a page at a time. Waits where the budget or the server requires it.

        Stopping between two batches loses nothing: the position has moved as far as was yielded.

        Raises:
            TransportError: Cloud Logging refused or kept failing. The next call continues from there.
        """
        now_ns = self._clock_ns()
        passed_ns = self._horizon_ns(now_ns)
        yield from self._read_onward(passed_ns, now_ns)
        yield from self._read_gaps(now_ns)
        yield from self._read_late(now_ns, passed_ns)
        self._prune()

    def position(self) -> dict[str, Any]:
        """Return how far this reader is, as JSON: another one continues from it."""
        self._prune()
        return {
            "schema": _POSITION_SCHEMA,
            "reached_ns": self._reached_ns,
            "swept_ns": self._swept_ns,
            "seen": self._seen.to_json(),
            "others": {insert_id: list(times) for insert_id, times in self._others.items()},
        }

    def _resume(self, position: Mapping[str, Any]) -> None:
        self._reached_ns = position["reached_ns"]
        self._swept_ns = position["swept_ns"]
        self._seen = SeenSequences.from_json(position["seen"])
        self._others = {insert_id: (times[0], times[1]) for insert_id, times in position["others"].items()}

    # --- What to ask for ------------------------------------------------------------------------------

    def _earliest_ns(self, now_ns: int) -> int:
        return max(0, now_ns - LONGEST_RETENTION_NS) if self._start_ns is None else self._start_ns

    def _horizon_ns(self, now_ns: int) -> int:
        """Return where the next read starts; a writer with a fast clock does not move it beyond our now."""
        if self._reached_ns is None:
            return self._earliest_ns(now_ns)
        return max(self._earliest_ns(now_ns), min(self._reached_ns, now_ns) - self._overlap_ns)

    def _read_onward(self, after_ns: int, now_ns: int) -> Iterator[list[LogEntry]]:
        """Yield everything since the horizon; in slices of time where Cloud Logging cannot search that much."""
        if self._swept_ns is None:
            self._swept_ns = now_ns
        pending = [(after_ns, now_ns + FASTEST_CLOCK_NS)]
        while pending:
            first_ns, last_ns = pending.pop()
            filter_ = entries_filter(self._selection, after_ns=first_ns, until_ns=last_ns)
            try:
                for page in self._pages.pages(filter_, may_narrow=last_ns - first_ns > _NARROWEST_NS):
                    fresh = self._fresh(page)
                    if page.entries:
                        self._reached_ns = max(self._reached_ns or 0, page.entries[-1].timestamp_ns)
                    if fresh:
                        yield fresh
            except QueryTooWideError:
                step_ns = (last_ns - first_ns) // _SLICES + 1
                edges = [min(last_ns, first_ns + step_ns * index) for index in range(_SLICES + 1)]
                pending.extend(reversed(list(itertools.pairwise(edges))))

    def _read_gaps(self, now_ns: int) -> Iterator[list[LogEntry]]:
        """Yield what is missing by the writers' numbers, at any severity; entries of other jobs are only noted."""
        due = self._gaps.due(self._seen.gaps(), self._clock())
        if not due:
            return
        missing = {
            writer: [(make_insert_id(writer, first), make_insert_id(writer, last)) for first, last in stretches]
            for writer, stretches in due.items()
        }
        yield from self._fresh_pages(
            gaps_filter(self._pages.project, self._log_id, missing, after_ns=self._earliest_ns(now_ns))
        )

    def _read_late(self, now_ns: int, passed_ns: int) -> Iterator[list[LogEntry]]:
        """Yield what was received since the last sweep with a timestamp that reads had already passed."""
        swept_ns = self._swept_ns
        if swept_ns is None or now_ns - swept_ns < self._sweep_ns:
            return
        filter_ = late_entries_filter(
            self._selection,
            after_ns=self._earliest_ns(now_ns),
            until_ns=passed_ns,
            received_since_ns=swept_ns - self._overlap_ns,
        )
        yield from self._fresh_pages(filter_)
        self._swept_ns = now_ns

    # --- What was seen --------------------------------------------------------------------------------

    def _fresh_pages(self, filter_: str) -> Iterator[list[LogEntry]]:
        yield from filter(None, map(self._fresh, self._pages.pages(filter_)))

    def _fresh(self, page: Page) -> list[LogEntry]:
        """Return the page's entries of our log and job that were not seen before; now all of them are."""
        add, others, log_id, job_name = self._seen.add, self._others, self._log_id, self._job_name
        fresh = []
        for index, entry in enumerate(page.entries):
            context = entry.context
            if context.writer is None:
                if entry.foreign_id in others:
                    continue
                others[entry.foreign_id] = (entry.timestamp_ns, page.received_ns(index))
            elif not add(context.writer, entry.sequence):
                continue
            # Filters compare without regard to case, and a gap may be an entry of another job.
            is_ours = context.log_id == log_id and (job_name is None or entry.payload.get("job_name") == job_name)
            if is_ours and (not self._resource_labels or self._has_labels(entry)):
                fresh.append(entry)
            else:
                self.skipped.add("other_job")
        if len(others) > self._prune_above:
            self._prune()
            self._prune_above = 2 * len(others) + _PRUNE_ABOVE
        return fresh

    def _has_labels(self, entry: LogEntry) -> bool:
        return all(entry.resource_label(name) in values for name, values in self._resource_labels.items())

    def _prune(self) -> None:
        """Forget ids that neither the overlap nor a sweep can return again."""
        if self._reached_ns is None or self._swept_ns is None:
            return
        stamped_ns = self._horizon_ns(self._clock_ns())
        received_ns = self._swept_ns - self._overlap_ns
        self._others = {
            insert_id: times
            for insert_id, times in self._others.items()
            if times[0] >= stamped_ns or times[1] >= received_ns
        }
