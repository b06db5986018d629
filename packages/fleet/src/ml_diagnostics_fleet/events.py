"""Events in Parquet: an entry a row, sorted by job and time, and read a job at a time.

A file has the jobs of one group; each row group has the events of one job. The encodings fit the columns: numbers that
rise are deltas, and texts that repeat are dictionaries, so an event takes about six bytes.

Each page has a checksum, and that of the file's end is in its name: Arrow ends the process on some damage there.
"""

from __future__ import annotations

import contextlib
import os
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from ml_diagnostics_common.exceptions import StorageError
from ml_diagnostics_common.files import in_bucket
from ml_diagnostics_common.storage import storage_for

from ml_diagnostics_fleet._object_file import ObjectFile
from ml_diagnostics_fleet.schemas import DICTIONARIES, EVENTS, JobKey

__all__ = [
    "LARGEST_ROW_GROUP",
    "DamagedEventsError",
    "EventsFile",
    "EventsWriter",
    "RowGroup",
    "checksum",
    "write_events",
]

LARGEST_ROW_GROUP: Final = 1_000_000
_BATCH_ROWS: Final = 131_072
"""Rows that are decoded at a time: few enough to take little memory, enough to be fast."""
_DELTAS: Final = ("seq", "t_ns", "at_ns", "step", "duration_ns")
_LEVEL: Final = 3
_MAGIC_BYTES: Final = 8
"""At the end: the length of what describes the file, before that, and four letters."""
_CHECKSUM: Final = re.compile(r"-([0-9a-f]{8})\.parquet", re.ASCII)


class DamagedEventsError(StorageError, ValueError):
    """A file is not a file of events, or not what was written."""


class RowGroup(NamedTuple):
    """A part of a file of events: all its rows are of one job."""

    number: int
    rows: int
    first_t_ns: int


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
            write_page_checksum=True,
        )
        self.rows = 0
        self.jobs: set[JobKey] = set()
        self.first_t_ns = self.last_t_ns = 0

    def __enter__(self) -> EventsWriter:
        return self

    def __exit__(self, kind: object, *error: object) -> None:
        if kind is None:
            self.close()
        else:
            self.discard()

    def write(self, key: JobKey, table: pa.Table) -> None:
        """Add events of one job, in order."""
        if not table.num_rows:
            return
        times = pc.min_max(table["t_ns"])
        first_ns, last_ns = times["min"].as_py(), times["max"].as_py()
        self._writer.write_table(table, row_group_size=LARGEST_ROW_GROUP)
        self.first_t_ns = min(self.first_t_ns, first_ns) if self.rows else first_ns
        self.last_t_ns = max(self.last_t_ns, last_ns) if self.rows else last_ns
        self.rows += table.num_rows
        self.jobs.add(key)

    def close(self) -> None:
        """Finish the file."""
        self._writer.close()

    def discard(self) -> None:
        """Leave the file as it is, such as on a full disk: without its end, it is not a file of events."""
        self._writer.is_open = False


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
        DamagedEventsError: It is not a file of events. Each method raises it for a part that is not what was written.
        ObjectNotFoundError: There is no such object.
        StorageError: It cannot be read.
    """

    def __init__(self, path: str | bytes) -> None:
        self.name = path if isinstance(path, str) else "events"
        try:
            self._source = _source(path)
            self._check_end()
            self._file = pq.ParquetFile(
                self._source,
                read_dictionary=list(DICTIONARIES),
                pre_buffer=False,
                page_checksum_verification=True,
            )
        except StorageError:
            raise
        except (pa.ArrowInvalid, OSError) as error:
            raise DamagedEventsError(f"{self.name} is not a file of Parquet: {error}") from None
        except KeyError as error:
            raise DamagedEventsError(f"{self.name} lacks a column: it is not a file of events: {error}") from None
        lacking = [name for name in EVENTS.names if name not in self._file.schema_arrow.names]
        if lacking:
            raise DamagedEventsError(f"{self.name} lacks a column: it is not a file of events: {lacking[0]!r}")

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
        with self._checked():
            for group in groups:
                self._fetch([group])
                for batch in self._file.iter_batches(
                    batch_size=_BATCH_ROWS,
                    row_groups=[group.number],
                    columns=None if columns is None else list(columns),
                    use_threads=False,
                ):
                    batch.validate(full=True)  # The head of a page has no checksum.
                    yield batch

    def table(self, groups: Sequence[RowGroup]) -> pa.Table:
        """Return the events of some row groups."""
        with self._checked():
            self._fetch(groups)
            table = self._file.read_row_groups([group.number for group in groups], use_threads=False)
            table.validate(full=True)
            return table

    def _check_end(self) -> None:
        """Check that the file's end is that of its name, if that has a checksum."""
        expected = _CHECKSUM.fullmatch(self.name[-17:])
        if expected is not None and checksum(self._source) != expected[1]:
            raise DamagedEventsError(f"{self.name} is damaged: its end is not what was written")
        self._source.seek(0)

    @contextlib.contextmanager
    def _checked(self) -> Iterator[None]:
        """Raise an error of Arrow, such as for a wrong checksum, as one with the file's name."""
        try:
            yield
        except StorageError:
            raise
        except MemoryError:
            raise
        except (pa.ArrowException, OSError) as error:
            raise DamagedEventsError(f"{self.name} is damaged: {error}") from None

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
        with self._checked():
            values = self._file.read_row_group(number, columns=[name]).column(0).unique().to_pylist()
        if len(values) != 1:
            raise DamagedEventsError(
                f"{self.name}: row group {number} has {len(values)} values of {name!r}; expected one"
            )
        return str(values[0])


def checksum(file: Any) -> str:
    """Return the checksum of the end of a file of events, which describes it: the last part of its name.

    Args:
        file: The file, opened for reading.
    """
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - _MAGIC_BYTES))
    length = int.from_bytes(file.read(_MAGIC_BYTES)[:4], "little")
    file.seek(max(0, size - _MAGIC_BYTES - length))
    return f"{zlib.crc32(file.read()):08x}"


def _source(path: str | bytes) -> Any:
    if isinstance(path, bytes):
        return pa.BufferReader(path)
    if in_bucket(path):
        return ObjectFile(storage_for(path), path)
    if not Path(path).is_file():
        storage_for(path).read_with_generation(path, first_bytes=1)  # For its errors.
    return pa.memory_map(path)
