"""The public names of the monitor of elastic jobs; each is imported when it is first used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ml_goodput_measurement._lazy_names import imported_on_use

if TYPE_CHECKING:
    from ml_goodput_measurement._monitor.monitor import ElasticGoodputMonitor, GoodputMonitor
    from ml_goodput_measurement._query.calculator import ElasticGoodputCalculator
    from ml_goodput_measurement.goodput_utils import GCPOptions

__all__ = ["ElasticGoodputCalculator", "ElasticGoodputMonitor", "GCPOptions", "GoodputMonitor"]

_MODULES = {
    "ElasticGoodputCalculator": "_query.calculator",
    "ElasticGoodputMonitor": "_monitor.monitor",
    "GCPOptions": "goodput_utils",
    "GoodputMonitor": "_monitor.monitor",
}

_SUBMODULES = ("goodput_elastic", "goodput_utils", "monitoring")
"""Programs use these as attributes of this module, as in the public package."""

__getattr__ = imported_on_use(__name__, _MODULES, _SUBMODULES)


def __dir__() -> list[str]:
    return __all__
