"""Runs: what the steps alone say of a stretch of time, before anything is laid over it."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from operator import le, lt
from typing import NamedTuple

from ml_goodput_measurement.ledger.facts import Facts
from ml_goodput_measurement.ledger.overlays import PRECEDENCE, Overlay
from ml_goodput_measurement.partition import Bucket

__all__ = ["FAILED_YIELDS_TO", "WASTED_YIELDS_TO", "Run", "recorded_end", "runs_before", "step_runs"]

WASTED_YIELDS_TO = PRECEDENCE[Bucket.WASTED_PROGRESS]
"""Wasted steps are wasted in full, with all that lies over them."""
FAILED_YIELDS_TO = PRECEDENCE[Bucket.CUSTOM] + 1
"""A failed attempt is recovery whatever it initialised or restored; custom events still count."""
_FEW_STEPS = 32
_YIELDS_TO_ALL = PRECEDENCE[Bucket.PROGRAM_STARTUP]


class Run(NamedTuple):
    """A stretch of an attempt."""

    start_ns: int
    end_ns: int
    bucket: Bucket
    steps: int = 0
    """How many measured steps it holds."""
    estimated: bool = False
    first_step: bool = False
    yields_to: int = _YIELDS_TO_ALL
    """Overlays of a lower rank than this take its time."""


def step_runs(
    facts: Facts, first: int, stop: int, attempt_first: int, overlays: Sequence[Overlay] | None = None
) -> Iterator[Run]:
    """Yields runs from the start of step `first` to the start of step `stop`, both of one attempt.

    A step lasts to its recorded end, else to the start of the next step if that is the next number. Where a number
    is missing nobody knows when the step ended.

    Args:
        facts: Holds the steps.
        first: Index of the first of these steps.
        stop: Index after the last; there must be a step there, whose start ends the last run.
        attempt_first: Index of the attempt's first step, which gets a run of its own.
        overlays: In order, for a caller that only adds up: where none of them lies, many steps may come as one run of
            all their time and one of all the time between them. None for runs that are true to every moment.
    """
    if first == attempt_first and first < stop:
        yield from _single_step(facts, first, is_first=True)
        first += 1
    if overlays is None:
        yield from _stretch(facts, first, stop, exact=True)
        return
    times = facts.steps.times
    for overlay in overlays:
        begin = max(first, min(stop, bisect_right(times, overlay.start_ns, first, stop) - 1))
        end = bisect_left(times, overlay.end_ns, begin, stop)
        yield from _stretch(facts, first, begin, exact=False)
        yield from _stretch(facts, begin, end, exact=True)
        first = end
    yield from _stretch(facts, first, stop, exact=False)


def runs_before(runs: Iterable[Run], time_ns: int) -> Iterator[Run]:
    """Yields of some runs, in order, what lies before a moment; looks no further."""
    for run in runs:
        if run.end_ns >= time_ns:
            if run.start_ns < time_ns:
                yield run._replace(end_ns=time_ns)
            return
        yield run


def _stretch(facts: Facts, first: int, stop: int, *, exact: bool) -> Iterator[Run]:
    if first >= stop:
        return
    times, numbers = facts.steps.times, facts.steps.numbers
    # Numbers rise within an attempt, so as many numbers as steps means that none is missing.
    if numbers[stop] - numbers[first] == stop - first and not _has_step_ends(facts, times[first], times[stop]):
        yield Run(times[first], times[stop], Bucket.PRODUCTIVE, stop - first)
        return
    productive_ns = None if exact else _time_of_ended_steps(facts, first, stop)
    if productive_ns is not None:
        yield Run(times[first], times[first] + productive_ns, Bucket.PRODUCTIVE, stop - first)
        if times[first] + productive_ns < times[stop]:
            yield Run(times[first] + productive_ns, times[stop], Bucket.UNKNOWN)
    elif exact or stop - first < _FEW_STEPS:
        for index in range(first, stop):
            yield from _single_step(facts, index, is_first=False)
    else:
        middle = (first + stop) // 2
        yield from _stretch(facts, first, middle, exact=False)
        yield from _stretch(facts, middle, stop, exact=False)


def _time_of_ended_steps(facts: Facts, first: int, stop: int) -> int | None:
    """Returns the sum of the times of steps which all have one recorded end, before the next begins; else None."""
    ends = facts.step_ends
    position = bisect_right(ends.times, facts.steps.times[first])
    starts, following = facts.steps.times[first:stop], facts.steps.times[first + 1 : stop + 1]
    ended = ends.times[position : position + stop - first]
    if ends.numbers[position : position + stop - first] != facts.steps.numbers[first:stop]:
        return None
    if not (all(map(lt, starts, ended)) and all(map(le, ended, following))):
        return None
    return sum(ended) - sum(starts)


def recorded_end(facts: Facts, index: int, until_ns: int) -> int | None:
    """Returns when a step ended, if that was recorded after its start and no later than a moment."""
    ends = facts.step_ends
    number = facts.steps.numbers[index]
    position = bisect_right(ends.times, facts.steps.times[index])
    while position < len(ends) and ends.times[position] <= until_ns:
        if ends.numbers[position] == number:
            return ends.times[position]
        position += 1
    return None


def _has_step_ends(facts: Facts, start_ns: int, end_ns: int) -> bool:
    ends = facts.step_ends.times
    return bisect_right(ends, start_ns) < bisect_left(ends, end_ns)


def _single_step(facts: Facts, index: int, *, is_first: bool) -> Iterator[Run]:
    times, numbers = facts.steps.times, facts.steps.numbers
    start_ns, next_ns = times[index], times[index + 1]
    end_ns = recorded_end(facts, index, next_ns)
    if end_ns is None and numbers[index + 1] == numbers[index] + 1:
        end_ns = next_ns
    if end_ns is None:
        yield Run(start_ns, next_ns, Bucket.UNKNOWN)
        return
    yield Run(start_ns, end_ns, Bucket.PRODUCTIVE, 1, first_step=is_first)
    if end_ns < next_ns:
        yield Run(end_ns, next_ns, Bucket.UNKNOWN)
