"""What the ML diagnostics libraries share."""

from ml_diagnostics_common._version import __version__

__all__ = ["__version__"]
