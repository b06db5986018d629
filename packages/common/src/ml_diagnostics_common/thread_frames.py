"""The frames that threads execute."""

from __future__ import annotations

import _thread
import gc
import sys
from types import FrameType
from typing import Final

__all__ = ["current_frames"]

_MAY_DEADLOCK: Final = (3, 11) <= sys.version_info < (3, 11, 9)


def current_frames() -> dict[int, FrameType]:
    """Return the frame that each thread executes, by the thread's identifier; for this thread, the caller's.

    `sys._current_frames` makes objects while it holds a lock of the interpreter. If that starts a collection, a
    callback of it or a finalizer may release the GIL, and another thread that then starts or ends waits for the lock
    with the GIL held: the program is stuck for ever (CPython issue 106883, in 3.11 before 3.11.9). So collection is
    off meanwhile.
    """
    if _MAY_DEADLOCK and gc.isenabled():
        try:
            gc.disable()
            frames = sys._current_frames()
        finally:
            gc.enable()
    else:
        frames = sys._current_frames()
    frames[_thread.get_ident()] = sys._getframe(1)
    return frames
