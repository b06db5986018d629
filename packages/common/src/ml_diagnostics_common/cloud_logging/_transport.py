"""The interface to Cloud Logging: calls that write and read a page, their error, refused batches, an entry's size.

A call has a deadline and is made once. Its callers decide about retries, since they know what may wait.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

from ml_diagnostics_common.entry import LogEntry
from ml_diagnostics_common.exceptions import CloudLoggingError
from ml_diagnostics_common.failures import RemoteError, status_error

__all__ = [
    "CUT_KEY",
    "MOST_PAYLOAD_BYTES",
    "NEVER_TOO_LARGE_BYTES",
    "PAGE_SIZE",
    "BatchWriter",
    "LoggingTransport",
    "Page",
    "TransportError",
    "cut_to_fit",
    "entry_error",
    "payload_bytes",
]

_Encoded: TypeAlias = Mapping[str, Any]

PAGE_SIZE = 1000
"""The largest page that Cloud Logging serves; the quota counts requests, so readers request no smaller pages."""

MOST_PAYLOAD_BYTES = 200 * 1024
"""A larger entry is cut, so that Cloud Logging does not refuse it: https://cloud.google.com/logging/quotas.

Less than the 256 KiB of an entry, which has labels, a resource and names, too."""

NEVER_TOO_LARGE_BYTES = 16 * 1024
"""A payload shorter than this as JSON fits: a digit and its comma become at most twelve bytes of protobuf."""

CUT_KEY = "cut_to_fit"
"""The key, in the payload of an entry that was cut, that describes what was cut."""

_KEPT_BYTES = 1024
_NEVER_CUT = ("job_name",)

_MOST_HALVINGS = 24
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


class BatchWriter:
    """Write batches to one log until each entry was accepted, or refused for good."""

    def __init__(self) -> None:
        self._accepted_any = False

    def write(
        self,
        entries: Sequence[_Encoded],
        write: Callable[[Sequence[_Encoded]], None],
        *,
        before_retry: Callable[[TransportError], None],
    ) -> list[str]:
        """Write a batch; halve it if it is refused as a whole, since one entry may be the reason.

        Args:
            entries: LogEntry resources as the REST API takes them.
            write: Send some of them in one request, as `LoggingTransport.write` does.
            before_retry: Called with a failure that does not refuse entries. If it returns, the unwritten entries are
                sent again; it raises to give up.

        Returns:
            The reasons of the refusals, one per refused entry.

        Raises:
            TransportError: All was refused by a server that has not accepted any entry of this log yet, so that the
                log or the project is refused, not the entries; or there were too many refusals.
        """
        pending = [entries]
        last_refusal: TransportError | None = None
        refused: list[str] = []
        halvings = 0
        while pending:
            part = pending.pop()
            try:
                write(part)
                self._accepted_any = True
            except TransportError as error:
                if not all(0 <= index < len(part) for index in error.entry_errors):
                    message = f"the server refuses entries that were not sent: {error.message}"
                    before_retry(TransportError("UNAVAILABLE", message))
                    pending.append(part)
                elif error.entry_errors:
                    refusals = [cause for cause in error.entry_errors.values() if cause.refuses_entries]
                    last_refusal = refusals[-1] if refusals else last_refusal
                    refused += [cause.message for cause in refusals]
                    self._accepted_any |= len(error.entry_errors) < len(part)
                    temporary = {i: cause for i, cause in error.entry_errors.items() if not cause.refuses_entries}
                    if temporary:
                        before_retry(next(iter(temporary.values())))
                        pending.append([part[index] for index in temporary])
                elif not error.refuses_entries:
                    before_retry(error)
                    pending.append(part)
                elif len(part) == 1:
                    last_refusal = error
                    refused.append(error.message)
                elif halvings == _MOST_HALVINGS:
                    raise  # With so many refusals, the entries are not the reason.
                else:
                    halvings += 1
                    middle = len(part) // 2
                    pending += [part[middle:], part[:middle]]
        if last_refusal is not None and not self._accepted_any:
            raise last_refusal
        return refused


def payload_bytes(value: Any) -> int:
    """Return the size of a value as google.protobuf.Value, within a few percent, rather too large."""
    if isinstance(value, str):
        return len(value.encode("utf-8", "replace")) + 8
    if isinstance(value, Mapping):
        return 8 + sum(len(key.encode("utf-8", "replace")) + 12 + payload_bytes(item) for key, item in value.items())
    if isinstance(value, (list, tuple)):
        return 8 + sum(4 + payload_bytes(item) for item in value)
    return 12


def cut_to_fit(entry: LogEntry, most_bytes: int = MOST_PAYLOAD_BYTES) -> list[str]:
    """Cut an entry's payload, largest values first, until it fits; the payload then has the key `CUT_KEY`.

    Args:
        entry: The entry; its payload is replaced if it is too large.
        most_bytes: The limit of the payload.

    Returns:
        The keys that were cut; empty if the entry fits.
    """
    sizes = {key: payload_bytes(value) + len(key.encode("utf-8", "replace")) for key, value in entry.payload.items()}
    total = payload_bytes(entry.payload)
    if total <= most_bytes:
        return []
    payload, cut = dict(entry.payload), []
    for key in sorted(sizes, key=lambda key: sizes[key], reverse=True):
        if total <= most_bytes - 2 * _KEPT_BYTES:
            break
        if key in _NEVER_CUT:
            continue
        if len(key) > _KEPT_BYTES:
            del payload[key]
            total -= sizes[key]
        else:
            payload[key] = _remainder(payload[key], sizes[key])
            total -= sizes[key] - payload_bytes(payload[key]) - len(key)
        cut.append(key[:_KEPT_BYTES])
    if total > most_bytes:  # Very many small values, or a huge job name: nothing of it can be kept.
        payload = {key: str(payload[key])[:_KEPT_BYTES] for key in _NEVER_CUT if key in payload}
        cut = ["everything"]
    payload[CUT_KEY] = {
        "entry_bytes": payload_bytes(entry.payload),
        "keys": ", ".join(cut)[:_KEPT_BYTES],
        "why": "Cloud Logging takes 256 KiB an entry; the journal has it whole",
    }
    entry.payload = payload
    return cut


def _remainder(value: Any, size_bytes: int) -> str:
    beginning = value[: _KEPT_BYTES // 4] if isinstance(value, str) else ""
    return f"{beginning}... ({size_bytes} bytes cut)"
