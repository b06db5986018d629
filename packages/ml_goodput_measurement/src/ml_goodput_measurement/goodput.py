"""The public names of this library.

A name is imported when it is first used: a trainer that only records never loads the calculator.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ml_goodput_measurement.calculator import GoodputCalculator
    from ml_goodput_measurement.checkpoints import CheckpointLogger
    from ml_goodput_measurement.exceptions import GoodputError, NoGoodputError
    from ml_goodput_measurement.goodput_utils import (
        BadputType,
        GoodputType,
        MetricType,
        UnproductiveTimeDict,
        WorkloadMetricDetails,
    )
    from ml_goodput_measurement.job_goodput import JobGoodput
    from ml_goodput_measurement.recorder import GoodputRecorder

__all__ = [
    "BadputType",
    "CheckpointLogger",
    "GoodputCalculator",
    "GoodputError",
    "GoodputRecorder",
    "GoodputType",
    "JobGoodput",
    "MetricType",
    "NoGoodputError",
    "UnproductiveTimeDict",
    "WorkloadMetricDetails",
]

_MODULES = {
    "BadputType": "goodput_utils",
    "CheckpointLogger": "checkpoints",
    "GoodputCalculator": "calculator",
    "GoodputError": "exceptions",
    "GoodputRecorder": "recorder",
    "GoodputType": "goodput_utils",
    "JobGoodput": "job_goodput",
    "MetricType": "goodput_utils",
    "NoGoodputError": "exceptions",
    "UnproductiveTimeDict": "goodput_utils",
    "WorkloadMetricDetails": "goodput_utils",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"ml_goodput_measurement.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
