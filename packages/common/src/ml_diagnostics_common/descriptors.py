"""Descriptors that we use only while they are ours: a process that makes itself a daemon closes all that it finds."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["Descriptor", "channels", "identity", "send", "with_high_number"]

_LEAST_NUMBER = 200
"""A job that closes all descriptors it finds will hardly open as many files again."""

_DARWIN_NO_SIGPIPE = 0x1022
"""SO_NOSIGPIPE in sys/socket.h; Python has no name for it."""


class Descriptor:
    """A pipe's or socket's end of ours, until somebody closes it behind our back.

    Its number may be that of a file of the job's then, which must not be read, written or closed by us. So it is
    looked at before each use, and no file object of Python's holds it: that would close the number once collected.

    Args:
        number: It belongs to this object from now on.
    """

    def __init__(self, number: int) -> None:
        self._number = number
        self._identity = identity(number)

    def number(self) -> int | None:
        """For use at once; None if it is closed."""
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


def with_high_number(number: int) -> int:
    """Move a descriptor to a number that programs do not use; it keeps its own where there is none."""
    import fcntl

    try:
        high = fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, _LEAST_NUMBER)
    except OSError:  # So many are not allowed.
        return number
    os.close(number)
    return high


def identity(number: int) -> tuple[int, int]:
    """Return what identifies the file, pipe or socket behind a number: each has an inode of its own.

    Raises:
        OSError: The descriptor is closed.
    """
    status = os.fstat(number)
    return status.st_dev, status.st_ino


@contextmanager
def channels() -> Iterator[tuple[Descriptor, int, Descriptor, int]]:
    """Gives our end and its end of what goes to a child process, and of what comes from it; closes its ends.

    A pipe would not do for the former: writing to one whose reader has just died raises SIGPIPE, which kills a job that
    has set it back to its default.
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
    """Writes to a socket, without SIGPIPE and without waiting.

    Returns:
        How many bytes.

    Raises:
        OSError: The other end is gone, or (BlockingIOError) there is no room.
    """
    import socket

    end = socket.socket(fileno=descriptor)
    try:
        end.setblocking(False)  # Whatever socket.setdefaulttimeout says.
        return end.send(data, getattr(socket, "MSG_NOSIGNAL", 0))
    finally:
        end.detach()
