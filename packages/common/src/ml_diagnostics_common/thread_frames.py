"""The frames that threads execute."""

from __future__ import annotations

import gc
import sys
import threading
from types import FrameType
from typing import Final

from ml_diagnostics_common.process_hooks import at_fork

__all__ = ["current_frames"]

_MAY_DEADLOCK: Final = (3, 11) <= sys.version_info < (3, 11, 9)
_PATIENCE_SECONDS: Final = 0.1
"""At the end of the program a thread may have been ended while it held the lock."""

# State of the process: only one thread at a time turns collection off and on again.
_lock = threading.RLock()  # A signal handler may interrupt its own thread in here.


def _renew_lock() -> None:
    global _lock
    _lock = threading.RLock()


at_fork(_renew_lock)


def current_frames() -> dict[int, FrameType]:
    """Return the frame that each thread executes, by the thread's identifier; for this thread, the caller's.

    `sys._current_frames` makes objects while it holds a lock of the interpreter. If that starts a collection, a
    callback of it or a finalizer may release the GIL, and another thread that then starts or ends waits for the lock
    with the GIL held: the program is stuck for ever (CPython issue 106883, in 3.11 before 3.11.9). So collection is
    off meanwhile.
    """
    frames = _frames_without_collection() if _MAY_DEADLOCK else sys._current_frames()
    frames[threading.get_ident()] = sys._getframe(1)
    return frames


def _frames_without_collection() -> dict[int, FrameType]:
    lock = _lock
    is_alone = lock.acquire(timeout=_PATIENCE_SECONDS)
    was_on = gc.isenabled()
    try:
        gc.disable()
        return sys._current_frames()
    finally:
        if was_on:
            gc.enable()
        if is_alone:
            lock.release()
