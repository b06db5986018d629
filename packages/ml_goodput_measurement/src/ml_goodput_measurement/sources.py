"""Where a calculator's payloads come from: the journal and Cloud Logging, or an object of the user's."""

from __future__ import annotations

import datetime
import operator
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from ml_diagnostics_common.entry import EntryContext, LogEntry
from ml_diagnostics_common.environment import Backend, configured_backend
from ml_diagnostics_common.exceptions import CloudLoggingError, CredentialsError, MissingExtraError
from ml_diagnostics_common.guard import job_logger
from ml_diagnostics_common.reader import EntryReader, JournalReader, UnionReader

from ml_goodput_measurement._ledger.events import LOGGED_AFTER, LOGGED_AT
from ml_goodput_measurement._ledger.writers import Writer
from ml_goodput_measurement._query.entry_time import get_timestamp_from_log_entry

if TYPE_CHECKING:
    from ml_diagnostics_common.cloud_logging import LoggingTransport

__all__ = ["LogSource", "PayloadSource", "UserLogger", "UserLoggerSource"]

_context_of = operator.attrgetter("context")
_log = job_logger("ml_diagnostics.goodput")

Payloads = list[dict[str, Any]]

_PATIENCE_SECONDS = 30.0
"""A query does not wait longer for a cloud that fails; what it has by then counts."""
_REST_SECONDS = 60.0


class UserLogger(Protocol):
    """What `cloud_logger=` takes: an object of the user's that holds the payloads."""

    def read_cloud_logging_entries(
        self, start_time: datetime.datetime | None, end_time: datetime.datetime | None, last_entry_info: Any
    ) -> tuple[Payloads, tuple[Any, Any]]:
        """Returns payloads, and (timestamp, id) of the last one, which the next call is given."""
        ...


class PayloadSource(Protocol):
    """Yields payloads that it did not yield before."""

    def read_new(self, *, local_only: bool = False) -> Iterator[tuple[Writer, Payloads]]:
        """Yield payloads by the writer that recorded them, a part at a time.

        Args:
            local_only: Whether to wait for no network.
        """
        ...

    def position(self) -> dict[str, Any] | None:
        """Returns what was read so far, as JSON, or None when that cannot be said."""
        ...

    def notes(self) -> list[str]:
        """Says what could not be read."""
        ...

    def searched(self) -> str:
        """Says where payloads are looked for, to somebody who found none."""
        ...


class UserLoggerSource:
    """Reads an object of the user's."""

    def __init__(self, logger: UserLogger) -> None:
        """Reads nothing yet."""
        self._logger = logger
        self._last_entry: tuple[Any, Any] | None = None
        self.error: Exception | None = None
        """What the object raised last."""
        self._last_seconds: float | None = None
        """The time of the last payload that has one."""

    def read_new(self, *, local_only: bool = False) -> Iterator[tuple[Writer, Payloads]]:
        """See `PayloadSource`; what the object does is its own affair."""
        try:
            payloads, last_entry = self._logger.read_cloud_logging_entries(None, None, self._last_entry)
        except Exception as error:
            self.error = error
            raise
        if last_entry and tuple(last_entry) != (None, None):
            self._last_entry = tuple(last_entry)
        yield Writer(), self._with_times(payloads if isinstance(payloads, list) else list(payloads))

    def _with_times(self, payloads: list[Any]) -> Payloads:
        """Return payloads, where each untimed checkpoint operation has the time of what was logged before it."""
        # Most of millions of payloads are steps: nothing is called for them, and nothing is copied.
        events = [
            index for index, payload in enumerate(payloads) if isinstance(payload, dict) and "event_type" in payload
        ]
        operations = [index for index in events if _is_untimed(payloads[index])]
        timed, searched = payloads.copy() if operations else payloads, 0
        for index in (*operations, len(payloads)):
            self._last_seconds = _last_seconds(payloads, searched, index, self._last_seconds)
            searched = index
            if index < len(payloads) and self._last_seconds is not None:
                timed[index] = {**payloads[index], LOGGED_AFTER: self._last_seconds}
        return timed

    def position(self) -> None:
        """See `PayloadSource`; the ids may be anything, so nothing is kept."""

    def notes(self) -> list[str]:
        """See `PayloadSource`."""
        return []

    def searched(self) -> str:
        """See `PayloadSource`."""
        return f"the cloud_logger that was given, a {type(self._logger).__name__}"


class LogSource:
    """Reads a log: the union of the journal on this machine and of Cloud Logging, where there is one."""

    def __init__(
        self,
        log_id: str,
        job_name: str,
        *,
        root: Path,
        start_ns: int | None = None,
        patience_seconds: float | None = None,
    ) -> None:
        """Looks for no cloud yet: that is left to the first query.

        Args:
            log_id: The log's name.
            job_name: The job; only its entries are asked of Cloud Logging.
            root: The diagnostics folder.
            start_ns: Nothing older is asked of Cloud Logging; None is all that it keeps.
            patience_seconds: How long one read waits for a cloud that fails or does not answer; None is a usual time.

        Raises:
            ConfigurationError: ML_DIAGNOSTICS_BACKEND has a value that is none.
            CredentialsError: It is `cloud`, and there is no project or no credentials.
        """
        self._log_id, self._job_name, self._root = log_id, job_name, root
        backend = configured_backend()
        self._cloud: _Cloud | None = None
        if backend is not Backend.LOCAL:
            self._cloud = _Cloud(log_id, job_name, start_ns, patience_seconds or _PATIENCE_SECONDS)
        if self._cloud is not None and backend is Backend.CLOUD:
            self._cloud.connect()
        self.resume({})

    def project(self) -> str:
        """Returns the project whose Cloud Logging is read, or an empty text. May wait a second for an answer."""
        return self._cloud.project if self._cloud is not None and self._cloud.is_there() else ""

    def resume(self, position: Mapping[str, Any]) -> None:
        """Goes on from the position of an earlier source of the same log and project."""
        self._journal = JournalReader(self._log_id, root=self._root, position=position.get("journal"))
        self._union: UnionReader | None = None
        if self._cloud is not None:
            self._cloud.resume(position.get("cloud"))
            self._union = UnionReader([self._journal, self._cloud], position=position.get("union"))

    def read_entries(self) -> Iterator[list[LogEntry]]:
        """Yields entries that were not yielded before. Where Cloud Logging fails, what the journal has is there."""
        reader: EntryReader = self._journal
        if self._cloud is not None and self._union is not None and self._cloud.is_there():
            reader = self._union
        return reader.read_new()

    def read_new(self, *, local_only: bool = False) -> Iterator[tuple[Writer, Payloads]]:
        """See `PayloadSource`."""
        if self._cloud is not None:
            self._cloud.is_asked = not local_only
        for entries in self.read_entries():
            yield from _by_writer(entries)

    def position(self) -> dict[str, Any]:
        """See `PayloadSource`."""
        position = {"journal": self._journal.position()}
        if self._cloud is not None and self._union is not None:
            position |= {"cloud": self._cloud.position(), "union": self._union.position()}
        return position

    def save_position(self) -> None:
        """Tells the journal what is not needed again."""
        try:
            self._journal.save_position(f"goodput {self._job_name}", job=self._job_name)
        except OSError as error:
            _log.warning("How far goodput of %s was read could not be saved: %s", self._job_name, error)

    def notes(self) -> list[str]:
        """See `PayloadSource`."""
        skipped = Counter(self._journal.skipped)
        notes = []
        if self._cloud is not None:
            skipped.update(self._cloud.skipped)
            notes += [self._cloud.trouble] if self._cloud.trouble else []
        damaged = skipped.pop("damaged_header", 0)
        if damaged:
            files = "1 file" if damaged == 1 else f"{damaged} files"
            notes.append(f"{files} of the journal with a damaged header: labels of entries may be lost")
        return notes + [f"{count} lines were passed over: {reason}" for reason, count in sorted(skipped.items())]

    def searched(self) -> str:
        """See `PayloadSource`."""
        journal = f"the journal in {self._root}"
        if self._cloud is None:
            return f"{journal}; not Cloud Logging, because ML_DIAGNOSTICS_BACKEND is local"
        if self._cloud.absence:
            return f"{journal}; not Cloud Logging, because {self._cloud.absence}"
        return f"{journal}, and Cloud Logging"


class _Cloud:
    """The part of a log that is in Cloud Logging; it may not be there, and it may fail."""

    def __init__(self, log_id: str, job_name: str, start_ns: int | None, patience_seconds: float) -> None:
        self.project = ""
        self.is_asked = True
        """False where the next read is to wait for no network."""
        self._patience_seconds = patience_seconds
        self.trouble: str | None = None
        """What went wrong with the last read."""
        self.absence: str | None = None
        """Why there is no cloud to read, if there is none."""
        self._log_id, self._job_name, self._start_ns = log_id, job_name, start_ns
        self._position: Mapping[str, Any] | None = None
        self._transport: LoggingTransport | None = None
        self._reader: EntryReader | None = None
        self._rests_until = 0.0

    def is_there(self) -> bool:
        """Whether a cloud is found; asked for anew at most once a minute."""
        if self._transport is None and time.monotonic() >= self._rests_until:
            try:
                self.connect()
            except (CredentialsError, MissingExtraError) as error:
                self._rest()
                self.absence = str(error)
                _log.info("goodput of %s is read from the journal alone: %s", self._job_name, error)
        return self._transport is not None

    def connect(self) -> None:
        """Finds a cloud, or raises."""
        from ml_diagnostics_common.cloud_logging import make_transport
        from ml_diagnostics_common.credentials import find_cloud

        cloud = find_cloud()
        self._transport, self.project, self.absence = make_transport(cloud), cloud.project, None

    def resume(self, position: Mapping[str, Any] | None) -> None:
        """Goes on from the position of an earlier reader of the same project."""
        self._position, self._reader = position, None

    def read_new(self) -> Iterator[list[LogEntry]]:
        """See `EntryReader`; after a failure it is left in peace for a minute."""
        if self._transport is None or not self.is_asked or time.monotonic() < self._rests_until:
            return
        if self._reader is None:
            from ml_diagnostics_common.cloud_logging import CloudLoggingReader

            self._reader = CloudLoggingReader(
                self._transport,
                self.project,
                self._log_id,
                job_name=self._job_name,
                start_time_ns=self._start_ns,
                position=self._position,
                timeout_seconds=self._patience_seconds,
                patience_seconds=self._patience_seconds,
            )
        try:
            yield from self._reader.read_new()
            self.trouble = None
        except CloudLoggingError as error:
            self._rest()
            self.trouble = f"Cloud Logging could not be read to the end: {error}"
            _log.warning("goodput of %s: %s", self._job_name, self.trouble)

    def position(self) -> dict[str, Any]:
        """See `EntryReader`."""
        return self._reader.position() if self._reader is not None else dict(self._position or {})

    @property
    def skipped(self) -> Mapping[str, int]:
        """See `EntryReader`."""
        return self._reader.skipped if self._reader is not None else {}

    def _rest(self) -> None:
        self._rests_until = time.monotonic() + _REST_SECONDS


def _by_writer(entries: list[LogEntry]) -> Iterator[tuple[Writer, Payloads]]:
    """Yield the payloads of some entries by writer, each writer once."""
    first = entries[0].context
    if list(map(_context_of, entries)).count(first) == len(entries):  # As a single journal's are: soon seen.
        yield _writer(first), [_payload(entry) if "event_type" in entry.payload else entry.payload for entry in entries]
        return
    payloads: dict[Writer, Payloads] = {}
    by_context: dict[int, Payloads] = {}
    for entry in entries:
        context = entry.context
        found = by_context.get(id(context))
        if found is None:
            found = by_context[id(context)] = payloads.setdefault(_writer(context), [])
        found.append(_payload(entry))
    yield from payloads.items()


def _payload(entry: LogEntry) -> dict[str, Any]:
    """Return an entry's payload; that of an untimed checkpoint operation with the entry's time."""
    if _is_untimed(entry.payload):
        return {**entry.payload, LOGGED_AT: entry.timestamp_ns / 1e9}
    return entry.payload


def _is_untimed(payload: object) -> bool:
    """Return True for a checkpoint operation of which no part has a start."""
    return (
        isinstance(payload, dict)
        and "event_type" in payload
        and all(value is None for key, value in payload.items() if str(key).endswith("_start_time"))
    )


def _last_seconds(payloads: list[Any], first: int, stop: int, otherwise: float | None) -> float | None:
    """Return the time of the last payload that has one, of those from `first` to `stop`."""
    for index in range(stop - 1, first - 1, -1):
        moment = get_timestamp_from_log_entry(payloads[index])
        if moment is not None:
            return moment.timestamp()
    return otherwise


def _writer(context: EntryContext) -> Writer:
    labels = context.labels
    text = labels.get("process_index", "")
    return Writer(
        process_index=int(text) if text.isdecimal() and len(text) < 10 else 0,
        name=context.writer or "",
        attempt=labels.get("attempt", ""),
        host=labels.get("host", ""),
        pid=labels.get("pid", ""),
    )
