"""The public names of the monitor of elastic jobs; each is imported when it is first used."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ml_goodput_measurement.elastic_calculator import ElasticGoodputCalculator
    from ml_goodput_measurement.goodput_utils import GCPOptions
    from ml_goodput_measurement.monitor.monitor import ElasticGoodputMonitor, GoodputMonitor

__all__ = ["ElasticGoodputCalculator", "ElasticGoodputMonitor", "GCPOptions", "GoodputMonitor"]

_MODULES = {
    "ElasticGoodputCalculator": "elastic_calculator",
    "ElasticGoodputMonitor": "monitor.monitor",
    "GCPOptions": "goodput_utils",
    "GoodputMonitor": "monitor.monitor",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"ml_goodput_measurement.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
