"""The public names for elastic jobs; each is imported when it is first used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ml_goodput_measurement.lazy_names import imported_on_use

if TYPE_CHECKING:
    from ml_goodput_measurement.elastic_calculator import ElasticGoodputCalculator
    from ml_goodput_measurement.elastic_recorder import ElasticGoodputRecorder
    from ml_goodput_measurement.recorder import GoodputRecorder

__all__ = ["ElasticGoodputCalculator", "ElasticGoodputRecorder", "GoodputRecorder"]

_MODULES = {
    "ElasticGoodputCalculator": "elastic_calculator",
    "ElasticGoodputRecorder": "elastic_recorder",
    "GoodputRecorder": "recorder",
}

_SUBMODULES = ("goodput", "goodput_utils")
"""Programs reach these through this module, as through the public package's."""

__getattr__ = imported_on_use(__name__, _MODULES, _SUBMODULES)


def __dir__() -> list[str]:
    return __all__
