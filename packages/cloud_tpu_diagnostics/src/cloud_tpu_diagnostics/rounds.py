"""The thread that goes along with the timer: it writes the dump where Python can run, and what only Python can tell."""

from __future__ import annotations

import _thread
import math
import time
from collections.abc import Callable

from ml_diagnostics_common.signal_wakeups import block_signals
from ml_diagnostics_common.worker import start

from cloud_tpu_diagnostics.log_queue import flush_in_background
from cloud_tpu_diagnostics.watchdog import Timer

__all__ = ["Rounds"]

_LOOK_SECONDS = 5.0
_SHORT_BLOCK_SECONDS = 0.25
_MOST_SETTLE_SECONDS = 1.0
"""How long a dump of the timer may take before it is armed again."""
_ARMING_SECONDS = 0.05
"""How long before it fires the timer can still be armed again without a race."""


class Rounds:
    """Runs once per interval, and keeps the timer from firing, as long as threads of Python run.

    The timer's period is the interval: one dump per interval in a hang. So that the timer never fires while Python is
    merely late, it is also armed again between two rounds, `grace_seconds` before it would fire: at half the interval
    if that is a second, and a second before the round if it is long.

    Args:
        timer: Dumps where Python cannot.
        interval_seconds: From one round to the next.
        first: Called once, in the thread.
        later: Called once, unless the block is short; it must not block.
        look: Called every few seconds, however long the interval is.
        go_round: Called each time, with False if the timer has dumped already; it arms the timer again, and returns
            False if there is nothing more to do.
    """

    def __init__(
        self,
        timer: Timer,
        interval_seconds: float,
        *,
        first: Callable[[], None],
        later: Callable[[], None],
        look: Callable[[], None],
        go_round: Callable[[bool], bool],
    ) -> None:
        self._timer = timer
        self._interval = interval_seconds
        self._settle = min(_MOST_SETTLE_SECONDS, interval_seconds / 20)
        self._first, self._later, self._look, self._go_round = first, later, look, go_round
        self._going_on = _thread.allocate_lock()  # Held until `stop`. An event is more frames in each dump.
        self._going_on.acquire()

    def start(self) -> None:
        """Starts the thread; without one, the timer has no company."""
        start(self._run, "cloud-tpu-diagnostics-rounds")

    def stop(self) -> None:
        """Lets the thread end, and does not wait for it."""
        if self._going_on.locked():
            self._going_on.release()

    def _run(self) -> None:
        # The program's signals are for its own threads; and a pipe that nobody reads must not end the program.
        block_signals()
        timer = self._timer
        now = time.monotonic()
        due, is_later_at = now + self._interval, now + _SHORT_BLOCK_SECONDS
        self._first()
        while not self._stops_before(min(due, timer.due - timer.grace_seconds, is_later_at)):
            now = time.monotonic()
            if now >= is_later_at:
                is_later_at = math.inf
                self._later()
                flush_in_background()
                continue
            is_in_time = now < timer.due - _ARMING_SECONDS
            if is_in_time and now < due and timer.arm_again():
                continue
            if not is_in_time and self._stops_until(timer.due + self._settle):
                return
            due = time.monotonic() + self._interval
            goes_on = self._go_round(is_in_time)  # Also if the timer could not be armed again: it finds out why.
            flush_in_background()
            if not goes_on:
                return

    def _stops_before(self, due: float) -> bool:
        """Wait like `_stops_until`, and call `look` meanwhile."""
        while due - time.monotonic() > _LOOK_SECONDS:
            if self._going_on.acquire(timeout=_LOOK_SECONDS):
                return True
            self._look()
            flush_in_background()
        return self._stops_until(due)

    def _stops_until(self, due: float) -> bool:
        """Wait; return True as soon as `stop` is called."""
        return self._going_on.acquire(timeout=max(0.0, due - time.monotonic()))
