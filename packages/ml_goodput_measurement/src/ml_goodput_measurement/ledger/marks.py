"""Pairs of marks: an activity's starts and ends, in order of time, whatever order they came in."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator
from itertools import pairwise, repeat
from operator import and_

__all__ = ["Interval", "Marks"]

Interval = tuple[int, int]
"""Start and end, in nanoseconds."""

_BLOCK = 256


class Marks:
    """Starts and ends of one activity.

    A start and the mark after it, when that is an end, are a pair: of two starts in a row the later counts, an
    end without a start is passed over. So a new mark, however late it comes, touches only the pairs beside it.
    """

    def __init__(self) -> None:
        self.codes = array("q")
        """Sorted; twice the time, and one more for a start: so at the same time an end comes before a start, and
        back-to-back activities pair as they should."""
        self.total_ns = 0
        """Sum of the pairs' durations."""
        self._has_pairs = False
        self._totals = array("q", (0,))
        """Sum of the pairs that begin before each whole block of codes, as far as it was asked for."""

    @classmethod
    def of_codes(cls, codes: array[int], total_ns: int) -> Marks:
        """Returns the marks with these codes, whose pairs sum up to `total_ns`."""
        marks = cls()
        marks.codes, marks.total_ns, marks._has_pairs = codes, total_ns, len(codes) > 0
        return marks

    def add(self, time_ns: int, *, is_end: bool) -> tuple[Interval | None, list[Interval]]:
        """Adds a mark; one that is there already changes nothing.

        Returns:
            The pair that is no more, if there is one, and the new pairs.
        """
        return self.add_code(2 * time_ns + (not is_end))

    def add_code(self, code: int) -> tuple[Interval | None, list[Interval]]:
        """Adds a mark that is coded as in `codes`; else as `add`."""
        codes = self.codes
        index = len(codes) if not codes or code > codes[-1] else bisect_left(codes, code)
        if index < len(codes) and codes[index] == code:
            return None, []
        before = codes[index - 1] if index else None
        after = codes[index] if index < len(codes) else None
        codes.insert(index, code)
        self._forget_totals(index)
        broken = _pair(before, after)
        made = [pair for pair in (_pair(before, code), _pair(code, after)) if pair]
        if broken:
            self.total_ns -= broken[1] - broken[0]
        self.total_ns += sum(end - start for start, end in made)
        self._has_pairs = self._has_pairs or bool(made)
        return broken, made

    def extend(self, codes: list[int]) -> None:
        """Adds marks that rise and come after all that are known."""
        self._forget_totals(len(self.codes))
        joined = codes if not self.codes else [self.codes[-1], *codes]
        if not joined[0] & 1:
            joined = joined[1:]
        starts, ends = joined[0::2], joined[1::2]
        self._has_pairs = self._has_pairs or not all(map(and_, joined, repeat(1)))
        if all(map(and_, starts, repeat(1))) and not any(map(and_, ends, repeat(1))):
            # Starts and ends take turns, as they nearly always do: no need to look at each pair.
            self.total_ns += (sum(ends) - sum(starts[: len(ends)]) + len(ends)) // 2
        else:
            pairs = (_pair(before, after) for before, after in pairwise(joined))
            self.total_ns += sum(pair[1] - pair[0] for pair in pairs if pair)
        self.codes.extend(codes)

    def first_pair(self, start_ns: int, end_ns: int) -> Interval | None:
        """Returns the first pair that begins at or after `start_ns` and ends before or at `end_ns`."""
        codes = self.codes
        for index in range(bisect_left(codes, 2 * start_ns), len(codes) - 1 if self._has_pairs else 0):
            if codes[index] >= 2 * end_ns:
                return None
            pair = _pair(codes[index], codes[index + 1])
            if pair:
                return pair if pair[1] <= end_ns else None
        return None

    def total_before(self, time_ns: int) -> int:
        """Returns the sum of what lies before a moment of each pair. Costs what is new since the last call."""
        stop = bisect_left(self.codes, 2 * time_ns)
        while len(self._totals) <= stop // _BLOCK:
            begin = (len(self._totals) - 1) * _BLOCK
            self._totals.append(self._totals[-1] + self._sum_of_pairs(begin, begin + _BLOCK))
        block = stop // _BLOCK
        total = self._totals[block] + self._sum_of_pairs(block * _BLOCK, stop)
        if stop and stop < len(self.codes) and _pair(self.codes[stop - 1], self.codes[stop]):
            total -= (self.codes[stop] >> 1) - time_ns
        return total

    def _forget_totals(self, index: int) -> None:
        """Forgets the totals that a code, new at an index, makes wrong: the pair before it may be among them."""
        del self._totals[max(0, index - 1) // _BLOCK + 1 :]

    def _sum_of_pairs(self, begin: int, stop: int) -> int:
        """Returns the sum of the pairs whose starts lie between two indices."""
        pairs = (_pair(before, after) for before, after in pairwise(self.codes[begin : stop + 1]))
        return sum(pair[1] - pair[0] for pair in pairs if pair)

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
        for before, after in pairwise(self.codes):
            pair = _pair(before, after)
            if pair:
                yield pair


def _pair(before: int | None, after: int | None) -> Interval | None:
    if before is None or after is None or not before & 1 or after & 1:
        return None
    return before >> 1, after >> 1
