"""The pages of one query, with an end to those that would be followed for ever."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ml_diagnostics_common.cloud_logging.transport import Page, TransportError
from ml_diagnostics_common.paging import EndlessListError, PageTokens

__all__ = ["pages"]


def pages(request: Callable[[str], Page]) -> Iterator[Page]:
    """Yield the pages of a query in the order of time, forward or backward.

    Args:
        request: Returns the page of a token; that of the first page is empty.

    Raises:
        TransportError: UNAVAILABLE, if a page token repeats, or if 100 pages in a row have no entry, or only entries
            of the stretch of time that was read before.
    """
    token, tokens = "", PageTokens()
    first_ns = last_ns = None
    while True:
        page = request(token)
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
