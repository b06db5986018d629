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
from collections.abc import Callable
from functools import partial
from typing import Any

from ml_diagnostics_common.descriptors import Descriptor, with_high_number

from cloud_tpu_diagnostics._collect.log_queue import log_once, warn_once
from cloud_tpu_diagnostics._signals import handled_signals_or_none, real_time_signals

__all__ = ["Output", "Watchdog", "is_left_harmless", "make_harmless", "undo_all"]

_NO_DESCRIPTOR = 2**30
"""A number that no file can have: what is written there is lost."""

_MOST_THREADS = 100
"""Of a dump: the newest (MAX_NTHREADS in CPython's Python/traceback.c)."""


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


def undo_all(steps: list[Callable[[], object] | None]) -> None:
    """Takes steps from the end of a list, each off it once it is done: after an interruption the rest can be done.

    An ExitStack forgets the step that a KeyboardInterrupt breaks off.

    Args:
        steps: Each may be taken twice; None is no step.

    Raises:
        RecursionError: The rest is still to be done.
        Exception: The first of what the steps have raised, after all of them.
    """
    failure: Exception | None = None
    while steps:
        try:
            step = steps[-1]
            if step is not None:
                step()
        except RecursionError:
            raise  # The caller is too deep; further up it can be done.
        except Exception as error:
            failure = failure or error
        steps.pop()
    if failure is not None:
        raise failure
