"""Pairs in a column of marks: a start and the end that follows it, and sums of their durations.

Marks are coded as twice the time, and one more for a start: so at the same time an end comes before a start, and
back-to-back activities pair as they should.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise, repeat
from operator import and_

__all__ = ["Interval", "PairSums", "pair_of", "sum_of_pairs", "takes_turns"]

Interval = tuple[int, int]
"""Start and end, in nanoseconds."""

_PART = 2048
_NEAR = 128


def pair_of(before: int | None, after: int | None) -> Interval | None:
    """Returns the pair that two neighbours make, if they do."""
    if before is None or after is None or not before & 1 or after & 1:
        return None
    return before >> 1, after >> 1


def takes_turns(codes: Sequence[int]) -> bool:
    """Returns whether starts and ends take turns, as they nearly always do."""
    first = 0 if codes and codes[0] & 1 else 1
    return all(map(and_, codes[first::2], repeat(1))) and not any(map(and_, codes[first + 1 :: 2], repeat(1)))


def sum_of_pairs(codes: Sequence[int], in_turns: bool) -> int:
    """Returns the sum of the durations of all pairs; where starts and ends take turns, without a look at each."""
    if not in_turns:
        pairs = (pair_of(before, after) for before, after in pairwise(codes))
        return sum(pair[1] - pair[0] for pair in pairs if pair)
    first = 0 if codes and codes[0] & 1 else 1
    ends = codes[first + 1 :: 2]
    return (sum(ends) - sum(codes[first : first + 2 * len(ends) : 2]) + len(ends)) // 2


class PairSums:
    """Sums of the pairs up to some places of a growing column, from which that up to any place is soon found."""

    def __init__(self, codes: array[int]) -> None:
        self._codes = codes
        self._places = [0]
        self._totals = [0]
        """Sum of the pairs whose marks both lie before each place."""
        self._in_turns: list[bool] = []
        """Whether starts and ends take turns between a place and the next, and with the mark before the place."""

    def to_state(self) -> list[list[int]]:
        """Returns the sums as JSON."""
        return [self._places, self._totals, [int(in_turns) for in_turns in self._in_turns]]

    def restore(self, state: list[list[int]]) -> None:
        """Takes over the sums of which `to_state` was asked, with the same codes."""
        self._places, self._totals = state[:2]
        self._in_turns = [bool(in_turns) for in_turns in state[2]]

    def appended(self, length: int, total_ns: int, *, in_turns: bool) -> None:
        """Takes note of what was appended to a column of a length; else it is looked at when somebody asks."""
        if self._places[-1] == length:
            self._add(len(self._codes), total_ns, in_turns=in_turns)

    def inserted(self, index: int) -> None:
        """Forgets what a mark at an index has changed."""
        kept = bisect_right(self._places, index)
        del self._places[kept:], self._totals[kept:], self._in_turns[kept - 1 :]

    def before(self, index: int) -> int:
        """Returns the sum of the pairs whose marks both lie before an index."""
        while self._places[-1] < index:
            place = self._places[-1]
            codes = self._codes[max(0, place - 1) : place + _PART]
            in_turns = takes_turns(codes)
            total_ns = self._totals[-1] + sum_of_pairs(codes, in_turns)
            self._add(min(place + _PART, len(self._codes)), total_ns, in_turns=in_turns)
        part = bisect_right(self._places, index) - 1
        place, total_ns = self._places[part], self._totals[part]
        if place == index:
            return total_ns
        total_ns += sum_of_pairs(self._codes[max(0, place - 1) : index], self._in_turns[part])
        if index - place > _NEAR and index < self._places[part + 1]:
            # Who asks for this place asks for one near it next.
            self._places.insert(part + 1, index)
            self._totals.insert(part + 1, total_ns)
            self._in_turns.insert(part, self._in_turns[part])
        return total_ns

    def _add(self, place: int, total_ns: int, *, in_turns: bool) -> None:
        if len(self._places) > 1 and place - self._places[-2] <= _PART and in_turns and self._in_turns[-1]:
            self._places[-1], self._totals[-1] = place, total_ns
            return
        self._places.append(place)
        self._totals.append(total_ns)
        self._in_turns.append(in_turns)
