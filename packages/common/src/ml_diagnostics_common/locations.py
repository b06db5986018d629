"""Where a path leads by its scheme: a bucket (gs://) or this machine. Imports next to nothing."""

from __future__ import annotations

import os
import re

from ml_diagnostics_common.exceptions import ConfigurationError

__all__ = ["in_bucket", "native_path"]

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/")
"""One slash: a `pathlib.Path` has joined the two. One letter is a drive of Windows."""


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


def native_path(path: str) -> str:
    """Return a local path as this process can open it: with a C locale it takes no letters beyond ASCII as they are.

    Such a letter becomes its bytes in UTF-8, one surrogate each, as in the arguments of the process (PEP 383).
    """
    try:
        os.fsencode(path)
    except UnicodeEncodeError:
        return os.fsdecode(path.encode("utf-8", "surrogateescape"))
    return path
