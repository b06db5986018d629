"""The kinds of good and bad time, the types of the calculator's results, and the options of a monitor."""

from __future__ import annotations

import datetime
import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypedDict

__all__ = [
    "ACTIVITY_EXCLUSION_LIST",
    "BadputType",
    "ElasticIntervalWorkloadMetricDetails",
    "ElasticWorkloadMetricDetails",
    "GCPOptions",
    "GoodputInfo",
    "GoodputType",
    "IntervalMetricType",
    "IntervalWorkloadMetricDetails",
    "JobGoodput",
    "MetricType",
    "MonitoringWindowType",
    "StepInfo",
    "UnproductiveTimeDict",
    "WorkloadMetricDetails",
]


class GoodputType(enum.Enum):
    """Kinds of productive time."""

    TOTAL = 1


class BadputType(enum.Enum):
    """Kinds of time that did not train the model."""

    TPU_INITIALIZATION = 1
    TRAINING_PREP = 2
    PROGRAM_STARTUP = 3
    DATA_LOADING_SYNC = 4
    DATA_LOADING_ASYNC = 5
    UNPRODUCTIVE_CHECKPOINT_SAVE_TIME = 6
    UNPRODUCTIVE_CHECKPOINT_RESTORE_TIME = 7
    WASTED_PROGRESS_FROM_DISRUPTION = 8
    INFRASTRUCTURE_RECOVERY_FROM_DISRUPTION = 9
    CUSTOM_BADPUT_EVENTS = 10
    OTHER = 11
    ELASTIC_SLICE_DOWN = 12
    ELASTIC_SCALE_UP = 13
    ELASTIC_REINITIALIZATION = 14

    # Members are singletons: hashing their identity takes a tenth of the time of hashing their names.
    __hash__ = object.__hash__


class MetricType(enum.Enum):
    """Keys of `WorkloadMetricDetails`."""

    GOODPUT_TIME = "goodput_time"
    BADPUT_TIME = "badput_time"
    MAX_PRODUCTIVE_STEP = "max_productive_step"
    TOTAL_ELAPSED_TIME = "total_elapsed_time"
    DISRUPTION_COUNT = "disruption_count"
    STEP_TIME_DEVIATION = "step_time_deviation"
    IDEAL_STEP_TIME = "ideal_step_time"
    TOTAL_EXCLUDED_TIME = "total_excluded_time"


class IntervalMetricType(enum.Enum):
    """Keys of `IntervalWorkloadMetricDetails`."""

    INTERVAL_GOODPUT = "interval_goodput"
    INTERVAL_BADPUT = "interval_badput"
    INTERVAL_SIZE = "interval_size"


class MonitoringWindowType(enum.Enum):
    """The time that a metric covers: the job's whole life, or a part of it."""

    CUMULATIVE = "cumulative"
    INTERVAL = "interval"


ACTIVITY_EXCLUSION_LIST = [BadputType.DATA_LOADING_ASYNC.name]
"""Kinds of badput that are not exported as lost time, since they overlap training."""

UnproductiveTimeDict = dict[BadputType, float | dict[str, float]]
"""Seconds, or percent, by kind of badput; custom events by their type, upper case."""


@dataclass
class GCPOptions:
    """The metrics that are sent to Cloud Monitoring, and the labels of the job there."""

    project_id: str | None = None
    """None: the project that this machine belongs to."""
    location: str | None = None
    """Zone or region; None: this machine's zone."""
    replica_id: str = "0"
    acc_type: str | None = None
    """The accelerator's type, such as TPU-v5p; None: that of this machine's type, or UNKNOWN."""
    cluster_name: str | None = None
    """None: the GKE cluster of this machine, if it is in one."""
    enable_gcp_goodput_metrics: bool = True
    enable_gcp_step_deviation_metrics: bool = True


class WorkloadMetricDetails(TypedDict):
    """The details of a job; times in seconds."""

    goodput_time: dict[GoodputType, float]
    badput_time: UnproductiveTimeDict
    max_productive_step: int
    total_elapsed_time: float
    disruption_count: int
    step_time_deviation: Mapping[int, float]
    ideal_step_time: float
    total_excluded_time: float


class IntervalWorkloadMetricDetails(TypedDict):
    """The details of a window of a job's time: shares in percent of the window, and its size in seconds."""

    interval_goodput: dict[GoodputType, float]
    interval_badput: UnproductiveTimeDict
    interval_size: float


class ElasticWorkloadMetricDetails(WorkloadMetricDetails):
    """The details of an elastic job, with the means of its slices, 0 to 1."""

    stepping_slice_efficiency: float
    available_slice_efficiency: float


class ElasticIntervalWorkloadMetricDetails(IntervalWorkloadMetricDetails):
    """The details of a window of an elastic job's time, with the means of its slices, 0 to 1."""

    stepping_slice_efficiency: float
    available_slice_efficiency: float


@dataclass
class GoodputInfo:
    """A job's goodput at one moment, for `GoodputCache`; times in seconds."""

    total_productive_time: float = 0.0
    total_elapsed_time: float = 0.0
    total_unproductive_time: UnproductiveTimeDict | None = None
    max_productive_step: int = 0
    last_recorded_step: int = 0
    last_updated_timestamp: datetime.datetime = field(
        default_factory=lambda: datetime.datetime.now(datetime.timezone.utc)
    )
    """The default is the time of construction."""
    number_of_disruptions: int = 0
    total_excluded_time: float = 0.0


@dataclass
class StepInfo:
    """A job's step times at one moment, for `GoodputCache`; times in seconds."""

    ideal_step_time: float
    step_deviations: Mapping[int, float]


for _kind in (BadputType, GoodputType, IntervalMetricType, MetricType, MonitoringWindowType):
    _kind.__module__ = "ml_goodput_measurement.goodput_utils"  # Pickles contain the public name.


class JobGoodput(NamedTuple):
    """Goodput in percent, badput in percent by kind, and the last step.

    Both documented uses work: `goodput, badput, step = calculator.get_job_goodput()`, and
    `f"{calculator.get_job_goodput():.2f}%"`. It converts, formats, rounds and compares with numbers as its goodput.
    """

    goodput: float
    badput_breakdown: UnproductiveTimeDict
    last_step: int

    def __float__(self) -> float:
        return self.goodput

    def __format__(self, spec: str) -> str:
        return format(self.goodput, spec) if spec else str(self)

    def __round__(self, digits: int | None = None) -> float:
        return round(self.goodput, digits)

    def __eq__(self, other: object) -> bool:
        return self.goodput == other if _is_number(other) else tuple.__eq__(self, other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __lt__(self, other: object) -> bool:
        return self.goodput < other if _is_number(other) else tuple.__lt__(self, other)  # type: ignore[operator]

    def __le__(self, other: object) -> bool:
        return self.goodput <= other if _is_number(other) else tuple.__le__(self, other)  # type: ignore[operator]

    def __gt__(self, other: object) -> bool:
        return self.goodput > other if _is_number(other) else tuple.__gt__(self, other)  # type: ignore[operator]

    def __ge__(self, other: object) -> bool:
        return self.goodput >= other if _is_number(other) else tuple.__ge__(self, other)  # type: ignore[operator]

    def __hash__(self) -> int:
        return hash(self.goodput)


# With it, numbers of numpy leave comparisons to this class. The body of a named tuple cannot contain it.
JobGoodput.__array_ufunc__ = None  # type: ignore[attr-defined]
JobGoodput.__module__ = "ml_goodput_measurement.goodput"  # Pickles contain the public name.


def _is_number(value: object) -> bool:
    return hasattr(value, "__float__") and not isinstance(value, tuple)
