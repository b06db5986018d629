"""Exact median, median absolute deviation and ideal step time of the kept steps of a job, or of an attempt."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from operator import sub
from typing import TYPE_CHECKING, Any

from ml_goodput_measurement._ledger.facts import NEVER_NS, SIZES

if TYPE_CHECKING:
    from ml_goodput_measurement._ledger.attempts import Attempts

__all__ = ["JobStepTimes", "StepTimes", "median_of"]


class StepTimes:
    """A sorted multiset of durations, in nanoseconds, in blocks so that a change costs little.

    They are whole numbers as float64, which sort twice as fast: also their sums are exact, up to 104 days a block.
    """

    def __init__(self, parts: Iterable[Sequence[int]] = (), *, block_size: int = SIZES.step_times_block) -> None:
        """Take the first values, in parts.

        Args:
            parts: The values.
            block_size: Number of values of a new block; one is split when it has more than twice as many.
        """
        self._block_size = block_size
        self._blocks: list[array[float] | memoryview[float]] = [*_sorted_blocks(parts, block_size)]
        self._maxima = [block[-1] for block in self._blocks]
        self._sums = [sum(block) for block in self._blocks]
        self._count = sum(map(len, self._blocks))
        self._offsets: list[int] | None = None  # index of each block's first value; None when out of date

    def to_parts(self) -> tuple[list[Any], list[tuple[int, float]]]:
        """Return the values in order, in blocks, and length and sum of each block."""
        return [*self._blocks], [(len(block), total) for block, total in zip(self._blocks, self._sums, strict=True)]

    @classmethod
    def of_column(
        cls, column: array[float], blocks: Iterable[tuple[int, float]], *, block_size: int = SIZES.step_times_block
    ) -> StepTimes:
        """Return the set of parts from `to_parts`; blocks stay parts of one column until they change."""
        step_times, lower = cls(block_size=block_size), 0
        whole: memoryview[float] = memoryview(column)
        for length, total in blocks:
            step_times._blocks.append(whole[lower : lower + length])
            step_times._sums.append(total)
            lower += length
        step_times._maxima = [block[-1] for block in step_times._blocks]
        step_times._count = lower
        return step_times

    def __len__(self) -> int:
        return self._count

    def add(self, value_ns: int) -> None:
        """Add a duration."""
        if not self._blocks:
            self._replace(0, [array("d", (value_ns,))])
            self._count = 1
            return
        index = min(bisect_left(self._maxima, value_ns), len(self._blocks) - 1)
        block = self._own_block(index)
        insort(block, value_ns)
        self._sums[index] += value_ns
        self._maxima[index] = block[-1]
        self._count += 1
        self._offsets = None
        if len(block) > 2 * self._block_size:
            self._replace(index, [block[: self._block_size], block[self._block_size :]])

    def remove(self, value_ns: int) -> None:
        """Remove a duration that was added."""
        index = bisect_left(self._maxima, value_ns)
        block = self._own_block(index)
        del block[bisect_left(block, value_ns)]
        self._count -= 1
        self._offsets = None
        self._replace(index, [block] if block else [])

    def median_ns(self) -> float | None:
        """Return the median; None when there is no value."""
        if not self._count:
            return None
        return (self._at((self._count - 1) // 2) + self._at(self._count // 2)) / 2

    def median_absolute_deviation_ns(self) -> float | None:
        """Return the median distance from the median; None when there is no value."""
        median = self.median_ns()
        if median is None:
            return None
        lower, upper = (self._count - 1) // 2, self._count // 2
        low = self._distance_at(lower, median)
        return low if lower == upper else (low + self._distance_at(upper, median)) / 2

    def ideal_ns(self) -> float | None:
        """Return the mean of the values that are at most three deviations above the median.

        The definition is the public library's (`compute_ideal_step_time`), without its floor of one second.
        """
        median, deviation = self.median_ns(), self.median_absolute_deviation_ns()
        if median is None or deviation is None:
            return None
        limit = median + 3 * deviation
        index = bisect_right(self._maxima, limit)
        count, total = self._offset(index), sum(self._sums[:index])
        if index < len(self._blocks):
            block = self._blocks[index]
            inside = bisect_right(block, limit)
            count, total = count + inside, total + sum(block[:inside])
        return total / count

    def _replace(self, index: int, blocks: list[array[float]]) -> None:
        self._blocks[index : index + 1] = blocks
        self._maxima[index : index + 1] = [block[-1] for block in blocks]
        self._sums[index : index + 1] = [sum(block) for block in blocks]
        self._offsets = None

    def _own_block(self, index: int) -> array[float]:
        """Return a block that may be changed."""
        block = self._blocks[index]
        if isinstance(block, memoryview):
            part, block = block, array("d")
            block.frombytes(part.cast("B"))
            self._blocks[index] = block
        return block

    def _offset(self, index: int) -> int:
        if self._offsets is None:
            self._offsets = [0, *accumulate(map(len, self._blocks))]
        return self._offsets[index]

    def _at(self, rank: int) -> float:
        self._offset(0)
        assert self._offsets is not None
        index = bisect_right(self._offsets, rank) - 1
        return self._blocks[index][rank - self._offsets[index]]

    def _distance_at(self, rank: int, median: float) -> float:
        """Return the distance from the median of the value with this rank among all distances.

        The values below the median, read downwards, and those above it, read upwards, are two sorted sequences of
        distances: a binary search over how many of the `rank + 1` nearest lie below finds the value.
        """
        split = self._rank_above(median)
        below, above = split, self._count - split
        taken = rank + 1
        low, high = max(0, taken - above), min(below, taken)
        while low < high:
            middle = (low + high) // 2
            # Taking `middle` from below is too few when the next one below is nearer than the last one above.
            if median - self._at(split - 1 - middle) < self._at(split + taken - middle - 1) - median:
                low = middle + 1
            else:
                high = middle
        nearest_below = median - self._at(split - low) if low else 0.0
        nearest_above = self._at(split + taken - low - 1) - median if taken > low else 0.0
        return max(nearest_below, nearest_above)

    def _rank_above(self, value: float) -> int:
        index = bisect_right(self._maxima, value)
        if index == len(self._blocks):
            return self._count
        return self._offset(index) + bisect_right(self._blocks[index], value)


def _sorted_blocks(parts: Iterable[Sequence[int]], block_size: int) -> list[array[float]]:
    # Sorted by quarters, which are separated by the first values: a list of floats takes five times the memory of an
    # array, and there are only as many at a time as a quarter has.
    bounds: list[int] = []
    quarters = [array("d") for _ in range(4)]
    for part in parts:
        if part and not bounds:
            sample = sorted(part[:: 1 + len(part) // block_size])
            bounds = [sample[len(sample) * quarter // 4] for quarter in (1, 2, 3)]
        rest = part
        for quarter, bound in zip(quarters, bounds, strict=False):
            quarter.extend(map(float, filter(bound.__gt__, rest)))
            rest = list(filter(bound.__le__, rest))
        quarters[3].extend(map(float, rest))
    blocks = []
    while quarters:
        ordered = sorted(quarters.pop(0))
        blocks += [array("d", ordered[lower : lower + block_size]) for lower in range(0, len(ordered), block_size)]
    return blocks


def median_of(values: Sequence[int], *, sample_size: int = SIZES.step_times_block) -> int:
    """Return the median of some values, rounded down; sorts only the values near it.

    Args:
        values: At least one.
        sample_size: Number of values by which those near it are found, among more than ten times as many.
    """
    lower, upper = (len(values) - 1) // 2, len(values) // 2
    below, middle = 0, values
    if len(values) > 10 * sample_size:
        sample = sorted(values[:: len(values) // sample_size])
        low, high = sample[len(sample) * 9 // 20], sample[len(sample) * 11 // 20]
        near = [value for value in values if low <= value <= high]
        smaller = sum(map(low.__gt__, values))
        if smaller <= lower and upper < smaller + len(near):
            below, middle = smaller, near
    ordered = sorted(middle)
    return (ordered[lower - below] + ordered[upper - below]) // 2


_PART = 2**16


class JobStepTimes:
    """Times from the start of a step to the start of the next number, updated with the attempts."""

    def __init__(self, attempts: Attempts) -> None:
        self._attempts = attempts
        self._block_size = attempts.facts.sizes.step_times_block
        self._kept: StepTimes | None = None
        self._measured = 0
        """Steps before this index have their time in `_kept`."""

    def kept(self) -> StepTimes:
        """Return the times of the steps that count. Costs only new steps."""
        if self._kept is None:
            parts = (times for index, attempt in enumerate(self._attempts) for times in self._parts(index, attempt.cut))
            self._kept = StepTimes(parts, block_size=self._block_size)
        else:
            for index in range(len(self._attempts) - 1, -1, -1):
                if self._attempts[index].stop <= self._measured:
                    break
                for time_ns in self._between(index, self._measured, self._attempts[index].cut):
                    self._kept.add(time_ns)
        self._measured = max(0, len(self._attempts.facts.steps) - 1)
        return self._kept

    def median_ns(self) -> int | None:
        """Return the median of the steps that count."""
        median_ns = self.kept().median_ns()
        return None if median_ns is None else int(median_ns)

    def attempt_median_ns(self, index: int) -> int | None:
        """Return the median of all steps of an attempt, also those that do not count; None without a complete step."""
        times = array("q")
        for part in self._parts(index, NEVER_NS):
            times.extend(part)
        return median_of(times, sample_size=self._block_size) if times else None

    def seconds(self) -> dict[int, float]:
        """Return the time of each step that counts, in seconds. Costs all steps."""
        times, numbers = self._attempts.facts.steps.times, self._attempts.facts.steps.numbers
        return {
            numbers[index]: (times[index + 1] - times[index]) / 1e9
            for attempt in self._attempts
            for index in range(attempt.first, attempt.stop - 1)
            if numbers[index] < attempt.cut and numbers[index + 1] == numbers[index] + 1
        }

    def since(self, time_ns: int) -> Iterator[tuple[int, int, float]]:
        """Yield number, start in nanoseconds, and seconds of the steps that count and started after a moment."""
        times, numbers = self._attempts.facts.steps.times, self._attempts.facts.steps.numbers
        lower = bisect_right(times, time_ns)
        for attempt in self._attempts:
            for index in range(max(lower, attempt.first), attempt.stop - 1):
                if numbers[index] < attempt.cut and numbers[index + 1] == numbers[index] + 1:
                    yield numbers[index], times[index], (times[index + 1] - times[index]) / 1e9

    def latest_seconds(self, count: int) -> list[float]:
        """Return the times of the latest steps that count, in seconds, oldest first."""
        latest: list[int] = []
        for index in range(len(self._attempts) - 1, -1, -1):
            attempt = self._attempts[index]
            stop = attempt.stop - 1
            while stop > attempt.first and len(latest) < count:
                lower = max(attempt.first, stop - count)
                latest = self._between(index, lower, attempt.cut, stop) + latest
                stop = lower
        return [time_ns / 1e9 for time_ns in latest[-count:]]

    def forget(self) -> None:
        """Forget everything, to measure again."""
        self._kept = None

    def forget_repeated(self, index: int, cut_before: int) -> None:
        """Take out the steps of an attempt that are now repeated and were not when the cut was `cut_before`."""
        if self._kept is None:
            return
        lower = self._attempts.cut_index(index)
        repeated = self._between(index, lower, cut_before, self._measured)
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
        """Return the step times of a state from `to_state`."""
        step_times = cls(attempts)
        step_times._kept = StepTimes.of_column(columns[0], state["blocks"], block_size=step_times._block_size)
        step_times._measured = state["measured"]
        return step_times

    def _parts(self, index: int, cut: int) -> Iterator[list[int]]:
        """Yield the times of an attempt's steps, not too many at a time: as a list they take five times the memory."""
        attempt = self._attempts[index]
        for lower in range(attempt.first, attempt.stop, _PART):
            yield self._between(index, lower, cut, lower + _PART)

    def _between(self, index: int, lower: int, cut: int, stop: int = NEVER_NS) -> list[int]:
        """Return the times of an attempt's steps, in nanoseconds.

        Args:
            index: Index of the attempt.
            lower: Index of the first step.
            cut: Number of the first step that is left out.
            stop: Index after the last step.
        """
        attempt = self._attempts[index]
        times, numbers = self._attempts.facts.steps.times, self._attempts.facts.steps.numbers
        lower = max(lower, attempt.first)
        stop = min(stop, attempt.stop - 1, bisect_left(numbers, cut, attempt.first, attempt.stop))
        if lower >= stop:
            return []
        if numbers[stop] - numbers[lower] == stop - lower:
            return list(map(sub, times[lower + 1 : stop + 1], times[lower:stop]))
        return [
            times[position + 1] - times[position]
            for position in range(lower, stop)
            if numbers[position + 1] == numbers[position] + 1
        ]
