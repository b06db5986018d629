"""The interface to Cloud Logging: a call that writes, a call that reads a page, and their error.

A call has a deadline and is made once. The shipper and the readers decide about retries, since they know what may wait.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from ml_diagnostics_common.entry import LogEntry
from ml_diagnostics_common.exceptions import CloudLoggingError
from ml_diagnostics_common.failures import RemoteError, status_error

__all__ = [
    "PAGE_SIZE",
    "LoggingTransport",
    "Page",
    "TransportError",
    "entry_error",
]

PAGE_SIZE = 1000
"""The largest page that Cloud Logging serves; the quota counts requests, so readers request no smaller pages."""

_REFUSED = frozenset({"INVALID_ARGUMENT", "FAILED_PRECONDITION", "OUT_OF_RANGE"})


class TransportError(RemoteError, CloudLoggingError):
    """One request to Cloud Logging failed.

    Attributes:
        entry_errors: The entries of a batch that were not written, by index, and why; all others were. The server
            sends the index: it may be one that was not sent. Empty if the request failed as a whole.
    """

    service = "Cloud Logging"

    def __init__(
        self,
        code: str,
        message: str,
        *,
        retry_after_seconds: float | None = None,
        entry_errors: Mapping[int, TransportError] | None = None,
    ) -> None:
        super().__init__(code, message, retry_after_seconds=retry_after_seconds)
        self.entry_errors = dict(entry_errors or {})

    @property
    def refuses_entries(self) -> bool:
        """True if the server will never accept the entries as they are, or one of them."""
        return self.code in _REFUSED


def entry_error(number: object, message: object, retry_after_seconds: float | None) -> TransportError:
    """Return the error for one entry of a batch.

    Args:
        number: Its code in google.rpc.Code.
        message: The server's message.
        retry_after_seconds: The delay that the server asks for, for the whole batch.
    """
    return TransportError(status_error(number, "").code, str(message or ""), retry_after_seconds=retry_after_seconds)


class Page(NamedTuple):
    """One page of entries.

    Attributes:
        entries: The entries in the order of the server.
        next_page_token: The token of the next page; empty on the last.
        received_ns: Return when Cloud Logging received the entry with an index; the entry's own time if it is not
            known. A function, because few of these times are needed.
        unreadable: For each entry of the page that cannot be decoded, a number that is the same when it is read again.
    """

    entries: list[LogEntry]
    next_page_token: str
    received_ns: Callable[[int], int]
    unreadable: Sequence[int] = ()


class LoggingTransport(Protocol):
    """Cloud Logging over one protocol, for one project. A transport is used by one thread at a time.

    Attributes:
        project: The project's id.
        principal: The account that writes and reads, for messages; None if it is not known.
    """

    project: str
    principal: str | None

    def write(self, entries: Sequence[Mapping[str, Any]], *, timeout_seconds: float) -> None:
        """Write a batch; an entry that the server refuses does not keep the others from being written.

        Args:
            entries: LogEntry resources as the REST API takes them.
            timeout_seconds: The deadline of the call.

        Raises:
            TransportError: The batch, or with `entry_errors` a part of it, was not written.
        """

    def list_page(
        self, filter_: str, *, order_by: str, page_size: int, page_token: str = "", timeout_seconds: float
    ) -> Page:
        """Read one page of the project's entries.

        Args:
            filter_: The complete filter.
            order_by: "timestamp asc" or "timestamp desc".
            page_size: Entries in a page, at most 1000.
            page_token: The `next_page_token` of the previous page.
            timeout_seconds: The deadline of the call.

        Raises:
            TransportError: The page was not read.
        """

    def close(self) -> None:
        """Close the connections."""
