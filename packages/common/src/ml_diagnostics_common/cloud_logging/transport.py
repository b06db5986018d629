"""The seam between us and Cloud Logging: one call that writes, one that reads a page, one kind of error.

A call has a deadline and is made once. Whether to try again, and when, is the caller's to decide: the shipper
and the reader know what may wait, a transport does not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from ml_diagnostics_common.entry import LogEntry
from ml_diagnostics_common.exceptions import CloudLoggingError

__all__ = [
    "PAGE_SIZE",
    "EntryError",
    "LoggingTransport",
    "Page",
    "TransportError",
]

PAGE_SIZE = 1000
"""The largest page that Cloud Logging serves; the quota counts requests, so nothing smaller is asked for."""

_RETRYABLE = frozenset({"UNAVAILABLE", "DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED", "INTERNAL", "ABORTED", "UNKNOWN"})
_ACCESS = frozenset({"UNAUTHENTICATED", "PERMISSION_DENIED", "NOT_FOUND"})


@dataclass(frozen=True)
class EntryError:
    """Why one entry of a batch was refused.

    Attributes:
        code: The code of google.rpc.Code by name, such as INVALID_ARGUMENT.
        message: What the server said.
    """

    code: str
    message: str


class TransportError(CloudLoggingError):
    """One request to Cloud Logging failed.

    Attributes:
        code: The code of google.rpc.Code by name, such as UNAVAILABLE, from HTTP and gRPC alike.
        message: What the server, or the connection, said.
        retry_after_seconds: How long the server asks us to wait; None when it does not say.
        entry_errors: For a write that did the rest of its batch: why an entry was refused, by its index. The server
            chooses the index: it may be one that was not sent.
    """

    def __init__(
        self,
        code: str,
        message: str,
        *,
        retry_after_seconds: float | None = None,
        entry_errors: Mapping[int, EntryError] | None = None,
    ) -> None:
        super().__init__(f"Cloud Logging answered {code}: {message}")
        self.code = code
        self.message = message
        self.retry_after_seconds = retry_after_seconds
        self.entry_errors = dict(entry_errors or {})

    @property
    def retryable(self) -> bool:
        """Whether the same request may do better later with nothing changed by anyone."""
        return self.code in _RETRYABLE

    @property
    def access(self) -> bool:
        """Whether a person must mend it: no credentials, no permission, or no such project."""
        return self.code in _ACCESS


class Page(NamedTuple):
    """One page of entries.

    Attributes:
        entries: The entries in the order of the server.
        next_page_token: Asks for the page after this one; empty on the last.
        received_ns: When Cloud Logging received the entry of an index, the entry's own time where it does not
            say. A function, because few entries are asked.
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
        principal: The account that writes and reads, where it is known, for messages.
    """

    project: str
    principal: str | None

    def write(self, entries: Sequence[Mapping[str, Any]], *, timeout_seconds: float) -> None:
        """Writes a batch; what the server refuses does not keep the rest of the batch from being written.

        Args:
            entries: LogEntry resources as the REST API takes them.
            timeout_seconds: The deadline of the call.

        Raises:
            TransportError: The batch, or with `entry_errors` a part of it, was not written.
        """

    def list_page(
        self, filter_: str, *, order_by: str, page_size: int, page_token: str = "", timeout_seconds: float
    ) -> Page:
        """Reads one page of the project's entries.

        Args:
            filter_: The filter; nothing is added to it.
            order_by: "timestamp asc" or "timestamp desc".
            page_size: Entries a page, at most 1000.
            page_token: The `next_page_token` of the page before.
            timeout_seconds: The deadline of the call.

        Raises:
            TransportError: The page was not read.
        """

    def close(self) -> None:
        """Gives up the connections."""
