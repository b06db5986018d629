"""Descriptors that we use only while they are ours: a process that makes itself a daemon closes all that it finds."""

from __future__ import annotations

import os

__all__ = ["Descriptor"]


class Descriptor:
    """A pipe's or socket's end of ours, until somebody closes it behind our back.

    Its number may be that of a file of the trainer's then, which must not be read, written or closed by us. So it is
    looked at before each use, and no file object of Python's holds it: that would close the number once collected.

    Args:
        number: It belongs to this object from now on.
    """

    def __init__(self, number: int) -> None:
        self._number = number
        self._identity = _identity(number)

    def number(self) -> int | None:
        """For use at once; None if it is closed."""
        if self._number < 0:
            return None
        try:
            is_ours = _identity(self._number) == self._identity
        except OSError:
            is_ours = False
        if not is_ours:
            self._number = -1
            return None
        return self._number

    def close(self) -> None:
        """Closes it, if it is still ours."""
        number = self.number()
        self._number = -1
        if number is not None:
            os.close(number)

    def __del__(self) -> None:
        try:
            self.close()
        except Exception:
            pass  # A constructor that failed, or the end of the interpreter.


def _identity(number: int) -> tuple[int, int]:
    """Of what a number stands for now: pipes and sockets each have an inode of their own."""
    status = os.fstat(number)
    return status.st_dev, status.st_ino
