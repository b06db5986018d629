"""The payloads of a job by the writer that recorded them: from entries of its log, or from an object of the user's."""

from __future__ import annotations

import datetime
import operator
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, Protocol

from ml_diagnostics_common.entry import EntryContext, LogEntry

from ml_goodput_measurement._ledger.events import LOGGED_AFTER, LOGGED_AT
from ml_goodput_measurement._ledger.writers import Writer
from ml_goodput_measurement._record.arguments import in_utc

__all__ = [
    "OwnLogger",
    "Payloads",
    "UserLogger",
    "UserLoggerReader",
    "by_writer",
    "get_timestamp_from_log_entry",
    "payload_of",
    "writer_of",
]

Payloads = list[dict[str, Any]]

_context_of = operator.attrgetter("context")


class UserLogger(Protocol):
    """An object of the user's that holds the payloads: the argument `cloud_logger`."""

    def read_cloud_logging_entries(
        self, start_time: datetime.datetime | None, end_time: datetime.datetime | None, last_entry_info: Any
    ) -> tuple[Payloads, tuple[Any, Any]]:
        """Return payloads, and (timestamp, id) of the last one, which is passed to the next call."""
        ...


class OwnLogger:
    """Base of this library's own `cloud_logger`: a calculator reads its log directly, and so finds late entries."""

    log_name: str
    retention_ns: int | None


class UserLoggerReader:
    """Reads an object of the user's.

    Attributes:
        error: The last exception of the object.
    """

    def __init__(self, logger: UserLogger) -> None:
        """Read nothing yet."""
        self.logger = logger
        self.error: Exception | None = None
        self._last_entry: tuple[Any, Any] | None = None
        self._last_seconds: float | None = None  # The time of the last payload that has one.

    def read_new(self) -> Iterator[tuple[Writer, Payloads]]:
        """Yield the payloads that were not yielded before; exceptions of the object are not caught."""
        try:
            payloads, last_entry = self.logger.read_cloud_logging_entries(None, None, self._last_entry)
        except Exception as error:
            self.error = error
            raise
        if last_entry and tuple(last_entry) != (None, None):
            self._last_entry = tuple(last_entry)
        yield Writer(), self._with_times(payloads if isinstance(payloads, list) else list(payloads))

    def _with_times(self, payloads: list[Any]) -> Payloads:
        """Return the payloads; untimed checkpoint operations get the time of the payload before them."""
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


def by_writer(entries: list[LogEntry]) -> Iterator[tuple[Writer, Payloads]]:
    """Yield the payloads of some entries by writer, each writer once."""
    first = entries[0].context
    if list(map(_context_of, entries)).count(first) == len(entries):  # True for a single journal, and fast to check.
        payloads_of_one = [payload_of(entry) if "event_type" in entry.payload else entry.payload for entry in entries]
        yield writer_of(first), payloads_of_one
        return
    payloads: dict[Writer, Payloads] = {}
    by_context: dict[int, Payloads] = {}
    for entry in entries:
        context = entry.context
        found = by_context.get(id(context))
        if found is None:
            found = by_context[id(context)] = payloads.setdefault(writer_of(context), [])
        found.append(payload_of(entry))
    yield from payloads.items()


def payload_of(entry: LogEntry) -> dict[str, Any]:
    """Return an entry's payload; that of an untimed checkpoint operation with the entry's time."""
    if _is_untimed(entry.payload):
        return {**entry.payload, LOGGED_AT: entry.timestamp_ns / 1e9}
    return entry.payload


def _is_untimed(payload: object) -> bool:
    """Return True for a checkpoint operation without a start of any part."""
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


def writer_of(context: EntryContext) -> Writer:
    """Return the writer of entries, by their labels."""
    labels = context.labels
    text = labels.get("process_index", "")
    return Writer(
        process_index=int(text) if text.isdecimal() and len(text) < 10 else 0,
        name=context.writer or "",
        attempt=labels.get("attempt", ""),
        host=labels.get("host", ""),
        pid=labels.get("pid", ""),
    )


# Whole keys, not the word "time": Orbax's time_between_consecutive_saves_sec is a duration.
# Of several keys in an entry of Orbax the first one here counts, which is the start of the whole operation.
_TIME_KEYS = (
    "step_start_time",
    "step_ended",
    "data_loading_start_time",
    "data_loading_end_time",
    "job_start_time",
    "job_end_time",
    "tpu_init_start_time",
    "tpu_init_end_time",
    "training_prep_start_time",
    "training_prep_end_time",
    "custom_badput_event_start_time",
    "custom_badput_event_end_time",
    "checkpoint_progress_started",
    "elastic_slice_counts_timestamp",
    "elastic_wait_start_time",
    "elastic_wait_end_time",
    "elastic_reinit_start_time",
    "elastic_reinit_end_time",
    "checkpoint_manager_blocking_start_time",
    "checkpoint_manager_start_time",
    "wait_for_prev_start_time",
    "checkpointer_blocking_start_time",
    "checkpointer_start_time",
    "broadcast_start_time",
    "get_old_steps_start_time",
)


def get_timestamp_from_log_entry(entry: Mapping[str, Any] | None) -> datetime.datetime | None:
    """Return the time of the event in a log entry's payload.

    Args:
        entry: A payload as recorders and Orbax write it.

    Returns:
        The time in UTC; None for an unknown event, and for a missing or invalid time.
    """
    if not isinstance(entry, Mapping):
        return None
    for key in _TIME_KEYS:
        if key in entry:
            with suppress(TypeError, ValueError, OverflowError, OSError):  # None, text, NaN, a year of no calendar.
                return in_utc(entry[key])
    return None
