"""Where a calculator's payloads come from: the journal and Cloud Logging, or an object of the user's."""

from __future__ import annotations

import datetime
import logging
from collections.abc import Iterator, Mapping
from itertools import groupby
from pathlib import Path
from typing import Any, Protocol

from ml_diagnostics_common.environment import Backend, configured_backend
from ml_diagnostics_common.exceptions import CloudLoggingError, CredentialsError, MissingExtraError
from ml_diagnostics_common.reader import EntryReader, JournalReader, UnionReader

__all__ = ["LogSource", "PayloadSource", "UserLogger", "UserLoggerSource"]

_log = logging.getLogger("ml_diagnostics.goodput")

Payloads = list[dict[str, Any]]


class UserLogger(Protocol):
    """What `cloud_logger=` takes: an object of the user's that holds the payloads."""

    def read_cloud_logging_entries(
        self, start_time: datetime.datetime | None, end_time: datetime.datetime | None, last_entry_info: Any
    ) -> tuple[Payloads, tuple[Any, Any]]:
        """Returns payloads, and (timestamp, id) of the last one, which the next call is given."""
        ...


class PayloadSource(Protocol):
    """Yields payloads that it did not yield before."""

    def read_new(self) -> Iterator[tuple[int, Payloads]]:
        """Yields payloads by the index of the process that recorded them, a part at a time."""
        ...

    def position(self) -> dict[str, Any] | None:
        """Returns what was read so far, as JSON, or None when that cannot be said."""
        ...

    def notes(self) -> list[str]:
        """Says what could not be read."""
        ...


class UserLoggerSource:
    """Reads an object of the user's."""

    def __init__(self, logger: UserLogger) -> None:
        """Reads nothing yet."""
        self._logger = logger
        self._last_entry: tuple[Any, Any] | None = None

    def read_new(self) -> Iterator[tuple[int, Payloads]]:
        """See `PayloadSource`."""
        payloads, last_entry = self._logger.read_cloud_logging_entries(None, None, self._last_entry)
        if last_entry and tuple(last_entry) != (None, None):
            self._last_entry = tuple(last_entry)
        yield 0, payloads

    def position(self) -> None:
        """See `PayloadSource`; the ids may be anything, so nothing is kept."""

    def notes(self) -> list[str]:
        """See `PayloadSource`."""
        return []


class LogSource:
    """Reads a log: the union of the journal on this machine and of Cloud Logging, where there is one."""

    def __init__(
        self,
        log_id: str,
        job_name: str,
        *,
        root: Path,
        start_ns: int | None = None,
        position: Mapping[str, Any] | None = None,
    ) -> None:
        """Looks for no cloud yet: that is left to the first read.

        Args:
            log_id: The log's name.
            job_name: The job; only its entries are asked of Cloud Logging.
            root: The diagnostics folder.
            start_ns: Nothing older is asked of Cloud Logging; None is all that it keeps.
            position: Of an earlier source.

        Raises:
            ConfigurationError: ML_DIAGNOSTICS_BACKEND has a value that is none.
            CredentialsError: It is `cloud`, and there is no project or no credentials.
        """
        self._log_id, self._job_name, self._start_ns = log_id, job_name, start_ns
        self._position = dict(position or {})
        self._journal = JournalReader(log_id, root=root, position=self._position.get("journal"))
        self._reader: EntryReader | None = None
        self._cloud: EntryReader | None = None
        self._trouble: str | None = None
        self._backend = configured_backend()
        if self._backend is Backend.LOCAL:
            self._reader = self._journal
        elif self._backend is Backend.CLOUD:
            self._connect()

    def read_new(self) -> Iterator[tuple[int, Payloads]]:
        """See `PayloadSource`. Where Cloud Logging fails, what the journal has is still there."""
        if self._reader is None:
            self._try_to_connect()
        reader = self._reader or self._journal
        self._trouble = None if self._cloud is not None or self._reader is self._journal else self._trouble
        try:
            for entries in reader.read_new():
                for context, group in groupby(entries, key=_context):
                    yield _process_index(context.labels), [entry.payload for entry in group]
        except CloudLoggingError as error:
            self._trouble = f"Cloud Logging could not be read to the end: {error}"
            _log.warning("goodput of %s: %s", self._job_name, self._trouble)

    def position(self) -> dict[str, Any]:
        """See `PayloadSource`."""
        if isinstance(self._reader, UnionReader) and self._cloud is not None:
            return {
                "journal": self._journal.position(),
                "cloud": self._cloud.position(),
                "union": self._reader.position(),
            }
        return {**self._position, "journal": self._journal.position()}

    def save_position(self) -> None:
        """Tells the journal what is not needed again."""
        self._journal.save_position(f"goodput {self._job_name}")

    def notes(self) -> list[str]:
        """See `PayloadSource`."""
        reader = self._reader or self._journal
        passed_over = [f"{count} lines were passed over: {reason}" for reason, count in sorted(reader.skipped.items())]
        return [self._trouble, *passed_over] if self._trouble else passed_over

    def _try_to_connect(self) -> None:
        try:
            self._connect()
        except (CredentialsError, MissingExtraError) as error:
            # Asked for again by the next read only in a new calculator: a laptop without a cloud is no trouble.
            self._reader = self._journal
            _log.info("goodput of %s is read from the journal alone: %s", self._job_name, error)

    def _connect(self) -> None:
        from ml_diagnostics_common.cloud_logging import CloudLoggingReader, make_transport
        from ml_diagnostics_common.credentials import find_cloud

        cloud = find_cloud()
        reader = CloudLoggingReader(
            make_transport(cloud),
            cloud.project,
            self._log_id,
            job_name=self._job_name,
            start_time_ns=self._start_ns,
            position=self._position.get("cloud"),
        )
        self._cloud = reader
        self._reader = UnionReader([self._journal, reader], position=self._position.get("union"))


def _context(entry: Any) -> Any:
    return entry.context


def _process_index(labels: Mapping[str, str]) -> int:
    text = labels.get("process_index", "")
    return int(text) if text.isdecimal() else 0
