"""Cloud Logging as an `EntryReader`: every entry of a log once, however late it arrives, within a quota.

Entries come in the order of their timestamps, page by page. An entry that arrives late is yielded when it is
found, after younger ones; whoever folds entries must take them in any order, as a ledger does. Late ones are
found by

* the overlap: each read begins `overlap_seconds` before the newest entry of the last one;
* gaps: our entries carry their writer and number, and a number that was passed over is asked for by name;
* the sweep: every few minutes, whatever Cloud Logging has received since the last sweep, however old its
  timestamp. A job killed last week may have its rest shipped today.

Duplicates are told by insertId: exactly and for ever for entries that came through a journal, by a window of
ids for entries of other writers (the reference's, Orbax's), which are read as well.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ml_diagnostics_common.backoff import Backoff, RequestBudget, Retries
from ml_diagnostics_common.cloud_logging.filters import (
    ORDER,
    entries_filter,
    gaps_filter,
    late_entries_filter,
    log_filter,
)
from ml_diagnostics_common.cloud_logging.gaps import GapSchedule
from ml_diagnostics_common.cloud_logging.pages import pages
from ml_diagnostics_common.cloud_logging.transport import PAGE_SIZE, LoggingTransport, Page, TransportError
from ml_diagnostics_common.entry import LogEntry, SeenSequences, make_insert_id
from ml_diagnostics_common.failures import Kind
from ml_diagnostics_common.guard import Counters, job_logger

__all__ = ["CloudLoggingReader"]

_logger = job_logger("ml_diagnostics")

_SECOND = 1_000_000_000
_LONGEST_RETENTION_NS = 3650 * 86_400 * _SECOND
_FAST_CLOCKS_NS = 3_600 * _SECOND
_SLICES = 8
_NARROWEST_NS = 600 * _SECOND
_ANSWERS_BEFORE_NARROWING = 2
_PRUNE_ABOVE = 20_000
_MOST_UNREADABLE = 100_000
_POSITION_SCHEMA = 1


class CloudLoggingReader:
    """Reads one log of one project, and of one job in it, from where a position left off.

    Args:
        transport: How Cloud Logging is reached.
        project: The project's id.
        log_id: The log's id, as the recorder was given it.
        job_name: Only entries whose payload names this job; None is every job.
        resource_labels: Only entries whose monitored resource has these labels, at any severity; None is all
            entries of severity INFO. All or none of a writer's entries have them.
        start_time_ns: Nothing of this time or older is read; None is all that Cloud Logging keeps.
        position: What `position()` returned, in this process or another.
        requests_per_minute: The most read requests in any minute; a project's default quota is 60.
        budget: Shared by several readers of one project, in place of `requests_per_minute`.
        overlap_seconds: How far back each read begins.
        sweep_seconds: How often late entries of any age are looked for.
        timeout_seconds: The deadline of one request.
        patience_seconds: How long requests may fail before the read gives up.
        clock_ns: Wall clock, ns.
        clock: Monotonic clock, seconds.
        sleep: Waits a number of seconds.

    Attributes:
        skipped: Entries that were read and not yielded, by reason.
    """

    def __init__(
        self,
        transport: LoggingTransport,
        project: str,
        log_id: str,
        *,
        job_name: str | None = None,
        resource_labels: Mapping[str, str] | None = None,
        start_time_ns: int | None = None,
        position: Mapping[str, Any] | None = None,
        requests_per_minute: int = 50,
        budget: RequestBudget | None = None,
        overlap_seconds: float = 60.0,
        sweep_seconds: float = 300.0,
        timeout_seconds: float = 30.0,
        patience_seconds: float = 300.0,
        clock_ns: Callable[[], int] = time.time_ns,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.skipped = Counters()
        self._transport = transport
        self._project, self._log_id, self._job_name = project, log_id, job_name
        self._resource_labels = resource_labels
        self._selection = log_filter(project, log_id, job_name, resource_labels)
        self._start_ns = start_time_ns
        self._budget = budget or RequestBudget(requests_per_minute, clock=clock, sleep=sleep)
        self._overlap_ns = round(overlap_seconds * _SECOND)
        self._sweep_ns = round(sweep_seconds * _SECOND)
        self._timeout_seconds = timeout_seconds
        self._patience_seconds = patience_seconds
        self._clock_ns, self._clock, self._sleep = clock_ns, clock, sleep
        self._gaps = GapSchedule()
        self._reached_ns: int | None = None
        self._swept_ns: int | None = None
        self._seen = SeenSequences()
        # Of entries that no journal wrote: insertId -> (timestamp, time received).
        self._others: dict[str, tuple[int, int]] = {}
        self._prune_above = _PRUNE_ABOVE
        self._unreadable: set[int] = set()  # The overlap brings them again; each counts once.
        if position and position.get("schema") == _POSITION_SCHEMA:
            self._resume(position)

    def read_new(self) -> Iterator[list[LogEntry]]:
        """Yields what was not yielded before, a page at a time. Waits where the budget or the server says so.

        Stopping between two batches loses nothing: the position has moved as far as was yielded.

        Raises:
            TransportError: Cloud Logging refused, or kept failing. The next call goes on from there.
        """
        now_ns = self._clock_ns()
        passed_ns = self._horizon_ns(now_ns)
        yield from self._read_onward(passed_ns, now_ns)
        yield from self._read_gaps(now_ns)
        yield from self._read_late(now_ns, passed_ns)
        self._prune()

    def position(self) -> dict[str, Any]:
        """How far this reader has come, as JSON: another one that is given it goes on from there."""
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
        return max(0, now_ns - _LONGEST_RETENTION_NS) if self._start_ns is None else self._start_ns

    def _horizon_ns(self, now_ns: int) -> int:
        """Where the next read begins; a writer whose clock is fast does not move it beyond our now."""
        if self._reached_ns is None:
            return self._earliest_ns(now_ns)
        return max(self._earliest_ns(now_ns), min(self._reached_ns, now_ns) - self._overlap_ns)

    def _read_onward(self, after_ns: int, now_ns: int) -> Iterator[list[LogEntry]]:
        """Everything since the horizon; in slices of time where Cloud Logging cannot search that much."""
        if self._swept_ns is None:
            self._swept_ns = now_ns
        pending = [(after_ns, now_ns + _FAST_CLOCKS_NS)]
        while pending:
            first_ns, last_ns = pending.pop()
            wide = last_ns - first_ns > _NARROWEST_NS
            try:
                for page in self._pages(
                    entries_filter(self._selection, after_ns=first_ns, until_ns=last_ns), wide=wide
                ):
                    fresh = self._fresh(page)
                    if page.entries:
                        self._reached_ns = max(self._reached_ns or 0, page.entries[-1].timestamp_ns)
                    if fresh:
                        yield fresh
            except _TooWideError:
                step_ns = (last_ns - first_ns) // _SLICES + 1
                edges = [min(last_ns, first_ns + step_ns * index) for index in range(_SLICES + 1)]
                pending.extend(reversed(list(itertools.pairwise(edges))))

    def _read_gaps(self, now_ns: int) -> Iterator[list[LogEntry]]:
        """What writers' numbers say is missing, at any severity; entries of other jobs are only noted."""
        due = self._gaps.due(self._seen.gaps(), self._clock())
        if not due:
            return
        missing = {
            writer: [(make_insert_id(writer, first), make_insert_id(writer, last)) for first, last in stretches]
            for writer, stretches in due.items()
        }
        earliest_ns = self._earliest_ns(now_ns)
        for page in self._pages(gaps_filter(self._project, self._log_id, missing, after_ns=earliest_ns)):
            fresh = self._fresh(page)
            if fresh:
                yield fresh

    def _read_late(self, now_ns: int, passed_ns: int) -> Iterator[list[LogEntry]]:
        """What was received since the last sweep with a timestamp that reads had already passed."""
        swept_ns = self._swept_ns
        if swept_ns is None or now_ns - swept_ns < self._sweep_ns:
            return
        filter_ = late_entries_filter(
            self._selection,
            after_ns=self._earliest_ns(now_ns),
            until_ns=passed_ns,
            received_since_ns=swept_ns - self._overlap_ns,
        )
        for page in self._pages(filter_):
            fresh = self._fresh(page)
            if fresh:
                yield fresh
        self._swept_ns = now_ns

    # --- What was seen --------------------------------------------------------------------------------

    def _fresh(self, page: Page) -> list[LogEntry]:
        """The page's entries of our log and job that were not seen before; now all of them are."""
        for number in page.unreadable:
            if number not in self._unreadable and len(self._unreadable) < _MOST_UNREADABLE:
                self._unreadable.add(number)
                self.skipped.add("undecodable_entry")
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
            if is_ours and (self._resource_labels is None or self._has_labels(entry)):
                fresh.append(entry)
            else:
                self.skipped.add("other_job")
        if len(others) > self._prune_above:
            self._prune()
            self._prune_above = 2 * len(others) + _PRUNE_ABOVE
        return fresh

    def _has_labels(self, entry: LogEntry) -> bool:
        wanted = self._resource_labels or {}
        return all(entry.resource_label(name) == value for name, value in wanted.items())

    def _prune(self) -> None:
        """Forgets ids that neither the overlap nor a sweep can bring again."""
        if self._reached_ns is None or self._swept_ns is None:
            return
        stamped_ns = self._horizon_ns(self._clock_ns())
        received_ns = self._swept_ns - self._overlap_ns
        self._others = {
            insert_id: times
            for insert_id, times in self._others.items()
            if times[0] >= stamped_ns or times[1] >= received_ns
        }

    # --- Requests -------------------------------------------------------------------------------------

    def _pages(self, filter_: str, *, wide: bool = False) -> Iterator[Page]:
        yield from pages(lambda token: self._request(filter_, token, wide))

    def _request(self, filter_: str, token: str, wide: bool) -> Page:
        """Return one page, with retries until the query proves too wide or patience ends."""
        deadline = self._clock() + self._patience_seconds
        retries = Retries(
            Backoff(longest_seconds=64.0), seconds_left=lambda: deadline - self._clock(), sleep=self._sleep
        )

        def list_page() -> Page:
            waited = self._budget.spend()
            if waited > 1:
                _logger.info("waited %.0f s: reading Cloud Logging keeps to the project's quota", waited)
            try:
                return self._transport.list_page(
                    filter_,
                    order_by=ORDER,
                    page_size=PAGE_SIZE,
                    page_token=token,
                    timeout_seconds=self._timeout_seconds,
                )
            except TransportError as error:
                narrow = _refused_as_too_wide(error)
                slow = error.kind is Kind.TIMEOUT and retries.failures + 1 >= _ANSWERS_BEFORE_NARROWING
                if wide and (narrow or slow):
                    raise _TooWideError from error
                if narrow:
                    error.code = "DEADLINE_EXCEEDED"
                raise

        return retries(list_page)


class _TooWideError(Exception):
    """Cloud Logging could not search such a stretch of time within its own deadline."""


def _refused_as_too_wide(error: TransportError) -> bool:
    """The API's "400 timeout": seen on wide queries of busy projects, with nothing wrong in the filter."""
    text = error.message.lower()
    return error.code == "INVALID_ARGUMENT" and ("timeout" in text or "deadline" in text or "timed out" in text)
