"""A file in memory that a job's output is appended to, and which is freed from its beginning.

The job writes to a regular file: its writes never wait, and never fail because a reader has ended (EPIPE) or a disk is
full (ENOSPC). The file's size is all that was ever written; what is freed takes no memory (a hole).
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Final

from ml_diagnostics_common.descriptors import with_high_number

__all__ = ["MOST_BYTES", "NAME", "TAIL_BYTES", "MemoryFile", "free_before"]

NAME: Final = "ml-diagnostics-console"
"""The name that /proc/PID/fd shows."""
TAIL_BYTES: Final = 64 * 2**10
"""The last bytes of a stream stay in memory, for the record of the end."""
MOST_BYTES: Final = 64 * 2**20
"""The most memory that output may take which nobody reads."""

_KEEP_SIZE_AND_PUNCH_HOLE: Final = 0x01 | 0x02
"""FALLOC_FL_KEEP_SIZE and FALLOC_FL_PUNCH_HOLE of linux/falloc.h."""
_PAGE_BYTES: Final = 4096


class MemoryFile:
    """A file in memory.

    Raises:
        OSError: The system has no such files, or cannot free parts of them.
    """

    def __init__(self) -> None:
        if not hasattr(os, "memfd_create"):
            raise OSError("this system has no files in memory")
        import fcntl

        # Not the number of a standard stream that is closed: the job would have it open.
        self.descriptor = with_high_number(os.memfd_create(NAME))
        try:
            # Another process that opens /dev/stdout writes at its own position, and must not overwrite.
            fcntl.fcntl(self.descriptor, fcntl.F_SETFL, fcntl.fcntl(self.descriptor, fcntl.F_GETFL) | os.O_APPEND)
            _free(self.descriptor, _PAGE_BYTES)
        except OSError:
            os.close(self.descriptor)
            raise
        self.freed = 0
        """The position before which everything was freed."""

    def size(self) -> int:
        """Return the number of bytes that were ever written."""
        size = os.fstat(self.descriptor).st_size
        if size < self.freed:  # The job has truncated it: it has opened /dev/stdout to write from the beginning.
            self.freed = 0
        return size

    def read(self, position: int, most_bytes: int) -> bytes:
        """Return what was written from a position on."""
        return os.pread(self.descriptor, most_bytes, position)

    def free_before(self, position: int) -> None:
        """Free the memory before a position; whole pages only."""
        if position - self.freed >= _PAGE_BYTES:
            self.freed = free_before(self.descriptor, position)

    def close(self) -> None:
        """Close this process's descriptor."""
        os.close(self.descriptor)


def free_before(descriptor: int, position: int) -> int:
    """Free the memory of a file's first bytes; whole pages only.

    Args:
        descriptor: The file.
        position: The number of bytes.

    Returns:
        The position before which everything was freed.

    Raises:
        OSError: The system cannot.
    """
    position = max(0, position - position % _PAGE_BYTES)
    if position:
        _free(descriptor, position)
    return position


def _free(descriptor: int, position: int) -> None:
    if _fallocate()(descriptor, _KEEP_SIZE_AND_PUNCH_HOLE, 0, position):
        import ctypes

        number = ctypes.get_errno()
        raise OSError(number, f"a file in memory cannot be freed: {os.strerror(number)}")


@functools.cache
def _fallocate() -> Callable[[int, int, int, int], int]:
    """Return the function of the C library: Python has only one that allocates.

    Raises:
        OSError: It has none.
    """
    import ctypes

    try:
        function = ctypes.CDLL(None, use_errno=True).fallocate
    except AttributeError as error:
        raise OSError("the C library has no fallocate") from error
    function.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
    function.restype = ctypes.c_int
    call: Callable[[int, int, int, int], int] = function
    return call
