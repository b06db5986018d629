"""Which entries of each writer were seen, in memory that does not grow with their number."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping

__all__ = ["SeenSequences"]


class SeenSequences:
    """For each writer the sequence numbers seen so far, as disjoint ranges in order.

    Adding is O(1) in order and O(ranges of that writer) otherwise; memory is two integers a range.
    """

    def __init__(self) -> None:
        # writer -> ([first of each range], [last of each range]), both ascending.
        self._ranges: dict[str, tuple[list[int], list[int]]] = {}

    def add(self, writer: str, sequence: int) -> bool:
        """Notes one entry; False if it was seen before."""
        ranges = self._ranges.get(writer)
        if ranges is None:
            self._ranges[writer] = ([sequence], [sequence])
            return True
        firsts, lasts = ranges
        if sequence == lasts[-1] + 1:
            lasts[-1] = sequence
            return True
        position = bisect_right(firsts, sequence) - 1
        if position >= 0 and sequence <= lasts[position]:
            return False
        joins_left = position >= 0 and lasts[position] == sequence - 1
        joins_right = position + 1 < len(firsts) and firsts[position + 1] == sequence + 1
        if joins_left and joins_right:
            lasts[position] = lasts.pop(position + 1)
            firsts.pop(position + 1)
        elif joins_left:
            lasts[position] = sequence
        elif joins_right:
            firsts[position + 1] = sequence
        else:
            firsts.insert(position + 1, sequence)
            lasts.insert(position + 1, sequence)
        return True

    def __contains__(self, entry: tuple[str, int]) -> bool:
        writer, sequence = entry
        firsts, lasts = self._ranges.get(writer, ([], []))
        position = bisect_right(firsts, sequence) - 1
        return position >= 0 and sequence <= lasts[position]

    def gaps(self) -> dict[str, list[tuple[int, int]]]:
        """For each writer with any, the (first, last) sequence numbers between those seen."""
        gaps = {}
        for writer, (firsts, lasts) in self._ranges.items():
            between = [(last + 1, first - 1) for last, first in zip(lasts, firsts[1:], strict=False)]
            if between:
                gaps[writer] = between
        return gaps

    def to_json(self) -> dict[str, list[list[int]]]:
        """The ranges as JSON: {writer: [[first, last], ...]}."""
        return {
            writer: [[first, last] for first, last in zip(firsts, lasts, strict=True)]
            for writer, (firsts, lasts) in self._ranges.items()
        }

    @classmethod
    def from_json(cls, ranges: Mapping[str, Iterable[Iterable[int]]]) -> SeenSequences:
        """What `to_json` wrote."""
        seen = cls()
        for writer, pairs in ranges.items():
            rows = sorted((int(first), int(last)) for first, last in pairs)
            if rows:
                seen._ranges[writer] = ([first for first, _ in rows], [last for _, last in rows])
        return seen
