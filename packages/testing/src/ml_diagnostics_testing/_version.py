"""The package version. pyproject.toml reads it from here."""

__version__ = "1.4.0"
