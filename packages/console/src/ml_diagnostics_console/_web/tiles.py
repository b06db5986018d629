"""Tiles over a column of values: where the least and the greatest one is, in buckets of 16, 64, 256... rows.

A drawing of a million values in a thousand pixels needs both extremes of each pixel: with the tiles, only some tens of
thousands of values are looked at. Values that are not finite are no extremes.
"""

from __future__ import annotations

from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = ["Tiles", "distinct"]

Floats: TypeAlias = npt.NDArray[np.float64]
Rows: TypeAlias = npt.NDArray[np.int64]
_Indices: TypeAlias = npt.NDArray[np.uint32]

_FIRST: Final = 16
_FACTOR: Final = 4
_GROWTH: Final = 1.25
_TILES_A_BUCKET: Final = 8
"""A tile that lies in two buckets is read row by row: a bucket has so many tiles, so that few do."""


class _Level:
    """The rows of the extremes of all whole tiles of one size.

    Attributes:
        size: The rows of a tile.
        count: The number of tiles.
    """

    __slots__ = ("_greatest", "_least", "count", "size")

    def __init__(self, size: int) -> None:
        self.size, self.count = size, 0
        self._least: _Indices = np.empty(0, np.uint32)
        self._greatest: _Indices = np.empty(0, np.uint32)

    def append(self, least: Rows, greatest: Rows) -> None:
        count = self.count + len(least)
        if count > len(self._least):
            capacity = int(count * _GROWTH) + 1 if self.count else count
            for name in ("_least", "_greatest"):
                grown = np.empty(capacity, np.uint32)
                grown[: self.count] = getattr(self, name)[: self.count]
                setattr(self, name, grown)
        self._least[self.count : count] = least
        self._greatest[self.count : count] = greatest
        self.count = count

    def least(self, first: int, last: int) -> Rows:
        return self._least[first:last].astype(np.int64)

    def greatest(self, first: int, last: int) -> Rows:
        return self._greatest[first:last].astype(np.int64)


class Tiles:
    """The tiles of a column, which grow with it."""

    __slots__ = ("_levels", "_values")

    def __init__(self) -> None:
        self._levels: list[_Level] = []
        self._values: Floats = np.empty(0)

    def extend(self, values: Floats) -> None:
        """Take the values, of which those that were taken before are the first."""
        self._values = values
        size, level = _FIRST, 0
        while len(values) >= size:
            if level == len(self._levels):
                self._levels.append(_Level(size))
            self._extend_level(level)
            size, level = size * _FACTOR, level + 1

    def _extend_level(self, number: int) -> None:
        level = self._levels[number]
        whole = len(self._values) // level.size
        if whole == level.count:
            return
        if number == 0:
            start = level.count * level.size
            block = self._values[start : whole * level.size].reshape(-1, level.size)
            offsets = start + np.arange(len(block)) * level.size
            level.append(*(pick + offsets for pick in _extremes_of(block)))
            return
        below = self._levels[number - 1]
        tiles = (level.count * _FACTOR, whole * _FACTOR)
        least, greatest = below.least(*tiles), below.greatest(*tiles)
        lines = np.arange(len(least) // _FACTOR)
        low = _extremes_of(self._values[least].reshape(-1, _FACTOR))[0]
        high = _extremes_of(self._values[greatest].reshape(-1, _FACTOR))[1]
        level.append(least.reshape(-1, _FACTOR)[lines, low], greatest.reshape(-1, _FACTOR)[lines, high])

    def extremes(self, edges: Rows) -> Rows:
        """Return the rows of the least and the greatest finite value between each edge and the next, in order.

        Args:
            edges: Rows, ascending; equal ones enclose nothing.
        """
        first, last = int(edges[0]), int(edges[-1])
        buckets = distinct(edges)
        if last <= first:
            return np.empty(0, np.int64)
        least, greatest = self._candidates(buckets)
        return distinct(np.concatenate((self._pick(least, buckets, 1.0), self._pick(greatest, buckets, -1.0))))

    def _candidates(self, buckets: Rows) -> tuple[Rows, Rows]:
        """Return the rows among which the extremes of all buckets are, in order."""
        first, last = int(buckets[0]), int(buckets[-1])
        rows = (last - first) / max(1, len(buckets) - 1)
        fitting = [level for level in self._levels if level.size * _TILES_A_BUCKET <= rows]
        if not fitting:
            everything = np.arange(first, last)
            return everything, everything
        level = fitting[-1]
        # The tiles with an edge in them, and the rows that no whole tile holds, are read row by row.
        cut = distinct(buckets // level.size)
        cut = cut[cut < level.count]
        tail = np.arange(max(first, level.count * level.size), last)
        single = (cut[:, None] * level.size + np.arange(level.size)).ravel()
        single = np.concatenate((single[(single >= first) & (single < last)], tail))
        tiles = np.arange(first // level.size, min(level.count, -(-last // level.size)))
        is_whole = np.ones(len(tiles), bool)
        is_whole[cut[cut < first // level.size + len(tiles)] - first // level.size] = False
        whole = tiles[is_whole]
        candidates = []
        for found in (level.least(0, level.count), level.greatest(0, level.count)):
            rows_of_tiles = found[whole]
            candidates.append(np.sort(np.concatenate((single, rows_of_tiles)), kind="stable"))
        return candidates[0], candidates[1]

    def _pick(self, candidates: Rows, buckets: Rows, sign: float) -> Rows:
        """Return the first row of the least value of each bucket (of the greatest, with sign -1)."""
        values = sign * self._values[candidates]
        values = np.where(np.isfinite(values), values, np.inf)
        starts = np.searchsorted(candidates, buckets[:-1])
        lengths = np.diff(np.append(starts, len(candidates)))
        least = np.repeat(np.minimum.reduceat(values, starts), lengths)
        found = np.flatnonzero((values == least) & (values < np.inf))
        bucket = np.searchsorted(starts, found, side="right")
        is_first = np.append(True, bucket[1:] != bucket[:-1])[: len(found)]
        rows: Rows = candidates[found[is_first]]
        return rows


def distinct(rows: Rows) -> Rows:
    """Return rows in order, each once; `numpy.unique` imports `numpy.ma` for that, which takes 15 ms."""
    ordered = np.sort(rows, kind="stable")
    found: Rows = ordered[np.append(True, ordered[1:] != ordered[:-1])[: len(ordered)]]
    return found


def _extremes_of(block: Floats) -> tuple[Rows, Rows]:
    """Return in each line the position of the least and of the greatest finite value; any position if none is."""
    if np.isfinite(block).all():
        return block.argmin(axis=1), block.argmax(axis=1)
    finite = np.isfinite(block)
    return np.where(finite, block, np.inf).argmin(axis=1), np.where(finite, block, -np.inf).argmax(axis=1)
