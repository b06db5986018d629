"""Work that a recording call hands to a thread, whatever the caller is in the middle of."""

from __future__ import annotations

import _thread
from collections.abc import Callable

from ml_diagnostics_common.guard import LOSSES

__all__ = ["Task", "start"]


class Task:
    """A function that runs in a thread of its own."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        """Why it failed, once it has ended."""
        self._running = _thread.allocate_lock()
        self._running.acquire()

    def wait(self, timeout_seconds: float) -> bool:
        """True if it has ended, within that time."""
        if not self._running.acquire(timeout=max(0.0, timeout_seconds)):
            return False
        self._running.release()
        return True

    def _run(self, function: Callable[[], object]) -> None:
        try:
            function()
        except Exception as error:
            self.error = error
            LOSSES.add(f"background: {type(error).__name__}")
        finally:
            self._running.release()


def start(function: Callable[[], object]) -> Task | None:
    """Starts `function`; None when there can be no more threads (the interpreter ends, or the system has none).

    A bare thread: `threading.Thread.start` takes a lock of the threading module, so a signal handler that records
    an event could wait for ever for the very code that it interrupted.
    """
    task = Task()
    try:
        _thread.start_new_thread(task._run, (function,))
    except RuntimeError:
        return None
    return task
