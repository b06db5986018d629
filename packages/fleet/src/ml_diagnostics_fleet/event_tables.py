"""Entries of logs as tables of events: a row each, by job, in order, and each once."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from ml_diagnostics_common.entry import LogEntry
from ml_goodput_measurement.reading import EventRow, EventRowReader, payload_of, writer_of

from ml_diagnostics_fleet._batches import FOREIGN
from ml_diagnostics_fleet.schemas import EVENTS, JobKey

__all__ = ["EventTables", "deduplicated"]

_ORDER: Final = [("t_ns", "ascending"), ("writer", "ascending"), ("seq", "ascending")]
_MOST_BYTES: Final = 2**31 - 1
_MOST_CONTEXTS: Final = 1_000
"""Contexts of entries that are remembered: each segment has one of its own."""


class _WriterColumns(NamedTuple):
    """Columns that all entries of a writer have in common; labels as JSON."""

    process_index: int
    name: str
    host: str
    labels: str


class _Columns:
    """The entries of one job, as columns: an entry is a row of its writer, and the event."""

    __slots__ = ("events", "foreign", "sequences", "times", "writers")

    def __init__(self) -> None:
        self.writers: list[int] = []
        """Indices of the writers."""
        self.sequences: list[int] = []
        self.times: list[int] = []
        self.events: list[EventRow] = []
        self.foreign: dict[int, str] = {}
        """The ids of entries that other libraries wrote, by index."""


class EventTables:
    """Collects the entries of one log as tables of events, one for each job."""

    def __init__(self, log: str) -> None:
        self._log = log
        self._reader = EventRowReader()
        self._jobs: dict[str, _Columns] = {}
        self._contexts: dict[int, tuple[Any, int]] = {}
        """Contexts by their ids, so that each lives, and the index of its writer."""
        self._writers: list[_WriterColumns] = []
        self._indices: dict[_WriterColumns, int] = {}
        self.without_job = 0
        """Entries that name no job, which are left out."""

    def __len__(self) -> int:
        """The number of events."""
        return sum(len(columns.times) for columns in self._jobs.values())

    def add(self, entries: Iterable[LogEntry]) -> None:
        """Add entries of the log, in any order."""
        row, jobs, contexts = self._reader.row, self._jobs, self._contexts
        for entry in entries:
            payload = entry.payload
            job = payload.get("job_name") if isinstance(payload, dict) else None
            if not isinstance(job, str):
                self.without_job += 1
                continue
            columns = jobs.get(job)
            if columns is None:
                if not _is_text(job):
                    self.without_job += 1
                    continue
                columns = jobs[job] = _Columns()
            if "event_type" in payload:
                payload = payload_of(entry)
            known = contexts.get(id(entry.context))
            index = self._writer_index(entry) if known is None else known[1]
            event = row(payload, job)
            if event.label is not None and not _is_text(event.label):
                event = EventRow("other", 0, payload=json.dumps(payload))
            if not self._writers[index].name:
                columns.foreign[len(columns.times)] = entry.foreign_id
            columns.writers.append(index)
            columns.sequences.append(entry.sequence)
            columns.times.append(entry.timestamp_ns)
            columns.events.append(event)

    def take(self) -> dict[JobKey, pa.Table]:
        """Return the events of each job, in order, each once, and start again without any."""
        taken, self._jobs = self._jobs, {}
        tables = {}
        for job, columns in sorted(taken.items()):
            if columns.times:
                tables[JobKey(self._log, job)] = deduplicated(self._table(job, columns))
        self._contexts, self._writers, self._indices = {}, [], {}
        return tables

    def _writer_index(self, entry: LogEntry) -> int:
        writer = _writer_columns(entry)
        index = self._indices.setdefault(writer, len(self._writers))
        if index == len(self._writers):
            self._writers.append(writer)
        if len(self._contexts) >= _MOST_CONTEXTS:
            self._contexts.clear()
        self._contexts[id(entry.context)] = (entry.context, index)
        return index

    def _table(self, job: str, columns: _Columns) -> pa.Table:
        own = pa.array(columns.writers, pa.int32()).dictionary_encode()
        writers, known = own.indices, [self._writers[index] for index in own.dictionary.to_pylist()]
        process_indices, names, hosts, labels = zip(*known, strict=True)
        sequences: list[int] = columns.sequences
        if columns.foreign:
            identities = [self._writers[index].name for index in columns.writers]
            for index, foreign_id in columns.foreign.items():
                identities[index], sequences[index] = f"{FOREIGN}{_text(foreign_id)}", 0
            writer = pa.array(identities, EVENTS.field("writer").type)
        else:
            writer = _by_writer(writers, names)
        zeros = pa.array(np.zeros(len(writers), np.int32))
        values = [
            pa.DictionaryArray.from_arrays(zeros, pa.array([self._log], pa.string())),
            pa.DictionaryArray.from_arrays(zeros, pa.array([job], pa.string())),
            pa.array(process_indices, pa.int32()).take(writers),
            writer,
            _integers(sequences),
            _by_writer(writers, hosts),
            _by_writer(writers, labels),
            _integers(columns.times),
        ]
        fields = list(EVENTS)[len(values) :]
        events = zip(*columns.events, strict=True)
        values += [pa.array(column, field.type) for column, field in zip(events, fields, strict=True)]
        return pa.table(values, schema=EVENTS)


def _integers(values: list[int]) -> pa.Array:
    """Return times or numbers as a column. A wrong clock or a foreign line may have any: the nearest one is kept."""
    try:
        return pa.array(values, pa.int64())
    except OverflowError:
        return pa.array([min(max(value, -(2**63)), 2**63 - 1) for value in values], pa.int64())


def _by_writer(writers: pa.Array, texts: Sequence[str]) -> pa.DictionaryArray:
    """Return a text for each row, by the index of its writer: each text once in the dictionary."""
    distinct = {text: code for code, text in enumerate(dict.fromkeys(texts))}
    codes = pa.array([distinct[text] for text in texts], pa.int32()).take(writers)
    return pa.DictionaryArray.from_arrays(codes, pa.array(list(distinct), pa.string()))


def deduplicated(table: pa.Table) -> pa.Table:
    """Return the events of one job in order, each once."""
    table = table.unify_dictionaries()
    # A chunk of text has 2 GiB at most, and Arrow combines the chunks from which it takes rows.
    is_huge = table.nbytes > _MOST_BYTES
    table = table if is_huge else table.combine_chunks()
    if table.num_rows < 2:
        return table
    keys = _sortable(table)
    order = pc.sort_indices(keys, sort_keys=_ORDER)
    batch = keys.take(order).combine_chunks().to_batches()[0]
    same = None
    for column in batch.columns:
        equal = pc.equal(column.slice(1), column.slice(0, len(column) - 1))
        same = equal if same is None else pc.and_(same, equal)
    if pc.any(same).as_py():
        order = order.filter(pa.concat_arrays([pa.array([True]), pc.invert(same)]))
    return pa.concat_tables([table.slice(row, 1) for row in order.to_pylist()]) if is_huge else table.take(order)


def _sortable(table: pa.Table) -> pa.Table:
    """Return the columns of the order, with texts as numbers: dictionaries cannot be sorted."""
    writers = table.column("writer").combine_chunks()
    writers = writers.chunk(0) if isinstance(writers, pa.ChunkedArray) else writers
    names = writers.dictionary.to_pylist()
    ranks = {name: rank for rank, name in enumerate(sorted(names))}
    by_code = pa.array([ranks[name] for name in names], pa.int32())
    return pa.table({"t_ns": table["t_ns"], "writer": by_code.take(writers.indices), "seq": table["seq"]})


def _writer_columns(entry: LogEntry) -> _WriterColumns:
    context = entry.context
    writer = writer_of(context)
    known: Mapping[str, str] = context.labels
    other = {
        _text(name): _text(str(value))
        for name, value in sorted(known.items())
        if name not in ("job", "host", "process_index")
    }
    return _WriterColumns(writer.process_index, _text(writer.name), _text(writer.host), json.dumps(other))


def _text(text: str) -> str:
    """Return a text that Parquet can hold."""
    return text if _is_text(text) else text.encode(errors="backslashreplace").decode()


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
