"""The public names of the monitor.

A name is imported when it is first used: a trainer that only monitors never loads what its helper process needs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ml_goodput_measurement._lazy_names import imported_on_use

if TYPE_CHECKING:
    from ml_goodput_measurement._monitor.monitor import GoodputMonitor
    from ml_goodput_measurement._query.calculator import GoodputCalculator
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
    "GoodputCalculator": "_query.calculator",
    "GoodputMonitor": "_monitor.monitor",
    "ValueType": "gcp_metrics",
}

_SUBMODULES = ("gcp_metrics", "goodput", "goodput_utils")
"""Programs use these as attributes of this module, as in the public package."""

__getattr__ = imported_on_use(__name__, {name: _MODULES.get(name, "goodput_utils") for name in __all__}, _SUBMODULES)


def __dir__() -> list[str]:
    return __all__
