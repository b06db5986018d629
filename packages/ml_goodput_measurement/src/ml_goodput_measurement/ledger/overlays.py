"""Intervals that lie over the steps (saves, custom events, initialisation ...), and who wins where they overlap."""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Iterable
from itertools import accumulate, chain
from operator import itemgetter
from typing import NamedTuple

from ml_goodput_measurement.partition import Bucket

__all__ = ["Overlay", "Overlays", "resolve"]

_FEW = 16

PRECEDENCE = {bucket: rank for rank, bucket in enumerate(Bucket)}


class Overlay(NamedTuple):
    """An interval of a bucket; the order of its fields is the order in which overlays are kept."""

    start_ns: int
    end_ns: int
    rank: int
    """Precedence of the bucket: the lowest wins."""
    label: str
    bucket: Bucket

    @classmethod
    def of(cls, start_ns: int, end_ns: int, bucket: Bucket, label: str = "") -> Overlay:
        """Makes an overlay of a bucket."""
        return cls(start_ns, end_ns, PRECEDENCE[bucket], label, bucket)


class Overlays:
    """A sorted set of overlays that answers which of them touch a stretch of time."""

    def __init__(self) -> None:
        self._overlays: list[Overlay] = []
        self._latest_end: list[int] = []  # the latest end among the overlays up to each: where a search may stop

    def add(self, overlay: Overlay) -> None:
        """Adds an overlay; one without length says nothing."""
        if overlay.end_ns <= overlay.start_ns:
            return
        if not self._overlays or overlay > self._overlays[-1]:
            self._overlays.append(overlay)
            self._latest_end.append(max(overlay.end_ns, self._latest_end[-1] if self._latest_end else 0))
        else:
            insort(self._overlays, overlay)
            self._mend(bisect_left(self._overlays, overlay))

    def extend(self, overlays: Iterable[Overlay]) -> None:
        """Adds overlays, many at once or few."""
        overlays = list(overlays)
        if len(overlays) < _FEW:
            for overlay in overlays:
                self.add(overlay)
            return
        self._overlays = sorted([*self._overlays, *(overlay for overlay in overlays if overlay.end_ns > overlay[0])])
        self._mend(0)

    def discard(self, overlay: Overlay) -> None:
        """Removes an overlay, once, if it is there."""
        index = bisect_left(self._overlays, overlay)
        if index < len(self._overlays) and self._overlays[index] == overlay:
            del self._overlays[index]
            self._mend(index)

    def between(self, start_ns: int, end_ns: int) -> list[Overlay]:
        """Returns the overlays that touch a stretch of time, in order."""
        index = bisect_left(self._overlays, end_ns, key=itemgetter(0))
        found = []
        while index and self._latest_end[index - 1] > start_ns:
            index -= 1
            if self._overlays[index].end_ns > start_ns:
                found.append(self._overlays[index])
        found.reverse()
        return found

    def _mend(self, index: int) -> None:
        before = self._latest_end[index - 1] if index else 0
        ends = (overlay.end_ns for overlay in self._overlays[index:])
        self._latest_end[index:] = list(accumulate(chain((before,), ends), max))[1:]


def resolve(overlays: list[Overlay], start_ns: int, end_ns: int) -> list[Overlay]:
    """Cuts overlays into disjoint ones, within a stretch of time; of two of a bucket the one that began first wins.

    Args:
        overlays: In order.
        start_ns: Start of the stretch.
        end_ns: End of the stretch.
    """
    pieces: list[Overlay] = []
    borders = sorted({border for overlay in overlays for border in overlay[:2] if start_ns < border < end_ns})
    waiting = iter(overlays)
    upcoming = next(waiting, None)
    active: list[tuple[int, Overlay]] = []
    for begin, end in zip([start_ns, *borders], [*borders, end_ns], strict=True):
        while upcoming is not None and upcoming.start_ns <= begin:
            heapq.heappush(active, (upcoming.rank, upcoming))
            upcoming = next(waiting, None)
        while active and active[0][1].end_ns <= begin:
            heapq.heappop(active)
        if not active:
            continue
        _, winner = active[0]
        last = pieces[-1] if pieces else None
        if last and last.end_ns == begin and (last.bucket, last.label) == (winner.bucket, winner.label):
            pieces[-1] = last._replace(end_ns=end)
        else:
            pieces.append(winner._replace(start_ns=begin, end_ns=end))
    return pieces
