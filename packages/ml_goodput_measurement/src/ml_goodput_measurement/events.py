"""Log payloads to typed events: the only place that knows the keys of a goodput log.

The keys are those of the public library of this name, of Orbax's structured checkpoint log, and our own additions.
Times in payloads are float POSIX seconds, which carry about a quarter of a microsecond; events hold integer
nanoseconds, rounded to the microsecond.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import msgspec

from ml_goodput_measurement.partition import Bucket

__all__ = [
    "Activity",
    "CheckpointOperation",
    "EntriesLost",
    "Event",
    "JobEnd",
    "JobStart",
    "Mark",
    "Moment",
    "StepEnd",
    "StepStart",
    "parse",
    "read_events",
]

Payload = Mapping[str, Any]

Activity = tuple[Bucket, str]
"""What a pair of marks measures: a bucket and, for custom events, their type in upper case."""

DATA_LOADING: Activity = (Bucket.DATA_LOADING_SYNC, "")

_LATEST_MICROSECONDS = 4_000_000_000_000_000
"""The year 2096: beyond it nanoseconds no longer fit the ledger's columns; a time out there is a mistake."""
_LARGEST_STEP = 2**62


class StepStart(msgspec.Struct, gc=False, frozen=True):
    """A training step began."""

    step: int
    time_ns: int


class StepEnd(msgspec.Struct, gc=False, frozen=True):
    """A training step ended; few trainers say so, else it ends where the next begins."""

    step: int
    time_ns: int


class JobStart(msgspec.Struct, gc=False, frozen=True):
    """An attempt of the job began."""

    time_ns: int


class JobEnd(msgspec.Struct, gc=False, frozen=True):
    """The job said that it was done."""

    time_ns: int


class Mark(msgspec.Struct, gc=False, frozen=True):
    """Start or end of an activity that is recorded as a pair."""

    activity: Activity
    is_end: bool
    time_ns: int


class CheckpointOperation(msgspec.Struct, gc=False, frozen=True):
    """A save or a restore, as one host reports it: the time for which it blocked the trainer."""

    bucket: Bucket
    step: int
    tier: str
    """'persistent' for a bucket, 'local' for a disk."""
    start_ns: int
    duration_ns: int


class Moment(msgspec.Struct, gc=False, frozen=True):
    """Something that only shows that the job was alive."""

    time_ns: int


class EntriesLost(msgspec.Struct, gc=False):
    """A recorder says what it could not write, by reason."""

    counts: dict[str, int]


Event = StepStart | StepEnd | JobStart | JobEnd | Mark | CheckpointOperation | Moment | EntriesLost


def parse(payload: Payload) -> Event | None:
    """Returns the event that a payload holds, or None when it holds none that the ledger knows.

    Raises:
        ValueError, TypeError, KeyError, OverflowError: The payload has a key of ours with a value that cannot be.
    """
    seconds = payload.get("step_start_time")
    if seconds is not None:
        return StepStart(_step(payload["step_count"]), _nanoseconds(seconds))
    for key in payload:
        parser = _PARSERS.get(key)
        if parser is not None:
            return parser(payload)
    return None


def read_events(payloads: Iterable[Any], job_name: str, skipped: Counter[str]) -> Iterator[Event]:
    """Yields the events of one job, in the order of its payloads.

    Args:
        payloads: Of any job; those of another are passed over.
        job_name: The job.
        skipped: Counts, by reason, what is of this job and cannot be read.
    """
    for payload in payloads:
        try:
            if payload.get("job_name") != job_name:
                continue
            event = parse(payload)
        except (ValueError, TypeError, KeyError, OverflowError, AttributeError):
            skipped["malformed entry"] += 1
            continue
        if event is not None:
            yield event


def _nanoseconds(seconds: float) -> int:
    microseconds = int(seconds * 1e6 + 0.5)
    if not 0 <= microseconds < _LATEST_MICROSECONDS:
        raise ValueError(f"{seconds} s is no time of a job")
    return microseconds * 1000


def _duration(seconds: float) -> int:
    if not 0 <= seconds < 1e9:
        raise ValueError(f"{seconds} s is no duration")
    return int(seconds * 1e6 + 0.5) * 1000


def _step(number: float) -> int:
    step = int(number)
    if not -_LARGEST_STEP < step < _LARGEST_STEP:
        raise ValueError(f"{number} is no step")
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


def _checkpoint_operation(payload: Payload) -> Event | None:
    kind = payload["event_type"]
    if kind == "save":
        bucket, prefix = Bucket.CHECKPOINT_SAVE, "checkpoint_manager_blocking"
    elif kind in ("restore", "emergency_restore"):
        bucket, prefix = Bucket.CHECKPOINT_RESTORE, "checkpoint_manager"
    else:
        return None
    return CheckpointOperation(
        bucket,
        _step(payload["step"]),
        "persistent" if str(payload.get("directory")).startswith("gs://") else "local",
        _nanoseconds(payload[f"{prefix}_start_time"]),
        _duration(payload[f"{prefix}_duration_secs"]),
    )


def _entries_lost(payload: Payload) -> Event:
    return EntriesLost({str(reason): int(count) for reason, count in payload["lost_entries"].items()})


def _parsers() -> dict[str, Callable[[Payload], Event | None]]:
    parsers: dict[str, Callable[[Payload], Event | None]] = {
        "job_start_time": lambda payload: JobStart(_nanoseconds(payload["job_start_time"])),
        "job_end_time": lambda payload: JobEnd(_nanoseconds(payload["job_end_time"])),
        "step_ended": lambda payload: StepEnd(_step(payload["step_end_count"]), _nanoseconds(payload["step_ended"])),
        "checkpoint_progress_started": lambda payload: Moment(_nanoseconds(payload["checkpoint_progress_started"])),
        "elastic_slice_counts_timestamp": lambda payload: Moment(
            _nanoseconds(payload["elastic_slice_counts_timestamp"])
        ),
        "event_type": _checkpoint_operation,
        "lost_entries": _entries_lost,
    }
    pairs: dict[str, Activity] = {
        "data_loading": DATA_LOADING,
        "tpu_init": (Bucket.TPU_INITIALIZATION, ""),
        "training_preparation": (Bucket.TRAINING_PREP, ""),
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
