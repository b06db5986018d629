"""Where a path leads by its scheme: a bucket (gs://) or this machine. Imports next to nothing."""

from __future__ import annotations

import re

from ml_diagnostics_common.exceptions import ConfigurationError

__all__ = ["in_bucket"]

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")


def in_bucket(path: str) -> bool:
    """Return True for gs://..., False for a local path.

    Raises:
        ConfigurationError: The path has another scheme, or lost a slash in a `pathlib.Path`. As a local path it would
            be a folder called `s3:` in the working directory.
    """
    if path.startswith("gs://"):
        return True
    if path.startswith("gs:/"):
        raise ConfigurationError(f"{path!r} has one slash: give gs://bucket/key as text, since a Path joins slashes")
    scheme = _SCHEME.match(path)
    if scheme:
        raise ConfigurationError(
            f"{path!r}: {scheme[1]}:// is not supported; give gs://bucket/folder or a path on this machine"
        )
    return False
