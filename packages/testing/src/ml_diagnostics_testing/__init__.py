"""Loopback servers for Google Cloud APIs, with fault injection, for tests."""

from ml_diagnostics_testing._version import __version__

__all__ = ["__version__"]
