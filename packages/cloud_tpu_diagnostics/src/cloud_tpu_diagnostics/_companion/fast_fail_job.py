"""The job as fast-fail sees it: its last stack, its longest silence, and its end once it was asked to exit."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Final

from cloud_tpu_diagnostics._companion.job import Job, StuckCheck

if TYPE_CHECKING:
    from ml_diagnostics_common.progress import Progress

    from cloud_tpu_diagnostics._dumps.parser import Frame

__all__ = ["CHECK_SECONDS", "ForcedEnd", "LastStack", "LongestSilence"]

_KILL_SECONDS: Final = 0.5
"""The time of the job's Python to exit, after the grace."""
_DUMP_SECONDS: Final = 0.2
"""The time of faulthandler to write the stacks, before SIGKILL."""
CHECK_SECONDS: Final = 0.05
"""The interval of checks if the job is stuck: faulthandler must not read the frames of threads that run."""
_FRESH_STACK_SECONDS: Final = 5.0
_WARM_UP_STEPS: Final = 3
_IN_A_STEP: Final = ("step", "sync")


class ForcedEnd:
    """The end of the job, once it was asked to exit.

    Args:
        pid: The job.
        now: Monotonic seconds.
        seconds: The time that its Python has.
        exit_code: The code that it exits with.
    """

    def __init__(self, pid: int, now: float, seconds: float, exit_code: int) -> None:
        self.exit_code = exit_code
        self._kill_at = now + seconds + _KILL_SECONDS
        self._silence = StuckCheck(pid)
        self._silence.start(now)
        self.has_stacks = False
        """True once the stacks of its threads were received, or asked for."""

    def step(self, now: float, job: Job, dump_signal: int | None) -> float:
        """Do what is due; return the seconds until the next call."""
        is_stuck = self._silence.is_stuck(now)
        if now >= self._kill_at:
            if not self.has_stacks and is_stuck and job.ask(dump_signal):
                self.has_stacks, self._kill_at = True, now + _DUMP_SECONDS
            else:
                job.send(signal.SIGKILL)
                self._kill_at = now + _KILL_SECONDS
        return CHECK_SECONDS


class LastStack:
    """The last stack of the job's main thread.

    Args:
        pid: The job.
    """

    def __init__(self, pid: int) -> None:
        self._frames: tuple[Frame, ...] = ()
        self._at = -_FRESH_STACK_SECONDS
        self._silence = StuckCheck(pid)
        self.is_waiting = False
        """True from a question to the answer, or until the job is found to be stuck."""

    def add(self, frames: tuple[Frame, ...], now: float) -> None:
        self._frames, self._at, self.is_waiting = frames, now, False

    def ask(self, now: float) -> None:
        if not self.is_waiting:
            self.is_waiting = True
            self._silence.start(now)

    def is_unanswered(self, now: float) -> bool:
        """Return True once if the job's Python does not answer, as it is stuck; call it often meanwhile."""
        if self.is_waiting and self._silence.is_stuck(now):
            self.is_waiting = False
            return True
        return False

    def is_compiling(self, now: float) -> bool | None:
        if not self._is_fresh(now):
            return None
        from cloud_tpu_diagnostics._dumps.grouping import is_compiler

        return any(is_compiler(frame.function) for frame in self._frames)

    def frame(self, now: float) -> str | None:
        if not self._is_fresh(now) or not self._frames:
            return None
        from cloud_tpu_diagnostics._dumps.grouping import relevant_frame, where

        return where(relevant_frame(self._frames))

    def _is_fresh(self, now: float) -> bool:
        return now - self._at < _FRESH_STACK_SECONDS


class LongestSilence:
    """The longest time between two reports of progress in a step, from those that are read about twice a second."""

    def __init__(self) -> None:
        self._last: Progress | None = None
        self._steps = 0
        self.longest_seconds = 0.0

    def add(self, progress: Progress | None) -> None:
        last, self._last = self._last, progress
        if last is None or progress is None or progress.sequence == last.sequence:
            return
        self._steps += progress.phase in _IN_A_STEP
        if self._steps > _WARM_UP_STEPS and last.phase in _IN_A_STEP:
            # With reports between the two, the silence was shorter than what is known: that is on the safe side.
            self.longest_seconds = max(self.longest_seconds, (progress.monotonic_ns - last.monotonic_ns) / 1e9)
