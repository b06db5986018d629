"""Events in Parquet: an entry a row, sorted by job and time, and read a job at a time.

A file has the jobs of one group; each row group has the events of one job. The encodings fit the columns: numbers that
rise are deltas, and texts that repeat are dictionaries, so an event takes about six bytes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from ml_diagnostics_common.entry import LogEntry
from ml_diagnostics_common.files import in_bucket
from ml_diagnostics_common.storage import storage_for
from ml_goodput_measurement.reading import EventRow, EventRowReader, payload_of, writer_of

from ml_diagnostics_fleet._batches import FOREIGN
from ml_diagnostics_fleet._object_file import ObjectFile
from ml_diagnostics_fleet.schemas import DICTIONARIES, EVENTS, JobKey

__all__ = [
    "LARGEST_ROW_GROUP",
    "EventTables",
    "EventsFile",
    "EventsWriter",
    "RowGroup",
    "deduplicated",
    "write_events",
]

LARGEST_ROW_GROUP: Final = 1_000_000
_BATCH_ROWS: Final = 131_072
"""Rows that are decoded at a time: few enough to take little memory, enough to be fast."""
_ORDER: Final = [("t_ns", "ascending"), ("writer", "ascending"), ("seq", "ascending")]
_DELTAS: Final = ("seq", "t_ns", "at_ns", "step", "duration_ns")
_LEVEL: Final = 3


class RowGroup(NamedTuple):
    """A part of a file of events: all its rows are of one job."""

    number: int
    rows: int
    first_t_ns: int


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
        self._writers: list[tuple[int, str, str, str]] = []
        """Process index, name, host and other labels."""
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
            if not self._writers[index][1]:
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
        return tables

    def _writer_index(self, entry: LogEntry) -> int:
        index = len(self._writers)
        self._writers.append(_writer_columns(entry))
        self._contexts[id(entry.context)] = (entry.context, index)
        return index

    def _table(self, job: str, columns: _Columns) -> pa.Table:
        writers = pa.array(columns.writers, pa.int32())
        process_indices, names, hosts, labels = zip(*self._writers, strict=True)
        sequences: list[int] = columns.sequences
        if columns.foreign:
            identities = [names[index] for index in columns.writers]
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
            pa.array(sequences, pa.int64()),
            _by_writer(writers, hosts),
            _by_writer(writers, labels),
            pa.array(columns.times, pa.int64()),
        ]
        fields = list(EVENTS)[len(values) :]
        events = zip(*columns.events, strict=True)
        values += [pa.array(column, field.type) for column, field in zip(events, fields, strict=True)]
        return pa.table(values, schema=EVENTS)


def _by_writer(writers: pa.Array, texts: Sequence[str]) -> pa.DictionaryArray:
    """Return a text for each row, by the index of its writer: each text once in the dictionary."""
    distinct = {text: code for code, text in enumerate(dict.fromkeys(texts))}
    codes = pa.array([distinct[text] for text in texts], pa.int32()).take(writers)
    return pa.DictionaryArray.from_arrays(codes, pa.array(list(distinct), pa.string()))


def deduplicated(table: pa.Table) -> pa.Table:
    """Return the events of one job in order, each once."""
    table = table.unify_dictionaries().combine_chunks()
    if table.num_rows < 2:
        return table
    table = table.take(pc.sort_indices(_sortable(table), sort_keys=_ORDER))
    batch = table.combine_chunks().to_batches()[0]
    same = None
    for name in ("t_ns", "writer", "seq"):
        column = batch.column(name)
        values = column.indices if pa.types.is_dictionary(column.type) else column
        equal = pc.equal(values.slice(1), values.slice(0, len(values) - 1))
        same = equal if same is None else pc.and_(same, equal)
    if not pc.any(same).as_py():
        return table
    return table.filter(pa.concat_arrays([pa.array([True]), pc.invert(same)]))


class EventsWriter:
    """Writes a file of events, a job at a time.

    Args:
        sink: A path, or a binary file.

    Attributes:
        rows: The number of its events so far.
        jobs: Its jobs.
        first_t_ns: The earliest time of its entries.
        last_t_ns: The latest.
    """

    def __init__(self, sink: Any) -> None:
        self._writer = pq.ParquetWriter(
            sink,
            EVENTS,
            compression="zstd",
            compression_level=_LEVEL,
            use_dictionary=list(DICTIONARIES),
            column_encoding=dict.fromkeys(_DELTAS, "DELTA_BINARY_PACKED"),
            write_statistics=["log", "job", "t_ns"],
        )
        self.rows = 0
        self.jobs: set[JobKey] = set()
        self.first_t_ns, self.last_t_ns = 2**62, 0

    def __enter__(self) -> EventsWriter:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def write(self, key: JobKey, table: pa.Table) -> None:
        """Add events of one job, in order."""
        if not table.num_rows:
            return
        times = pc.min_max(table["t_ns"])
        self._writer.write_table(table, row_group_size=LARGEST_ROW_GROUP)
        self.rows += table.num_rows
        self.jobs.add(key)
        self.first_t_ns = min(self.first_t_ns, times["min"].as_py())
        self.last_t_ns = max(self.last_t_ns, times["max"].as_py())

    def close(self) -> None:
        """Finish the file."""
        self._writer.close()


def write_events(sink: Any, tables: Iterable[tuple[JobKey, pa.Table]]) -> int:
    """Write a file of events; return the number of its rows.

    Args:
        sink: A path, or a binary file.
        tables: The events of each job, in order; the jobs are in order, too, and of one group.
    """
    with EventsWriter(sink) as writer:
        for key, table in tables:
            writer.write(key, table)
    return writer.rows


class EventsFile:
    """A file of events, opened for reading.

    Args:
        path: A local path, or `gs://bucket/key`; or the content.

    Raises:
        ValueError: It is not a file of events.
        ObjectNotFoundError: There is no such object.
        StorageError: It cannot be read.
    """

    def __init__(self, path: str | bytes) -> None:
        self.name = path if isinstance(path, str) else "events"
        self._source = _source(path)
        try:
            self._file = pq.ParquetFile(self._source, read_dictionary=list(DICTIONARIES), pre_buffer=False)
        except pa.ArrowInvalid as error:
            raise ValueError(f"{self.name} is not a file of Parquet: {error}") from None
        except KeyError as error:
            raise ValueError(f"{self.name} lacks a column: it is not a file of events: {error}") from None
        lacking = [name for name in EVENTS.names if name not in self._file.schema_arrow.names]
        if lacking:
            raise ValueError(f"{self.name} lacks a column: it is not a file of events: {lacking[0]!r}")

    def __enter__(self) -> EventsFile:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    @property
    def rows(self) -> int:
        """The number of its events."""
        return int(self._file.metadata.num_rows)

    def jobs(self) -> dict[JobKey, list[RowGroup]]:
        """Return the row groups of each job."""
        metadata = self._file.metadata
        found: dict[JobKey, list[RowGroup]] = {}
        columns = {metadata.schema.column(index).path: index for index in range(metadata.num_columns)}
        for number in range(metadata.num_row_groups):
            group = metadata.row_group(number)
            key = JobKey(*(self._only(group, number, columns[name], name) for name in ("log", "job")))
            times = group.column(columns["t_ns"]).statistics
            first = times.min if times is not None and times.has_min_max else 0
            found.setdefault(key, []).append(RowGroup(number, group.num_rows, first))
        return found

    def batches(self, groups: Sequence[RowGroup], columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        """Yield the events of some row groups, a part at a time."""
        for group in groups:
            self._fetch([group])
            yield from self._file.iter_batches(
                batch_size=_BATCH_ROWS,
                row_groups=[group.number],
                columns=None if columns is None else list(columns),
                use_threads=False,
            )

    def table(self, groups: Sequence[RowGroup]) -> pa.Table:
        """Return the events of some row groups."""
        self._fetch(groups)
        return self._file.read_row_groups([group.number for group in groups], use_threads=False)

    def _fetch(self, groups: Sequence[RowGroup]) -> None:
        """Read the bytes of some row groups, which lie side by side, with one request."""
        if not isinstance(self._source, ObjectFile) or not groups:
            return
        starts, ends = [], []
        for number in (group.number for group in groups):
            group = self._file.metadata.row_group(number)
            for column in map(group.column, range(group.num_columns)):
                start = min(filter(None, (column.dictionary_page_offset, column.data_page_offset)))
                starts.append(start)
                ends.append(start + column.total_compressed_size)
        self._source.fetch(min(starts), max(ends))

    def _only(self, group: Any, number: int, index: int, name: str) -> str:
        """Return the only value of a column of text in a row group."""
        statistics = group.column(index).statistics
        if statistics is not None and statistics.has_min_max and statistics.min == statistics.max:
            return str(statistics.min)
        # Long texts have no statistics.
        values = self._file.read_row_group(number, columns=[name]).column(0).unique().to_pylist()
        if len(values) != 1:
            raise ValueError(f"{self.name}: row group {number} has {len(values)} values of {name!r}; expected one")
        return str(values[0])


def _source(path: str | bytes) -> Any:
    if isinstance(path, bytes):
        return pa.BufferReader(path)
    if in_bucket(path):
        return ObjectFile(storage_for(path), path)
    if not Path(path).is_file():
        storage_for(path).read_with_generation(path, first_bytes=1)  # For its errors.
    return pa.memory_map(path)


def _sortable(table: pa.Table) -> pa.Table:
    """Return the columns of the order, with texts as numbers: dictionaries cannot be sorted."""
    writers = table.column("writer").combine_chunks()
    writers = writers.chunk(0) if isinstance(writers, pa.ChunkedArray) else writers
    names = writers.dictionary.to_pylist()
    ranks = {name: rank for rank, name in enumerate(sorted(names))}
    by_code = pa.array([ranks[name] for name in names], pa.int32())
    return pa.table({"t_ns": table["t_ns"], "writer": by_code.take(writers.indices), "seq": table["seq"]})


def _writer_columns(entry: LogEntry) -> tuple[int, str, str, str]:
    """Return process index, name, host and other labels of the writer of an entry."""
    context = entry.context
    writer = writer_of(context)
    known: Mapping[str, str] = context.labels
    other = {
        _text(name): _text(str(value))
        for name, value in sorted(known.items())
        if name not in ("job", "host", "process_index")
    }
    return writer.process_index, _text(writer.name), _text(writer.host), json.dumps(other)


def _text(text: str) -> str:
    """Return a text that Parquet can hold."""
    return text if _is_text(text) else text.encode(errors="backslashreplace").decode()


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
