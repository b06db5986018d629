"""Public names of goodput: the kinds of good and bad time, and the shapes of what the calculator returns."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import TypedDict

__all__ = ["BadputType", "GoodputType", "MetricType", "UnproductiveTimeDict", "WorkloadMetricDetails"]


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


UnproductiveTimeDict = dict[BadputType, float | dict[str, float]]
"""Seconds, or percent, a kind of badput; custom events by their type, upper case."""


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
