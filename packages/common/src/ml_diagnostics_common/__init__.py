"""Common parts of the ML diagnostics libraries."""

from ml_diagnostics_common._version import __version__

__all__ = ["__version__"]
