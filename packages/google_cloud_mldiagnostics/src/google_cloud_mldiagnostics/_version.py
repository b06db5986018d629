"""The version; its local part, which no release on the public index can have, shows that it is ours."""

__version__ = "1.2.0+mld"


def get_version() -> str:
    """Return this library's version."""
    return __version__
