"""Whether a job is stuck: what it said goes in, looked at every second, and verdicts come out. The clock is given.

A verdict comes with the last look before the timeout, since the next would be too late. Time in which the watch itself
was not there to look (the machine was paused, or had no time for it) counts for nothing; nor does time in which the job
was stopped, by SIGSTOP or a debugger.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from ml_diagnostics_common.progress import Progress

from cloud_tpu_diagnostics.configuration.hang_configuration import HangConfig, Verdict
from cloud_tpu_diagnostics.hang.learned_timeouts import LearnedTimeouts, Pauses

__all__ = ["LOOK_EVERY_SECONDS", "HangWatch"]

LOOK_EVERY_SECONDS: Final = 1.0
"""How often `HangWatch.observe` is to be called."""

_MARGIN_SECONDS: Final = 1.5 * LOOK_EVERY_SECONDS  # The next look may come a little late.
_LATE_SECONDS: Final = 3 * LOOK_EVERY_SECONDS


class HangWatch:
    """Watches one process of a job."""

    def __init__(self, config: HangConfig, inherit: Callable[[], Pauses] | None = None) -> None:
        """Has seen nothing yet; a job that never says anything is never taken for stuck.

        Args:
            config: The floors, and the safety factor.
            inherit: Returns what earlier processes of the job have learned, see `LearnedTimeouts.inherit`; called once,
                before the first verdict.
        """
        self._timeouts = LearnedTimeouts(config)
        self._inherit = inherit
        self._looked_ns: int | None = None
        self._seen: Progress | None = None
        self._silent_seconds = 0.0
        self._is_told = False
        self._was_late = False  # Since the progress that was seen last.
        self._was_stopped = False
        self._step: int | None = None
        # Of the step that goes on: seconds so far, and its longest silence.
        self._step_seconds = self._step_silence = 0.0

    def observe(self, progress: Progress | None, now_ns: int, *, is_stopped: bool = False) -> Verdict | None:
        """Judge the job's progress; called every second.

        Args:
            progress: What the job published last; None if that is nothing.
            now_ns: Now, on the clock of `Progress.monotonic_ns`.
            is_stopped: True if the job was stopped at some time since the last call.

        Returns:
            A verdict, once for each hang: the next only after the job has gone on.
        """
        looked_ns, self._looked_ns = self._looked_ns, now_ns
        elapsed = LOOK_EVERY_SECONDS if looked_ns is None else max(0, now_ns - looked_ns) / 1e9
        is_late = elapsed > _LATE_SECONDS
        if is_late:
            elapsed = LOOK_EVERY_SECONDS
            self._was_late = True
        if is_stopped or self._was_stopped:  # It may have been stopped, or gone on, at any time between two calls.
            elapsed = 0.0
            is_late = self._was_late = True
        self._was_stopped = is_stopped
        if progress is None:
            return None
        if self._seen is None or progress[:2] != self._seen[:2]:
            self._learn(progress, looked_ns, now_ns)
            self._silent_seconds = min(elapsed, max(0, now_ns - progress.monotonic_ns) / 1e9)
            self._seen = progress
            self._is_told = False
            self._was_late = is_late
        else:
            self._silent_seconds += elapsed
        return None if self._is_told else self._judged(progress, now_ns)

    def retract(self) -> None:
        """Take the last verdict back: the job was stopped, and has its full time again once it goes on."""
        self._is_told = False
        self._silent_seconds = 0.0

    def add_abort(self, phase: str, now_ns: int) -> None:
        """Learn from the silence for which the job is ended now, in a phase as the verdict has it."""
        self._timeouts.add_aborted(phase, self._silent_seconds, now_ns / 1e9)

    def learned(self, now_ns: int) -> Pauses:
        """Return what the next process of the job may inherit: see `LearnedTimeouts.learned`."""
        return self._timeouts.learned(now_ns / 1e9)

    def timeout_seconds(self, phase: str, now_ns: int) -> float | None:
        """How long a silence in a phase may be by now; None for as long as it takes."""
        return self._timeouts.timeout_seconds(phase, now_ns / 1e9)

    def _judged(self, progress: Progress, now_ns: int) -> Verdict | None:
        timeout = self.timeout_seconds(progress.phase, now_ns)
        if timeout is None or self._silent_seconds + _MARGIN_SECONDS <= timeout:
            return None
        if self._inherit is not None:
            inherit, self._inherit = self._inherit, None
            self._timeouts.inherit(inherit(), now_ns / 1e9)
            return self._judged(progress, now_ns)
        self._is_told = True
        return Verdict(self._timeouts.phase_meant(progress.phase), progress.step, self._silent_seconds, timeout)

    def _learn(self, new: Progress, looked_ns: int | None, now_ns: int) -> None:
        """Learns from the time between what was seen before and what is seen now."""
        old = self._seen
        if old is not None and looked_ns is not None and not self._was_late:
            seconds = max(0, new.monotonic_ns - old.monotonic_ns) / 1e9
            # Where the job said more since the last look, only what was before that is known to have been silence.
            is_next = new.sequence == old.sequence + 1
            silence = seconds if is_next else min(seconds, max(0, looked_ns - old.monotonic_ns) / 1e9)
            if old.phase == "step":
                self._step_seconds += seconds
                self._step_silence = max(self._step_silence, silence)
            else:
                self._timeouts.add_pause(old.phase, silence)
        elif old is not None:
            self._forget_step()
        if new.phase in ("init", "compile"):
            self._timeouts.start_anew()
            self._forget_step()
        if new.phase == "step":
            steps = self._steps_done(old, new)
            if steps > 0:
                if self._step_seconds > 0:
                    self._timeouts.add_steps(steps, self._step_seconds, self._step_silence, now_ns / 1e9)
                self._forget_step()
            self._step = new.step

    def _forget_step(self) -> None:
        self._step = None
        self._step_seconds = self._step_silence = 0.0

    def _steps_done(self, old: Progress | None, new: Progress) -> int:
        """How many steps have ended, now that the job says that it is in a step."""
        if new.step is None:  # A job that does not count them: each time it says so.
            return max(1, new.sequence - old.sequence) if old is not None and old.phase == "step" else 1
        if self._step is None:
            return 0
        return max(1, new.step - self._step) if new.step != self._step else 0
