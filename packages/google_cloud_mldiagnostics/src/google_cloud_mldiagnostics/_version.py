"""The version of the package."""

__version__ = "1.2.0"


def get_version() -> str:
    """Return this library's version."""
    return __version__
