"""Opening files that others may have replaced: regular files only, of a limited size.

To open a named pipe would wait for its writer, and a device or a huge file would be read until the memory is full.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

__all__ = ["open_regular", "read_regular"]


def open_regular(path: str | Path, *, follow_links: bool = True) -> int:
    """Return a descriptor to read a regular file.

    Raises:
        OSError: It cannot be opened, or is not a regular file (EINVAL).
    """
    names = ["O_CLOEXEC", "O_NONBLOCK", "O_NOCTTY", "O_BINARY", *([] if follow_links else ["O_NOFOLLOW"])]
    descriptor = os.open(path, os.O_RDONLY | sum(getattr(os, name, 0) for name in names))
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def read_regular(path: str | Path, most_bytes: int) -> bytes:
    """Return what a regular file holds.

    Raises:
        OSError: It cannot be read, is not a regular file (EINVAL), or has more than `most_bytes` (EFBIG).
    """
    with os.fdopen(open_regular(path), "rb") as file:
        size = os.fstat(file.fileno()).st_size
        data = file.read(most_bytes + 1) if size <= most_bytes else b""
    if size > most_bytes or len(data) > most_bytes:
        raise OSError(errno.EFBIG, f"it has more than {most_bytes:,} bytes", str(path))
    return data
