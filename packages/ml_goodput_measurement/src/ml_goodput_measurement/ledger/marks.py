"""Pairs of marks: an activity's starts and ends, in order of time, whatever order they came in."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import pairwise

from ml_goodput_measurement.ledger.pairs import Interval, PairSums, pair_of, sum_of_pairs, takes_turns

__all__ = ["Interval", "Marks", "append_all"]


def append_all(column: array[int], values: Sequence[int]) -> None:
    """Append values to a column; of a list in half the time that `extend` takes."""
    if isinstance(values, list):
        column.fromlist(values)
    else:
        column.extend(values)


class Marks:
    """Starts and ends of one activity.

    A start and the mark after it, when that is an end, are a pair: of two starts in a row the later counts, an
    end without a start is passed over. So a new mark, however late it comes, touches only the pairs beside it.
    """

    def __init__(self) -> None:
        self.codes = array("q")
        """Sorted, and coded as in `pairs`."""
        self.total_ns = 0
        """Sum of the pairs' durations."""
        self._sums = PairSums(self.codes)

    def sums(self) -> list[list[int]]:
        """Returns what `of_codes` takes besides the codes."""
        return [[self.total_ns], *self._sums.to_state()]

    @classmethod
    def of_codes(cls, codes: array[int], sums: list[list[int]]) -> Marks:
        """Returns the marks with these codes, of whose pairs these are the `sums`."""
        marks = cls()
        total_ns = sums[0][0]
        marks.codes, marks.total_ns = codes, total_ns
        marks._sums = PairSums(codes)
        marks._sums.restore(sums[1:])
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
        self._sums.inserted(index)
        broken = pair_of(before, after)
        made = [pair for pair in (pair_of(before, code), pair_of(code, after)) if pair]
        if broken:
            self.total_ns -= broken[1] - broken[0]
        self.total_ns += sum(end - start for start, end in made)
        return broken, made

    def codes_between(self, start_ns: int, end_ns: int) -> array[int]:
        """Return the codes of the marks of a stretch of time, its end not included."""
        return self.codes[bisect_left(self.codes, 2 * start_ns) : bisect_left(self.codes, 2 * end_ns)]

    def extend(self, codes: Sequence[int]) -> None:
        """Adds marks that rise and come after all that are known."""
        joined = [*self.codes[-1:], *codes]
        in_turns = takes_turns(joined)
        self.total_ns += sum_of_pairs(joined, in_turns)
        append_all(self.codes, codes)
        self._sums.appended(len(self.codes) - len(codes), self.total_ns, in_turns=in_turns)

    def total_before(self, time_ns: int) -> int:
        """Returns the sum of what lies before a moment of each pair."""
        stop = bisect_left(self.codes, 2 * time_ns)
        pair = pair_of(*self.codes[stop - 1 : stop + 1]) if 0 < stop < len(self.codes) else None
        return self._sums.before(stop) + (time_ns - pair[0] if pair else 0)

    def first_pair(self, start_ns: int, end_ns: int) -> Interval | None:
        """Returns the first pair that begins at or after `start_ns` and ends before or at `end_ns`."""
        codes = self.codes
        for index in range(bisect_left(codes, 2 * start_ns), len(codes) - 1 if self.total_ns else 0):
            if codes[index] >= 2 * end_ns:
                return None
            pair = pair_of(codes[index], codes[index + 1])
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
        for before, after in pairwise(self.codes):
            pair = pair_of(before, after)
            if pair:
                yield pair
