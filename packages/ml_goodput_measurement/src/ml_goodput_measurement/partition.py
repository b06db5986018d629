"""What the ledger tells: a job's wall time, cut into pieces that each lie in exactly one bucket.

All times are integer nanoseconds since the POSIX epoch, all durations integer nanoseconds.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

__all__ = ["AttemptEnd", "AttemptSummary", "Bucket", "Disruption", "JobReport", "Piece"]


class Bucket(enum.Enum):
    """Where a moment of wall time went; where two claim a moment, the one that stands first here has it."""

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
    IN_FLIGHT = "IN_FLIGHT_STEP"  # the last step, while nobody knows whether it will count
    UNKNOWN = "UNKNOWN"  # nothing that was recorded accounts for it

    # Members are alone of their kind: their identity is hashed, at a tenth of what hashing their names costs.
    __hash__ = object.__hash__


class AttemptEnd(enum.Enum):
    """How an attempt ended, as far as its records say."""

    RUNNING = "running"
    JOB_END = "job end recorded"
    LOST = "ended without a word"


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of wall time in one bucket."""

    start_ns: int
    end_ns: int
    bucket: Bucket
    attempt: int
    """Number of the attempt, from 1."""
    label: str = ""
    """Type of the custom event, upper case; empty for every other bucket."""
    estimated: bool = False
    """True where the end of a step was not recorded and had to be estimated."""


@dataclass(frozen=True, slots=True)
class AttemptSummary:
    """One life of the job: from a job start, or a step that was repeated without one, to the next."""

    number: int
    """From 1."""
    start_ns: int
    end_ns: int
    """The last thing that it recorded (for the running attempt: the time of the query)."""
    ended: AttemptEnd
    first_step: int | None
    last_step: int | None
    steps_kept: int
    steps_lost: int
    """Steps that a later attempt went back behind."""
    last_checkpoint_step: int | None
    """Step of the last checkpoint begun (`record_checkpoint_progress`) or saved (`CheckpointLogger`); None where none
    is known, and no promise that it was complete: a checkpoint that has only begun may not be."""
    buckets: Mapping[Bucket, int]
    """Nanoseconds a bucket, up to the next attempt's start; they sum to that span."""
    custom: Mapping[str, int] = field(default_factory=dict)
    """Nanoseconds a custom event type; they sum to `buckets[Bucket.CUSTOM]`."""


@dataclass(frozen=True, slots=True)
class Disruption:
    """The job came back after an attempt that had made steps; what that cost."""

    number: int
    """From 1."""
    attempt: int
    """Number of the attempt that was cut short."""
    last_event_ns: int
    resumed_ns: int
    """Start of the attempt that made steps again, or of the latest one while none has."""
    resumed_step: int | None
    """Its first step; None while it has not made any."""
    failed_attempts: int
    """Attempts between the two that made no step; their whole time is recovery."""
    steps_lost: int
    wasted_ns: int
    """Time of the lost steps."""
    recovery_ns: int
    """From the last event to the start of the attempt that made steps again."""
    restart_ns: int
    """Initialisation, preparation, restore, synchronous data load and startup of that attempt."""

    @property
    def cost_ns(self) -> int:
        """Everything that the disruption cost."""
        return self.wasted_ns + self.recovery_ns + self.restart_ns


@dataclass(frozen=True, slots=True)
class JobReport:
    """Where the time of a job went."""

    job_name: str
    start_ns: int
    end_ns: int
    running: bool
    """True while no job end is the last word."""
    buckets: Mapping[Bucket, int]
    """Nanoseconds a bucket; every bucket is there; they sum to `end_ns - start_ns`."""
    custom: Mapping[str, int]
    """Nanoseconds a custom event type; they sum to `buckets[Bucket.CUSTOM]`."""
    data_loading_async_ns: int
    """Data loading beside the training: an overlay, no part of the sum."""
    estimated_ns: int
    """Nanoseconds of steps whose end was estimated, whatever bucket they lie in."""
    last_step: int
    """The highest step that is known to be done and was kept; 0 where there is none."""
    steps_kept: int
    ideal_step_seconds: float | None
    """Mean step time without the anomalous steps; None while no step is complete."""
    attempts: Sequence[AttemptSummary]
    disruptions: Sequence[Disruption]
    timeline: Sequence[Piece]
    notes: Sequence[str] = ()
    """What a reader should know: entries that were lost or skipped, a second recorder, a backend that is not there."""

    @property
    def wall_ns(self) -> int:
        """The job's wall time."""
        return self.end_ns - self.start_ns

    @property
    def goodput_percent(self) -> float:
        """Productive share of the wall time, in percent; 0.0 for a job without any."""
        return 100.0 * self.buckets[Bucket.PRODUCTIVE] / self.wall_ns if self.wall_ns else 0.0
