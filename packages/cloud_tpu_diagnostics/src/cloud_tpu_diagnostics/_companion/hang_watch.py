"""Verdicts on hangs: reports of progress and observation times in, verdicts out. The time is an argument.

A verdict is returned by the last observation before the timeout, since the next would be too late. Time in which the
watch was not running (the machine was paused or overloaded) does not count, nor does time in which the job was stopped
by SIGSTOP or a debugger.

The timeouts are learned from the job:

A step    safety factor x the 99th percentile of the last 1,000 step times. The first steps may be compilation, and
          count as that. A single stall that passes is not learned, and the next one is reported as soon. But a pause
          that occurs twice within a day, such as a compilation between steps or an evaluation that was not announced,
          is expected again: for a day, the timeout is at least the factor times that pause. Above the floor of named
          pauses it is limited to 1.5 times the pause, and never exceeds the timeout of a compilation.
The rest  safety factor x the longest silence of the last 20 such phases. One that was reported as a hang counts as no
          longer than its timeout, so that an outage raises the timeout by the factor at most.

No timeout is below the floor of its phase.

The longest pause of each phase and its time are saved for the job's next process. A pause for which the job was ended
counts with its known part: otherwise, a pause that ended a job once would end it each time. So the timeout grows from
one attempt to the next, by the safety factor at most, until the pause passes.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

from ml_diagnostics_common.progress import Progress

from cloud_tpu_diagnostics.configuration.hang_configuration import HangConfig, Verdict

__all__ = ["OBSERVATION_SECONDS", "HangWatch", "LearnedTimeouts", "Pauses", "RecentSteps", "valid_seconds"]

OBSERVATION_SECONDS: Final = 1.0
"""The interval at which `HangWatch.observe` must be called."""

_MARGIN_SECONDS: Final = 1.5 * OBSERVATION_SECONDS  # The next observation may be a little late.
_LATE_SECONDS: Final = 3 * OBSERVATION_SECONDS

Pauses: TypeAlias = Mapping[str, tuple[float, float]]
"""The longest pause of each phase, and its time, both in seconds."""

_SHARE: Final = 0.99
_RECENT_STEPS: Final = 1_000
_COMPILING_STEPS: Final = 3
_LEAST_STEPS: Final = 5
_RECENT_PAUSES: Final = 20
_LONG_SHARE: Final = 2 / 3  # Of the timeout by steps alone: a step this long is likely to exceed it one day.
_RECURRING_MARGIN: Final = 1.5
_DAY_SECONDS: Final = 86_400.0
_WEEK_SECONDS: Final = 7 * _DAY_SECONDS
_MOST_AFTER_ABORTS_SECONDS: Final = 6 * 3600.0  # A job that hangs in each attempt is not left to hang for days.
_NOT_WATCHED: Final = ("wait", "ended")
_STARTUP: Final = ("init", "compile")


class HangWatch:
    """Watches one process of a job for hangs."""

    def __init__(self, config: HangConfig, inherit: Callable[[], Pauses] | None = None) -> None:
        """Start without progress; a job that never reports any never counts as hanging.

        Args:
            config: The floors, and the safety factor.
            inherit: Returns the pauses of earlier processes of the job, see `LearnedTimeouts.inherit`; called once,
                before the first verdict.
        """
        self._timeouts = LearnedTimeouts(config)
        self._least_timeout = min(config.step_floor_seconds, config.pause_floor_seconds, config.startup_floor_seconds)
        self._inherit = inherit
        self._observed_ns: int | None = None
        self._seen: Progress | None = None
        self._silent_seconds = 0.0
        self._is_reported = False
        self._was_late = False  # Since the last progress.
        self._was_stopped = False
        self._step: int | None = None
        # Of the present step: seconds so far, and its longest silence.
        self._step_seconds = self._step_silence = 0.0

    def observe(self, progress: Progress | None, now_ns: int, *, is_stopped: bool = False) -> Verdict | None:
        """Return a verdict if the job hangs; must be called every second.

        Args:
            progress: The progress that the job published last; None if it has published none.
            now_ns: Now, on the clock of `Progress.monotonic_ns`.
            is_stopped: True if the job was stopped at some time since the last call.

        Returns:
            A verdict, once for each hang: the next only after further progress.
        """
        observed_ns, self._observed_ns = self._observed_ns, now_ns
        elapsed = OBSERVATION_SECONDS if observed_ns is None else max(0, now_ns - observed_ns) / 1e9
        is_late = elapsed > _LATE_SECONDS
        if is_late:
            elapsed = OBSERVATION_SECONDS
            self._was_late = True
        if is_stopped or self._was_stopped:  # It may have been stopped or continued at any time between two calls.
            elapsed = 0.0
            is_late = self._was_late = True
        self._was_stopped = is_stopped
        if progress is None:
            return None
        if progress.phase == "sync":  # The end of a step.
            progress = progress._replace(phase="step", step=self._step if progress.step is None else progress.step)
        if self._seen is None or progress[:2] != self._seen[:2]:
            self._learn(progress, observed_ns, now_ns)
            self._silent_seconds = min(elapsed, max(0, now_ns - progress.monotonic_ns) / 1e9)
            self._seen = progress
            self._is_reported = False
            self._was_late = is_late
        else:
            self._silent_seconds += elapsed
        return None if self._is_reported else self._judged(progress, now_ns)

    def retract(self) -> None:
        """Retract the last verdict: the job was stopped, and has its full timeout again once it continues."""
        self._is_reported = False
        self._silent_seconds = 0.0

    def add_abort(self, phase: str, now_ns: int) -> None:
        """Learn from the silence for which the job is ended now, in the phase of the verdict."""
        self._timeouts.add_aborted(phase, self._silent_seconds, now_ns / 1e9)

    def learned(self, now_ns: int) -> Pauses:
        """Return the pauses that the next process of the job may inherit: see `LearnedTimeouts.learned`."""
        return self._timeouts.learned(now_ns / 1e9)

    def timeout_seconds(self, phase: str, now_ns: int) -> float | None:
        """Return the present timeout of a phase; None if it has none."""
        return self._timeouts.timeout_seconds(phase, now_ns / 1e9)

    def _judged(self, progress: Progress, now_ns: int) -> Verdict | None:
        if self._silent_seconds + _MARGIN_SECONDS <= self._least_timeout:  # As in nearly every second of a job.
            return None
        timeout = self.timeout_seconds(progress.phase, now_ns)
        if timeout is None or self._silent_seconds + _MARGIN_SECONDS <= timeout:
            return None
        if self._inherit is not None:
            inherit, self._inherit = self._inherit, None
            self._timeouts.inherit(inherit(), now_ns / 1e9)
            return self._judged(progress, now_ns)
        self._is_reported = True
        return Verdict(self._timeouts.phase_meant(progress.phase), progress.step, self._silent_seconds, timeout)

    def _learn(self, new: Progress, observed_ns: int | None, now_ns: int) -> None:
        """Learn from the time between the previous progress and this one."""
        old = self._seen
        if old is not None and observed_ns is not None and not self._was_late:
            seconds = max(0, new.monotonic_ns - old.monotonic_ns) / 1e9
            # If the job reported twice since the last observation, only the time before that was surely silent.
            is_next = new.sequence == old.sequence + 1
            silence = seconds if is_next else min(seconds, max(0, observed_ns - old.monotonic_ns) / 1e9)
            if old.phase == "step":
                self._step_seconds += seconds
                self._step_silence = max(self._step_silence, silence)
            else:
                self._timeouts.add_pause(old.phase, silence)
        elif old is not None:
            self._forget_step()
        if new.phase in ("init", "compile"):
            self._timeouts.restart()
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
        """Return the number of steps that have ended, as the job reports a step now."""
        if new.step is None:  # A job that does not count its steps: each report is one.
            return max(1, new.sequence - old.sequence) if old is not None and old.phase == "step" else 1
        if self._step is None:
            return 0
        return max(1, new.step - self._step) if new.step != self._step else 0


# --- Learned timeouts -----------------------------------------------------------------------------------


class RecentSteps:
    """The last step times, and their percentile.

    Adding one is a binary search and the move of at most 1,000 numbers in one block.
    """

    def __init__(self, most: int = _RECENT_STEPS) -> None:
        """Keep the last `most` of them."""
        self._most = most
        self._in_turn: deque[float] = deque()
        self._in_order: list[float] = []

    def __len__(self) -> int:
        return len(self._in_turn)

    def add(self, seconds: float) -> None:
        """Add a step time, and remove the oldest above the limit."""
        if len(self._in_turn) == self._most:
            del self._in_order[bisect_left(self._in_order, self._in_turn.popleft())]
        self._in_turn.append(seconds)
        insort(self._in_order, seconds)

    def percentile(self, share: float = _SHARE) -> float:
        """Return the smallest step time that is at least as long as that share of them (nearest rank)."""
        return self._in_order[max(0, math.ceil(share * len(self._in_order)) - 1)]


class LongestOfADay:
    """The longest pause of the last day."""

    def __init__(self) -> None:
        """Start without pauses."""
        self._pauses: deque[tuple[float, float]] = deque()
        """Durations and times, each shorter than the previous one: a later pause replaces those that are not longer."""

    def add(self, seconds: float, at_seconds: float) -> None:
        """Add a pause that has just ended."""
        while self._pauses and self._pauses[-1][0] <= seconds:
            self._pauses.pop()
        self._pauses.append((seconds, at_seconds))

    def seconds(self, at_seconds: float) -> float:
        """Return its duration; 0 if there was none."""
        longest = self.longest(at_seconds)
        return longest[0] if longest is not None else 0.0

    def longest(self, at_seconds: float) -> tuple[float, float] | None:
        """Return its duration and time; None if there was none."""
        while self._pauses and at_seconds - self._pauses[0][1] > _DAY_SECONDS:
            self._pauses.popleft()
        return self._pauses[0] if self._pauses else None


def valid_seconds(ago_seconds: float) -> float:
    """Return for how many more seconds a pause of an earlier process counts; zero or less if it does not.

    That is longer than for a pause within one process, since each attempt without it would fail.
    """
    return _WEEK_SECONDS - max(0.0, ago_seconds)


class LearnedTimeouts:
    """The timeouts of one job, by phase."""

    def __init__(self, config: HangConfig) -> None:
        """Start without pauses and steps."""
        self._config = config
        self._pauses: dict[str, deque[float]] = {}
        self._long_steps = LongestOfADay()
        self._recurring = LongestOfADay()
        """The length of each long step, but at most that of the longest one of the day before it."""
        self._inherited: dict[
            str, tuple[float, float]
        ] = {}  # By phase: its duration, and the time until which it counts.
        self.restart()

    def restart(self) -> None:
        """Forget the step times, as the job initialises or compiles: its next steps will differ."""
        self._steps = RecentSteps()
        self._compiling_steps = _COMPILING_STEPS

    def phase_meant(self, phase: str) -> str:
        """Return the phase that a phase counts as: the first few steps are compilation."""
        return "compile" if phase == "step" and len(self._steps) < _LEAST_STEPS else phase

    def timeout_seconds(self, phase: str, at_seconds: float) -> float | None:
        """Return the longest silence in a phase that is not a hang.

        Args:
            phase: One of `ml_diagnostics_common.progress.PHASES`.
            at_seconds: Now, on the clock of `add_steps`.

        Returns:
            Seconds; None without a limit.
        """
        phase = self.phase_meant(phase)
        if phase in _NOT_WATCHED:
            return None
        if phase == "step":
            return self._step_timeout(at_seconds)
        longest = max(self._pauses.get(phase, ()), default=0.0)
        inherited = self._inheriting_factor * self._inherited_seconds(phase, at_seconds)
        return max(self._floor_seconds(phase), self._config.safety_factor * longest, inherited)

    def inherit(self, pauses: Pauses, at_seconds: float) -> None:
        """Add the pauses of earlier processes of the job.

        Args:
            pauses: The longest pause of each phase, and its age.
            at_seconds: Now.
        """
        for phase, (seconds, ago_seconds) in pauses.items():
            self._inherited[phase] = seconds, at_seconds + valid_seconds(ago_seconds)

    def learned(self, at_seconds: float) -> dict[str, tuple[float, float]]:
        """Return the pauses that the next process of the job may inherit.

        Args:
            at_seconds: Now.

        Returns:
            The longest pause of each phase, and its age.
        """
        pauses = {
            phase: (max(recent), 0.0)
            for phase, recent in self._pauses.items()
            if recent and self._inheriting_factor * max(recent) > self._floor_seconds(phase)
        }
        recurring = self._recurring.longest(at_seconds)
        if recurring is not None and recurring[0] > 0:
            pauses["step"] = recurring[0], max(0.0, at_seconds - recurring[1])
        return pauses

    def add_aborted(self, phase: str, seconds: float, at_seconds: float) -> None:
        """Learn from a silence for which the job is ended, so that its full length stays unknown.

        Args:
            phase: The phase that it counted as.
            seconds: Its duration so far.
            at_seconds: Now.
        """
        if phase == "step":
            self._recurring.add(seconds, at_seconds)
        else:
            most = _MOST_AFTER_ABORTS_SECONDS / self._inheriting_factor
            self._pauses.setdefault(phase, deque(maxlen=_RECENT_PAUSES)).append(min(seconds, most))

    @property
    def _inheriting_factor(self) -> float:
        """The factor between attempts: with a safety factor of 1, timeouts would not grow."""
        return max(self._config.safety_factor, _RECURRING_MARGIN)

    def _floor_seconds(self, phase: str) -> float:
        return self._config.startup_floor_seconds if phase in _STARTUP else self._config.pause_floor_seconds

    def _inherited_seconds(self, phase: str, at_seconds: float) -> float:
        seconds, until_seconds = self._inherited.get(phase, (0.0, 0.0))
        return seconds if at_seconds < until_seconds else 0.0

    def add_pause(self, phase: str, seconds: float) -> None:
        """Learn from a phase that has passed.

        Args:
            phase: Any but `step`.
            seconds: Its longest silence.
        """
        timeout = self.timeout_seconds(phase, 0.0)
        if timeout is not None:
            self._pauses.setdefault(phase, deque(maxlen=_RECENT_PAUSES)).append(min(seconds, timeout))

    def add_steps(self, count: int, seconds: float, silent_seconds: float, at_seconds: float) -> None:
        """Learn from steps that have ended.

        Args:
            count: Their number.
            seconds: Their total duration, without the phases between them.
            silent_seconds: The longest silence in it.
            at_seconds: Now.
        """
        if self._compiling_steps > 0:
            self._compiling_steps -= count
            self.add_pause("compile", silent_seconds)
            return
        longest = max(silent_seconds, seconds / count)
        timeout = self.timeout_seconds("step", at_seconds) or math.inf
        is_single = False
        if len(self._steps) > 0 and silent_seconds > _LONG_SHARE * self._usual_step_timeout():
            another = self._long_steps.seconds(at_seconds)
            is_single = another == 0
            self._long_steps.add(silent_seconds, at_seconds)
            if self.phase_meant("step") == "step":
                self._recurring.add(min(silent_seconds, another), at_seconds)
        if silent_seconds < timeout and not is_single:
            self._steps.add(longest)
        if count > 1:
            each = (seconds - longest) / (count - 1)
            for _ in range(min(count - 1, _RECENT_STEPS)):
                self._steps.add(each)

    def _usual_step_timeout(self) -> float:
        return max(self._config.step_floor_seconds, self._config.safety_factor * self._steps.percentile())

    def _step_timeout(self, at_seconds: float) -> float:
        recurring = self._recurring.seconds(at_seconds)
        most = max(self._config.pause_floor_seconds, _RECURRING_MARGIN * recurring)
        compilation = self.timeout_seconds("compile", at_seconds) or math.inf
        covering = min(self._config.safety_factor * recurring, most, compilation)
        return max(self._usual_step_timeout(), covering, self._inherited_step_timeout(at_seconds))

    def _inherited_step_timeout(self, at_seconds: float) -> float:
        """Return the same for a pause that ended an earlier process, which may be longer than a compilation."""
        inherited = self._inherited_seconds("step", at_seconds)
        most = max(self._config.pause_floor_seconds, _RECURRING_MARGIN * inherited)
        return min(self._inheriting_factor * inherited, most, _MOST_AFTER_ABORTS_SECONDS)
