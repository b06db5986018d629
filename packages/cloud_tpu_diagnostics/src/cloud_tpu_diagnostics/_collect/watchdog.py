"""faulthandler: stack traces on faults, and of stuck processes on a signal, written from C.

faulthandler also works while the GIL is held. But it reads frames without the GIL, so it is for faults and for stuck
processes: in a running process it would cause a segmentation fault now and then.

faulthandler does not show its settings, but `gc` shows the objects that it holds. So it always gets an object of ours
instead of a number: while it holds that object, the job has not replaced our setting, and we may undo it.
"""

from __future__ import annotations

import _thread
import faulthandler
import gc
import logging
import os
import signal
from collections.abc import Callable
from functools import partial
from typing import Any

from ml_diagnostics_common.descriptors import Descriptor, with_high_number

from cloud_tpu_diagnostics._collect.log_queue import log_once, warn_once
from cloud_tpu_diagnostics._signals import handled_signals_or_none, real_time_signals

__all__ = ["Output", "Watchdog", "is_left_harmless", "make_harmless", "undo_all"]

_NO_DESCRIPTOR = 2**30
"""A number that no file can have: what is written there is dropped."""

_MOST_THREADS = 100
"""The limit of a dump, which has the newest threads (MAX_NTHREADS in CPython's Python/traceback.c)."""


class Output:
    """The output of faulthandler.

    Args:
        number: A descriptor, which stays open until faulthandler has released this object.
    """

    def __init__(self, number: int) -> None:
        self._number = number
        self._is_visible = True

    def fileno(self) -> int:
        """Return the descriptor, for faulthandler, which calls this once."""
        return self._number

    def flush(self) -> None:
        """Do nothing; faulthandler requires it."""

    def hand_over(self) -> None:
        """Record that faulthandler has it now, and whether `gc` shows that: another Python may not show it."""
        self._is_visible = self._is_held()

    def is_in_use(self) -> bool:
        """Return True while faulthandler has it, so that its setting was not changed since."""
        return not self._is_visible or self._is_held()

    def _is_held(self) -> bool:
        return any(held is self for held in gc.get_referents(faulthandler))


# State of the process: the signals without a handler before us, which do nothing since a block has released them.
_left_harmless: dict[int, Output] = {}


class Watchdog:
    """Faults, and the signals by which another process gets the stacks of a stuck one, from `start` to `stop`.

    faulthandler writes the newest 100 threads, so the main thread is missing in a program that has more. There a fault
    shows only the thread that failed. Dumps on a signal, and of the timer while another thread holds the GIL, lack the
    older threads. A companion then requests the main thread's stack; without one it is missing.

    Args:
        number: The descriptor to write to; None to answer only the companion's requests.
    """

    def __init__(self, number: int | None) -> None:
        self._number = number
        self._undoing: list[Callable[[], object] | None] = []
        self._outputs: dict[int, Output] = {}
        self._of_faults: Output | None = None
        self._shows_all = True
        self._answers: Descriptor | None = None
        self.dump_signal: int | None = None
        """The signal that makes this process write all its stacks from C; None if all were taken."""
        self.main_thread_signal: int | None = None
        """The signal that makes a thread write its own stack, for the companion; None if all were taken."""

    def start(self) -> None:
        """Turn them on, as far as the job has not done so itself."""
        self._undoing.append(self._close_answers)  # Done last.
        caught, wanted = handled_signals_or_none(), real_time_signals()
        self.main_thread_signal = self._register(wanted, caught, all_threads=False)
        self.dump_signal = self._register(wanted, caught, all_threads=True)
        if self._number is not None:
            self._enable(self._number)

    def answer(self, number: int) -> None:
        """Answer the companion's requests from now on.

        Args:
            number: The descriptor to write the answers to, which is duplicated. Writes to it must never wait.
        """
        self._answers = Descriptor(with_high_number(os.dup(number)))
        copy = self._answers.number()
        for asked, all_threads in ((self.main_thread_signal, False), (self.dump_signal, True)):
            if copy is not None and asked is not None and self._is_ours(asked):
                self._hand_over(asked, copy, all_threads=all_threads)

    def stop_answering(self) -> None:
        """Ignore the companion's requests from now on, as it has ended."""
        for asked in (self.main_thread_signal, self.dump_signal):
            if asked is not None:
                make_harmless(asked, self._outputs[asked])
        self._close_answers()

    def recheck(self) -> None:
        """Choose again between all threads and one in dumps of faults, by the present number of threads."""
        is_crowded = _is_crowded()
        if self._of_faults is not None and self._shows_all is is_crowded and self._of_faults.is_in_use():
            self._shows_all = not is_crowded
            faulthandler.enable(self._of_faults, all_threads=self._shows_all)

    def stop(self) -> None:
        """Turn off what is still ours, and turn on what was on before.

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
        """Return the job's argument of `faulthandler.enable`; None if that was a number, or cannot be known.

        faulthandler shows the files of its signals, ordered by number, and then that of faults, if it is an object.
        """
        held = [each for each in gc.get_referents(faulthandler) if hasattr(each, "fileno")]
        last_is_ours = isinstance(held[-1], Output) if held else True
        return None if last_is_ours or self.main_thread_signal is None else held[-1]

    # --- Signals ---

    def _register(self, wanted: list[int], caught: frozenset[int], *, all_threads: bool) -> int | None:
        """Take the first free signal, without any output yet; return None if all are taken."""
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
        """Let faulthandler answer a signal, to that descriptor."""
        output = Output(number)
        self._undoing.append(partial(make_harmless, each, output))
        faulthandler.register(each, file=output, all_threads=all_threads)
        output.hand_over()
        self._outputs[each] = output

    def _is_ours(self, each: int) -> bool:
        """Return True if the program has not taken a signal of ours, as far as Python knows."""
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
    """Return True if a signal does nothing since an earlier block has released it."""
    return number in _left_harmless and _left_harmless[number].is_in_use()


def make_harmless(number: int, output: Output, *, handler: object = signal.SIG_DFL) -> None:
    """Let a signal do nothing: with its default action, one that was already sent would end the program."""
    if not output.is_in_use() or signal.getsignal(number) is not handler:
        return  # The job has its own handler by now.
    _left_harmless[number] = Output(_NO_DESCRIPTOR)
    faulthandler.register(number, file=_left_harmless[number], all_threads=False)


def undo_all(steps: list[Callable[[], object] | None]) -> None:
    """Run steps from the end of a list, and remove each once it is done, so that an interrupted call can be repeated.

    An ExitStack forgets the step that a KeyboardInterrupt interrupts.

    Args:
        steps: Each may be run twice; None is skipped.

    Raises:
        RecursionError: The rest was not run.
        Exception: The first exception of a step, after all of them have run.
    """
    failure: Exception | None = None
    while steps:
        try:
            step = steps[-1]
            if step is not None:
                step()
        except RecursionError:
            raise  # The stack is too deep here; a caller further up can repeat it.
        except Exception as error:
            failure = failure or error
        steps.pop()
    if failure is not None:
        raise failure
