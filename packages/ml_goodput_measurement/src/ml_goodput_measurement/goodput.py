"""The public names of this library.

A name is imported when it is first used: a trainer that only records never loads the calculator.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ml_goodput_measurement._lazy_names import imported_on_use

if TYPE_CHECKING:
    from ml_goodput_measurement._query.calculator import GoodputCalculator
    from ml_goodput_measurement._record.checkpoint_logger import CheckpointLogger
    from ml_goodput_measurement._record.job_recorder import Recorder
    from ml_goodput_measurement._record.recorder import GoodputRecorder
    from ml_goodput_measurement.checkpoint_badput_calculator import (
        CheckpointBadputCalculator,
        CheckpointLoggerOptions,
    )
    from ml_goodput_measurement.exceptions import (
        GoodputError,
        NoGoodputError,
    )
    from ml_goodput_measurement.goodput_cache import GoodputCache
    from ml_goodput_measurement.goodput_utils import (
        BadputType,
        GoodputInfo,
        GoodputType,
        IntervalMetricType,
        IntervalWorkloadMetricDetails,
        MetricType,
        StepInfo,
        UnproductiveTimeDict,
        WorkloadMetricDetails,
        compute_ideal_step_time,
        get_extra_time_from_anomalous_steps,
        get_timestamp_from_log_entry,
    )
    from ml_goodput_measurement.metric_details import JobGoodput
    from ml_goodput_measurement.monitoring import GoodputMonitor

__all__ = [
    "BadputType",
    "CheckpointBadputCalculator",
    "CheckpointLogger",
    "CheckpointLoggerOptions",
    "GoodputCache",
    "GoodputCalculator",
    "GoodputError",
    "GoodputInfo",
    "GoodputMonitor",
    "GoodputRecorder",
    "GoodputType",
    "IntervalMetricType",
    "IntervalWorkloadMetricDetails",
    "JobGoodput",
    "MetricType",
    "NoGoodputError",
    "Recorder",
    "StepInfo",
    "UnproductiveTimeDict",
    "WorkloadMetricDetails",
    "compute_ideal_step_time",
    "get_extra_time_from_anomalous_steps",
    "get_timestamp_from_log_entry",
]

_MODULES = {
    "BadputType": "goodput_utils",
    "CheckpointBadputCalculator": "checkpoint_badput_calculator",
    "CheckpointLogger": "_record.checkpoint_logger",
    "CheckpointLoggerOptions": "checkpoint_badput_calculator",
    "GoodputCache": "goodput_cache",
    "GoodputCalculator": "_query.calculator",
    "GoodputError": "exceptions",
    "GoodputInfo": "goodput_utils",
    "GoodputMonitor": "monitoring",
    "GoodputRecorder": "_record.recorder",
    "GoodputType": "goodput_utils",
    "IntervalMetricType": "goodput_utils",
    "IntervalWorkloadMetricDetails": "goodput_utils",
    "JobGoodput": "metric_details",
    "MetricType": "goodput_utils",
    "NoGoodputError": "exceptions",
    "Recorder": "_record.job_recorder",
    "StepInfo": "goodput_utils",
    "UnproductiveTimeDict": "goodput_utils",
    "WorkloadMetricDetails": "goodput_utils",
    "compute_ideal_step_time": "goodput_utils",
    "get_extra_time_from_anomalous_steps": "goodput_utils",
    "get_timestamp_from_log_entry": "goodput_utils",
    "_CloudLogger": "_cloud_logger",  # Private in the public package, but programs use them.
    "_CUSTOM_BADPUT_EVENT_END_TIME": "_cloud_logger",
    "_CUSTOM_BADPUT_EVENT_START_TIME": "_cloud_logger",
    "_CUSTOM_BADPUT_EVENT_TYPE": "_cloud_logger",
    "_DATA_LOADING_END_TIME": "_cloud_logger",
    "_DATA_LOADING_START_TIME": "_cloud_logger",
    "_JOB_END_TIME": "_cloud_logger",
    "_JOB_NAME": "_cloud_logger",
    "_JOB_START_TIME": "_cloud_logger",
    "_STEP_COUNT": "_cloud_logger",
    "_STEP_START_TIME": "_cloud_logger",
    "_TPU_INIT_END_TIME": "_cloud_logger",
    "_TPU_INIT_START_TIME": "_cloud_logger",
    "_TRAINING_PREPARATION_END_TIME": "_cloud_logger",
    "_TRAINING_PREPARATION_START_TIME": "_cloud_logger",
}

_SUBMODULES = ("checkpoint_badput_calculator", "goodput_cache", "goodput_exclusion", "goodput_utils")
"""Programs use these as attributes of this module, as in the public package."""

__getattr__ = imported_on_use(__name__, _MODULES, _SUBMODULES)


def __dir__() -> list[str]:
    return __all__
