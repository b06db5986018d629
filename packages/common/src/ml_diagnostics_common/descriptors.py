"""Descriptors that survive a program that closes all descriptors, as a process that becomes a daemon does.

There are two defenses. `Descriptor` compares the file behind a number before each use from Python: the number may be
that of a file of the program's by then. `with_high_number` is for numbers that are used without such a check, by C code
or by the journal: the program's own files get low numbers.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["Descriptor", "channels", "identity", "send", "with_high_number"]

_HIGH_NUMBERS = (900, 200)
"""Lower limits: few processes have as many open files. Some processes may have only the first 256."""

_DARWIN_NO_SIGPIPE = 0x1022
"""SO_NOSIGPIPE in sys/socket.h; Python has no name for it."""


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


@contextmanager
def channels() -> Iterator[tuple[Descriptor, int, Descriptor, int]]:
    """Yield our end and the child's end of a connection to a child process, and of one from it; close the child's ends.

    The first is a socket, not a pipe: writing to a pipe without a reader raises SIGPIPE, which kills a job that has
    reset that signal to its default.
    """
    import socket

    ours, its_stdin = socket.socketpair()
    if sys.platform == "darwin":
        ours.setsockopt(socket.SOL_SOCKET, _DARWIN_NO_SIGPIPE, 1)
    with its_stdin:
        to_child = Descriptor(ours.detach())
        from_child, its_stdout = os.pipe()
        try:
            yield to_child, its_stdin.fileno(), Descriptor(from_child), its_stdout
        finally:
            os.close(its_stdout)


def send(descriptor: int, data: bytes | bytearray | memoryview) -> int:
    """Write to a socket, without SIGPIPE and without waiting, and return the number of bytes.

    Raises:
        OSError: The other end is closed, or (BlockingIOError) its buffer is full.
    """
    import socket

    end = socket.socket(fileno=descriptor)
    try:
        end.setblocking(False)  # Whatever socket.setdefaulttimeout says.
        return end.send(data, getattr(socket, "MSG_NOSIGNAL", 0))
    finally:
        end.detach()
