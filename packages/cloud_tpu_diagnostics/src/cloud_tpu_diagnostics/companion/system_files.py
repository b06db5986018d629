"""Small files of the system, read without what `pathlib` would cost the companion in memory."""

from __future__ import annotations

import os

__all__ = ["read_system_file"]

_MOST_BYTES = 65_536


def read_system_file(path: str) -> bytes:
    """Returns the content of a file in /proc or /sys.

    Raises:
        OSError: It cannot be read.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(descriptor, _MOST_BYTES)
    finally:
        os.close(descriptor)
