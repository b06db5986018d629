"""Pairs of marks: an activity's starts and ends, in order of time, whatever order they came in."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator

__all__ = ["Interval", "Marks"]

Interval = tuple[int, int]
"""Start and end, in nanoseconds."""


class Marks:
    """Starts and ends of one activity.

    A start and the mark after it, when that is an end, are a pair: of two starts in a row the later counts, an
    end without a start is passed over. So a new mark, however late it comes, touches only the pairs beside it.
    """

    # One sorted column of 2 * time + (0 for an end, 1 for a start): at the same time an end comes first, so
    # that back-to-back activities pair as they should.

    def __init__(self) -> None:
        self.codes = array("q")
        self.total_ns = 0
        """Sum of the pairs' durations."""

    def add(self, time_ns: int, *, is_end: bool) -> tuple[Interval | None, list[Interval]]:
        """Adds a mark; one that is there already changes nothing.

        Returns:
            The pair that is no more, if there is one, and the new pairs.
        """
        code = 2 * time_ns + (not is_end)
        codes = self.codes
        index = len(codes) if not codes or code > codes[-1] else bisect_left(codes, code)
        if index < len(codes) and codes[index] == code:
            return None, []
        before = codes[index - 1] if index else None
        after = codes[index] if index < len(codes) else None
        codes.insert(index, code)
        broken = _pair(before, after)
        made = [pair for pair in (_pair(before, code), _pair(code, after)) if pair]
        if broken:
            self.total_ns -= broken[1] - broken[0]
        self.total_ns += sum(end - start for start, end in made)
        return broken, made

    def first_pair(self, start_ns: int, end_ns: int) -> Interval | None:
        """Returns the first pair that begins at or after `start_ns` and ends before or at `end_ns`."""
        codes = self.codes
        for index in range(bisect_left(codes, 2 * start_ns), len(codes) - 1):
            if codes[index] >= 2 * end_ns:
                return None
            pair = _pair(codes[index], codes[index + 1])
            if pair:
                return pair if pair[1] <= end_ns else None
        return None

    def next_after(self, time_ns: int) -> int | None:
        """Returns the time of the first mark after `time_ns`."""
        index = bisect_left(self.codes, 2 * time_ns + 2)
        return self.codes[index] >> 1 if index < len(self.codes) else None

    def last_before(self, time_ns: int) -> int | None:
        """Returns the time of the last mark before `time_ns`."""
        index = bisect_left(self.codes, 2 * time_ns)
        return self.codes[index - 1] >> 1 if index else None

    def pairs(self) -> Iterator[Interval]:
        """Yields every pair, in order of time."""
        for before, after in zip(self.codes, self.codes[1:], strict=False):
            pair = _pair(before, after)
            if pair:
                yield pair


def _pair(before: int | None, after: int | None) -> Interval | None:
    if before is None or after is None or not before & 1 or after & 1:
        return None
    return before >> 1, after >> 1
