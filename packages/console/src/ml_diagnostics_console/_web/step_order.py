"""The order of a column by step: of a step that was done again after a restart, the last value counts."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any, Final

import numpy as np
import numpy.typing as npt

__all__ = ["StepOrder"]

_ROWS_A_PIECE: Final = 32
"""Rows that follow each other are kept as one piece, unless these are so short that a row number each is less."""


class StepOrder:
    """The rows of a column in the order of their steps, without those of steps that were done again.

    A run that was restarted some times has few pieces of rows that follow each other: nothing is copied.
    """

    __slots__ = ("_last", "_pieces", "_rows", "_seen", "_starts")

    def __init__(self) -> None:
        self._pieces: list[tuple[int, int]] = []
        """First row and row after the last, of pieces in the order of steps."""
        self._starts: list[int] = [0]
        """The index in the order of each piece's first row, and the number of rows in the order."""
        self._rows: npt.NDArray[np.uint32] | None = None
        """All rows in the order, if they are not in pieces."""
        self._seen = 0
        self._last = -np.inf

    def __len__(self) -> int:
        return self._starts[-1] if self._rows is None else len(self._rows)

    def extend(self, steps: npt.NDArray[Any]) -> None:
        """Take all steps of the column; those that were taken before are the first of them.

        Args:
            steps: The steps of all rows; NaN has none.
        """
        first, count = self._seen, len(steps)
        if first == count:
            return
        new = steps[first:]
        self._seen = count
        if self._rows is None and new[0] > self._last and bool((new[1:] > new[:-1]).all()):
            self._last = float(new[-1])
            if self._pieces and self._pieces[-1][1] == first:
                self._pieces[-1] = self._pieces[-1][0], count
            else:
                self._pieces.append((first, count))
                self._starts.append(self._starts[-1])
            self._starts[-1] += count - first
            return
        order = np.argsort(steps, kind="stable")  # NaN is last; of equal steps the earlier row is first.
        ordered = steps[order]
        rows = order[np.append(ordered[1:] != ordered[:-1], True) & ~np.isnan(ordered)]
        self._last = float(steps[rows[-1]]) if len(rows) else -np.inf
        ends = np.append(np.flatnonzero(rows[1:] != rows[:-1] + 1) + 1, len(rows))
        is_in_pieces = len(ends) * _ROWS_A_PIECE <= len(rows)
        self._rows = None if is_in_pieces else rows.astype(np.uint32)
        starts = [0, *ends.tolist()] if is_in_pieces else [0]
        self._starts = starts
        self._pieces = [(int(rows[one]), int(rows[one]) + end - one) for one, end in itertools.pairwise(starts)]

    def take(self, column: npt.NDArray[Any], first: int, last: int) -> npt.NDArray[Any]:
        """Return part of a column in this order: a view of it, if it is in one piece.

        Args:
            column: The column; it is as long as the steps.
            first: The first index in the order.
            last: The index after the last.
        """
        if self._rows is not None:
            found: npt.NDArray[Any] = column[self._rows[first:last]]
            return found
        parts = []
        for (row, end), start in zip(self._pieces, self._starts, strict=False):
            low, high = row + max(0, first - start), min(end, row + last - start)
            if low < high:
                parts.append(column[low:high])
        return parts[0] if len(parts) == 1 else np.concatenate(parts) if parts else column[:0]

    def replaced(self) -> list[tuple[int, int]]:
        """Return the rows that are not in the order, as first row and row after the last of each piece, in time."""
        if self._rows is None:
            return _between(sorted(self._pieces), self._seen)
        is_left = np.ones(self._seen, bool)
        is_left[self._rows] = False
        edges = np.flatnonzero(np.diff(is_left, prepend=False, append=False))
        return [(int(start), int(end)) for start, end in zip(edges[::2], edges[1::2], strict=True)]


def _between(pieces: Iterable[tuple[int, int]], count: int) -> list[tuple[int, int]]:
    """Return what lies between pieces that are in order, of 0 to `count`."""
    edges = [0, *itertools.chain.from_iterable(pieces), count]
    return [(start, end) for start, end in zip(edges[::2], edges[1::2], strict=True) if start < end]
