"""For programs that import `ml_goodput_measurement.src.goodput`: the very modules that are one level up."""

from __future__ import annotations

import sys

from ml_goodput_measurement import goodput, goodput_utils

__all__ = ["goodput", "goodput_utils"]

# Both are light. Known under their second names, they are found there by every kind of import, and never loaded twice.
for _module in (goodput, goodput_utils):
    sys.modules[_module.__name__.replace("ml_goodput_measurement", __name__, 1)] = _module
