"""Intervals of activities: starts and ends in pairs, and precedence where intervals overlap.

Each start and each end is a mark: an integer, twice the time, plus one for a start. At the same time an end is thus
before a start, and back-to-back activities pair correctly.
"""

from __future__ import annotations

import heapq
from array import array
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, chain, pairwise, repeat
from operator import and_, itemgetter
from typing import TYPE_CHECKING, NamedTuple

from ml_goodput_measurement.partition import Bucket

if TYPE_CHECKING:
    from ml_goodput_measurement._ledger.events import SliceCount

__all__ = [
    "MARKS_PART",
    "Interval",
    "Marks",
    "Overlay",
    "Overlays",
    "PairSums",
    "SliceCounts",
    "append_all",
    "pair_of",
    "resolve",
    "sum_of_pairs",
    "takes_turns",
]

Interval = tuple[int, int]
"""Start and end, in nanoseconds."""

MARKS_PART = 2048
"""The number of marks whose sum is kept."""

_NEAR = 128


def pair_of(before: int | None, after: int | None) -> Interval | None:
    """Return the pair of two neighboring marks, or None if they are not a start and its end."""
    if before is None or after is None or not before & 1 or after & 1:
        return None
    return before >> 1, after >> 1


def takes_turns(codes: Sequence[int]) -> bool:
    """Return True if starts and ends alternate, as they nearly always do."""
    first = 0 if codes and codes[0] & 1 else 1
    return all(map(and_, codes[first::2], repeat(1))) and not any(map(and_, codes[first + 1 :: 2], repeat(1)))


def sum_of_pairs(codes: Sequence[int], in_turns: bool) -> int:
    """Return the sum of the durations of all pairs; if starts and ends alternate, without comparing each."""
    if not in_turns:
        pairs = (pair_of(before, after) for before, after in pairwise(codes))
        return sum(pair[1] - pair[0] for pair in pairs if pair)
    first = 0 if codes and codes[0] & 1 else 1
    ends = codes[first + 1 :: 2]
    return (sum(ends) - sum(codes[first : first + 2 * len(ends) : 2]) + len(ends)) // 2


class PairSums:
    """Sums of the pairs up to some indices of a growing column, from which the sum up to any index follows quickly."""

    def __init__(self, codes: array[int], part: int) -> None:
        self._codes = codes
        self._part = part
        self._indices = [0]
        self._totals = [0]
        """Sum of the pairs with both marks before each index."""
        self._in_turns: list[bool] = []
        """True if starts and ends alternate between an index and the next, and with the mark before the index."""

    def to_state(self) -> list[list[int]]:
        """Return the sums as JSON."""
        return [self._indices, self._totals, [int(in_turns) for in_turns in self._in_turns]]

    def restore(self, state: list[list[int]]) -> None:
        """Restore the sums of a state from `to_state`, with the same codes."""
        self._indices, self._totals = state[:2]
        self._in_turns = [bool(in_turns) for in_turns in state[2]]

    def appended(self, length: int, total_ns: int, *, in_turns: bool) -> None:
        """Note the sum of values that were appended at this length; otherwise the next query computes it."""
        if self._indices[-1] == length:
            self._add(len(self._codes), total_ns, in_turns=in_turns)

    def inserted(self, index: int) -> None:
        """Forget the sums that a mark at an index has changed."""
        kept = bisect_right(self._indices, index)
        del self._indices[kept:], self._totals[kept:], self._in_turns[kept - 1 :]

    def before(self, index: int) -> int:
        """Return the sum of the pairs with both marks before an index."""
        while self._indices[-1] < index:
            position = self._indices[-1]
            codes = self._codes[max(0, position - 1) : position + self._part]
            in_turns = takes_turns(codes)
            total_ns = self._totals[-1] + sum_of_pairs(codes, in_turns)
            self._add(min(position + self._part, len(self._codes)), total_ns, in_turns=in_turns)
        part = bisect_right(self._indices, index) - 1
        position, total_ns = self._indices[part], self._totals[part]
        if position == index:
            return total_ns
        total_ns += sum_of_pairs(self._codes[max(0, position - 1) : index], self._in_turns[part])
        if index - position > _NEAR and index < self._indices[part + 1]:
            # The next query is likely to be for an index near this one.
            self._indices.insert(part + 1, index)
            self._totals.insert(part + 1, total_ns)
            self._in_turns.insert(part, self._in_turns[part])
        return total_ns

    def _add(self, position: int, total_ns: int, *, in_turns: bool) -> None:
        if len(self._indices) > 1 and position - self._indices[-2] <= self._part and in_turns and self._in_turns[-1]:
            self._indices[-1], self._totals[-1] = position, total_ns
            return
        self._indices.append(position)
        self._totals.append(total_ns)
        self._in_turns.append(in_turns)


def append_all(column: array[int], values: Sequence[int]) -> None:
    """Append values to a column; for a list in half the time of `extend`."""
    if isinstance(values, list):
        column.fromlist(values)
    else:
        column.extend(values)


class Marks:
    """Starts and ends of one activity.

    A start and the mark after it are a pair if that is an end: of two starts in a row the later counts, and an end
    without a start is skipped. So a new mark, however late, affects only the pairs beside it.
    """

    def __init__(self, part: int = MARKS_PART) -> None:
        """Start without marks.

        Args:
            part: The number of marks whose sum is kept.
        """
        self.codes = array("q")
        """Sorted marks: twice the time, plus one for a start."""
        self.total_ns = 0
        """Sum of the pairs' durations."""
        self._sums = PairSums(self.codes, part)

    def sums(self) -> list[list[int]]:
        """Return the argument `sums` of `of_codes`."""
        return [[self.total_ns], *self._sums.to_state()]

    @classmethod
    def of_codes(cls, codes: array[int], sums: list[list[int]], part: int = MARKS_PART) -> Marks:
        """Return the marks with these codes, and with these `sums` of their pairs; `part` as of the constructor."""
        marks = cls(part)
        total_ns = sums[0][0]
        marks.codes, marks.total_ns = codes, total_ns
        marks._sums = PairSums(codes, part)
        marks._sums.restore(sums[1:])
        return marks

    def add(self, time_ns: int, *, is_end: bool) -> tuple[Interval | None, list[Interval]]:
        """Add a mark; a known one changes nothing.

        Returns:
            The pair that was split, if any, and the new pairs.
        """
        return self.add_code(2 * time_ns + (not is_end))

    def add_code(self, code: int) -> tuple[Interval | None, list[Interval]]:
        """Add a mark that is coded as in `codes`; else as `add`."""
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
        """Return the codes of the marks of an interval of time, without its end."""
        return self.codes[bisect_left(self.codes, 2 * start_ns) : bisect_left(self.codes, 2 * end_ns)]

    def extend(self, codes: Sequence[int]) -> None:
        """Append rising marks that are after all known ones."""
        joined = [*self.codes[-1:], *codes]
        in_turns = takes_turns(joined)
        self.total_ns += sum_of_pairs(joined, in_turns)
        append_all(self.codes, codes)
        self._sums.appended(len(self.codes) - len(codes), self.total_ns, in_turns=in_turns)

    def total_before(self, time_ns: int) -> int:
        """Return the sum of the parts of all pairs before a moment."""
        stop = bisect_left(self.codes, 2 * time_ns)
        pair = pair_of(*self.codes[stop - 1 : stop + 1]) if 0 < stop < len(self.codes) else None
        return self._sums.before(stop) + (time_ns - pair[0] if pair else 0)

    def first_pair(self, start_ns: int, end_ns: int) -> Interval | None:
        """Return the first pair that starts at or after `start_ns` and ends before or at `end_ns`."""
        codes = self.codes
        for index in range(bisect_left(codes, 2 * start_ns), len(codes) - 1 if self.total_ns else 0):
            if codes[index] >= 2 * end_ns:
                return None
            pair = pair_of(codes[index], codes[index + 1])
            if pair:
                return pair if pair[1] <= end_ns else None
        return None

    def pairs_between(self, start_ns: int, end_ns: int) -> list[Interval]:
        """Return the pairs that overlap an interval of time, in order."""
        first = max(0, bisect_right(self.codes, 2 * start_ns) - 1)
        codes = self.codes[first : bisect_left(self.codes, 2 * end_ns) + 1]
        pairs = (pair_of(before, after) for before, after in pairwise(codes))
        return [pair for pair in pairs if pair and pair[1] > start_ns and pair[0] < end_ns]

    def next_after(self, time_ns: int) -> int | None:
        """Return the time of the first mark after `time_ns`."""
        index = bisect_left(self.codes, 2 * time_ns + 2)
        return self.codes[index] >> 1 if index < len(self.codes) else None

    def last_before(self, time_ns: int) -> int | None:
        """Return the time of the last mark before `time_ns`."""
        index = bisect_left(self.codes, 2 * time_ns)
        return self.codes[index - 1] >> 1 if index else None

    def pairs(self) -> Iterator[Interval]:
        """Yield every pair, in order of time."""
        for before, after in pairwise(self.codes):
            pair = pair_of(before, after)
            if pair:
                yield pair


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
        """Make an overlay of a bucket."""
        return cls(start_ns, end_ns, PRECEDENCE[bucket], label, bucket)


class Overlays:
    """A sorted set of overlays, with a search for those that overlap an interval of time."""

    def __init__(self) -> None:
        self._overlays: list[Overlay] = []
        self._latest_end: list[int] = []  # the latest end of the overlays up to each: a search may stop there

    def add(self, overlay: Overlay) -> None:
        """Add an overlay; one without length is ignored."""
        if overlay.end_ns <= overlay.start_ns:
            return
        if not self._overlays or overlay > self._overlays[-1]:
            self._overlays.append(overlay)
            self._latest_end.append(max(overlay.end_ns, self._latest_end[-1] if self._latest_end else 0))
        else:
            insort(self._overlays, overlay)
            self._repair(bisect_left(self._overlays, overlay))

    def extend(self, overlays: Iterable[Overlay]) -> None:
        """Add overlays, many at once or few."""
        overlays = list(overlays)
        if len(overlays) < _FEW:
            for overlay in overlays:
                self.add(overlay)
            return
        self._overlays = sorted([*self._overlays, *(overlay for overlay in overlays if overlay.end_ns > overlay[0])])
        self._repair(0)

    def discard(self, overlay: Overlay) -> None:
        """Remove an overlay, once, if the set has it."""
        index = bisect_left(self._overlays, overlay)
        if index < len(self._overlays) and self._overlays[index] == overlay:
            del self._overlays[index]
            self._repair(index)

    def between(self, start_ns: int, end_ns: int) -> list[Overlay]:
        """Return the overlays that overlap an interval of time, in order."""
        index = bisect_left(self._overlays, end_ns, key=itemgetter(0))
        found = []
        while index and self._latest_end[index - 1] > start_ns:
            index -= 1
            if self._overlays[index].end_ns > start_ns:
                found.append(self._overlays[index])
        found.reverse()
        return found

    def _repair(self, index: int) -> None:
        before = self._latest_end[index - 1] if index else 0
        ends = (overlay.end_ns for overlay in self._overlays[index:])
        self._latest_end[index:] = list(accumulate(chain((before,), ends), max))[1:]


def resolve(overlays: list[Overlay], start_ns: int, end_ns: int) -> list[Overlay]:
    """Cut overlays into disjoint ones within an interval; of two of one bucket, the one that started first wins.

    Args:
        overlays: In order.
        start_ns: Start of the interval.
        end_ns: End of the interval.
    """
    pieces: list[Overlay] = []
    borders = sorted({border for overlay in overlays for border in overlay[:2] if start_ns < border < end_ns})
    waiting = iter(overlays)
    upcoming = next(waiting, None)
    active: list[tuple[int, Overlay]] = []
    for lower, end in zip([start_ns, *borders], [*borders, end_ns], strict=True):
        while upcoming is not None and upcoming.start_ns <= lower:
            heapq.heappush(active, (upcoming.rank, upcoming))
            upcoming = next(waiting, None)
        while active and active[0][1].end_ns <= lower:
            heapq.heappop(active)
        if not active:
            continue
        _, winner = active[0]
        last = pieces[-1] if pieces else None
        if last and last.end_ns == lower and (last.bucket, last.label) == (winner.bucket, winner.label):
            pieces[-1] = last._replace(end_ns=end)
        else:
            pieces.append(winner._replace(start_ns=lower, end_ns=end))
    return pieces


class SliceCounts:
    """A sorted set of reports, and sums over time of the shares in them."""

    def __init__(self, counts: list[SliceCount] | None = None) -> None:
        self.counts: list[SliceCount] = counts or []
        """The counts in order of time."""
        self.times = [count.time_ns for count in self.counts]
        self._sums: list[tuple[float, float]] = []
        """Share of active and of available slices, times nanoseconds, up to each report, as far as it was needed."""

    def add(self, count: SliceCount) -> bool:
        """Add a report; return False if it is known."""
        index = bisect_left(self.counts, count)
        if self.counts[index : index + 1] == [count]:
            return False
        insort(self.counts, count)
        insort(self.times, count.time_ns)
        del self._sums[index:]
        return True

    def shares(self, parts: Iterable[Interval], without: Iterable[Interval] = ()) -> tuple[float, float] | None:
        """Return the means over time of the shares of active and of available slices.

        The time before the first report is left out: its shares are unknown.

        Args:
            parts: Disjoint intervals of time.
            without: Disjoint intervals in them that are left out.

        Returns:
            Two shares, 0 to 1; None if no report covers the parts.
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
        """Return the sums from the first report to a moment after it."""
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
