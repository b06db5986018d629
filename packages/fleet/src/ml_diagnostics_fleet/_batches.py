"""Batches of a table of events as events of writers: without a Python object for each event."""

from __future__ import annotations

import json
from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from ml_goodput_measurement.reading import EventBatch, EventRow, Writer, add_rows

__all__ = ["FOREIGN", "Identities", "Part", "event_batch", "parts_of"]

FOREIGN = "insertId:"
"""Prefix of `writer` of an entry that another library wrote; its own identity follows."""

_BULK = ("step_start", "step_end", "load_start", "load_end")
_MOST_RUNS = 2
"""If each writer has more runs of rows than this, on average, rows are sorted by writer."""
_FEW_ROWS = 100
"""So few rows are converted one by one."""


class Part(NamedTuple):
    """Rows of one writer."""

    writer: Writer
    identity: str
    """The column `writer`."""
    labels: str
    rows: pa.RecordBatch


def parts_of(batch: pa.RecordBatch) -> Iterator[Part]:
    """Yield the rows of a batch by writer; those of each in the order of the batch."""
    if not batch.num_rows:
        return
    columns = [_encoded(batch.column(name)) for name in ("writer", "host", "labels", "process_index")]
    varying = [column for column in columns if len(column.dictionary) > 1]
    if not varying:
        yield _part(batch)
        return
    codes = varying[0].indices.cast(pa.int64())
    for column in varying[1:]:
        codes = pc.add(pc.multiply(codes, len(column.dictionary)), column.indices.cast(pa.int64()))
    runs = pc.run_end_encode(codes, run_end_type=pa.int32())
    if len(runs.values) > _MOST_RUNS * len(pc.unique(runs.values)):
        order = pc.array_sort_indices(codes)  # Stable: each writer's rows keep their order.
        batch, runs = batch.take(order), pc.run_end_encode(codes.take(order), run_end_type=pa.int32())
    start = 0
    for end in runs.run_ends.to_pylist():
        yield _part(batch.slice(start, end - start))
        start = end


def event_batch(rows: pa.RecordBatch, job: str, skipped: Counter[str]) -> EventBatch:
    """Return the events of some rows of one job.

    Args:
        rows: Rows of a table of events.
        job: The job's name.
        skipped: Counts, by reason, payloads that cannot be read.

    Raises:
        ValueError: A row has a kind that this version does not know, or a payload that is not JSON.
    """
    batch = EventBatch()
    if rows.num_rows < _FEW_ROWS:
        add_rows(batch, _event_rows(rows), job, skipped)
        return batch
    kinds = _encoded(rows.column("kind"))
    codes = {kind: code for code, kind in enumerate(kinds.dictionary.to_pylist())}
    indices, at_ns, step = kinds.indices, rows.column("at_ns"), rows.column("step")
    is_step, is_end, is_load, is_loaded = (pc.equal(indices, codes[kind]) if kind in codes else None for kind in _BULK)
    times: list[pa.Array] = []
    if is_step is not None:
        times.append(at_ns.filter(is_step))
        batch.step_times = _column(times[-1])
        batch.step_numbers = _column(step.filter(is_step))
    # A load may start where a step ends; then its row has the step.
    ended = is_end if is_load is None else _either(is_end, pc.and_(is_load, step.is_valid()))
    if ended is not None:
        times.append(at_ns.filter(ended))
        batch.step_end_times = _column(times[-1])
        batch.step_end_numbers = _column(step.filter(ended))
    loads = _either(is_load, is_loaded)
    if loads is not None:
        marks = pc.multiply(at_ns.filter(loads), 2)
        if is_load is not None:
            marks = pc.add(marks, is_load.filter(loads).cast(pa.int64()))
        times.append(marks)
        batch.load_marks = _column(marks)
    batch.rises = all(map(_rises, times))
    bulk = _either(_either(is_step, is_end), loads)
    others = rows if bulk is None else rows.filter(pc.invert(bulk))
    if others.num_rows:
        known = len(batch.step_times), len(batch.step_end_times), len(batch.load_marks)
        add_rows(batch, _event_rows(others), job, skipped)
        batch.rises &= known == (len(batch.step_times), len(batch.step_end_times), len(batch.load_marks))
    return batch


class Identities:
    """The identities of the entries seen so far; in order they cost a few operations for thousands of entries."""

    def __init__(self) -> None:
        self._ranges: dict[str, tuple[list[int], list[int]]] = {}
        """First and last numbers of the ranges of each writer, in order."""

    def new(self, identity: str, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows of one writer that were not seen before, each once."""
        numbers = rows.column("seq")
        firsts, lasts = self._ranges.setdefault(identity, ([], []))
        first, count = numbers[0].as_py(), len(numbers)
        steps = pc.subtract(numbers.slice(1), numbers.slice(0, count - 1))
        rises = count == 1 or pc.min(steps).as_py() > 0
        if not rises or (lasts and first <= lasts[-1]):
            kept = [_is_new(number, firsts, lasts) for number in numbers.to_pylist()]
            return rows if all(kept) else rows.filter(pa.array(kept))
        last = numbers[count - 1].as_py()
        if last - first + 1 == count:
            borders: list[int] = []
        else:
            borders = pc.indices_nonzero(pc.greater(steps, 1)).to_pylist()
        starts = [first, *(numbers[border + 1].as_py() for border in borders)]
        stops = [*(numbers[border].as_py() for border in borders), last]
        if lasts and lasts[-1] + 1 == first:
            lasts[-1] = stops[0]
            del starts[0], stops[0]
        firsts += starts
        lasts += stops
        return rows


def _is_new(number: int, firsts: list[int], lasts: list[int]) -> bool:
    position = bisect_right(firsts, number)
    if position and number <= lasts[position - 1]:
        return False
    joins_left = position > 0 and lasts[position - 1] == number - 1
    joins_right = position < len(firsts) and firsts[position] == number + 1
    if joins_left and joins_right:
        lasts[position - 1] = lasts.pop(position)
        firsts.pop(position)
    elif joins_left:
        lasts[position - 1] = number
    elif joins_right:
        firsts[position] = number
    else:
        firsts.insert(position, number)
        lasts.insert(position, number)
    return True


def _event_rows(rows: pa.RecordBatch) -> Iterator[EventRow]:
    columns = [rows.column(name).to_pylist() for name in EventRow._fields]
    return map(EventRow._make, zip(*columns, strict=True))


def _part(rows: pa.RecordBatch) -> Part:
    process_index, identity, host, labels = (
        rows.column(name)[0].as_py() for name in ("process_index", "writer", "host", "labels")
    )
    known: dict[str, Any] = json.loads(labels)
    writer = Writer(
        process_index=process_index,
        name="" if identity.startswith(FOREIGN) else identity,
        attempt=str(known.get("attempt", "")),
        host=host,
        pid=str(known.get("pid", "")),
    )
    return Part(writer, identity, labels, rows)


def _encoded(column: pa.Array) -> pa.DictionaryArray:
    return column if pa.types.is_dictionary(column.type) else column.dictionary_encode()


def _rises(values: pa.Array) -> bool:
    """Return True if each value is greater than the one before."""
    count = len(values)
    return count < 2 or bool(pc.all(pc.less(values.slice(0, count - 1), values.slice(1))).as_py())


def _either(first: pa.Array | None, second: pa.Array | None) -> pa.Array | None:
    if first is None or second is None:
        return second if first is None else first
    return pc.or_(first, second)


def _column(values: pa.Array) -> array[int]:
    """Return 64-bit numbers as an array, and 0 for null: one copy, and no object for each."""
    column = array("q")
    if values.null_count:
        values = pc.fill_null(values, 0)
    if len(values):
        data = memoryview(values.buffers()[1])
        column.frombytes(data[8 * values.offset : 8 * (values.offset + len(values))])
    return column
