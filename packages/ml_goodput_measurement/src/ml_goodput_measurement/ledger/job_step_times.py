"""The step times of a job: of all its kept steps, and of one attempt."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from operator import sub
from typing import Any

from ml_goodput_measurement.ledger.attempts import Attempts
from ml_goodput_measurement.ledger.facts import NEVER_NS
from ml_goodput_measurement.ledger.step_times import StepTimes, median_of

__all__ = ["JobStepTimes"]

_PART = 2**16


class JobStepTimes:
    """Times from the start of a step to the start of the next number, kept in step with the attempts."""

    def __init__(self, attempts: Attempts) -> None:
        self._attempts = attempts
        self._kept: StepTimes | None = None
        self._measured = 0
        """Steps before this index have their time in `_kept`."""

    def kept(self) -> StepTimes:
        """Returns the times of the steps that count. Costs what is new."""
        if self._kept is None:
            self._kept = StepTimes(
                times for index, attempt in enumerate(self._attempts) for times in self._parts(index, attempt.cut)
            )
        else:
            for index in range(len(self._attempts) - 1, -1, -1):
                if self._attempts[index].stop <= self._measured:
                    break
                for time_ns in self._between(index, self._measured, self._attempts[index].cut):
                    self._kept.add(time_ns)
        self._measured = max(0, len(self._attempts.facts.steps) - 1)
        return self._kept

    def median_ns(self) -> int | None:
        """Returns the median of the steps that count."""
        median_ns = self.kept().median_ns()
        return None if median_ns is None else int(median_ns)

    def attempt_median_ns(self, index: int) -> int | None:
        """Returns the median of an attempt's steps, whether they count or not; None when it completed none."""
        times = array("q")
        for part in self._parts(index, NEVER_NS):
            times.extend(part)
        return median_of(times) if times else None

    def seconds(self) -> dict[int, float]:
        """Returns the time of each step that counts, in seconds. Costs all steps."""
        times, numbers = self._attempts.facts.steps.times, self._attempts.facts.steps.numbers
        return {
            numbers[index]: (times[index + 1] - times[index]) / 1e9
            for attempt in self._attempts
            for index in range(attempt.first, attempt.stop - 1)
            if numbers[index] < attempt.cut and numbers[index + 1] == numbers[index] + 1
        }

    def since(self, time_ns: int) -> Iterator[tuple[int, int, float]]:
        """Yields number, start in nanoseconds, and seconds of the steps that count and began after a moment."""
        times, numbers = self._attempts.facts.steps.times, self._attempts.facts.steps.numbers
        begin = bisect_right(times, time_ns)
        for attempt in self._attempts:
            for index in range(max(begin, attempt.first), attempt.stop - 1):
                if numbers[index] < attempt.cut and numbers[index + 1] == numbers[index] + 1:
                    yield numbers[index], times[index], (times[index + 1] - times[index]) / 1e9

    def latest_seconds(self, count: int) -> list[float]:
        """Returns the times of the latest steps that count, in seconds, oldest first."""
        latest: list[int] = []
        for index in range(len(self._attempts) - 1, -1, -1):
            attempt = self._attempts[index]
            stop = attempt.stop - 1
            while stop > attempt.first and len(latest) < count:
                begin = max(attempt.first, stop - count)
                latest = self._between(index, begin, attempt.cut, stop) + latest
                stop = begin
        return [time_ns / 1e9 for time_ns in latest[-count:]]

    def forget(self) -> None:
        """Forgets everything, to measure anew."""
        self._kept = None

    def forget_repeated(self, index: int, cut_before: int) -> None:
        """Takes out the steps of an attempt that are now repeated and were not when the cut was `cut_before`."""
        if self._kept is None:
            return
        begin = self._attempts.cut_index(index)
        repeated = self._between(index, begin, cut_before, self._measured)
        if len(repeated) > len(self._kept) // 8:
            self._kept = None
            return
        for time_ns in repeated:
            self._kept.remove(time_ns)

    def to_state(self) -> tuple[dict[str, Any], list[Any]]:
        """Return everything as JSON and one column, in parts."""
        parts, blocks = self.kept().to_parts()
        return {"measured": self._measured, "blocks": blocks}, parts

    @classmethod
    def from_state(cls, state: dict[str, Any], columns: list[Any], attempts: Attempts) -> JobStepTimes:
        """Returns the step times that `to_state` was asked of."""
        step_times = cls(attempts)
        step_times._kept = StepTimes.of_column(columns[0], state["blocks"])
        step_times._measured = state["measured"]
        return step_times

    def _parts(self, index: int, cut: int) -> Iterator[list[int]]:
        """Yields the times of an attempt's steps, not too many at a time: as a list they take five times the memory."""
        attempt = self._attempts[index]
        for begin in range(attempt.first, attempt.stop, _PART):
            yield self._between(index, begin, cut, begin + _PART)

    def _between(self, index: int, begin: int, cut: int, stop: int = NEVER_NS) -> list[int]:
        """Returns the times of an attempt's steps, in nanoseconds.

        Args:
            index: Index of the attempt.
            begin: Index of the first step.
            cut: Number of the first step that is left out.
            stop: Index after the last step.
        """
        attempt = self._attempts[index]
        times, numbers = self._attempts.facts.steps.times, self._attempts.facts.steps.numbers
        begin = max(begin, attempt.first)
        stop = min(stop, attempt.stop - 1, bisect_left(numbers, cut, attempt.first, attempt.stop))
        if begin >= stop:
            return []
        if numbers[stop] - numbers[begin] == stop - begin:
            return list(map(sub, times[begin + 1 : stop + 1], times[begin:stop]))
        return [
            times[position + 1] - times[position]
            for position in range(begin, stop)
            if numbers[position + 1] == numbers[position] + 1
        ]
