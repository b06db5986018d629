"""How long a job may say nothing before it is taken for stuck: learned from what it did so far.

A step    safety factor x the 99th percentile of the last 1,000 step times. The first steps may be compilation, and
          count as that. One stall that passes teaches nothing: the next is told as soon. But a pause that comes twice
          within a day, such as a compilation amid steps or an evaluation that nobody announced, comes again: for a day
          after, silences are compared with the factor times that pause too. Beyond the floor of a pause with a name
          that is half as much again as the pause, and never more than the timeout of a compilation.
The rest  safety factor x the longest silence of the last 20 such phases. One that was taken for a hang counts as no
          longer than its timeout was: what was learned from an outage goes by the factor at most.

No timeout is under the floor of its phase.

What was learned is saved for the job's next process: the longest pause of each phase, and when it was. One for which
the job was ended counts, too, though only its beginning was seen: without that, a pause that ended a job once would end
it each time. So the timeout grows from one attempt to the next, by the safety factor at most, until the pause passes.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Mapping
from typing import Final, TypeAlias

from cloud_tpu_diagnostics.configuration.hang_configuration import HangConfig

__all__ = ["LearnedTimeouts", "LongestOfADay", "Pauses", "RecentSteps", "valid_seconds"]

Pauses: TypeAlias = Mapping[str, tuple[float, float]]
"""By phase: the longest pause, and when it was, both in seconds."""

_SHARE: Final = 0.99
_RECENT_STEPS: Final = 1_000
_COMPILING_STEPS: Final = 3
_LEAST_STEPS: Final = 5
_RECENT_PAUSES: Final = 20
_LONG_SHARE: Final = 2 / 3  # Of the timeout that steps alone give: one this long is likely to exceed it one day.
_RECURRING_MARGIN: Final = 1.5
_DAY_SECONDS: Final = 86_400.0
_WEEK_SECONDS: Final = 7 * _DAY_SECONDS
_MOST_AFTER_ABORTS_SECONDS: Final = 6 * 3600.0  # A job that hangs in each attempt is not left to hang for days.
_NOT_WATCHED: Final = ("wait", "ended")
_STARTUP: Final = ("init", "compile")


class RecentSteps:
    """A percentile of the last step times.

    Adding one is a binary search and the move of at most 1,000 numbers in one block.
    """

    def __init__(self, most: int = _RECENT_STEPS) -> None:
        """Keeps `most` of them."""
        self._most = most
        self._in_turn: deque[float] = deque()
        self._in_order: list[float] = []

    def __len__(self) -> int:
        return len(self._in_turn)

    def add(self, seconds: float) -> None:
        """Adds a step time; the oldest goes."""
        if len(self._in_turn) == self._most:
            del self._in_order[bisect_left(self._in_order, self._in_turn.popleft())]
        self._in_turn.append(seconds)
        insort(self._in_order, seconds)

    def percentile(self, share: float = _SHARE) -> float:
        """The smallest step time that is at least as long as that share of them (nearest rank)."""
        return self._in_order[max(0, math.ceil(share * len(self._in_order)) - 1)]


class LongestOfADay:
    """The longest pause of the last day."""

    def __init__(self) -> None:
        """Has seen none."""
        self._pauses: deque[tuple[float, float]] = deque()
        """How long and when, each shorter than the one before: what is no longer than a later one never matters."""

    def add(self, seconds: float, at_seconds: float) -> None:
        """Adds a pause that has just ended."""
        while self._pauses and self._pauses[-1][0] <= seconds:
            self._pauses.pop()
        self._pauses.append((seconds, at_seconds))

    def seconds(self, at_seconds: float) -> float:
        """How long it was; 0 if there was none."""
        longest = self.longest(at_seconds)
        return longest[0] if longest is not None else 0.0

    def longest(self, at_seconds: float) -> tuple[float, float] | None:
        """Return how long it was and when; None if there was none."""
        while self._pauses and at_seconds - self._pauses[0][1] > _DAY_SECONDS:
            self._pauses.popleft()
        return self._pauses[0] if self._pauses else None


def valid_seconds(ago_seconds: float) -> float:
    """Return for how much longer a pause of an earlier process counts; zero or less for one that does not.

    Longer than a pause within one process, since each attempt that does not know of it is lost.
    """
    return _WEEK_SECONDS - max(0.0, ago_seconds)


class LearnedTimeouts:
    """The timeouts of one job, by phase."""

    def __init__(self, config: HangConfig) -> None:
        """Has learned nothing yet."""
        self._config = config
        self._pauses: dict[str, deque[float]] = {}
        self._long_steps = LongestOfADay()
        self._recurring = LongestOfADay()
        """For each long step, as much of it as another one of the day before it had too."""
        self._inherited: dict[str, tuple[float, float]] = {}  # By phase: how long, and until when that counts.
        self.start_anew()

    def start_anew(self) -> None:
        """The job initialises or compiles: its next steps are none like those before."""
        self._steps = RecentSteps()
        self._compiling_steps = _COMPILING_STEPS

    def phase_meant(self, phase: str) -> str:
        """What a phase counts as: a step is compilation until a few were seen."""
        return "compile" if phase == "step" and len(self._steps) < _LEAST_STEPS else phase

    def timeout_seconds(self, phase: str, at_seconds: float) -> float | None:
        """How long a silence in a phase may be.

        Args:
            phase: One of `ml_diagnostics_common.progress.PHASES`.
            at_seconds: Now, on the clock of `add_steps`.

        Returns:
            Seconds; None for as long as it takes.
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
        """Take what earlier processes of the job have learned.

        Args:
            pauses: By phase: the longest pause, and how long ago it was.
            at_seconds: Now.
        """
        for phase, (seconds, ago_seconds) in pauses.items():
            self._inherited[phase] = seconds, at_seconds + valid_seconds(ago_seconds)

    def learned(self, at_seconds: float) -> dict[str, tuple[float, float]]:
        """Return what the next process of the job may inherit.

        Args:
            at_seconds: Now.

        Returns:
            By phase: the longest pause, and how long ago it was.
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
        """Learn from a silence for which the job is ended: it is not seen how long it would have become.

        Args:
            phase: What it counted as.
            seconds: How long it has been.
            at_seconds: Now.
        """
        if phase == "step":
            self._recurring.add(seconds, at_seconds)
        else:
            most = _MOST_AFTER_ABORTS_SECONDS / self._inheriting_factor
            self._pauses.setdefault(phase, deque(maxlen=_RECENT_PAUSES)).append(min(seconds, most))

    @property
    def _inheriting_factor(self) -> float:
        """With a safety factor of 1 a timeout would not grow from one attempt to the next."""
        return max(self._config.safety_factor, _RECURRING_MARGIN)

    def _floor_seconds(self, phase: str) -> float:
        return self._config.startup_floor_seconds if phase in _STARTUP else self._config.pause_floor_seconds

    def _inherited_seconds(self, phase: str, at_seconds: float) -> float:
        seconds, until_seconds = self._inherited.get(phase, (0.0, 0.0))
        return seconds if at_seconds < until_seconds else 0.0

    def add_pause(self, phase: str, seconds: float) -> None:
        """Learns from a phase that went on.

        Args:
            phase: Any but `step`.
            seconds: Its longest silence.
        """
        timeout = self.timeout_seconds(phase, 0.0)
        if timeout is not None:
            self._pauses.setdefault(phase, deque(maxlen=_RECENT_PAUSES)).append(min(seconds, timeout))

    def add_steps(self, count: int, seconds: float, silent_seconds: float, at_seconds: float) -> None:
        """Learns from steps that are done.

        Args:
            count: How many.
            seconds: What they took together, without the phases between them.
            silent_seconds: The longest silence in that.
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
