"""Log payloads to typed events: the only module that knows the keys of a goodput log.

The keys are those of the public library of this name, of Orbax's structured checkpoint log, and our own additions.
Times in payloads are float POSIX seconds, which carry about a quarter of a microsecond; events hold integer
nanoseconds, rounded to the microsecond.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, MutableSequence, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from ml_goodput_measurement._record.process_outcome import ProcessOutcome
from ml_goodput_measurement.partition import Bucket, Inference

__all__ = [
    "LOGGED_AFTER",
    "LOGGED_AT",
    "Activity",
    "CheckpointOperation",
    "CheckpointProgress",
    "Event",
    "EventBatch",
    "JobEnd",
    "JobStart",
    "Mark",
    "ProcessEnd",
    "SliceCount",
    "read_events",
    "read_into",
]

Payload = Mapping[str, Any]
_Item = TypeVar("_Item", int, tuple[int, int])

Activity = tuple[Bucket, str]
"""The activity of a pair of marks: a bucket and, if that has several activities, their type."""

LOGGED_AT = "logged_at"
"""Key that a source adds to a checkpoint operation: when it was logged, in POSIX seconds."""
LOGGED_AFTER = "logged_after"
"""The same for a log without such times: the time of the entry before it."""

_LATEST_SECONDS = 4_000_000_000.0
"""The year 2096: later times are mistakes, and do not fit into the ledger's columns."""
_LARGEST_STEP = 2**62


class JobStart(NamedTuple):
    """An attempt of the job started."""

    time_ns: int


class JobEnd(NamedTuple):
    """The job recorded its end."""

    time_ns: int
    exception: str = ""
    """Type of the exception that was handled meanwhile, as in a `finally`."""


class ProcessEnd(NamedTuple):
    """The process that recorded the job exited without recording the job's end."""

    time_ns: int
    started_ns: int
    """The start of the attempt that it recorded last."""
    outcome: ProcessOutcome
    exception: str = ""
    """The exception's type; empty for none."""


class Mark(NamedTuple):
    """Start or end of an activity that is recorded as a pair."""

    activity: Activity
    is_end: bool
    time_ns: int


class CheckpointOperation(NamedTuple):
    """A save or a restore, as one host reports it: the time for which it blocked the trainer."""

    bucket: Bucket
    step: int
    tier: str
    """'persistent' for a bucket, 'local' for a disk."""
    start_ns: int
    duration_ns: int


class CheckpointProgress(NamedTuple):
    """A checkpoint of a step started."""

    step: int
    time_ns: int


class SliceCount(NamedTuple):
    """The slices of an elastic job, until the next report of them."""

    time_ns: int
    active: int
    """Slices that train."""
    total: int
    """Slices that the job wants; at least 1."""
    available: int
    """Slices that are available."""


Event = JobStart | JobEnd | ProcessEnd | Mark | CheckpointProgress | SliceCount


@dataclass(slots=True)
class EventBatch:
    """Events of one job, in the order of its log.

    Events of every step are in columns: an object for each would cost more than the rest of a query.
    """

    step_times: MutableSequence[int] = field(default_factory=list)
    """When steps started, in nanoseconds."""
    step_numbers: MutableSequence[int] = field(default_factory=list)
    """Their numbers."""
    step_end_times: MutableSequence[int] = field(default_factory=list)
    """When steps ended; without a recorded end, a step ends when the next starts."""
    step_end_numbers: MutableSequence[int] = field(default_factory=list)
    """Their numbers."""
    load_marks: MutableSequence[int] = field(default_factory=list)
    """When data loads started (2 * time + 1) and ended (2 * time), as `Marks` keeps them."""
    others: list[Event] = field(default_factory=list)
    checkpoints: list[CheckpointOperation] = field(default_factory=list)
    """Apart, because any host may report them."""
    untimed: list[str] = field(default_factory=list)
    """Checkpoint operations recorded without a start, for which one is assumed, a text for each."""
    inferred: list[Inference] = field(default_factory=list)
    """The kinds of events that are inferred."""
    compiled: dict[str, tuple[int, float, int, int]] = field(default_factory=dict)
    """Compilations so far, by process: their number and seconds, and the hits and misses of the compilation cache."""
    lost: dict[str, dict[str, int]] = field(default_factory=dict)
    """Entries that recorders report as not written, by reason, under the name of each report."""
    rises: bool = False
    """True if each value of `step_times`, `step_end_times` and `load_marks` is known to be greater than the one before:
    then they are not read to find that out."""

    def records_job(self) -> bool:
        """Return True if there is more than checkpoint operations."""
        return bool(self.step_times or self.step_end_times or self.load_marks or self.others)

    def span(self) -> tuple[int, int]:
        """Return the times of the first and the last event; there must be one that is not a checkpoint operation."""
        columns = [self._ends(column) for column in (self.step_times, self.step_end_times) if column]
        first = [*(ends[0] for ends in columns), *map(_moment_of, self.others)]
        last = [*(ends[1] for ends in columns), *map(_moment_of, self.others)]
        if self.load_marks:
            ends = self._ends(self.load_marks)
            first.append(ends[0] >> 1)
            last.append(ends[1] >> 1)
        return min(first), max(last)

    def step_span(self) -> tuple[tuple[int, int], tuple[int, int]] | None:
        """Return time and number of the first and of the last step; None without steps."""
        times, numbers = self.step_times, self.step_numbers
        if not times:
            return None
        if self.rises:
            return (times[0], numbers[0]), (times[-1], numbers[-1])
        return min(zip(times, numbers, strict=True)), max(zip(times, numbers, strict=True))

    def _ends(self, column: Sequence[int]) -> tuple[int, int]:
        return (column[0], column[-1]) if self.rises else (min(column), max(column))

    def kinds(self) -> dict[str, tuple[int, int]]:
        """Return the times of the first and the last event of each kind, without checkpoint operations."""
        columns = {"step": self.step_times, "step_end": self.step_end_times}
        kinds = {kind: self._ends(column) for kind, column in columns.items() if column}
        if self.load_marks:
            first, last = self._ends(self.load_marks)
            kinds["load"] = (first >> 1, last >> 1)
        for event in self.others:
            kind, time_ns = _kind_of(event), _moment_of(event)
            first_ns, last_ns = kinds.get(kind, (time_ns, time_ns))
            kinds[kind] = (min(first_ns, time_ns), max(last_ns, time_ns))
        return kinds

    def common(self, batch: EventBatch) -> EventBatch:
        """Return the events that are also in another batch, without checkpoint operations."""
        steps = _common(
            zip(self.step_times, self.step_numbers, strict=True), zip(batch.step_times, batch.step_numbers, strict=True)
        )
        ends = _common(
            zip(self.step_end_times, self.step_end_numbers, strict=True),
            zip(batch.step_end_times, batch.step_end_numbers, strict=True),
        )
        return EventBatch(
            [time_ns for time_ns, _ in steps],
            [number for _, number in steps],
            [time_ns for time_ns, _ in ends],
            [number for _, number in ends],
            _common(self.load_marks, batch.load_marks),
            list(set(self.others).intersection(batch.others)),
        )

    def without(self, batches: Iterable[EventBatch]) -> EventBatch:
        """Return the events that are in none of these batches."""
        kept = self
        for batch in batches:
            steps = _pairs_without(kept.step_times, kept.step_numbers, batch.step_times, batch.step_numbers)
            ends = _pairs_without(
                kept.step_end_times, kept.step_end_numbers, batch.step_end_times, batch.step_end_numbers
            )
            loads, others = set(batch.load_marks), set(batch.others)
            kept = EventBatch(
                *steps,
                *ends,
                [code for code in kept.load_marks if code not in loads],
                [event for event in kept.others if event not in others],
            )
        return kept


def read_events(payloads: Iterable[Any], job_name: str, skipped: Counter[str]) -> EventBatch:
    """Return the events of one job.

    Args:
        payloads: Payloads of any jobs; those of other jobs are skipped.
        job_name: The job.
        skipped: Counts, by reason, payloads of this job that cannot be read.
    """
    batch = EventBatch()
    read_into(batch, payloads, job_name, skipped)
    return batch


def read_into(batch: EventBatch, payloads: Iterable[Any], job_name: str, skipped: Counter[str]) -> None:
    """Add the events of one job to a batch; the arguments are those of `read_events`."""
    add_time, add_number, add_load = batch.step_times.append, batch.step_numbers.append, batch.load_marks.append
    for payload in payloads:
        try:
            if payload["job_name"] != job_name:
                continue
            if "step_start_time" in payload:
                seconds, number = payload["step_start_time"], int(payload["step_count"])
                if 0.0 <= seconds < _LATEST_SECONDS and -_LARGEST_STEP < number < _LARGEST_STEP:
                    add_time(int(seconds * 1e6 + 0.5) * 1000)
                    add_number(number)
                    continue
            elif "data_loading_start_time" in payload:
                seconds = payload["data_loading_start_time"]
                if 0.0 <= seconds < _LATEST_SECONDS:
                    if "step_end_count" in payload:
                        number = _step(payload["step_end_count"])
                        batch.step_end_times.append(int(seconds * 1e6 + 0.5) * 1000)
                        batch.step_end_numbers.append(number)
                    add_load(int(seconds * 1e6 + 0.5) * 2000 + 1)
                    continue
            elif "data_loading_end_time" in payload:
                seconds = payload["data_loading_end_time"]
                if 0.0 <= seconds < _LATEST_SECONDS:
                    add_load(int(seconds * 1e6 + 0.5) * 2000)
                    continue
            else:
                _read_other(payload, batch)
                continue
        except (ValueError, TypeError, KeyError, OverflowError, AttributeError, RecursionError):
            if not isinstance(payload, Mapping) or "job_name" not in payload:
                continue
        skipped["malformed entry"] += 1


def _read_other(payload: Payload, batch: EventBatch) -> None:
    if "lost_entries" in payload:
        lost = {str(reason): int(count) for reason, count in payload["lost_entries"].items()}
        batch.lost[str(payload.get("lost_by", sorted(lost.items())))] = lost
        return
    if "step_ended" in payload:
        number, time_ns = _step(payload["step_end_count"]), _nanoseconds(payload["step_ended"])
        batch.step_end_times.append(time_ns)
        batch.step_end_numbers.append(number)
        return
    if "event_type" in payload:
        _read_checkpoint_operation(payload, batch)
        return
    if "inferred_activity" in payload:
        activity = str(payload["inferred_activity"])
        bucket, label = _INFERRED.get(activity, (Bucket.CUSTOM, activity.upper()))
        source, certainty = str(payload["inferred_from"]), str(payload["inferred_certainty"])
        batch.inferred.append(Inference(bucket, label, source, certainty))
        return
    if "compiled_functions" in payload:
        hits, misses = int(payload["compilation_cache_hits"]), int(payload["compilation_cache_misses"])
        counts = int(payload["compiled_functions"]), float(payload["compiled_seconds"]), hits, misses
        batch.compiled[str(payload["compiled_by"])] = counts
        return
    for key in payload if "process_outcome" not in payload else ("process_outcome",):
        parser = _PARSERS.get(key)
        if parser is not None:
            batch.others.append(parser(payload))
            return


def _common(many: Iterable[_Item], few: Iterable[_Item]) -> list[_Item]:
    return sorted(set(few).intersection(many))


def _pairs_without(
    times: Sequence[int], numbers: Sequence[int], other_times: Sequence[int], other_numbers: Sequence[int]
) -> tuple[list[int], list[int]]:
    removed = set(zip(other_times, other_numbers, strict=True))
    kept = [pair for pair in zip(times, numbers, strict=True) if pair not in removed]
    return [time_ns for time_ns, _ in kept], [number for _, number in kept]


def _moment_of(event: Event) -> int:
    # The end of a process belongs to the attempt that it names, however late the process exits.
    return event.started_ns if isinstance(event, ProcessEnd) else event.time_ns


def _kind_of(event: Event) -> str:
    if isinstance(event, Mark):
        bucket, label = event.activity
        return f"{bucket.value} {label}"
    return type(event).__name__


def _nanoseconds(seconds: float) -> int:
    if not 0.0 <= seconds < _LATEST_SECONDS:
        raise ValueError(f"expected a time since 1970, got {seconds} s")
    return int(seconds * 1e6 + 0.5) * 1000


def _duration(seconds: float) -> int:
    if not 0 <= seconds < 1e9:
        raise ValueError(f"expected a duration, got {seconds} s")
    return int(seconds * 1e6 + 0.5) * 1000


def _step(number: float) -> int:
    step = int(number)
    if not -_LARGEST_STEP < step < _LARGEST_STEP:
        raise ValueError(f"expected a step number, got {number}")
    return step


def _mark(key: str, activity: Activity, *, is_end: bool) -> Callable[[Payload], Event]:
    return lambda payload: Mark(activity, is_end, _nanoseconds(payload[key]))


def _custom_mark(key: str, *, is_end: bool) -> Callable[[Payload], Event]:
    def parse_custom(payload: Payload) -> Event:
        label = str(payload.get("custom_badput_event_type") or "unknown").upper()
        return Mark((Bucket.CUSTOM, label), is_end, _nanoseconds(payload[key]))

    return parse_custom


def _elastic_wait_mark(key: str, *, is_end: bool) -> Callable[[Payload], Event]:
    # The raw type stays in the label: waits are paired by it, and summed by bucket.
    def parse_wait(payload: Payload) -> Event:
        label = str(payload["elastic_wait_event_type"])
        bucket = Bucket.ELASTIC_SCALE_UP if "scale_up" in label.lower() else Bucket.ELASTIC_SLICE_DOWN
        return Mark((bucket, label), is_end, _nanoseconds(payload[key]))

    return parse_wait


def _read_slice_count(payload: Payload) -> Event:
    active, total, available = (int(payload[f"{which}_slices"]) for which in ("active", "total", "available"))
    if not 0 < total < _LARGEST_STEP or not 0 <= active <= total or not 0 <= available < _LARGEST_STEP:
        raise ValueError(f"{active} active and {available} available of {total} slices cannot be")
    return SliceCount(_nanoseconds(payload["elastic_slice_counts_timestamp"]), active, total, available)


def _read_process_end(payload: Payload) -> Event:
    # One that returned has a job_end_time, for readers that know nothing else.
    ended = payload["process_ended"] if "process_ended" in payload else payload["job_end_time"]
    return ProcessEnd(
        _nanoseconds(ended),
        _nanoseconds(payload["process_began"]),
        ProcessOutcome(payload["process_outcome"]),
        str(payload.get("process_exception") or ""),
    )


def _read_checkpoint_operation(payload: Payload, batch: EventBatch) -> None:
    kind = payload["event_type"]
    if kind == "save":
        bucket, prefix = Bucket.CHECKPOINT_SAVE, "checkpoint_manager_blocking"
    elif kind in ("restore", "emergency_restore"):
        bucket, prefix = Bucket.CHECKPOINT_RESTORE, "checkpoint_manager"
    else:
        return
    duration_ns = _duration(payload[f"{prefix}_duration_secs"])
    start = payload.get(f"{prefix}_start_time")
    operation = CheckpointOperation(
        bucket,
        _step(payload["step"]),
        "persistent" if str(payload.get("directory")).startswith("gs://") else "local",
        _assumed_start_ns(payload, bucket, duration_ns) if start is None else _nanoseconds(start),
        duration_ns,
    )
    batch.checkpoints.append(operation)
    if start is None:
        batch.untimed.append(f"{kind} {operation.step} {operation.start_ns} {operation.duration_ns}")


def _assumed_start_ns(payload: Payload, bucket: Bucket, duration_ns: int) -> int:
    """Return the start of an operation that has none.

    The public package counts only the duration, but a partition of the wall time needs the moment, too.
    """
    starts = [payload.get(f"{part}_start_time") for part in _OTHER_PARTS[bucket]]
    known = [start for start in starts if start is not None]
    if known:
        return _nanoseconds(min(known))
    if LOGGED_AFTER in payload:
        return _nanoseconds(payload[LOGGED_AFTER])
    # Orbax logs an operation when it is over.
    return max(0, _nanoseconds(payload[LOGGED_AT]) - duration_ns)


_OTHER_PARTS = {
    Bucket.CHECKPOINT_SAVE: ("wait_for_prev", "checkpointer_blocking"),
    Bucket.CHECKPOINT_RESTORE: ("checkpointer", "broadcast"),
}
"""Parts of an operation that may contain its start."""


_INFERRED: dict[str, Activity] = {
    "step": (Bucket.PRODUCTIVE, ""),
    "tpu_init": (Bucket.TPU_INITIALIZATION, ""),
    "training_prep": (Bucket.TRAINING_PREP, ""),
    "data_loading": (Bucket.DATA_LOADING_SYNC, ""),
    "checkpoint_save": (Bucket.CHECKPOINT_SAVE, ""),
    "checkpoint_restore": (Bucket.CHECKPOINT_RESTORE, ""),
}
"""The kinds of inferred events; others are custom events."""


def _parsers() -> dict[str, Callable[[Payload], Event]]:
    parsers: dict[str, Callable[[Payload], Event]] = {
        "job_start_time": lambda payload: JobStart(_nanoseconds(payload["job_start_time"])),
        "process_outcome": _read_process_end,
        "job_end_time": lambda payload: JobEnd(
            _nanoseconds(payload["job_end_time"]), str(payload.get("job_end_exception") or "")[:200]
        ),
        "checkpoint_progress_started": lambda payload: CheckpointProgress(
            _step(payload["checkpoint_progress_step"]), _nanoseconds(payload["checkpoint_progress_started"])
        ),
        "elastic_slice_counts_timestamp": _read_slice_count,
    }
    pairs: dict[str, Activity] = {
        "tpu_init": (Bucket.TPU_INITIALIZATION, ""),
        "training_prep": (Bucket.TRAINING_PREP, ""),
        "elastic_reinit": (Bucket.ELASTIC_REINITIALIZATION, ""),
    }
    for suffix, is_end in (("start_time", False), ("end_time", True)):
        for name, activity in pairs.items():
            parsers[f"{name}_{suffix}"] = _mark(f"{name}_{suffix}", activity, is_end=is_end)
        custom_key, wait_key = f"custom_badput_event_{suffix}", f"elastic_wait_{suffix}"
        parsers[custom_key] = _custom_mark(custom_key, is_end=is_end)
        parsers[wait_key] = _elastic_wait_mark(wait_key, is_end=is_end)
    return parsers


_PARSERS = _parsers()
