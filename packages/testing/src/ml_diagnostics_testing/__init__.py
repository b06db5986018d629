"""A Google Cloud on loopback, with faults on demand, for tests."""

from ml_diagnostics_testing._version import __version__

__all__ = ["__version__"]
