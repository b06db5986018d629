"""SIGTERM: the run's end is recorded, and the process then dies of the signal as it would without us."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

from ml_diagnostics_common.guard import LOSSES

__all__ = ["Termination"]

_MOST_BYTES = 65_536


class Termination:
    """Handles SIGTERM, unless the process has a handler in C or ignores it; a handler of the user's runs as before.

    Args:
        end: Called in the signal handler before the process dies of SIGTERM; waits a bounded time.
        report: Called in the signal handler with the signal's name if the user's handler decides what follows.
        is_watching: Returns False once the run has ended otherwise, and in a forked child.
    """

    def __init__(
        self, end: Callable[[], object], report: Callable[[str], object], is_watching: Callable[[], bool]
    ) -> None:
        self._end = end
        self._report = report
        self._is_watching = is_watching
        self._own_handler = self._on_signal  # One object, so that it is recognised.
        self.previous: Any = None
        """The handler that ours has replaced; None if it has not replaced any."""

    def install(self) -> None:
        """Install the handler; without effect off the main thread, where Python cannot."""
        if threading.current_thread() is not threading.main_thread():
            return
        if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL and _is_caught_in_c(signal.SIGTERM):
            return
        previous = _living(signal.getsignal(signal.SIGTERM))
        # None is a handler in C, which cannot be chained: JAX's, which watches for preemptions.
        if previous is signal.SIG_DFL or (callable(previous) and not isinstance(previous, signal.Handlers)):
            self.previous = previous
            signal.signal(signal.SIGTERM, self._own_handler)

    def uninstall(self) -> None:
        """Restore the handler that was there before, unless the program has installed another one since."""
        is_main = threading.current_thread() is threading.main_thread()
        if is_main and self.previous is not None and signal.getsignal(signal.SIGTERM) is self._own_handler:
            signal.signal(signal.SIGTERM, self.previous)

    def is_watching(self) -> bool:
        """Return False once the run has ended otherwise, and in a forked child."""
        return self._is_watching()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        """No lock is taken here that this very thread may hold: see `Lifecycle.end`."""
        previous = self.previous
        # The first process of a container is not ended by a signal that it has no handler for (kill(2)).
        ends_us = previous is signal.SIG_DFL and os.getpid() != 1
        if self._is_watching():
            try:
                if ends_us:
                    self._end()
                else:
                    self._report("SIGTERM")
            except Exception as error:
                LOSSES.add(f"sigterm: {type(error).__name__}")
        if ends_us:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        elif previous is not signal.SIG_DFL:
            previous(number, frame)


def _living(handler: Any) -> Any:
    """Return a handler; in place of one whose run is over, which another thread could not remove, the one before it."""
    while True:
        owner = getattr(handler, "__self__", None)
        if not isinstance(owner, Termination) or owner.is_watching():
            return handler
        handler = owner.previous


def _is_caught_in_c(number: int) -> bool:
    """Return True if the process has a handler for a signal for which Python has none.

    The kernel knows (SigCgt of /proc/self/status, proc(5)); Python knows only what there was when it started, and what
    it has set itself.
    """
    try:
        descriptor = os.open("/proc/self/status", os.O_RDONLY | os.O_CLOEXEC)
        try:
            digits = os.read(descriptor, _MOST_BYTES).partition(b"SigCgt:")[2].split(None, 1)
        finally:
            os.close(descriptor)
        return bool(digits) and bool(int(digits[0], 16) >> (number - 1) & 1)
    except (OSError, ValueError):
        return False
