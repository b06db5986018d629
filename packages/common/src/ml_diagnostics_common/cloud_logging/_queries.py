"""Queries of Cloud Logging, page by page: with retries, within the project's quota, and with an end.

`PageReader` is the only code that requests pages of entries. `QueryReader` reads one query once, as an `EntryReader`;
`CloudLoggingReader` reads a whole log and continues from a position.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from typing import Any

from ml_diagnostics_common.backoff import Backoff, EndlessListError, PageTokens, RequestBudget, Retries
from ml_diagnostics_common.cloud_logging._transport import PAGE_SIZE, LoggingTransport, Page, TransportError
from ml_diagnostics_common.entry import LogEntry
from ml_diagnostics_common.failures import Kind
from ml_diagnostics_common.guard import Counters, job_logger

__all__ = ["PageReader", "QueryReader", "QueryTooWideError"]

_logger = job_logger("ml_diagnostics")

_OLDEST_FIRST, _NEWEST_FIRST = "timestamp asc", "timestamp desc"
_REQUESTS_PER_MINUTE = 50  # A project's default quota is 60.
_FAILURES_BEFORE_NARROWING = 2
_MOST_UNREADABLE = 100_000


class QueryTooWideError(Exception):
    """Cloud Logging cannot search this much time within its own deadline."""


class PageReader:
    """Read the pages of queries.

    Args:
        transport: The connection to Cloud Logging.
        budget: Limits requests; shared by the readers of one project. None limits this reader alone to 50 a minute.
        timeout_seconds: The deadline of one request.
        patience_seconds: How long requests for one page may fail before the read gives up; waits for the budget do not
            count.
        clock: Monotonic clock, seconds.
        sleep: Waits a number of seconds.

    Attributes:
        skipped: Counts by reason entries that cannot be yielded. An undecodable entry counts once, although several
            queries may return it.
    """

    def __init__(
        self,
        transport: LoggingTransport,
        *,
        budget: RequestBudget | None = None,
        timeout_seconds: float = 30.0,
        patience_seconds: float = 300.0,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.project = transport.project
        self.skipped = Counters()
        self._transport = transport
        self._budget = budget or RequestBudget(_REQUESTS_PER_MINUTE, clock=clock, sleep=sleep)
        self._timeout_seconds = timeout_seconds
        self._patience_seconds = patience_seconds
        self._clock, self._sleep = clock, sleep
        self._unreadable: set[int] = set()

    def pages(self, filter_: str, *, newest_first: bool = False, may_narrow: bool = False) -> Iterator[Page]:
        """Yield the pages of a query in the order of time, forward or backward.

        Args:
            filter_: The filter; nothing is added to it.
            newest_first: True to read backward.
            may_narrow: True if the caller can request less time instead.

        Raises:
            QueryTooWideError: Cloud Logging cannot search this much time, and `may_narrow` is set.
            TransportError: Cloud Logging refused or kept failing. UNAVAILABLE also if a page token repeats, or if 100
                pages in a row have no entry, or only entries of the stretch of time that was read before.
        """
        token, tokens = "", PageTokens()
        first_ns = last_ns = None
        while True:
            page = self._request(filter_, _NEWEST_FIRST if newest_first else _OLDEST_FIRST, token, may_narrow)
            self._count_unreadable(page)
            yield page
            has_news = False
            if page.entries:
                end_ns = page.entries[-1].timestamp_ns
                has_news = first_ns is None or last_ns is None or not first_ns <= end_ns <= last_ns
                first_ns = end_ns if first_ns is None else min(first_ns, end_ns)
                last_ns = end_ns if last_ns is None else max(last_ns, end_ns)
            try:
                token = tokens.next(page.next_page_token, has_news=has_news)
            except EndlessListError as error:
                raise TransportError("UNAVAILABLE", str(error)) from error
            if not token:
                return

    def _count_unreadable(self, page: Page) -> None:
        for number in page.unreadable:
            if number not in self._unreadable and len(self._unreadable) < _MOST_UNREADABLE:
                self._unreadable.add(number)
                self.skipped.add("undecodable_entry")

    def _request(self, filter_: str, order_by: str, token: str, may_narrow: bool) -> Page:
        """Return one page, with retries until the query proves too wide or patience ends."""
        deadline = self._clock() + self._patience_seconds
        retries = Retries(
            Backoff(longest_seconds=64.0), seconds_left=lambda: deadline - self._clock(), sleep=self._sleep
        )

        def list_page() -> Page:
            nonlocal deadline
            waited = self._budget.spend()
            deadline += waited
            if waited > 1:
                _logger.info("waited %.0f s: reading Cloud Logging keeps to the project's quota", waited)
            try:
                return self._transport.list_page(
                    filter_,
                    order_by=order_by,
                    page_size=PAGE_SIZE,
                    page_token=token,
                    timeout_seconds=self._timeout_seconds,
                )
            except TransportError as error:
                is_too_wide = _refused_as_too_wide(error)
                is_slow = error.kind is Kind.TIMEOUT and retries.failures + 1 >= _FAILURES_BEFORE_NARROWING
                if may_narrow and (is_too_wide or is_slow):
                    raise QueryTooWideError from error
                if is_too_wide:
                    error.code = "DEADLINE_EXCEEDED"  # Temporary, unlike the code that the API sends.
                raise

        return retries(list_page)


def _refused_as_too_wide(error: TransportError) -> bool:
    """Return True for the API's "400 timeout": seen on wide queries of busy projects although the filter is right."""
    text = error.message.lower()
    return error.code == "INVALID_ARGUMENT" and ("timeout" in text or "deadline" in text or "timed out" in text)


class QueryReader:
    """Read one query once, as an `EntryReader`.

    Args:
        pages: Requests the pages.
        filter_: The whole filter.
        newest_pages: Read only so many pages, the newest; 0 reads all.
        on_cut: Called if there are more pages than that.
    """

    def __init__(
        self, pages: PageReader, filter_: str, *, newest_pages: int = 0, on_cut: Callable[[], None] | None = None
    ) -> None:
        self._pages, self._filter = pages, filter_
        self._newest_pages, self._on_cut = newest_pages, on_cut

    def read_new(self) -> Iterator[list[LogEntry]]:
        """Yield the entries in the order of time; those of `newest_pages` after the last, or a failure."""
        if not self._newest_pages:
            yield from filter(None, (page.entries for page in self._pages.pages(self._filter)))
            return
        pages = self._pages.pages(self._filter, newest_first=True)
        newest: list[Page] = []
        failure: TransportError | None = None
        try:
            for page in itertools.islice(pages, self._newest_pages):
                newest.append(page)  # A list() of them would lose the pages before a failure.
        except TransportError as error:
            failure = error
        if self._on_cut is not None and failure is None and newest[-1].next_page_token:
            self._on_cut()
        for page in reversed(newest):
            if page.entries:
                yield page.entries[::-1]
        if failure is not None:
            raise failure

    def position(self) -> dict[str, Any]:
        """Return nothing: a query is not continued."""
        return {}
