"""Slices of an elastic job: how many trained, and how many were there, of all."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable
from itertools import pairwise

from ml_goodput_measurement.events import SliceCount
from ml_goodput_measurement.ledger.pairs import Interval

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

    def shares(self, parts: Iterable[Interval], without: Iterable[Interval] = ()) -> tuple[float, float] | None:
        """Returns the means over time of the shares of active and of available slices.

        The time before the first report is left out: nobody knows what was true then.

        Args:
            parts: Disjoint stretches of time.
            without: Disjoint stretches in them that are left out.

        Returns:
            Two shares, 0 to 1; None where no report says anything of the parts.
        """
        active = available = lasted_ns = 0.0
        for sign, stretches in ((1, parts), (-1, without)):
            for start_ns, end_ns in stretches:
                start_ns = max(start_ns, self.times[0]) if self.times else end_ns
                if start_ns < end_ns:
                    before, until = self._sum_before(start_ns), self._sum_before(end_ns)
                    active += sign * (until[0] - before[0])
                    available += sign * (until[1] - before[1])
                    lasted_ns += sign * (end_ns - start_ns)
        return (active / lasted_ns, available / lasted_ns) if lasted_ns else None

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
    active, available = count.active / count.total, min(1.0, count.available / count.total)
    return sums[0] + lasted_ns * active, sums[1] + lasted_ns * available
