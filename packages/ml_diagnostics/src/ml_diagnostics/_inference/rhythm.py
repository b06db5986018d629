"""The steps and evaluations of a training loop, from the moments at which its functions are dispatched: pure.

A dispatch is noticed when it returns. On an accelerator that is at once, while the device computes; then the step
starts there. Where the result is ready by then, as it mostly is on a CPU, the step started at the end of what the
program did before.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

__all__ = ["Moment", "Rhythm", "StepSink"]

_REGULAR_SHARE: Final = 0.5
"""A function that is called after so many steps belongs to the step; one that is called after fewer evaluates."""
_FEWEST_STEPS: Final = 3
_INTERVALS: Final = 31
_MOST_MOMENTS: Final = 4096
_MOST_LOADS: Final = 64
_SHORTEST_PAUSE_SECONDS: Final = 0.001
_NOTABLE_SHARE: Final = 0.1
_NEVER: Final = float("inf")


class Moment(NamedTuple):
    """A dispatch, or a compilation, which a first dispatch waits for; times are seconds since 1970."""

    function: str
    time: float
    is_done: bool
    """True if its results were ready."""
    start: float | None = None
    """When it started, where that is known."""


class StepSink(Protocol):
    """Receives what was inferred; all times are seconds since 1970."""

    def step(self, number: int, start: float) -> None:
        """A step started."""
        ...

    def evaluated(self, functions: Sequence[str], start: float, end: float) -> None:
        """The program evaluated, between two steps."""
        ...

    def paused(self, step: int, start: float, end: float) -> None:
        """The device had nothing to do: the program had a step's results, and had not dispatched the next step."""
        ...

    def prepared(self, end: float) -> None:
        """The preparation of training ended, and its first batch or its first step started."""
        ...


@dataclass
class _Gap:
    """Events since the last step was dispatched."""

    moments: list[Moment] = field(default_factory=list)
    busy_end: float = 0.0
    """The end of the last activity that is known, such as a save or a data load."""
    load: tuple[float, float] | None = None
    fetched: float | None = None
    """When the program had read a result last."""
    is_disturbed: bool = False
    """True after an activity that takes much longer than a step."""

    def start_again(self) -> None:
        """Forget all but the last data load; in each step, so without a new object."""
        if self.moments:
            self.moments = []
        self.busy_end, self.fetched, self.is_disturbed = 0.0, None, False


class Rhythm:
    """Infers steps and evaluations."""

    def __init__(self, sink: StepSink) -> None:
        """Start without steps.

        Args:
            sink: Receives each step and each evaluation, once.
        """
        self.next_number = 0
        """The number of the next step; after a restore, the one after the saved step."""
        self.has_steps = False
        self.dispatch_seconds = 0.0
        """The usual time of a dispatch, which is a part of the step; 0.0 while that is not known."""
        self._sink = sink
        self._gap = _Gap()
        self._first_loads: deque[tuple[float, float]] = deque(maxlen=_MOST_LOADS)
        """The data loads before the first step is known, which may be some steps late."""
        self._last: float | None = None
        """When the last step was dispatched."""
        self._intervals: deque[float] = deque(maxlen=_INTERVALS)
        self._was_disturbed = False
        self._is_over = False
        """True if the last step has ended, as far as that was noted."""
        self._gaps = 0
        self._gaps_with: dict[str, int] = {}
        self._evaluating: set[str] = set()
        self._compiled_once: dict[str, tuple[float, float]] = {}
        """Gaps in which a function was compiled that was never dispatched otherwise, by its name."""

    def started(self, time: float) -> None:
        """Note a step with an exactly known start."""
        if self._gap.fetched is not None:
            self._note_pause(self._gap.fetched, time)
        self._close_gap(time)
        self._step(time)
        self._last = time
        self._is_over = False

    def ended(self) -> None:
        """Note that the last step has ended."""
        self._is_over = True

    def dispatched(self, time: float, *, is_done: bool, start: float | None = None) -> None:
        """Note that the function of the steps was dispatched.

        Args:
            time: When the dispatch returned.
            is_done: True if its results were ready then.
            start: When it started, where that is known.
        """
        last, gap = self._last, self._gap
        if last is not None and time < last:
            return  # Of a function that is known to be the step only now.
        evaluation_limit = time
        if start is not None:
            evaluation_limit = start
        elif not is_done:
            start = max(time - self.dispatch_seconds, last or 0.0, gap.busy_end)
            evaluation_limit = start
            if gap.load is not None and gap.load[1] == gap.busy_end and not self._evaluations_in_gap():
                start = gap.busy_end  # With its batch, all that the program does belongs to the step.
        else:
            start = max(last or 0.0, gap.busy_end)
            if start <= 0.0 or self._evaluations_in_gap():
                usual = sorted(self._intervals)[len(self._intervals) // 2] if self._intervals else None
                start = max(start, time - usual) if usual is not None else start or time
                evaluation_limit = start
        if gap.fetched is not None and not is_done:
            start = min(start, self._note_pause(gap.fetched, start))
        start = max(min(start, time), self._close_gap(evaluation_limit))
        if last is not None and not self._was_disturbed:
            self._intervals.append(time - last)
        self._step(start)
        self._last = time
        self._is_over = is_done

    def expect_interval(self, seconds: float) -> None:
        """Use a duration of steps that was measured before the first step is noted."""
        self._intervals.append(seconds)

    def start_again(self) -> None:
        """Forget which functions belong to each step: another function is taken for the step."""
        self._gaps, self._gaps_with, self._gap.moments = 0, {}, []

    def called(self, moment: Moment) -> None:
        """Note that another function was dispatched."""
        if self.has_steps and len(self._gap.moments) < _MOST_MOMENTS:
            self._gap.moments.append(moment)

    def compiled(self, function: str, start: float, end: float) -> None:
        """Note that another function was compiled, and dispatched for the first time."""
        self.called(Moment(function, end, is_done=False, start=start))

    def loaded(self, start: float, end: float) -> int | None:
        """Note that the program waited for a batch; return the step that had ended before, if that is known."""
        gap = self._gap
        is_first = self.has_steps and gap.load is None and not gap.moments
        is_after_step = self._is_over or (gap.fetched is not None and gap.fetched <= start)
        ended = self.next_number - 1 if is_first and is_after_step else None
        gap.load = (start, end)
        if not self.has_steps:
            self._first_loads.append((start, end))
        gap.busy_end = max(gap.busy_end, end)
        return ended

    def fetched(self, time: float) -> None:
        """Note that the program has read a result of the device."""
        self._gap.fetched = time

    def was_busy(self, end: float) -> None:
        """Note the end of an activity that is not a step, such as a save."""
        self._gap.busy_end = max(self._gap.busy_end, end)
        self._gap.is_disturbed = True

    def finish(self, time: float) -> None:
        """Note the end of the program."""
        if self.has_steps:
            self._close_gap(time)

    def _note_pause(self, fetched: float, end: float) -> float:
        """Report the time from the last result to the next dispatch, if nothing else that is known was between them.

        Returns:
            The end of the pause, which is earlier than the given one if a part of the step was dispatched before.
        """
        gap = self._gap
        if gap.moments:
            dispatched = (moment.time for moment in gap.moments if moment.time > fetched and moment.start is None)
            first = next(dispatched, None)
            if first is not None:
                end = max(fetched, first - self.dispatch_seconds)
        # A dispatch itself takes some of this time, and a small part of a step does not matter.
        if end - fetched < _SHORTEST_PAUSE_SECONDS:  # As in most steps.
            return _NEVER
        is_long = end - fetched >= _NOTABLE_SHARE * (end - (self._last or end)) and self.has_steps
        if not is_long or gap.load is not None or gap.is_disturbed or self._evaluations_in_gap():
            return _NEVER
        self._sink.paused(self.next_number - 1, fetched, end)
        return end

    def _step(self, start: float) -> None:
        if not self.has_steps:
            self.has_steps = True
            loads = [load for load in self._first_loads if load[1] <= start]
            self._sink.prepared(loads[-1][0] if loads else start)
        self._gap.load = None
        number, self.next_number = self.next_number, self.next_number + 1
        self._sink.step(number, start)

    def _close_gap(self, limit: float) -> float:
        """Infer what the program did since the last step; return the end of that, at most the limit."""
        gap, end = self._gap, 0.0
        self._was_disturbed = gap.is_disturbed
        if self.has_steps:
            self._gaps += 1
            if gap.moments:
                for function in {moment.function for moment in gap.moments}:
                    self._gaps_with[function] = self._gaps_with.get(function, 0) + 1
                evaluating = self._evaluations_in_gap(is_counted=True)
                if evaluating:
                    end = self._evaluated(evaluating, limit)
                self._keep_compilations(gap, limit)
        gap.start_again()
        return end

    def _evaluations_in_gap(self, *, is_counted: bool = False) -> list[Moment]:
        """Return the calls since the last step of functions that do not belong to each step."""
        gaps = self._gaps + (not is_counted)
        if gaps < _FEWEST_STEPS or not self._gap.moments:
            return []
        return [
            moment
            for moment in self._gap.moments
            if moment.start is None or moment.function in self._evaluating
            if self._gaps_with.get(moment.function, 0) + (not is_counted) < _REGULAR_SHARE * gaps
        ]

    def _evaluated(self, moments: Sequence[Moment], limit: float) -> float:
        """Report an evaluation; return its end."""
        first, last = moments[0], moments[-1]
        names = sorted({moment.function for moment in moments})
        for name in names:
            before = self._compiled_once.pop(name, None)
            if before is not None:
                self._sink.evaluated([name], *before)
        # A first call waits for its compilation, which has an exact start.
        compiled = [one for one in self._gap.moments if one.start is not None and one.function in names]
        calls = [one.time for one in moments]
        each = (calls[-1] - calls[0]) / (len(calls) - 1) if len(calls) > 1 else None
        before_first = [one.time for one in self._gap.moments if one.time < first.time and one.function not in names]
        start = max([self._last or 0.0, *before_first[-1:]]) or first.time
        if self._gap.busy_end <= first.time:
            start = max(start, self._gap.busy_end)
        if compiled and compiled[0].time <= first.time and compiled[0].start is not None:
            start = max(start, compiled[0].start)
        elif not first.is_done:
            start = max(start, first.time)
        elif each is not None:
            start = max(start, first.time - each)
        load = self._gap.load
        if load is not None and load[0] >= last.time:
            limit = min(limit, load[0])
        end = last.time if last.is_done else limit if each is None else last.time + each
        end = max(start, min(end, limit))
        self._evaluating.update(names)
        self._sink.evaluated(names, start, end)
        self._was_disturbed = True
        return end

    def _keep_compilations(self, gap: _Gap, limit: float) -> None:
        """Keep the time of functions that were compiled and called once: a later call may show that they evaluate."""
        if self._gaps < _FEWEST_STEPS or len(self._compiled_once) >= _MOST_MOMENTS:
            return
        called = {moment.function for moment in gap.moments if moment.start is None}
        for moment in gap.moments:
            if moment.start is not None and moment.function not in called | self._evaluating:
                self._compiled_once.setdefault(moment.function, (moment.start, limit))
