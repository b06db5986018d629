"""Slices of an elastic job: how many trained, and how many were there, of all."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from itertools import pairwise

from ml_goodput_measurement.events import SliceCount

__all__ = ["SliceCounts"]


class SliceCounts:
    """A sorted set of reports, and sums over time of the shares that they tell."""

    def __init__(self, counts: list[SliceCount] | None = None) -> None:
        self.counts: list[SliceCount] = counts or []
        """In order of time."""
        self.times = [count.time_ns for count in self.counts]
        self._sums: list[tuple[float, float]] = []
        """Share of active and of available slices, times nanoseconds, up to each report, as far as it was asked for."""

    def add(self, count: SliceCount) -> bool:
        """Adds a report; returns False when it is there already."""
        index = bisect_left(self.counts, count)
        if self.counts[index : index + 1] == [count]:
            return False
        insort(self.counts, count)
        insort(self.times, count.time_ns)
        del self._sums[index:]
        return True

    def efficiency(self, start_ns: int, end_ns: int) -> tuple[float, float] | None:
        """Returns the means over time of the shares of active and of available slices.

        The time before the first report is left out: nobody knows what was true then.

        Args:
            start_ns: Start of the stretch.
            end_ns: Its end.

        Returns:
            Two shares, 0 to 1; None where no report says anything of the stretch.
        """
        start_ns = max(start_ns, self.times[0]) if self.times else end_ns
        if start_ns >= end_ns:
            return None
        before, until = self._sum_before(start_ns), self._sum_before(end_ns)
        active, available = ((last - first) / (end_ns - start_ns) for first, last in zip(before, until, strict=True))
        return active, available

    def _sum_before(self, time_ns: int) -> tuple[float, float]:
        """Returns the sums from the first report to a moment after it."""
        if not self._sums:
            self._sums.append((0.0, 0.0))
        for before, after in pairwise(self.counts[len(self._sums) - 1 :]):
            self._sums.append(_later(self._sums[-1], before, after.time_ns))
        index = bisect_right(self.times, time_ns) - 1
        return _later(self._sums[index], self.counts[index], time_ns)


def _later(sums: tuple[float, float], count: SliceCount, time_ns: int) -> tuple[float, float]:
    lasted_ns = time_ns - count.time_ns
    return sums[0] + lasted_ns * count.active / count.total, sums[1] + lasted_ns * count.available / count.total
