"""Record a training job's activities, and calculate its goodput."""

from __future__ import annotations

from ml_goodput_measurement._lazy_names import imported_on_use
from ml_goodput_measurement._version import __version__

TYPE_CHECKING = False  # Not imported from typing: that takes 8 ms, in which Ctrl-C in a command prints a traceback.

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


# `import ml_goodput_measurement; ml_goodput_measurement.goodput` works, and costs nothing before it is used.
__getattr__ = imported_on_use(__name__, {}, __all__)


def __dir__() -> list[str]:
    return __all__
