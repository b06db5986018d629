"""The profile of some steps of a job: when it starts and ends, and the marks by which it knows its steps."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from ml_diagnostics_common.guard import report_loss, warn_once

__all__ = ["ProfiledSteps"]

_MARK = "train"


class ProfiledSteps:
    """Takes one profile of a range of steps, or of those of them that the job has.

    Call it in the thread that trains. No call raises.

    Attributes:
        is_done: True when nothing is left to do: the profile was taken, or was not wanted.
    """

    def __init__(self, steps: range, profile: Callable[[], AbstractContextManager[Any]]) -> None:
        """Start nothing.

        Args:
            steps: The steps to profile; none if empty.
            profile: Makes the block that takes the profile.
        """
        self.is_done = not steps
        self._steps = steps
        self._profile = profile
        self._block: AbstractContextManager[Any] | None = None
        self._mark: Any = None
        self._last_step: int | None = None

    def start_step(self, step: int) -> None:
        """Start the profile with the first step of the range, mark the step in it, and end it after the last one."""
        self.end_step()
        self._last_step = step
        if step in self._steps:
            if self._block is None:
                self._start()
            if self._block is not None:
                self._start_mark(step)
        elif self._block is not None or step >= self._steps.stop:
            self.end()

    def end_step(self) -> None:
        """End the mark of the step."""
        mark, self._mark = self._mark, None
        if mark is not None:
            try:
                mark.__exit__(None, None, None)
            except Exception as error:
                report_loss("profile_steps", error, "mark a step")

    def end_loop(self) -> None:
        """Note that a loop has ended, and with the last step of the range the profile; else the next loop goes on."""
        self.end_step()
        if self._last_step is not None and self._last_step >= self._steps.stop - 1:
            self.end()

    def end(self) -> None:
        """End the profile; warn if there was no step to profile."""
        if self.is_done:
            return
        self.is_done = True
        self.end_step()
        block, self._block = self._block, None
        if block is not None:
            try:
                block.__exit__(None, None, None)
            except Exception as error:
                report_loss("profile_steps", error, "end the profile")
        elif self._last_step is not None:
            warn_once(
                ("profile_steps", self._steps),
                "profile_steps=%r: no profile was taken, since none of these steps was started; the last step was %s.",
                self._steps,
                self._last_step,
            )

    def forget(self) -> None:
        """Do nothing further, in a forked child: the profile is its parent's."""
        self.is_done = True
        self._mark = None

    def _start(self) -> None:
        try:
            block = self._profile()
            block.__enter__()
            self._block = block
        except Exception as error:
            self.is_done = True
            report_loss("profile_steps", error, "take a profile")

    def _start_mark(self, step: int) -> None:
        """Mark the step for XProf, which shows the time of each marked step; a program without JAX has no profile."""
        jax: Any = sys.modules.get("jax")
        if jax is None:
            return
        try:
            mark = jax.profiler.StepTraceAnnotation(_MARK, step_num=step)
            mark.__enter__()
            self._mark = mark
        except Exception as error:
            report_loss("profile_steps", error, "mark a step")
