"""GoodputCache, under the name that the public package has for its module."""

from ml_goodput_measurement._compat.goodput_cache import GoodputCache
from ml_goodput_measurement.metric_details import GoodputInfo, StepInfo

__all__ = ["GoodputCache", "GoodputInfo", "StepInfo"]
