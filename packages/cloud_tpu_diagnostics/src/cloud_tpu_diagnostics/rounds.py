"""The thread that goes along with the timer: it writes the dump where Python can run, and what only Python can tell."""

from __future__ import annotations

import _thread
import signal
import time
from collections.abc import Callable

from ml_diagnostics_common import background

from cloud_tpu_diagnostics.watchdog import Timer

__all__ = ["Rounds"]

_LOOK_SECONDS = 5.0
_MOST_SETTLE_SECONDS = 1.0
"""How long a dump of the timer is waited for before it is armed anew."""


class Rounds:
    """Goes round with the timer, for as long as threads of Python get to run; the timer goes on without it.

    Args:
        timer: What it goes along with.
        interval_seconds: From one round to the next.
        first: Called once, in the thread.
        look: Called every few seconds, however long the interval is.
        go_round: Called each time, with whether it is in time to do what the timer else does; it arms the timer anew,
            and returns False if there is nothing more to do.
    """

    def __init__(
        self,
        timer: Timer,
        interval_seconds: float,
        *,
        first: Callable[[], None],
        look: Callable[[], None],
        go_round: Callable[[bool], bool],
    ) -> None:
        self._timer = timer
        self._settle = min(_MOST_SETTLE_SECONDS, interval_seconds / 20)
        self._first, self._look, self._go_round = first, look, go_round
        self._going_on = _thread.allocate_lock()  # Held until `stop`. An event is more frames in each dump.
        self._going_on.acquire()

    def start(self) -> None:
        """Starts the thread; without one, the timer has no company."""
        background.start(self._run)

    def stop(self) -> None:
        """Lets the thread end, and does not wait for it."""
        if self._going_on.locked():
            self._going_on.release()

    def _run(self) -> None:
        # The program's signals are for its own threads; and a pipe that nobody reads must not end the program.
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        self._first()
        timer = self._timer
        while not self._stops_before(timer.due - timer.grace_seconds):
            is_in_time = time.monotonic() < timer.due - timer.grace_seconds / 4
            if not is_in_time and self._stops_until(timer.due + self._settle):
                return
            if not self._go_round(is_in_time):
                return

    def _stops_before(self, due: float) -> bool:
        """As `_stops_until`, and looks around meanwhile."""
        while due - time.monotonic() > _LOOK_SECONDS:
            if self._going_on.acquire(timeout=_LOOK_SECONDS):
                return True
            self._look()
        return self._stops_until(due)

    def _stops_until(self, due: float) -> bool:
        """Waits; True as soon as all is over."""
        return self._going_on.acquire(timeout=max(0.0, due - time.monotonic()))
