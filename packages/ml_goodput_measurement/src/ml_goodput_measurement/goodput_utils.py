"""Public names of goodput: the kinds of good and bad time, the shapes of what the calculator returns, and helpers.

Importing this module loads nothing else; a function is loaded from its own module when it is first used.
"""

from __future__ import annotations

import datetime
import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypedDict

from ml_goodput_measurement.lazy_names import imported_on_use

if TYPE_CHECKING:
    from ml_goodput_measurement.entry_time import get_timestamp_from_log_entry
    from ml_goodput_measurement.gcp_metadata import (
        get_accelerator_type,
        get_cluster_name,
        get_gcp_metadata,
        get_gcp_project_id,
        get_node_zone,
    )
    from ml_goodput_measurement.step_statistics import (
        compute_ideal_step_time,
        compute_percentile,
        compute_step_deviation_from_baseline,
        get_anomalous_and_normal_step_times,
        get_extra_time_from_anomalous_steps,
    )

__all__ = [
    "ACTIVITY_EXCLUSION_LIST",
    "MACHINE_TYPE_TO_ACCELERATOR_TYPE_MAPPING",
    "BadputType",
    "ElasticIntervalWorkloadMetricDetails",
    "ElasticWorkloadMetricDetails",
    "GCPOptions",
    "GoodputInfo",
    "GoodputType",
    "IntervalMetricType",
    "IntervalWorkloadMetricDetails",
    "MetricType",
    "MonitoringWindowType",
    "StepInfo",
    "UnproductiveTimeDict",
    "WorkloadMetricDetails",
    "compute_ideal_step_time",
    "compute_percentile",
    "compute_step_deviation_from_baseline",
    "get_accelerator_type",
    "get_anomalous_and_normal_step_times",
    "get_cluster_name",
    "get_extra_time_from_anomalous_steps",
    "get_gcp_metadata",
    "get_gcp_project_id",
    "get_node_zone",
    "get_timestamp_from_log_entry",
]

_MODULES = {
    "compute_ideal_step_time": "step_statistics",
    "compute_percentile": "step_statistics",
    "compute_step_deviation_from_baseline": "step_statistics",
    "get_accelerator_type": "gcp_metadata",
    "get_anomalous_and_normal_step_times": "step_statistics",
    "get_cluster_name": "gcp_metadata",
    "get_extra_time_from_anomalous_steps": "step_statistics",
    "get_gcp_metadata": "gcp_metadata",
    "get_gcp_project_id": "gcp_metadata",
    "get_node_zone": "gcp_metadata",
    "get_timestamp_from_log_entry": "entry_time",
}


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

    # Members are alone of their kind: their identity is hashed, at a tenth of what hashing their names costs.
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
    """What a metric speaks of: the job's whole life, or a part of it."""

    CUMULATIVE = "cumulative"
    INTERVAL = "interval"


ACTIVITY_EXCLUSION_LIST = [BadputType.DATA_LOADING_ASYNC.name]
"""Kinds of badput that are not exported as time lost: they overlap training."""

MACHINE_TYPE_TO_ACCELERATOR_TYPE_MAPPING: Mapping[str, str] = {
    "tpu7x": "TPU-7x",
    "ct6e": "TPU-v6e",
    "ct5p": "TPU-v5p",
    "ct5lp": "TPU-v5e",
    "ct5l": "TPU-v5e",
    "ct4p": "TPU-v4p",
    "ct3p": "TPU-v3",
    "ct3": "TPU-v3",
    "tpu-v2": "TPU-v2",
    "tpu": "TPU",
    "a4x-max": "NVIDIA-GB300",
    "a4x": "NVIDIA-GB200",
    "a4-": "NVIDIA-B200",
    "a3-edgegpu": "NVIDIA-H100",
    "a3-highgpu": "NVIDIA-H100",
    "a3-megagpu": "NVIDIA-H100",
    "a3-ultragpu": "NVIDIA-H200",
    "a2": "NVIDIA-A100",
    "g4-": "NVIDIA-RTX-PRO-6000",
    "g2-": "NVIDIA-L4",
    "gpu": "GPU",
}
"""The accelerator of a machine type, as a label says it: the first key that the machine type contains decides.

The values are those of the public package, for alerts and dashboards filter on them. For A4, A4X, G2 and G4 machines,
which it does not tell apart, ours are in the same style. Types of machines: https://cloud.google.com/compute/docs/gpus
and https://cloud.google.com/kubernetes-engine/docs/concepts/plan-tpus
"""

UnproductiveTimeDict = dict[BadputType, float | dict[str, float]]
"""Seconds, or percent, a kind of badput; custom events by their type, upper case."""


@dataclass
class GCPOptions:
    """What Cloud Monitoring is told of a job, and whether."""

    project_id: str | None = None
    """None: the project that this machine belongs to."""
    location: str | None = None
    """Zone or region; None: this machine's zone."""
    replica_id: str = "0"
    acc_type: str | None = None
    """The accelerator's type, such as TPU-v5p; None: what this machine's type tells, else UNKNOWN."""
    cluster_name: str | None = None
    """None: the GKE cluster of this machine, if it is in one."""
    enable_gcp_goodput_metrics: bool = True
    enable_gcp_step_deviation_metrics: bool = True


class WorkloadMetricDetails(TypedDict):
    """What is known of a job; times in seconds."""

    goodput_time: dict[GoodputType, float]
    badput_time: UnproductiveTimeDict
    max_productive_step: int
    total_elapsed_time: float
    disruption_count: int
    step_time_deviation: Mapping[int, float]
    ideal_step_time: float
    total_excluded_time: float


class IntervalWorkloadMetricDetails(TypedDict):
    """What is known of a stretch of a job's time: shares in percent of the stretch, and its size in seconds."""

    interval_goodput: dict[GoodputType, float]
    interval_badput: UnproductiveTimeDict
    interval_size: float


class ElasticWorkloadMetricDetails(WorkloadMetricDetails):
    """What is known of an elastic job: also the means of its slices, 0 to 1."""

    stepping_slice_efficiency: float
    available_slice_efficiency: float


class ElasticIntervalWorkloadMetricDetails(IntervalWorkloadMetricDetails):
    """What is known of a stretch of an elastic job's time: also the means of its slices, 0 to 1."""

    stepping_slice_efficiency: float
    available_slice_efficiency: float


@dataclass
class GoodputInfo:
    """A job's goodput at one moment, as `GoodputCache` keeps it; times in seconds."""

    total_productive_time: float = 0.0
    total_elapsed_time: float = 0.0
    total_unproductive_time: UnproductiveTimeDict | None = None
    max_productive_step: int = 0
    last_recorded_step: int = 0
    last_updated_timestamp: datetime.datetime = field(
        default_factory=lambda: datetime.datetime.now(datetime.timezone.utc)
    )
    """When this was made, unless it is given."""
    number_of_disruptions: int = 0
    total_excluded_time: float = 0.0


@dataclass
class StepInfo:
    """A job's step times at one moment, as `GoodputCache` keeps them; times in seconds."""

    ideal_step_time: float
    step_deviations: Mapping[int, float]


__getattr__ = imported_on_use(__name__, _MODULES)


def __dir__() -> list[str]:
    return __all__
