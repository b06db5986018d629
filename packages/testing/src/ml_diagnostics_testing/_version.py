"""The version, in one place."""

__version__ = "1.4.0"
