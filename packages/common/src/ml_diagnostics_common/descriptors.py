"""Descriptors that survive a program that closes all descriptors, as a process that becomes a daemon does.

There are two defenses. `Descriptor` compares the file behind a number before each use from Python: the number may be
that of a file of the program's by then. `with_high_number` is for numbers that are used without such a check, by C code
or by the journal: the program's own files get low numbers.
"""

from __future__ import annotations

import os

__all__ = ["Descriptor", "identity", "with_high_number"]

_HIGH_NUMBERS = (900, 200, 3)
"""Lower limits: few processes have as many open files. Some processes may have only the first 256, or fewer; but
programs write to 0, 1 and 2 without opening them."""


class Descriptor:
    """A descriptor of ours, until the program closes it.

    The number is checked before each use, and no file object of Python's has it: that would close the number when it is
    collected.

    Args:
        number: The number, which belongs to this object from now on.
    """

    def __init__(self, number: int) -> None:
        self._number = number
        self._identity = identity(number)

    def number(self) -> int | None:
        """Return the number, to be used immediately; None if the descriptor was closed."""
        if self._number < 0:
            return None
        try:
            is_ours = identity(self._number) == self._identity
        except OSError:
            is_ours = False
        if not is_ours:
            self._number = -1
            return None
        return self._number

    def close(self) -> None:
        """Close it, unless the program did."""
        number = self.number()
        self._number = -1
        if number is not None:
            os.close(number)

    def __del__(self) -> None:
        try:
            self.close()
        except Exception:
            pass  # A constructor that failed, or the end of the interpreter.


def with_high_number(number: int) -> int:
    """Move a descriptor to a high number, and return that; without a free high number, return the same number."""
    try:
        import fcntl
    except ImportError:  # Windows.
        return number
    for lowest in _HIGH_NUMBERS:
        try:
            high = fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, lowest)
        except OSError:  # The limit of this process is lower, or there is no free number.
            continue
        os.close(number)
        return high
    return number


def identity(number: int) -> tuple[int, int]:
    """Return what identifies the file, pipe or socket behind a number: each has an inode of its own.

    Raises:
        OSError: The descriptor is closed.
    """
    status = os.fstat(number)
    return status.st_dev, status.st_ino
