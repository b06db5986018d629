"""The periodic dump: a thread writes it while Python can run, and faulthandler's timer where Python cannot."""

from __future__ import annotations

import _thread
import faulthandler
import math
import os
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

from ml_diagnostics_common.descriptors import Descriptor, with_high_number
from ml_diagnostics_common.signal_wakeups import block_signals
from ml_diagnostics_common.worker import start

from cloud_tpu_diagnostics._collect.log_queue import flush_in_background, warn_once
from cloud_tpu_diagnostics._collect.watchdog import Output

__all__ = ["Rounds", "Timer", "TimerPause"]

_MOST_GRACE_SECONDS = 1.0
_LEAST_GRACE_SECONDS = 0.5
"""With a hundred busy Python threads, the thread of `Rounds` may wait for the GIL for this time."""
_RECHECK_SECONDS = 5.0
_SHORT_BLOCK_SECONDS = 0.25
_MOST_SETTLE_SECONDS = 1.0
"""The longest time for a dump of the timer, before it is armed again."""
_ARMING_SECONDS = 0.05
"""The shortest time before it fires at which the timer can be armed again without a race."""


class TimerPause(NamedTuple):
    """The state of a timer that a fork has turned off."""

    has_lock: bool
    """True if the thread that forks has the lock, so that no other thread arms the timer meanwhile."""
    output: Output | None
    """The timer's output; None if it was off."""


class Timer:
    """faulthandler's timer, of which a process has one: it dumps all stacks once per period until it is armed again.

    It reads the stacks of threads without the GIL. That is safe while they do not execute, as in a hang, and ends a
    running program with a segmentation fault once in some hundred dumps. So a thread of Python writes the dumps, and
    arms the timer again `grace_seconds` before it would fire: it fires only if Python has not run for so long.

    A fork copies the timer's locks, but not the thread that releases them: a child that then ends, or sets a timer,
    waits forever. So the timer is off during a fork.

    Args:
        interval_seconds: The time between two dumps.
        clock: Seconds, monotonic.
    """

    def __init__(self, interval_seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.grace_seconds = min(_MOST_GRACE_SECONDS, max(_LEAST_GRACE_SECONDS, 0.08 * interval_seconds))
        """The delay of Python after which it fires."""
        self.period_seconds = max(interval_seconds, min(interval_seconds, self.grace_seconds) + self.grace_seconds)
        """The time from arming to firing, and between two dumps of a hang: the interval, or longer if that is short."""
        self._clock = clock
        self.lock = threading.RLock()
        """Held while it is armed or cancelled."""
        self._output: Output | None = None
        self._descriptor: Descriptor | None = None
        self.due = 0.0
        """When it fires first if it is not armed again, by the clock."""

    def arm(self, number: int) -> None:
        """Start it.

        Args:
            number: The descriptor to write to, which is duplicated. One that waits for its reader would stop the
                whole process.
        """
        with self.lock:
            before, self._descriptor = self._descriptor, Descriptor(with_high_number(os.dup(number)))
            self._start()
            if before is not None:
                before.close()

    def arm_again(self, number: int | None = None) -> bool:
        """Restart it if it is on; return False if it was cancelled, or if the job uses the timer by now.

        Args:
            number: The descriptor to write to from now on; None: the same.
        """
        with self.lock:
            if self._output is None:
                return False
            if not self._output.is_in_use():
                self.cancel()
                warn_once(
                    "timer taken",
                    "The program has set or cancelled faulthandler's timer within diagnose(): "
                    "there are no more periodic stack traces.",
                )
                return False
            if number is not None:
                self.arm(number)
                return True
            return self._start()

    def copy_of_descriptor(self) -> int | None:
        """Return a duplicate of its descriptor, for a thread that writes instead of it; None if it is off."""
        with self.lock:
            number = self._descriptor.number() if self._descriptor is not None else None
            return None if number is None or self._output is None else with_high_number(os.dup(number))

    def cancel(self) -> None:
        """Stop it; nothing is written any more."""
        with self.lock:
            if self._output is not None and self._output.is_in_use():
                self._cut_short()
                faulthandler.cancel_dump_traceback_later()
            self._output = None
            if self._descriptor is not None:
                self._descriptor.close()
                self._descriptor = None

    def _start(self) -> bool:
        """Start it, unless the job has closed its descriptor."""
        number = self._descriptor.number() if self._descriptor is not None else None
        if number is None:
            self.cancel()
            return False
        self._output = Output(number)
        self._schedule(self._output)
        self._output.hand_over()
        return True

    def _schedule(self, output: Output) -> None:
        self.due = self._clock() + self.period_seconds
        faulthandler.dump_traceback_later(self.period_seconds, repeat=True, file=output)

    def _cut_short(self) -> None:
        """Let a dump that is being written fail from now on, since cancelling the timer waits for its end."""
        number = self._descriptor.number() if self._descriptor is not None else None
        try:
            if number is not None:
                unwritable = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
                os.dup2(unwritable, number, inheritable=False)
                os.close(unwritable)
                self._descriptor = Descriptor(number)
        except OSError:
            pass  # Then cancelling waits.

    def before_fork(self, until: float) -> TimerPause:
        """Turn it off, and keep other threads from arming it.

        Args:
            until: When to continue without the lock, by the monotonic clock.
        """
        has_lock = self.lock.acquire(timeout=max(0.0, until - time.monotonic()))
        output = self._output
        if output is None or not output.is_in_use():
            return TimerPause(has_lock, None)
        faulthandler.cancel_dump_traceback_later()
        return TimerPause(has_lock, output)

    def after_fork(self, pause: TimerPause) -> None:
        """Turn it on again, in the parent: for a whole period, as Python runs now.

        Args:
            pause: The result of `before_fork`.
        """
        try:
            if pause.output is not None and pause.output is self._output:
                self._schedule(pause.output)
        finally:
            if pause.has_lock:
                self.lock.release()


class Rounds:
    """Run once per interval, and keep the timer from firing while threads of Python run.

    The timer's period is the interval: one dump per interval in a hang. So that the timer never fires while Python is
    merely late, it is also armed again between two rounds, `grace_seconds` before it would fire: at half the interval
    if that is a second, and a second before the round if it is long.

    Args:
        timer: Dumps if Python cannot.
        interval_seconds: The time between two rounds.
        later: Called once, unless the block is short; it must not block.
        recheck: Called every few seconds, however long the interval is.
        run_round: Called each interval, with False if the timer has dumped already; it arms the timer again, and
            returns False if there is nothing more to do.
    """

    def __init__(
        self,
        timer: Timer,
        interval_seconds: float,
        *,
        later: Callable[[], None],
        recheck: Callable[[], None],
        run_round: Callable[[bool], bool],
    ) -> None:
        self._timer = timer
        self._interval = interval_seconds
        self._settle = min(_MOST_SETTLE_SECONDS, interval_seconds / 20)
        self._later, self._recheck, self._run_round = later, recheck, run_round
        self._going_on = _thread.allocate_lock()  # Held until `stop`. An event is more frames in each dump.
        self._going_on.acquire()

    def start(self) -> None:
        """Start the thread; if that fails, the timer alone dumps."""
        start(self._run, "cloud-tpu-diagnostics-rounds")

    def stop(self) -> None:
        """Let the thread end, without waiting for it."""
        if self._going_on.locked():
            self._going_on.release()

    def _run(self) -> None:
        # The program's signals are for its own threads; and a pipe without a reader must not end the program.
        block_signals()
        timer = self._timer
        now = time.monotonic()
        due, is_later_at = now + self._interval, now + _SHORT_BLOCK_SECONDS
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
            goes_on = self._run_round(is_in_time)  # Also if the timer could not be armed again: it finds out why.
            flush_in_background()
            if not goes_on:
                return

    def _stops_before(self, due: float) -> bool:
        """Wait like `_stops_until`, and call `recheck` meanwhile."""
        while due - time.monotonic() > _RECHECK_SECONDS:
            if self._going_on.acquire(timeout=_RECHECK_SECONDS):
                return True
            self._recheck()
            flush_in_background()
        return self._stops_until(due)

    def _stops_until(self, due: float) -> bool:
        """Wait; return True as soon as `stop` is called."""
        return self._going_on.acquire(timeout=max(0.0, due - time.monotonic()))
