"""The thread that goes along with the timer: what is done just before each dump, and just after."""

from __future__ import annotations

import _thread
import signal
import time
from collections.abc import Callable

from ml_diagnostics_common import background

from cloud_tpu_diagnostics.watchdog import Timer

__all__ = ["Rounds"]

_MOST_LEAD_SECONDS = 0.1
"""How long before a dump the thread wakes up: other threads of Python may let it wait for some switch intervals."""
_MOST_SETTLE_SECONDS = 1.0
"""How long a dump is waited for before the timer is armed anew."""


class Rounds:
    """Goes round with the timer, for as long as threads of Python get to run; the timer goes on without it.

    Args:
        timer: It is armed by `after`.
        interval_seconds: The timer's.
        first: Called once, in the thread.
        before: Called just before each dump, unless the thread comes too late for that.
        after: Called after each dump; False: there is nothing more to do.
    """

    def __init__(
        self,
        timer: Timer,
        interval_seconds: float,
        *,
        first: Callable[[], None],
        before: Callable[[], None],
        after: Callable[[], bool],
    ) -> None:
        self._timer = timer
        self._lead = min(_MOST_LEAD_SECONDS, interval_seconds / 10)
        self._settle = min(_MOST_SETTLE_SECONDS, interval_seconds / 20)
        self._first, self._before, self._after = first, before, after
        self._going_on = _thread.allocate_lock()  # Held until `stop`. An event is more frames in each dump.
        self._going_on.acquire()

    def start(self) -> None:
        """Starts the thread; without one, the timer has no company."""
        background.start(self._run)

    def stop(self) -> None:
        """Lets the thread end, and does not wait for it; to be called once."""
        self._going_on.release()

    def _run(self) -> None:
        # The program's signals are for its own threads; and a pipe that nobody reads must not end the program.
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        self._first()
        is_going_on = True
        while is_going_on and not self._stops_until(self._timer.due - self._lead):
            if time.monotonic() < self._timer.due - self._lead / 5:
                self._before()
            is_going_on = not self._stops_until(self._timer.due + self._settle) and self._after()

    def _stops_until(self, due: float) -> bool:
        """Waits; True as soon as all is over."""
        return self._going_on.acquire(timeout=max(0.0, due - time.monotonic()))
