"""The public names of the monitor.

A name is imported when it is first used: a trainer that only monitors never loads what its helper process needs.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ml_goodput_measurement.calculator import GoodputCalculator
    from ml_goodput_measurement.gcp_metrics import GCPMetrics, ValueType
    from ml_goodput_measurement.goodput_utils import (
        ACTIVITY_EXCLUSION_LIST,
        BadputType,
        GCPOptions,
        IntervalMetricType,
        IntervalWorkloadMetricDetails,
        MetricType,
        MonitoringWindowType,
        UnproductiveTimeDict,
        WorkloadMetricDetails,
    )
    from ml_goodput_measurement.monitor.monitor import GoodputMonitor

__all__ = [
    "ACTIVITY_EXCLUSION_LIST",
    "BadputType",
    "GCPMetrics",
    "GCPOptions",
    "GoodputCalculator",
    "GoodputMonitor",
    "IntervalMetricType",
    "IntervalWorkloadMetricDetails",
    "MetricType",
    "MonitoringWindowType",
    "UnproductiveTimeDict",
    "ValueType",
    "WorkloadMetricDetails",
]

_MODULES = {
    "GCPMetrics": "gcp_metrics",
    "GoodputCalculator": "calculator",
    "GoodputMonitor": "monitor.monitor",
    "ValueType": "gcp_metrics",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"ml_goodput_measurement.{_MODULES.get(name, 'goodput_utils')}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
