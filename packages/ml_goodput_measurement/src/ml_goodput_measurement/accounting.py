"""From an attempt's steps and overlays to disjoint pieces of time, and from pieces to sums."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

from ml_goodput_measurement.facts import Facts
from ml_goodput_measurement.overlays import PRECEDENCE, Overlay, resolve
from ml_goodput_measurement.partition import Bucket

__all__ = [
    "FAILED_YIELDS_TO",
    "WASTED_YIELDS_TO",
    "Account",
    "Painted",
    "Run",
    "paint",
    "recorded_end",
    "step_runs",
]

_YIELDS_TO_ALL = PRECEDENCE[Bucket.PROGRAM_STARTUP]
WASTED_YIELDS_TO = PRECEDENCE[Bucket.WASTED_PROGRESS]
"""Wasted steps are wasted in full, with all that lies over them."""
FAILED_YIELDS_TO = PRECEDENCE[Bucket.CUSTOM] + 1
"""A failed attempt is recovery whatever it initialised or restored; custom events still count."""


class Run(NamedTuple):
    """A stretch of an attempt before anything is laid over it."""

    start_ns: int
    end_ns: int
    bucket: Bucket
    steps: int = 0
    """How many measured steps it holds."""
    estimated: bool = False
    first_step: bool = False
    yields_to: int = _YIELDS_TO_ALL
    """Overlays of a lower rank than this take its time."""


class Painted(NamedTuple):
    """A piece of an attempt in its final bucket."""

    start_ns: int
    end_ns: int
    bucket: Bucket
    label: str
    run: Run


@dataclass(slots=True)
class Account:
    """Sums over pieces."""

    buckets: dict[Bucket, int] = field(default_factory=dict)
    custom: dict[str, int] = field(default_factory=dict)
    estimated_ns: int = 0
    estimated_productive_ns: int = 0
    first_step_ns: int | None = None
    """Productive time of the first step; None when its length is not known."""
    steps: int = 0
    """Steps whose length is known and not estimated."""

    def counting(self, runs: Iterable[Run]) -> Iterator[Run]:
        """Passes runs on and counts their steps."""
        for run in runs:
            self.steps += run.steps
            if run.first_step:
                self.first_step_ns = self.first_step_ns or 0
            yield run

    def add_pieces(self, pieces: Iterable[Painted]) -> None:
        """Adds the pieces to the sums."""
        for piece in pieces:
            length = piece.end_ns - piece.start_ns
            self.buckets[piece.bucket] = self.buckets.get(piece.bucket, 0) + length
            if piece.bucket is Bucket.CUSTOM:
                self.custom[piece.label] = self.custom.get(piece.label, 0) + length
            if piece.run.estimated:
                self.estimated_ns += length
            if piece.bucket is Bucket.PRODUCTIVE:
                if piece.run.estimated:
                    self.estimated_productive_ns += length
                if piece.run.first_step:
                    self.first_step_ns = (self.first_step_ns or 0) + length

    def copy(self) -> Account:
        """Returns an account of its own with the same sums."""
        return Account(
            dict(self.buckets),
            dict(self.custom),
            self.estimated_ns,
            self.estimated_productive_ns,
            self.first_step_ns,
            self.steps,
        )

    def to_state(self) -> dict[str, Any]:
        """Returns the sums as JSON."""
        return {**asdict(self), "buckets": {bucket.value: length for bucket, length in self.buckets.items()}}

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Account:
        """Returns the account that `to_state` was asked of."""
        buckets = {Bucket(name): length for name, length in state["buckets"].items()}
        return cls(**{**state, "buckets": buckets})

    def startup_ns(self) -> int:
        """Returns by how much the first step took longer than the others on average: compilation and warming up."""
        others = self.steps - 1
        if self.first_step_ns is None or others < 1:
            return 0
        productive = self.buckets.get(Bucket.PRODUCTIVE, 0) - self.estimated_productive_ns
        return max(0, self.first_step_ns - (productive - self.first_step_ns) // others)

    def split_startup(self) -> None:
        """Moves the startup out of the productive time; done once, when everything is in."""
        startup = self.startup_ns()
        if startup:
            self.buckets[Bucket.PRODUCTIVE] -= startup
            self.buckets[Bucket.PROGRAM_STARTUP] = startup


def step_runs(facts: Facts, first: int, stop: int, attempt_first: int) -> Iterator[Run]:
    """Yields runs from the start of step `first` to the start of step `stop`, both of one attempt.

    A step lasts to its recorded end, else to the start of the next step if that is the next number. Where a number
    is missing nobody knows when the step ended.

    Args:
        facts: Holds the steps.
        first: Index of the first of these steps.
        stop: Index after the last; there must be a step there, whose start ends the last run.
        attempt_first: Index of the attempt's first step, which gets a run of its own.
    """
    times, numbers = facts.steps.times, facts.steps.numbers
    if first == attempt_first and first < stop:
        yield from _single_step(facts, first, is_first=True)
        first += 1
    if first >= stop:
        return
    # Numbers rise within an attempt, so as many numbers as steps means that none is missing.
    if numbers[stop] - numbers[first] == stop - first and not _has_step_ends(facts, times[first], times[stop]):
        yield Run(times[first], times[stop], Bucket.PRODUCTIVE, stop - first)
        return
    for index in range(first, stop):
        yield from _single_step(facts, index, is_first=False)


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


def recorded_end(facts: Facts, index: int, before_ns: int) -> int | None:
    """Returns when a step ended, if that was recorded after its start and before a moment."""
    ends = facts.step_ends
    number = facts.steps.numbers[index]
    position = bisect_right(ends.times, facts.steps.times[index])
    while position < len(ends) and ends.times[position] <= before_ns:
        if ends.numbers[position] == number:
            return ends.times[position]
        position += 1
    return None


def paint(runs: Iterable[Run], overlays: list[Overlay], start_ns: int, end_ns: int) -> Iterator[Painted]:
    """Lays overlays over runs.

    Args:
        runs: Contiguous, in order.
        overlays: Those that touch the stretch, in order.
        start_ns: Start of the first run.
        end_ns: End of the last run.
    """
    pieces = resolve(overlays, start_ns, end_ns)
    index = 0
    for run in runs:
        moment = run.start_ns
        while index and pieces[index - 1].end_ns > run.start_ns:
            index -= 1
        while index < len(pieces) and pieces[index].start_ns < run.end_ns:
            piece = pieces[index]
            index += 1
            if piece.rank >= run.yields_to or piece.end_ns <= moment:
                continue
            begin, end = max(piece.start_ns, moment), min(piece.end_ns, run.end_ns)
            if moment < begin:
                yield Painted(moment, begin, run.bucket, "", run)
            yield Painted(begin, end, piece.bucket, piece.label, run)
            moment = end
        if moment < run.end_ns:
            yield Painted(moment, run.end_ns, run.bucket, "", run)
