"""What faulthandler does for us: stack traces on faults, of stuck processes on a signal, and after a time, from C.

These run in any case, with the GIL held too. But they read frames without the GIL, so they are for faults and for
processes that are stuck: of one that runs they would end it with a segmentation fault now and then.

faulthandler cannot be asked what it was told, but `gc` can be asked which objects it holds. So it is never given a
number, but an object of ours: as long as it holds it, what we turned on is still ours to turn off.
"""

from __future__ import annotations

import _thread
import faulthandler
import gc
import logging
import os
import signal
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from ml_diagnostics_common.descriptors import Descriptor, with_high_number

from cloud_tpu_diagnostics.log_queue import log_once, warn_once
from cloud_tpu_diagnostics.signals import handled_signals_or_none, real_time_signals
from cloud_tpu_diagnostics.undoing import undo_all

__all__ = ["Output", "Timer", "TimerPause", "Watchdog", "is_left_harmless", "make_harmless"]

_NO_DESCRIPTOR = 2**30
"""A number that no file can have: what is written there is lost."""

_MOST_THREADS = 100
"""Of a dump: the newest (MAX_NTHREADS in CPython's Python/traceback.c)."""

_MOST_GRACE_SECONDS = 1.0
_LEAST_GRACE_SECONDS = 0.5
"""A hundred busy threads of Python may let ours wait for the GIL for so long."""


class Output:
    """What faulthandler writes to.

    Args:
        number: A descriptor, which stays open until faulthandler has let go of this object.
    """

    def __init__(self, number: int) -> None:
        self._number = number
        self._is_visible = True

    def fileno(self) -> int:
        """For faulthandler, which asks once."""
        return self._number

    def flush(self) -> None:
        """For faulthandler: there is nothing to flush."""

    def hand_over(self) -> None:
        """Notes that faulthandler has it now, and whether it can be seen there: another Python may not show it."""
        self._is_visible = self._is_held()

    def is_in_use(self) -> bool:
        """Whether faulthandler has it: nobody has told it since to write elsewhere, or not at all."""
        return not self._is_visible or self._is_held()

    def _is_held(self) -> bool:
        return any(held is self for held in gc.get_referents(faulthandler))


# State of the process: the signals that nobody had before us, and that do nothing since we are done with them.
_left_harmless: dict[int, Output] = {}


class Watchdog:
    """Faults, and the signals by which another process asks a stuck one, from `start` to `stop`.

    faulthandler writes the newest 100 threads, and so not the main one of a program that has more. There a fault shows
    the one thread that failed. What a signal writes, and the timer while another holds the GIL, lacks
    the older threads; a companion asks for the main one's stack then, without one it is missing.

    Args:
        number: The descriptor to write to; None: nothing but the companion's questions are answered.
    """

    def __init__(self, number: int | None) -> None:
        self._number = number
        self._undoing: list[Callable[[], object] | None] = []
        self._outputs: dict[int, Output] = {}
        self._of_faults: Output | None = None
        self._shows_all = True
        self._answers: Descriptor | None = None
        self.dump_signal: int | None = None
        """Which one makes this process write all its stacks from C; None if all were taken."""
        self.main_thread_signal: int | None = None
        """Which one makes a thread write its own stack, for the companion; None if all were taken."""

    def start(self) -> None:
        """Turns them on, as far as the job has not done so itself."""
        self._undoing.append(self._close_answers)  # Done last.
        caught, wanted = handled_signals_or_none(), real_time_signals()
        self.main_thread_signal = self._register(wanted, caught, all_threads=False)
        self.dump_signal = self._register(wanted, caught, all_threads=True)
        if self._number is not None:
            self._enable(self._number)

    def answer(self, number: int) -> None:
        """Has the companion's questions answered from now on.

        Args:
            number: The descriptor to write the answers to, of which it takes a copy. It must never wait.
        """
        self._answers = Descriptor(with_high_number(os.dup(number)))
        copy = self._answers.number()
        for asked, all_threads in ((self.main_thread_signal, False), (self.dump_signal, True)):
            if copy is not None and asked is not None and self._is_ours(asked):
                self._hand_over(asked, copy, all_threads=all_threads)

    def stop_answering(self) -> None:
        """Has the companion's questions do nothing from now on: there is no companion."""
        for asked in (self.main_thread_signal, self.dump_signal):
            if asked is not None:
                make_harmless(asked, self._outputs[asked])
        self._close_answers()

    def look(self) -> None:
        """Follows what the program has changed: how many threads it has."""
        is_crowded = _is_crowded()
        if self._of_faults is not None and self._shows_all is is_crowded and self._of_faults.is_in_use():
            self._shows_all = not is_crowded
            faulthandler.enable(self._of_faults, all_threads=self._shows_all)

    def stop(self) -> None:
        """Turns off what is still ours, and back on what was on before.

        The signals have no effect then: sent a moment too late, they must not end the program.
        """
        undo_all(self._undoing)

    def _close_answers(self) -> None:
        if self._answers is not None:
            self._answers.close()

    # --- Faults ---

    def _enable(self, number: int) -> None:
        their_file: Any = None
        if faulthandler.is_enabled():
            their_file = self._file_of_faults()
            if their_file is None:
                warn_once(
                    "faulthandler is on",
                    "faulthandler was on before diagnose(), with the number of a file: faults still go there.",
                )
                return
        output = Output(number)
        self._shows_all = not _is_crowded()
        self._undoing.append(partial(_disable, output, their_file))
        faulthandler.enable(output, all_threads=self._shows_all)
        output.hand_over()
        self._of_faults = output

    def _file_of_faults(self) -> Any:
        """What the job gave to `faulthandler.enable`; None if that was a number, or cannot be known.

        faulthandler shows the files of its signals by their numbers, and then that of faults, if it is an object.
        """
        held = [each for each in gc.get_referents(faulthandler) if hasattr(each, "fileno")]
        last_is_ours = isinstance(held[-1], Output) if held else True
        return None if last_is_ours or self.main_thread_signal is None else held[-1]

    # --- Signals ---

    def _register(self, wanted: list[int], caught: frozenset[int], *, all_threads: bool) -> int | None:
        """Take the first signal that is free, and have nothing written upon it yet; None if all are taken."""
        for each in wanted:
            is_caught = each in self._outputs or (each in caught and not is_left_harmless(each))
            if not is_caught and signal.getsignal(each) is signal.SIG_DFL:
                try:
                    if each not in caught:  # The program has had it since, which faulthandler does not know.
                        faulthandler.unregister(each)
                    self._hand_over(each, _NO_DESCRIPTOR, all_threads=all_threads)
                except (OSError, RuntimeError, ValueError):
                    continue
                return each
        return None

    def _hand_over(self, each: int, number: int, *, all_threads: bool) -> None:
        """Has faulthandler answer a signal, to that descriptor."""
        output = Output(number)
        self._undoing.append(partial(make_harmless, each, output))
        faulthandler.register(each, file=output, all_threads=all_threads)
        output.hand_over()
        self._outputs[each] = output

    def _is_ours(self, each: int) -> bool:
        """Whether a signal that was free still is the program's not, as far as Python knows."""
        return signal.getsignal(each) is signal.SIG_DFL and self._outputs[each].is_in_use()


def _is_crowded() -> bool:
    """Return True if a dump of all threads may lack the main one.

    Only threads with a state of Python are in a dump, so those of /proc/self/task would be too many: JAX has hundreds.
    `threading.active_count` takes a lock that a stuck thread may hold, and lacks ours.
    """
    return _thread._count() + 1 > _MOST_THREADS


def _disable(output: Output, their_file: Any) -> None:
    if not output.is_in_use():  # The job has turned it on for itself meanwhile, or off.
        return
    if their_file is None:
        faulthandler.disable()
    else:
        try:
            faulthandler.enable(their_file)
        except Exception as error:  # Closed meanwhile, for instance.
            faulthandler.disable()
            log_once(
                logging.INFO,
                "faulthandler stays off",
                "faulthandler was on before diagnose(), and cannot be turned on again: %s",
                error,
            )


def is_left_harmless(number: int) -> bool:
    """True if a signal does nothing because an earlier block left it so."""
    return number in _left_harmless and _left_harmless[number].is_in_use()


def make_harmless(number: int, output: Output, *, handler: object = signal.SIG_DFL) -> None:
    """Has a signal do nothing, where it would end the program if it were as before: it may be on its way already."""
    if not output.is_in_use() or signal.getsignal(number) is not handler:
        return  # The job has its own handler by now.
    _left_harmless[number] = Output(_NO_DESCRIPTOR)
    faulthandler.register(number, file=_left_harmless[number], all_threads=False)


class TimerPause(NamedTuple):
    """How a fork turned the timer off."""

    has_lock: bool
    """Whether the thread that forks has the lock: whether no other thread arms the timer meanwhile."""
    output: Output | None
    """What the timer wrote to; None if it was not on."""


class Timer:
    """faulthandler's timer, of which a process has one: it dumps all stacks once per period until it is armed again.

    It reads the stacks of threads without the GIL. That is safe while they do not execute, as in a hang, and ends a
    running program with a segmentation fault once in some hundred dumps. So a thread of Python writes the dumps, and
    arms the timer again `grace_seconds` before it would fire: it fires only if Python has not run for so long.

    A fork copies the timer's locks, but not the thread that releases them: a child that then ends, or sets a timer,
    waits for ever. So the timer is off during a fork.

    Args:
        interval_seconds: From one dump to the next.
        clock: Seconds, monotonic.
    """

    def __init__(self, interval_seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.grace_seconds = min(_MOST_GRACE_SECONDS, max(_LEAST_GRACE_SECONDS, 0.08 * interval_seconds))
        """How late Python may be before it fires."""
        self.period_seconds = max(interval_seconds, min(interval_seconds, self.grace_seconds) + self.grace_seconds)
        """From arming to firing, and between two dumps of a hang: longer than the interval only below a second."""
        self._clock = clock
        self.lock = threading.RLock()
        """Held while it is armed or cancelled."""
        self._output: Output | None = None
        self._descriptor: Descriptor | None = None
        self.due = 0.0
        """When it fires first if it is not armed again, by the clock."""

    def arm(self, number: int) -> None:
        """Starts it, from now on.

        Args:
            number: The descriptor to write to, of which it takes a copy. One that waits for its reader would stop the
                whole process.
        """
        with self.lock:
            before, self._descriptor = self._descriptor, Descriptor(with_high_number(os.dup(number)))
            self._start()
            if before is not None:
                before.close()

    def arm_again(self, number: int | None = None) -> bool:
        """Starts it from now on, if it is still on; False if it was cancelled, or if the job uses it by now.

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
        """Opens what it writes to once more, for who writes in its place; None if it is off."""
        with self.lock:
            number = self._descriptor.number() if self._descriptor is not None else None
            return None if number is None or self._output is None else with_high_number(os.dup(number))

    def cancel(self) -> None:
        """Stops it; nothing is written any more."""
        with self.lock:
            if self._output is not None and self._output.is_in_use():
                self._cut_short()
                faulthandler.cancel_dump_traceback_later()
            self._output = None
            if self._descriptor is not None:
                self._descriptor.close()
                self._descriptor = None

    def _start(self) -> bool:
        """Starts it, unless its descriptor was closed by the job."""
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
        """Has a dump that is being written fail from now on: to cancel the timer waits for its end, and nobody else."""
        number = self._descriptor.number() if self._descriptor is not None else None
        try:
            if number is not None:
                unwritable = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
                os.dup2(unwritable, number, inheritable=False)
                os.close(unwritable)
                self._descriptor = Descriptor(number)
        except OSError:
            pass  # Then it takes as long as it takes.

    def before_fork(self, until: float) -> TimerPause:
        """Turn it off, and keep other threads from arming it.

        Args:
            until: When to go on without the lock, by the monotonic clock.
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
            pause: What `before_fork` returned.
        """
        try:
            if pause.output is not None and pause.output is self._output:
                self._schedule(pause.output)
        finally:
            if pause.has_lock:
                self.lock.release()
