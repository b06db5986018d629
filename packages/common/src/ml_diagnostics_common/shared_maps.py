"""Memory that other processes can read, also while this one is stuck and after its end: a file that is mapped.

Before Python 3.13, `mmap` keeps a duplicate of the descriptor and closes its number with the map. A program that closes
all descriptors, and then opens files of its own, would lose one of these.
"""

from __future__ import annotations

import contextlib
import os
import sys
from typing import TYPE_CHECKING

from ml_diagnostics_common.descriptors import identity

if TYPE_CHECKING:
    import mmap

__all__ = ["SharedMap"]


class SharedMap:
    """A file in memory, mapped.

    Args:
        descriptor: The file; it may be closed afterwards.
        size: Its size. All of it must be written: a store to a page for which the disk has no space kills the process
            (SIGBUS).

    Raises:
        OSError: It cannot be mapped.
    """

    def __init__(self, descriptor: int, size: int) -> None:
        import mmap

        if sys.version_info >= (3, 13):
            self.memory = mmap.mmap(descriptor, size, trackfd=False)
        else:
            self.memory = mmap.mmap(descriptor, size)
        self.file = identity(descriptor)
        """The identity of the file."""
        self._duplicate = _duplicate_of(self.file, descriptor)

    def release(self) -> None:
        """Unmap the file, unless that would close a file of the program's, which has closed our descriptor."""
        if self._duplicate is None or _is_behind(self._duplicate, self.file):
            self.memory.close()
        else:
            _keep_for_ever(self.memory)


_maps_never_closed: list[mmap.mmap] = []


def _keep_for_ever(mapped: mmap.mmap) -> None:
    """Even at the end of the interpreter, when the job's files may still have something to write."""
    try:
        import ctypes

        ctypes.pythonapi.Py_IncRef(ctypes.py_object(mapped))
    except (ImportError, AttributeError):
        _maps_never_closed.append(mapped)


def _duplicate_of(file: tuple[int, int], descriptor: int) -> int | None:
    """Return the descriptor that `mmap` keeps before Python 3.13, and closes with the map; None if there is none."""
    numbers = (number for number in _open_descriptors() if number != descriptor)
    return next((number for number in numbers if _is_behind(number, file)), None)


def _is_behind(number: int, file: tuple[int, int]) -> bool:
    """Return True if this descriptor is open, and is of this file."""
    try:
        return identity(number) == file
    except OSError:
        return False


def _open_descriptors() -> list[int]:
    for folder in ("/proc/self/fd", "/dev/fd"):
        with contextlib.suppress(OSError):
            return [int(name) for name in os.listdir(folder) if name.isdigit()]  # noqa: PTH208 (they are numbers)
    return []
