"""Events as rows of plain values, and back: what tables of events hold in place of payloads.

A row has all that `read_events` finds in a payload, and no more: `batch_from_rows(rows_from_payloads(p))` equals
`read_events(p)`, counters included. A payload that has no columns of its own, also a malformed one, is kept as it is.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from ml_goodput_measurement._ledger.events import (
    Activity,
    CheckpointOperation,
    CheckpointProgress,
    Event,
    EventBatch,
    JobEnd,
    JobStart,
    Mark,
    ProcessEnd,
    SliceCount,
    read_into,
)
from ml_goodput_measurement.partition import Bucket

__all__ = ["KINDS", "EventRow", "EventRowReader", "add_rows", "batch_from_rows", "rows_from_payloads"]

_PAIRS: Final[Mapping[Bucket, str]] = {
    Bucket.TPU_INITIALIZATION: "init",
    Bucket.TRAINING_PREP: "prep",
    Bucket.CUSTOM: "custom",
    Bucket.ELASTIC_SLICE_DOWN: "elastic_wait",
    Bucket.ELASTIC_SCALE_UP: "elastic_wait",
    Bucket.ELASTIC_REINITIALIZATION: "reinit",
}
_STEMS: Final[Mapping[str, Bucket]] = {
    "init": Bucket.TPU_INITIALIZATION,
    "prep": Bucket.TRAINING_PREP,
    "custom": Bucket.CUSTOM,
    "reinit": Bucket.ELASTIC_REINITIALIZATION,
}
_CHECKPOINTS: Final[Mapping[str, Bucket]] = {"save": Bucket.CHECKPOINT_SAVE, "restore": Bucket.CHECKPOINT_RESTORE}

KINDS: Final = (
    "step_start",
    "step_end",
    "load_start",
    "load_end",
    "job_start",
    "job_end",
    *(f"{stem}_{side}" for stem in ("init", "prep", "custom", "elastic_wait", "reinit") for side in ("start", "end")),
    "slices",
    "save",
    "restore",
    "progress",
    "other",
)
"""The kinds of rows. The first four are those of every step."""

_LARGEST_COUNT: Final = 2**31
"""Counts of slices are 32-bit columns."""


class EventRow(NamedTuple):
    """One payload; what its kind does not have is None."""

    kind: str
    at_ns: int
    """The event's own time, in ns since 1970; 0 for a payload that is kept as it is."""
    step: int | None = None
    """Also of a load that starts when a step ends: that step."""
    duration_ns: int | None = None
    label: str | None = None
    """Type of a custom event, elastic type, tier of a checkpoint, or type of the exception at a job end."""
    active: int | None = None
    total: int | None = None
    available: int | None = None
    payload: str | None = None
    """JSON, of the kind `other` alone."""


class EventRowReader:
    """Turns payloads into rows, one at a time."""

    def __init__(self) -> None:
        self._batch = EventBatch()
        self._skipped: Counter[str] = Counter()

    def row(self, payload: Any, job_name: str) -> EventRow:
        """Return the row of a payload.

        Args:
            payload: A payload of this job.
            job_name: The job.
        """
        batch = self._batch
        read_into(batch, (payload,), job_name, self._skipped)
        if batch.step_times:
            return EventRow("step_start", batch.step_times.pop(), batch.step_numbers.pop())
        if batch.load_marks:
            code, step = batch.load_marks.pop(), None
            if batch.step_end_times:
                batch.step_end_times.pop()
                step = batch.step_end_numbers.pop()
            return EventRow("load_start" if code & 1 else "load_end", code >> 1, step)
        if batch.step_end_times:
            return EventRow("step_end", batch.step_end_times.pop(), batch.step_end_numbers.pop())
        self._batch, skipped = EventBatch(), bool(self._skipped)
        self._skipped.clear()
        row = None
        if batch.others:
            row = _row_of(batch.others[0])
        elif batch.checkpoints and not batch.untimed:
            row = _checkpoint_row(batch.checkpoints[0])
        return EventRow("other", 0, payload=_as_json(payload, job_name, skipped=skipped)) if row is None else row


def rows_from_payloads(payloads: Iterable[Any], job_name: str) -> Iterator[EventRow]:
    """Yield a row for each payload of one job; those of other jobs are passed over."""
    reader = EventRowReader()
    for payload in payloads:
        if isinstance(payload, Mapping) and payload.get("job_name") == job_name:
            yield reader.row(payload, job_name)


def batch_from_rows(rows: Iterable[EventRow], job_name: str, skipped: Counter[str]) -> EventBatch:
    """Return the events of the rows of one job.

    Args:
        rows: The rows.
        job_name: The job.
        skipped: Counts, by reason, payloads that cannot be read.

    Raises:
        ValueError: A row has a kind that this version does not know, or a payload that is not JSON.
    """
    batch = EventBatch()
    add_rows(batch, rows, job_name, skipped)
    return batch


def add_rows(batch: EventBatch, rows: Iterable[EventRow], job_name: str, skipped: Counter[str]) -> None:
    """Add the events of rows to a batch; else as `batch_from_rows`."""
    for kind, at_ns, step, duration_ns, label, active, total, available, payload in rows:
        if kind == "step_start":
            batch.step_times.append(at_ns)
            batch.step_numbers.append(step or 0)
        elif kind in ("load_start", "step_end"):
            if step is not None:
                batch.step_end_times.append(at_ns)
                batch.step_end_numbers.append(step)
            if kind == "load_start":
                batch.load_marks.append(2 * at_ns + 1)
        elif kind == "load_end":
            batch.load_marks.append(2 * at_ns)
        elif kind == "other":
            read_into(batch, (json.loads(payload or "null"),), job_name, skipped)
        elif kind in _CHECKPOINTS:
            operation = CheckpointOperation(_CHECKPOINTS[kind], step or 0, label or "", at_ns, duration_ns or 0)
            batch.checkpoints.append(operation)
        elif kind == "job_start":
            batch.others.append(JobStart(at_ns))
        elif kind == "job_end":
            batch.others.append(JobEnd(at_ns, label or ""))
        elif kind == "progress":
            batch.others.append(CheckpointProgress(step or 0, at_ns))
        elif kind == "slices":
            batch.others.append(SliceCount(at_ns, active or 0, total or 0, available or 0))
        else:
            batch.others.append(_mark_of(kind, at_ns, label or ""))


def _row_of(event: Event) -> EventRow | None:
    match event:
        case JobStart(time_ns):
            return EventRow("job_start", time_ns)
        case JobEnd(time_ns, exception):
            return EventRow("job_end", time_ns, label=exception or None)
        case CheckpointProgress(step, time_ns):
            return EventRow("progress", time_ns, step)
        case Mark((bucket, label), is_end, time_ns):
            return EventRow(f"{_PAIRS[bucket]}_{'end' if is_end else 'start'}", time_ns, label=label or None)
        case SliceCount(time_ns, active, total, available):
            if max(active, total, available) >= _LARGEST_COUNT:
                return None
            return EventRow("slices", time_ns, active=active, total=total, available=available)
        case ProcessEnd():
            return None


def _checkpoint_row(operation: CheckpointOperation) -> EventRow:
    kind = "save" if operation.bucket is Bucket.CHECKPOINT_SAVE else "restore"
    return EventRow(kind, operation.start_ns, operation.step, operation.duration_ns, operation.tier)


def _mark_of(kind: str, at_ns: int, label: str) -> Mark:
    stem, _, side = kind.rpartition("_")
    if stem == "elastic_wait":
        bucket = Bucket.ELASTIC_SCALE_UP if "scale_up" in label.lower() else Bucket.ELASTIC_SLICE_DOWN
    elif stem in _STEMS and side in ("start", "end"):
        bucket = _STEMS[stem]
    else:
        raise ValueError(f"events have a row of kind {kind!r:.100}, which this version does not know: update it")
    activity: Activity = (bucket, label)
    return Mark(activity, side == "end", at_ns)


def _as_json(payload: Any, job_name: str, *, skipped: bool) -> str:
    """Return a payload as JSON; of one that cannot be JSON, as little as has the same effect."""
    try:
        return json.dumps(payload, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError):
        replaced = {"job_name": job_name, "step_start_time": None} if skipped else {"job_name": job_name}
        return json.dumps(replaced, separators=(",", ":"))
