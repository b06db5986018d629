"""Rows of a view as entries of logs, as a reader of Cloud Logging has them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from ml_diagnostics_common.entry import SEQUENCE_LABEL, WRITER_LABEL, EntryContext, LogEntry, split_insert_id
from ml_goodput_measurement.reading import payload_of

__all__ = ["UNTIMED", "ViewEntries"]

UNTIMED: Final = 0
"""The time of an entry of which the view has none; that of its event takes its place."""

_MOST_CONTEXTS: Final = 65_536
_MOST_EXAMPLES: Final = 5
_LARGEST_WHOLE: Final = 2.0**53


class ViewEntries:
    """Converts rows of a view.

    The entries of a writer differ in time, payload and number only, so the labels of its first entry count.

    Attributes:
        rows: The number of rows so far.
        without_payload: Rows without a JSON payload, such as lines of text: they are of other programs.
        unreadable: The number of rows that cannot be read, by reason.
        examples: The insert ids of some of them, by reason.
    """

    def __init__(self) -> None:
        self.rows = 0
        self.without_payload = 0
        self.unreadable: Counter[str] = Counter()
        self.examples: dict[str, list[str]] = {}
        self._of_writers: dict[tuple[str, str], EntryContext] = {}
        self._of_others: dict[tuple[str, str], EntryContext] = {}
        self._decode = msgspec.json.Decoder().decode

    def entries(self, batch: pa.RecordBatch) -> dict[str, list[LogEntry]]:
        """Return the entries of a batch, by the log's id.

        Args:
            batch: The columns `log`, `insert_id`, `labels`, `payload`, and `timestamp` if the view has it. Labels and
                payload are JSON or structs.
        """
        self.rows += batch.num_rows
        found: dict[str, list[LogEntry]] = {}
        columns = (_values(batch.column(name)) for name in ("log", "insert_id", "labels", "payload"))
        for log, insert_id, labels, payload, time_ns in zip(*columns, _times(batch), strict=True):
            if payload is None:
                self.without_payload += 1
                continue
            try:
                if not log or not insert_id:
                    raise ValueError(f"{'insert_id' if log else 'the log'} is empty")
                entry = self._entry(log, insert_id, labels, payload, time_ns)
            except (ValueError, msgspec.DecodeError, RecursionError) as error:
                self._note(str(error), insert_id)
                continue
            entries = found.get(log)
            if entries is None:
                entries = found[log] = []
            entries.append(entry)
        return found

    def _entry(self, log: str, insert_id: str, labels: Any, payload: Any, time_ns: int) -> LogEntry:
        if isinstance(payload, str):
            try:
                payload = self._decode(payload)
            except (msgspec.DecodeError, RecursionError):
                raise ValueError("the payload is not JSON") from None
        if not isinstance(payload, dict):
            raise ValueError("the payload is not a JSON object")
        writer, _, digits = insert_id.rpartition(".")
        context = self._of_writers.get((log, writer))
        if context is not None and len(digits) == 12 and digits.isascii() and digits.isdigit():
            entry = LogEntry(time_ns, int(digits), payload, context)
        else:
            entry = self._first_entry(log, insert_id, labels, payload, time_ns)
        if time_ns == UNTIMED and "event_type" in payload and payload_of(entry) is not payload:
            raise ValueError("neither the row nor the payload has a time")
        return entry

    def _first_entry(self, log: str, insert_id: str, labels: Any, payload: dict[str, Any], time_ns: int) -> LogEntry:
        """Return an entry of another library, or the first of a writer."""
        known = self._labels(labels)
        parts = split_insert_id(insert_id)
        if parts is None or known.get(WRITER_LABEL) != parts[0]:
            key = (log, labels if isinstance(labels, str) else repr(labels))
            context = self._of_others.get(key)
            if context is None:
                context = _context(log, known, None)
                _limit(self._of_others)
                self._of_others[key] = context
            return LogEntry(time_ns, 0, payload, context, None, insert_id)
        context = _context(log, known, parts[0])
        _limit(self._of_writers)
        self._of_writers[log, parts[0]] = context
        return LogEntry(time_ns, parts[1], payload, context)

    def _labels(self, labels: Any) -> Mapping[str, Any]:
        if isinstance(labels, str):
            try:
                labels = self._decode(labels)
            except (msgspec.DecodeError, RecursionError):
                raise ValueError("the labels are not JSON") from None
        if labels is None:
            return {}
        if not isinstance(labels, dict):
            raise ValueError("the labels are not a JSON object")
        return labels

    def _note(self, reason: str, insert_id: Any) -> None:
        self.unreadable[reason] += 1
        examples = self.examples.setdefault(reason, [])
        if len(examples) < _MOST_EXAMPLES:
            examples.append(str(insert_id or "(none)"))


def _context(log: str, labels: Mapping[str, Any], writer: str | None) -> EntryContext:
    rest = {name: str(value) for name, value in labels.items() if name not in (WRITER_LABEL, SEQUENCE_LABEL)}
    return EntryContext(log, "", {}, rest, writer=writer)


def _limit(cache: dict[Any, Any]) -> None:
    if len(cache) >= _MOST_CONTEXTS:
        cache.clear()


def _values(column: pa.Array) -> list[Any]:
    if isinstance(column, pa.ExtensionArray):  # JSON, for a version of Arrow that knows it as a type.
        column = column.storage
    values: list[Any] = column.to_pylist()
    return [_plain(value) for value in values] if pa.types.is_struct(column.type) else values


def _plain(value: Any) -> Any:
    """Return a value of a struct as its JSON: a struct has a field for each name that any row of the table has.

    A list is never null, so an empty one may stand for a field that the entry lacks. All numbers are floats.
    """
    if isinstance(value, dict):
        found = {name: _plain(one) for name, one in value.items()}
        return {name: one for name, one in found.items() if one is not None and one != []}
    if isinstance(value, list):
        return [_plain(one) for one in value]
    if isinstance(value, float) and value.is_integer() and abs(value) < _LARGEST_WHOLE:
        return int(value)
    return value


def _times(batch: pa.RecordBatch) -> Iterator[int]:
    """Return the times of the rows, in ns since 1970."""
    position = batch.schema.get_field_index("timestamp")
    if position < 0:
        return iter([UNTIMED] * batch.num_rows)
    column = batch.column(position)
    if column.type.unit == "ns":
        times = column.cast(pa.int64())
    else:
        times = pc.multiply(column.cast(pa.timestamp("us", "UTC")).cast(pa.int64()), 1000)
    return iter(pc.fill_null(times, UNTIMED).to_pylist())
