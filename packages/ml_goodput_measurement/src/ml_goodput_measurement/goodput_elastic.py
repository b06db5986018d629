"""The public names for elastic jobs; each is imported when it is first used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ml_goodput_measurement._lazy_names import imported_on_use

if TYPE_CHECKING:
    from ml_goodput_measurement._query.calculator import ElasticGoodputCalculator
    from ml_goodput_measurement._record.elastic_recorder import ElasticGoodputRecorder
    from ml_goodput_measurement._record.recorder import GoodputRecorder

__all__ = ["ElasticGoodputCalculator", "ElasticGoodputRecorder", "GoodputRecorder"]

_MODULES = {
    "ElasticGoodputCalculator": "_query.calculator",
    "ElasticGoodputRecorder": "_record.elastic_recorder",
    "GoodputRecorder": "_record.recorder",
}

_SUBMODULES = ("goodput", "goodput_utils")
"""Programs use these as attributes of this module, as in the public package."""

__getattr__ = imported_on_use(__name__, _MODULES, _SUBMODULES)


def __dir__() -> list[str]:
    return __all__
