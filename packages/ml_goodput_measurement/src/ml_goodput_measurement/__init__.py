"""Where did the training job's time go: record and calculate goodput."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ml_goodput_measurement._version import __version__

if TYPE_CHECKING:
    from ml_goodput_measurement import goodput, goodput_utils, src

__all__ = ["__version__", "goodput", "goodput_utils", "src"]


def __getattr__(name: str) -> Any:
    # `import ml_goodput_measurement; ml_goodput_measurement.goodput` works, and costs nothing before it is used.
    if name in ("goodput", "goodput_utils", "src"):
        return import_module(f"ml_goodput_measurement.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
