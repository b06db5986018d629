"""The version."""

__version__ = "1.4.0"
