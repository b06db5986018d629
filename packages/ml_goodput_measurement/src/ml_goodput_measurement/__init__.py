"""Where did the training job's time go: record, calculate and monitor goodput."""

from ml_goodput_measurement._version import __version__

__all__ = ["__version__"]
