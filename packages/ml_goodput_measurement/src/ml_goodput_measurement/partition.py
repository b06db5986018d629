"""The results of the ledger: a job's wall time, cut into pieces that each lie in exactly one bucket.

All times are integer nanoseconds since the POSIX epoch, all durations integer nanoseconds.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

__all__ = [
    "AttemptEnd",
    "AttemptSummary",
    "Bucket",
    "BucketedTime",
    "DaySum",
    "Disruption",
    "Inference",
    "JobReport",
    "Piece",
]


class Bucket(enum.Enum):
    """The kinds of wall time; a moment that belongs to several is in the first of them, in this order."""

    EXCLUDED = "EXCLUDED"
    WASTED_PROGRESS = "WASTED_PROGRESS_FROM_DISRUPTION"
    ELASTIC_SLICE_DOWN = "ELASTIC_SLICE_DOWN"
    ELASTIC_SCALE_UP = "ELASTIC_SCALE_UP"
    ELASTIC_REINITIALIZATION = "ELASTIC_REINITIALIZATION"
    CUSTOM = "CUSTOM_BADPUT_EVENTS"
    CHECKPOINT_RESTORE = "UNPRODUCTIVE_CHECKPOINT_RESTORE_TIME"
    CHECKPOINT_SAVE = "UNPRODUCTIVE_CHECKPOINT_SAVE_TIME"
    TPU_INITIALIZATION = "TPU_INITIALIZATION"
    TRAINING_PREP = "TRAINING_PREP"
    DATA_LOADING_SYNC = "DATA_LOADING_SYNC"
    PROGRAM_STARTUP = "PROGRAM_STARTUP"
    PRODUCTIVE = "PRODUCTIVE"
    INFRASTRUCTURE_RECOVERY = "INFRASTRUCTURE_RECOVERY_FROM_DISRUPTION"
    IN_FLIGHT = "IN_FLIGHT_STEP"  # the last step, while it is unknown whether it will count
    UNKNOWN = "UNKNOWN"  # nothing that was recorded accounts for it

    # Members are singletons: hashing their identity takes a tenth of the time of hashing their names.
    __hash__ = object.__hash__


class BucketedTime:
    """Base of stretches of wall time with the sums of their buckets."""

    __slots__ = ()
    start_ns: int
    end_ns: int
    buckets: Mapping[Bucket, int]

    @property
    def wall_ns(self) -> int:
        """The wall time."""
        return self.end_ns - self.start_ns

    @property
    def counted_ns(self) -> int:
        """The wall time without excluded time: the whole that all percentages refer to."""
        return self.wall_ns - self.buckets[Bucket.EXCLUDED]

    @property
    def goodput_percent(self) -> float:
        """Productive share of the counted time, in percent; 0.0 without counted time."""
        return 100 * self.buckets[Bucket.PRODUCTIVE] / self.counted_ns if self.counted_ns else 0.0


class DaySum(NamedTuple):
    """The time of one bucket in one day of an attempt."""

    attempt: int
    """Number of the attempt, from 1."""
    day: int
    """Days since 1970, in UTC."""
    bucket: Bucket
    label: str
    """Type of the custom event, upper case; empty for other buckets."""
    ns: int


class AttemptEnd(enum.Enum):
    """The outcome of an attempt, as far as it was recorded."""

    RUNNING = "running"
    JOB_END = "job end recorded"
    EXITED = "process exited"
    """It ended without an exception, and without recording the job's end."""
    FAILED = "failed"
    """It ended by an uncaught exception."""
    LOST = "exited without recording its end"
    """There is no record of its end: for example, it was killed."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of wall time in one bucket."""

    start_ns: int
    end_ns: int
    bucket: Bucket
    attempt: int
    """Number of the attempt, from 1."""
    label: str = ""
    """Type of the custom event, upper case; empty for other buckets."""
    estimated: bool = False
    """True if the end of a step was not recorded, and is estimated."""


@dataclass(frozen=True, slots=True)
class AttemptSummary:
    """One life of the job: from a job start, or a step that was repeated without one, to the next."""

    number: int
    """The number of the attempt, from 1 on."""
    start_ns: int
    end_ns: int
    """The time of its last event; for the running attempt, the time of the query."""
    ended: AttemptEnd
    first_step: int | None
    last_step: int | None
    steps_kept: int
    steps_lost: int
    """Steps that are lost, since a later attempt resumed at or before them."""
    last_checkpoint_step: int | None
    """Step of the last checkpoint that started (`record_checkpoint_progress`) or was saved (`CheckpointLogger`); None
    without one. A checkpoint that has only started may not be complete."""
    buckets: Mapping[Bucket, int]
    """Nanoseconds by bucket, up to the next attempt's start; they sum to that time."""
    custom: Mapping[str, int] = field(default_factory=dict)
    """Nanoseconds by type of custom event; they sum to `buckets[Bucket.CUSTOM]`."""
    exception: str = ""
    """Type of the uncaught exception, or of the one that was handled when the job end was recorded."""
    previous_checkpoint_step: int | None = None
    """Step of the checkpoint before the last one; None without one. It was complete when the last one started."""


@dataclass(frozen=True, slots=True)
class Disruption:
    """A restart of the job after an attempt with steps, and its cost in parts.

    Each part is time of a bucket: the sum over all disruptions is the bucket's time after the job's first step.
    Excluded time costs nothing.
    """

    number: int
    """The number of the disruption, from 1 on."""
    attempt: int
    """Number of the attempt that was cut short."""
    last_event_ns: int
    step_in_flight: int | None
    """Number of the step that had started when the attempt was cut short; None if the end of that step, or of the job,
    was recorded. It had been done if the job resumed after it."""
    resumed_ns: int
    """Start of the next attempt with steps, or of the latest attempt until there is one."""
    resumed_step: int | None
    """Its first step; None until it makes one."""
    failed_attempts: int
    """Attempts without steps between the two; their whole time is infrastructure."""
    steps_lost: int
    """Steps from the resumed one on that no earlier disruption had lost."""
    infrastructure_ns: int
    """The time from the last event to the start of the next attempt with steps."""
    init_ns: int
    """Device initialization and training preparation of that attempt."""
    restore_ns: int
    """Checkpoint restores of that attempt."""
    data_loading_ns: int
    """The data load that its first step waited for."""
    startup_ns: int
    """Additional time of its first step, compared with the others."""
    recompute_ns: int
    """Cost of repeating the lost steps: the time from the first to the last of them. It is the wasted progress of this
    disruption; the repetition is productive time, like any step with a lasting result."""

    @property
    def cost_ns(self) -> int:
        """The whole cost of the disruption: the sum of the parts."""
        parts = (self.infrastructure_ns, self.init_ns, self.restore_ns, self.data_loading_ns, self.startup_ns)
        return sum(parts) + self.recompute_ns


@dataclass(frozen=True, slots=True)
class Inference:
    """A kind of time whose events were not recorded by the program, but inferred from what it did."""

    bucket: Bucket
    """The kind of time; PRODUCTIVE for the steps."""
    label: str
    """Type of the custom event, upper case; empty for other buckets."""
    source: str
    """Its source, such as calls of a function."""
    certainty: str
    """`high`: measured, by a framework; `medium`: it nearly always means this activity; `low`: it may be another."""


@dataclass(frozen=True, slots=True)
class JobReport(BucketedTime):
    """The time of a job by bucket, with its attempts and disruptions."""

    job_name: str
    start_ns: int
    end_ns: int
    running: bool
    """False if the job's end was recorded, or its process exited or is gone; see `ended` of the last attempt."""
    buckets: Mapping[Bucket, int]
    """Nanoseconds by bucket, for every bucket; they sum to `end_ns - start_ns`."""
    custom: Mapping[str, int]
    """Nanoseconds by type of custom event; they sum to `buckets[Bucket.CUSTOM]`."""
    data_loading_async_ns: int
    """Data loading in parallel to steps, which is not part of the sum."""
    estimated_ns: int
    """Nanoseconds of steps with an estimated end, in any bucket."""
    last_step: int
    """The highest kept step that is done; 0 without one."""
    steps_kept: int
    ideal_step_seconds: float | None
    """Mean step time without the anomalous steps; None while no step is complete."""
    attempts: Sequence[AttemptSummary]
    disruptions: Sequence[Disruption]
    timeline: Sequence[Piece]
    notes: Sequence[str] = ()
    """Notes for the reader: lost or skipped entries, a second recorder, a missing backend."""
    inferred: Sequence[Inference] = ()
    """The kinds of time that were inferred; all others were recorded."""
