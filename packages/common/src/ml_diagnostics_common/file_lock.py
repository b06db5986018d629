"""Locks between processes: flock on a file, which the kernel lets go of however a process ends.

A lock belongs to the open file: a forked child has it too, until both have closed it, or one lets go of it by `unlock`.
"""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path

__all__ = ["is_held", "open_lock_file", "share_lock", "try_lock", "unlock", "wait_for_lock"]

_POLL_SECONDS = 0.005


def open_lock_file(path: Path) -> int:
    """Opens a file to lock, made for this user alone if it is not there, and never a link; raises OSError."""
    # Without O_NONBLOCK, to open a named pipe would wait for its other end.
    names = ("O_NOFOLLOW", "O_CLOEXEC", "O_NONBLOCK")
    return os.open(path, os.O_RDWR | os.O_CREAT | sum(getattr(os, name, 0) for name in names), 0o600)


def try_lock(descriptor: int) -> bool:
    """Takes the lock on an open file or folder; returns False while another process has it.

    Raises:
        OSError: The system, or the file system, has no locks.
    """
    try:
        import fcntl
    except ImportError:  # Windows.
        raise OSError(errno.ENOLCK, "this system has no file locks") from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def share_lock(descriptor: int) -> None:
    """Hold an open file's lock together with others, for as long as it is open: see `is_held`. Never raises."""
    try:
        import fcntl

        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except (ImportError, OSError):
        pass  # There are no locks, or another process calls `is_held` at this moment.


def is_held(descriptor: int) -> bool:
    """Return True if a process, in whatever container, holds the lock on an open file; False where there are none."""
    try:
        if not try_lock(descriptor):
            return True
    except OSError:
        return False
    unlock(descriptor)
    return False


def wait_for_lock(descriptor: int, timeout_seconds: float) -> None:
    """Takes the lock on an open file or folder, once it is free.

    Raises:
        OSError: Another process has it for longer (ETIMEDOUT), or there are no locks.
    """
    deadline = time.monotonic() + timeout_seconds
    while not try_lock(descriptor):
        if time.monotonic() > deadline:
            raise OSError(errno.ETIMEDOUT, f"another process holds the lock, for more than {timeout_seconds:g} s")
        time.sleep(_POLL_SECONDS)


def unlock(descriptor: int) -> None:
    """Lets go of the lock on an open file, also for children that were forked meanwhile; the file stays open."""
    try:
        import fcntl

        fcntl.flock(descriptor, fcntl.LOCK_UN)
    except (ImportError, OSError):
        pass  # There are no locks.
