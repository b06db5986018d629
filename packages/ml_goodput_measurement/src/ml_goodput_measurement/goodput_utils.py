"""Public names of goodput: the kinds of good and bad time, the types of the calculator's results, and helpers.

A function is loaded from its own module when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ml_goodput_measurement._lazy_names import imported_on_use
from ml_goodput_measurement.metric_details import (
    ACTIVITY_EXCLUSION_LIST,
    BadputType,
    ElasticIntervalWorkloadMetricDetails,
    ElasticWorkloadMetricDetails,
    GCPOptions,
    GoodputInfo,
    GoodputType,
    IntervalMetricType,
    IntervalWorkloadMetricDetails,
    MetricType,
    MonitoringWindowType,
    StepInfo,
    UnproductiveTimeDict,
    WorkloadMetricDetails,
)

if TYPE_CHECKING:
    from ml_goodput_measurement._export.gcp_metadata import (
        MACHINE_TYPE_TO_ACCELERATOR_TYPE_MAPPING,
        get_accelerator_type,
        get_cluster_name,
        get_gcp_metadata,
        get_gcp_project_id,
        get_node_zone,
    )
    from ml_goodput_measurement._query.payloads import get_timestamp_from_log_entry
    from ml_goodput_measurement._query.step_statistics import (
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
    "MACHINE_TYPE_TO_ACCELERATOR_TYPE_MAPPING": "_export.gcp_metadata",
    "compute_ideal_step_time": "_query.step_statistics",
    "compute_percentile": "_query.step_statistics",
    "compute_step_deviation_from_baseline": "_query.step_statistics",
    "get_accelerator_type": "_export.gcp_metadata",
    "get_anomalous_and_normal_step_times": "_query.step_statistics",
    "get_cluster_name": "_export.gcp_metadata",
    "get_extra_time_from_anomalous_steps": "_query.step_statistics",
    "get_gcp_metadata": "_export.gcp_metadata",
    "get_gcp_project_id": "_export.gcp_metadata",
    "get_node_zone": "_export.gcp_metadata",
    "get_timestamp_from_log_entry": "_query.payloads",
}

__getattr__ = imported_on_use(__name__, _MODULES)


def __dir__() -> list[str]:
    return __all__
