"""Where did the training job's time go: record and calculate goodput."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ml_goodput_measurement._version import __version__

if TYPE_CHECKING:
    from ml_goodput_measurement import (
        checkpoint_badput_calculator,
        gcp_metrics,
        goodput,
        goodput_cache,
        goodput_elastic,
        goodput_utils,
        monitoring,
        monitoring_elastic,
        src,
    )

__all__ = [
    "__version__",
    "checkpoint_badput_calculator",
    "gcp_metrics",
    "goodput",
    "goodput_cache",
    "goodput_elastic",
    "goodput_utils",
    "monitoring",
    "monitoring_elastic",
    "src",
]


def __getattr__(name: str) -> Any:
    # `import ml_goodput_measurement; ml_goodput_measurement.goodput` works, and costs nothing before it is used.
    if name in __all__:
        return import_module(f"ml_goodput_measurement.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
