"""Events in any order, sorted by job and time on the disk of this machine: memory does not grow with their number."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np
import pyarrow as pa

from ml_diagnostics_fleet.event_tables import deduplicated
from ml_diagnostics_fleet.schemas import DICTIONARIES, EVENTS, JobKey, group_of

__all__ = ["EventSpill"]

_MOST_SORTED: Final = 1_000_000
"""Events that are sorted at a time."""
_BATCH_ROWS: Final = 4_096
"""Rows of a batch on disk, at least: each has its dictionaries."""
_MOST_WAITING: Final = 16
"""Tables that wait for a batch; each takes 20 kB, however few its events are."""
_MOST_PARTS: Final = 200
"""Files that are open at a time."""
_SAMPLES: Final = 200
"""Samples for each part: its size differs by a tenth then."""
_SCHEMA: Final = EVENTS.append(pa.field("number", pa.int32(), nullable=False))
_OPTIONS: Final = pa.ipc.IpcWriteOptions(compression="zstd", use_threads=False)


class _File:
    """Batches of events on disk, in a file without a name: a process that is killed leaves none."""

    def __init__(self) -> None:
        self.rows = 0
        self._file = tempfile.TemporaryFile(prefix="ml-diagnostics-")  # noqa: SIM115
        self._writer: Any = None
        self._waiting: list[pa.Table] = []
        self._waiting_rows = 0

    def write(self, table: pa.Table) -> None:
        self._waiting.append(table)
        self._waiting_rows += table.num_rows
        self.rows += table.num_rows
        if self._waiting_rows >= _BATCH_ROWS:
            self._flush()
        elif len(self._waiting) >= _MOST_WAITING:
            self._waiting = [_combined(self._waiting)]

    def batches(self) -> Iterator[pa.RecordBatch]:
        if self._waiting:
            self._flush()
        if self._writer is not None:
            self._writer.close()
            self._file.seek(0)
            yield from pa.ipc.open_stream(self._file)

    def table(self) -> pa.Table:
        return pa.Table.from_batches(list(self.batches()), _SCHEMA)

    def close(self) -> None:
        self._file.close()

    def _flush(self) -> None:
        if self._writer is None:
            self._writer = pa.ipc.new_stream(self._file, _SCHEMA, options=_OPTIONS)
        for batch in _combined(self._waiting).to_batches():
            self._writer.write_batch(batch)
        self._waiting, self._waiting_rows = [], 0


class EventSpill:
    """Collects events in files, one for each group of jobs, and returns those of each job in order."""

    def __init__(self) -> None:
        self._files: dict[str, _File] = {}
        self._numbers: dict[JobKey, int] = {}

    def __enter__(self) -> EventSpill:
        return self

    def __exit__(self, *error: object) -> None:
        for file in self._files.values():
            file.close()

    def add(self, tables: Mapping[JobKey, pa.Table]) -> None:
        """Add events of some jobs, in any order; no more after `tables` was called."""
        by_group: dict[str, list[pa.Table]] = {}
        for key, table in tables.items():
            number = self._numbers.setdefault(key, len(self._numbers))
            numbers = pa.array(np.full(table.num_rows, number, np.int32))
            by_group.setdefault(group_of(key), []).append(table.append_column(_SCHEMA.field("number"), numbers))
        for group, members in by_group.items():
            if group not in self._files:
                self._files[group] = _File()
            self._files[group].write(pa.concat_tables(members))

    def groups(self) -> list[str]:
        """Return the groups that have events."""
        return sorted(self._files)

    def tables(self, group: str) -> Iterator[tuple[JobKey, pa.Table]]:
        """Yield the events of each job of a group, in order, each once.

        A job with many events comes in parts, in order of time; the jobs come in order of their first events.
        """
        file, keys = self._files[group], list(self._numbers)
        parts = min(_MOST_PARTS, -(-file.rows // _MOST_SORTED))
        if parts == 1:
            yield from _by_job(file.table(), keys)
            return
        borders = _borders(file, parts)
        divided = [_File() for _ in range(len(borders) + 1)]
        try:
            _divide(file, borders, divided)
            for part in divided:
                yield from _by_job(part.table(), keys)
        finally:
            for part in divided:
                part.close()


def _divide(file: _File, borders: list[tuple[int, int]], parts: list[_File]) -> None:
    """Divide a file at borders: pairs of a job and a time."""
    for batch in file.batches():
        numbers, times = _column(batch, "number"), _column(batch, "t_ns")
        targets = np.zeros(batch.num_rows, np.int32)
        for number, time_ns in borders:
            targets += (numbers > number) | ((numbers == number) & (times >= time_ns))
        for target in np.unique(targets).tolist():
            part = pa.Table.from_batches([batch.filter(pa.array(targets == target))])
            # Entries of other libraries have a text each: with those of all parts, no part would fit into memory.
            parts[target].write(_with_own_dictionaries(part))


def _combined(tables: list[pa.Table]) -> pa.Table:
    return pa.concat_tables(tables).unify_dictionaries().combine_chunks()


def _borders(file: _File, parts: int) -> list[tuple[int, int]]:
    """Return jobs and times that divide a file into parts of similar sizes, from a sample of its rows."""
    each = max(1, file.rows // (parts * _SAMPLES))
    sample: list[tuple[int, int]] = []
    start = 0
    for batch in file.batches():
        rows = slice(start, None, each)
        sample += zip(_column(batch, "number")[rows].tolist(), _column(batch, "t_ns")[rows].tolist(), strict=True)
        start = (start - batch.num_rows) % each
    sample.sort()
    return sorted({sample[len(sample) * number // parts] for number in range(1, parts)})


def _by_job(table: pa.Table, keys: list[JobKey]) -> Iterator[tuple[JobKey, pa.Table]]:
    table = _combined([table])
    numbers = table.column("number").to_numpy()
    order = np.argsort(numbers, kind="stable")
    table, numbers = table.drop_columns(["number"]).take(pa.array(order)), numbers[order]
    starts = np.flatnonzero(np.diff(numbers, prepend=-1)).tolist()
    for start, end in zip(starts, [*starts[1:], len(numbers)], strict=True):
        yield keys[numbers[start]], deduplicated(_with_own_dictionaries(table.slice(start, end - start)))


def _with_own_dictionaries(table: pa.Table) -> pa.Table:
    """Return events whose dictionaries have their own texts only: files of events have statistics of them."""
    columns = []
    for name in table.column_names:
        column = table.column(name)
        if name in DICTIONARIES:
            column = column.combine_chunks()
            column = column.chunk(0) if isinstance(column, pa.ChunkedArray) else column
            used = column.indices.dictionary_encode()
            column = pa.DictionaryArray.from_arrays(used.indices, column.dictionary.take(used.dictionary))
        columns.append(column)
    return pa.table(columns, schema=table.schema)


def _column(batch: pa.RecordBatch, name: str) -> Any:
    return batch.column(name).to_numpy(zero_copy_only=False)
