"""The step summaries of one process, in bounded memory: a month of them in 350 kB. Pure.

A rule needs three things of them: the first one, since its steps compile; the newest ones as they are; and a baseline
from the whole life before. So neighbours of the older ones are merged, two, four, eight and so on to a row, all rows
with the same number of summaries. Rows are packed, since a summary as objects takes 1.3 kB, which is 1.4 GB for a day
of 128 processes. Objects are made only as they are read: 3 microseconds each.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Sequence
from typing import Any, Final, overload

from cloud_tpu_diagnostics.entries import MOST_RETURNS, return_rank
from ml_diagnostics_common.entry import EntryContext, LogEntry, make_insert_id

from ml_diagnostics_console._facts.facts import Pause, StepSummary, Times
from ml_diagnostics_console.verdict import Ref

__all__ = ["Summaries", "returns_of", "with_pauses"]

_NEWEST: Final = 512
"""At least so many are kept as they are: 85 minutes, at 10 s a summary."""
_MOVED: Final = 256
"""The number of rows that are merged at once."""
_MOST_OLD: Final = 512
_FIRST: Final = 1
"""The first summary, which is kept as it is."""
_ROW: Final = struct.Struct("=5q6q16d")
"""Time, first step, last step, steps, sequence; three returns with step and time; sum, p50, p95, max of wall, own,
data, wait."""
_NUMBERS: Final = 5
_RETURNS: Final = slice(_NUMBERS, _NUMBERS + 2 * MOST_RETURNS)
_TIMES: Final = tuple(slice(start, start + 4) for start in range(_RETURNS.stop, _RETURNS.stop + 16, 4))
_ROW_OF_RETURNS: Final = struct.Struct(
    f"={8 * _NUMBERS}x{2 * MOST_RETURNS}q{_ROW.size - 8 * (_NUMBERS + 2 * MOST_RETURNS)}x"
)
"""A row of which the returns alone are unpacked."""
_NO_RETURNS: Final = (-1, 0) * MOST_RETURNS
_NO_TIMES: Final = (math.nan,) * 4

_Row = tuple[Any, ...]


class Summaries(Sequence[StepSummary]):
    """The step summaries of a process, the oldest first; old ones are merged with their neighbours."""

    def __init__(self) -> None:
        self._rows = bytearray()
        self._contexts: list[EntryContext] = []
        self._foreign_ids: list[str] = []
        self._pauses: list[tuple[Pause, ...]] = []
        self._old = 0
        """The number of rows after the first one that have several summaries each."""
        self._merged = 1
        """The number of summaries in each of them."""
        # Several rules ask for the same last ones: they are made once.
        self._sliced: tuple[range, tuple[StepSummary, ...]] = range(0), ()

    def add(
        self,
        entry: LogEntry,
        steps: tuple[int, int, int],
        times: Sequence[tuple[float, float, float, float] | None],
        returns: Sequence[tuple[int, int]],
        pauses: tuple[Pause, ...] = (),
    ) -> bool:
        """Take the next summary; return False for one that is left out, since a number is too large.

        Args:
            entry: Its entry.
            steps: The first step, the last step, and the number of steps.
            times: The durations, in the order of `Times`: wall, own, data and wait.
            returns: The returns from waits, three at most: step and time in ns, the one with the lowest rank first.
            pauses: The phases between the steps.
        """
        of_returns = [number for each in returns[:MOST_RETURNS] for number in each]
        wall, own, data, wait = (each or _NO_TIMES for each in times)
        try:
            row = _ROW.pack(
                entry.timestamp_ns,
                *steps,
                entry.sequence,
                *of_returns,
                *_NO_RETURNS[len(of_returns) :],
                *wall,
                *own,
                *data,
                *wait,
            )
        except (struct.error, OverflowError):
            return False
        self._append(row, entry.context, entry.foreign_id, pauses)
        if len(self) - _FIRST - self._old >= _NEWEST + _MOVED:
            self._thin()
        return True

    def __len__(self) -> int:
        return len(self._contexts)

    @overload
    def __getitem__(self, index: int) -> StepSummary: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[StepSummary, ...]: ...

    def __getitem__(self, index: int | slice) -> StepSummary | tuple[StepSummary, ...]:
        if isinstance(index, slice):
            return self._slice(range(*index.indices(len(self))))
        if not -len(self) <= index < len(self):
            raise IndexError(f"no summary {index} of {len(self)}")
        return self._at(index % len(self))

    def __iter__(self) -> Iterator[StepSummary]:
        rows = _ROW.iter_unpack(bytes(self._rows))
        return map(_summary, rows, self._contexts[:], self._foreign_ids[:], self._pauses[:])

    def returns(self) -> Iterator[tuple[int, int]]:
        """Return the returns from waits, the oldest first: step and time in ns. See `returns_of`."""
        for row in _ROW_OF_RETURNS.iter_unpack(bytes(self._rows)):
            for at in range(0, len(row), 2):
                if row[at] >= 0:
                    yield row[at], row[at + 1]

    def with_pauses(self) -> Iterator[StepSummary]:
        """Return those with phases between the steps. See `with_pauses`."""
        return map(self._at, [position for position, pauses in enumerate(self._pauses) if pauses])

    def _slice(self, positions: range) -> tuple[StepSummary, ...]:
        if self._sliced[0] != positions:
            self._sliced = positions, tuple(map(self._at, positions))
        return self._sliced[1]

    def _at(self, position: int) -> StepSummary:
        row = _ROW.unpack_from(self._rows, position * _ROW.size)
        return _summary(row, self._contexts[position], self._foreign_ids[position], self._pauses[position])

    def _append(self, row: bytes, context: EntryContext, foreign_id: str, pauses: tuple[Pause, ...]) -> None:
        self._sliced = range(0), ()
        self._rows += row
        self._contexts.append(context)
        self._foreign_ids.append(foreign_id)
        self._pauses.append(pauses)

    def _thin(self) -> None:
        """Merge the oldest rows of the newest ones, as those before them; and all old ones, if there are too many."""
        start = _FIRST + self._old
        self._old += self._merge(start, start + _MOVED, min(self._merged, _MOVED))
        if self._old > _MOST_OLD:
            self._old = self._merge(_FIRST, _FIRST + self._old, 2)
            self._merged *= 2

    def _merge(self, start: int, end: int, size: int) -> int:
        """Merge each `size` neighbours of some rows into one row, and return the number of rows in their stead."""
        rows = list(_ROW.iter_unpack(bytes(self._rows[start * _ROW.size : end * _ROW.size])))
        groups = [slice(first, min(first + size, len(rows))) for first in range(0, len(rows), size)]
        pauses = self._pauses[start:end]
        lasts = [start + group.stop - 1 for group in groups]
        contexts, foreign_ids = [self._contexts[last] for last in lasts], [self._foreign_ids[last] for last in lasts]
        self._rows[start * _ROW.size : end * _ROW.size] = b"".join(_ROW.pack(*_merged(rows[group])) for group in groups)
        self._pauses[start:end] = [_merged_pauses(pauses[group]) for group in groups]
        self._contexts[start:end], self._foreign_ids[start:end] = contexts, foreign_ids
        return len(groups)


def returns_of(summaries: Sequence[StepSummary]) -> Iterator[tuple[int, int]]:
    """Return the returns from waits, the oldest first: step and time in ns, by the clock of the host."""
    if isinstance(summaries, Summaries):  # Without making an object of each.
        yield from summaries.returns()
        return
    for summary in summaries:
        if summary.return_step is not None and summary.return_ns is not None:
            yield from ((summary.return_step, summary.return_ns), *summary.returns)


def with_pauses(summaries: Sequence[StepSummary]) -> Iterator[StepSummary]:
    """Return the summaries with phases between the steps, the oldest first."""
    if isinstance(summaries, Summaries):  # Without making an object of each.
        return summaries.with_pauses()
    return (summary for summary in summaries if summary.pauses)


def _summary(row: _Row, context: EntryContext, foreign_id: str, pauses: tuple[Pause, ...]) -> StepSummary:
    """Return a row as objects."""
    time_ns, first, last, steps, sequence, step, return_ns, second, second_ns, third, third_ns = row[: _RETURNS.stop]
    # NaN, for times that are not recorded, differs from itself.
    own, data, wait = (None if row[each.start] != row[each.start] else Times._make(row[each]) for each in _TIMES[1:])
    wall = Times._make(row[_TIMES[0]])
    insert_id = make_insert_id(context.writer, sequence) if context.writer is not None else foreign_id
    # The sentence of the companion.
    shows = f"{steps} steps, {first} to {last}, of {wall.p50:.3g} s"
    others: tuple[tuple[int, int], ...] = ()
    if second >= 0:
        others = ((second, second_ns),) if third < 0 else ((second, second_ns), (third, third_ns))
    return StepSummary(
        time_ns,
        first,
        last,
        steps,
        wall,
        own,
        data,
        wait,
        step if step >= 0 else None,
        return_ns if step >= 0 else None,
        Ref(insert_id, context.log_id, time_ns, context.labels.get("host", ""), shows),
        pauses,
        others,
    )


def _merged(rows: Sequence[_Row]) -> _Row:
    """Return one row for some neighbours, with the entry of the newest."""
    steps = [row[3] for row in rows]
    pairs = {row[at]: row[at + 1] for row in rows for at in range(_NUMBERS, _RETURNS.stop, 2) if row[at] >= 0}
    best = sorted(pairs, key=return_rank)[:MOST_RETURNS] if pairs else []
    returns = [number for step in best for number in (step, pairs[step])]
    times = [_merged_times([row[each] for row in rows], steps) for each in _TIMES]
    newest = rows[-1]
    return (
        newest[0],
        rows[0][1],
        newest[2],
        sum(steps),
        newest[4],
        *returns,
        *_NO_RETURNS[len(returns) :],
        *sum(times, ()),
    )


def _merged_times(times: Sequence[_Row], steps: Sequence[int]) -> _Row:
    """Return the durations of all steps: the sum, a mean of the medians, and the upper bounds of the others.

    The 95th percentile of all is at most the largest of those of the parts.
    """
    known = [(each, count) for each, count in zip(times, steps, strict=True) if each[0] == each[0]]
    if not known:
        return _NO_TIMES
    middle = sum(each[1] * count for each, count in known) / sum(count for _, count in known)
    return (
        sum(each[0] for each, _ in known),
        middle,
        max(each[2] for each, _ in known),
        max(each[3] for each, _ in known),
    )


def _merged_pauses(pauses: Sequence[tuple[Pause, ...]]) -> tuple[Pause, ...]:
    merged: dict[str, Pause] = {}
    for pause in (pause for each in pauses for pause in each):
        of_phase = merged.get(pause.phase)
        if of_phase is None:
            merged[pause.phase] = pause
        else:
            times, total, longest = of_phase.times + pause.times, of_phase.sum + pause.sum, of_phase.max
            merged[pause.phase] = Pause(pause.phase, times, total, max(longest, pause.max))
    return tuple(merged.values())
