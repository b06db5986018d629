"""The accounting of time: steps become runs, runs and overlays become disjoint pieces, and pieces become sums.

A run is a stretch of time as the steps alone describe it, before other activities take precedence.

Saves and restores are overlays of their own: many hosts report one operation, which counts once.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import add, le, lt
from typing import TYPE_CHECKING, Any, NamedTuple

from ml_goodput_measurement._ledger.attempts import recorded_end
from ml_goodput_measurement._ledger.facts import NEVER_NS, CheckpointKey, Facts
from ml_goodput_measurement._ledger.intervals import (
    PRECEDENCE,
    Interval,
    Marks,
    Overlay,
    resolve,
    sum_of_pairs,
    takes_turns,
)
from ml_goodput_measurement.partition import Bucket

if TYPE_CHECKING:
    from ml_goodput_measurement._ledger.attempts import Attempt, Attempts, Changes

__all__ = [
    "FAILED_YIELDS_TO",
    "WASTED_YIELDS_TO",
    "Account",
    "CheckpointOverlays",
    "Painted",
    "Run",
    "paint",
    "runs_before",
    "step_runs",
    "waiting_runs",
]


WASTED_YIELDS_TO = PRECEDENCE[Bucket.WASTED_PROGRESS]
"""Wasted steps are wasted completely, with all overlays on them."""
FAILED_YIELDS_TO = PRECEDENCE[Bucket.CUSTOM] + 1
"""A failed attempt is recovery, also its initialization and restores; custom events still count."""
_YIELDS_TO_ALL = PRECEDENCE[Bucket.PROGRAM_STARTUP]


class Run(NamedTuple):
    """A stretch of an attempt."""

    start_ns: int
    end_ns: int
    bucket: Bucket
    steps: int = 0
    """The number of its measured steps."""
    estimated: bool = False
    first_step: bool = False
    yields_to: int = _YIELDS_TO_ALL
    """Overlays of a lower rank than this take its time."""


def step_runs(
    facts: Facts, first: int, stop: int, attempt: Attempt, overlays: Sequence[Overlay] | None = None
) -> Iterator[Run]:
    """Yield runs from the start of step `first` to the start of step `stop`, both of one attempt.

    A step lasts to its recorded end, else to the start of the next step if that is the next number. If a number is
    missing, the end of the step is unknown. After a recorded end, training waits for the data loads before the next
    step.

    Args:
        facts: Holds the steps.
        first: Index of the first of these steps.
        stop: Index after the last; a step at this index must exist, since it ends the last run.
        attempt: The attempt, whose first step gets a run of its own.
        overlays: In order, for a caller that needs only sums: between overlays, many steps may be one run of all their
            time and one of all the time between them. None for runs that are exact at every moment.
    """
    if first == attempt.first and first < stop:
        yield from _single_step(facts, first, attempt, is_first=True)
        first += 1
    if overlays is None:
        yield from _stretch(facts, first, stop, attempt, exact=True)
        return
    times = facts.steps.times
    for overlay in overlays:
        lower = max(first, min(stop, bisect_right(times, overlay.start_ns, first, stop) - 1))
        end = bisect_left(times, overlay.end_ns, lower, stop)
        yield from _stretch(facts, first, lower, attempt, exact=False)
        yield from _stretch(facts, lower, end, attempt, exact=True)
        first = end
    yield from _stretch(facts, first, stop, attempt, exact=False)


def runs_before(runs: Iterable[Run], time_ns: int) -> Iterator[Run]:
    """Yield the parts of some runs, in order, that lie before a moment."""
    for run in runs:
        if run.end_ns >= time_ns:
            if run.start_ns < time_ns:
                yield run._replace(end_ns=time_ns)
            return
        yield run


def waiting_runs(facts: Facts, start_ns: int, end_ns: int, attempt: Attempt) -> Iterator[Run]:
    """Yield runs from the recorded end of a step on: data loads, for which training waits, and unknown time.

    The attempt's first load is left out: it is an overlay.
    """
    for load in facts.loads.pairs_between(start_ns, end_ns):
        if load == attempt.first_load:
            continue
        lower, stop_ns = max(load[0], start_ns), min(load[1], end_ns)
        if start_ns < lower:
            yield Run(start_ns, lower, Bucket.UNKNOWN)
        if lower < stop_ns:
            yield Run(lower, stop_ns, Bucket.DATA_LOADING_SYNC)
            start_ns = stop_ns
    if start_ns < end_ns:
        yield Run(start_ns, end_ns, Bucket.UNKNOWN)


def _stretch(facts: Facts, first: int, stop: int, attempt: Attempt, *, exact: bool) -> Iterator[Run]:
    if first >= stop:
        return
    times, numbers = facts.steps.times, facts.steps.numbers
    # Numbers rise within an attempt, so as many numbers as steps means that none is missing.
    if numbers[stop] - numbers[first] == stop - first and not _has_step_ends(facts, times[first], times[stop]):
        yield Run(times[first], times[stop], Bucket.PRODUCTIVE, stop - first)
        return
    sums = None if exact else _sums_of_ended_steps(facts, first, stop, attempt)
    if sums is not None:
        ended_ns = times[first] + sums[0]
        yield Run(times[first], ended_ns, Bucket.PRODUCTIVE, stop - first)
        if sums[1]:
            yield Run(ended_ns, ended_ns + sums[1], Bucket.DATA_LOADING_SYNC)
        if ended_ns + sums[1] < times[stop]:
            yield Run(ended_ns + sums[1], times[stop], Bucket.UNKNOWN)
    elif exact or stop - first < facts.sizes.few_steps:
        for index in range(first, stop):
            yield from _single_step(facts, index, attempt, is_first=False)
    else:
        middle = (first + stop) // 2
        yield from _stretch(facts, first, middle, attempt, exact=False)
        yield from _stretch(facts, middle, stop, attempt, exact=False)


def _sums_of_ended_steps(facts: Facts, first: int, stop: int, attempt: Attempt) -> tuple[int, int] | None:
    """Return the sums of the times of steps, and of the loads after them; None unless each has one recorded end."""
    ends = facts.step_ends
    position = bisect_right(ends.times, facts.steps.times[first])
    starts, following = facts.steps.times[first:stop], facts.steps.times[first + 1 : stop + 1]
    ended = ends.times[position : position + stop - first]
    if ends.numbers[position : position + stop - first] != facts.steps.numbers[first:stop]:
        return None
    if not (all(map(lt, starts, ended)) and all(map(le, ended, following))):
        return None
    return sum(ended) - sum(starts), _time_of_loads(facts.loads, ended, following, attempt)


def _time_of_loads(loads: Marks, ended: array[int], following: array[int], attempt: Attempt) -> int:
    """Return the sum of the data loads between the ends of steps and the starts of those that follow."""
    start_ns, end_ns = ended[0], following[-1]
    codes = loads.codes[bisect_right(loads.codes, 2 * start_ns) : bisect_right(loads.codes, 2 * end_ns)]
    if not codes and not loads.pairs_between(start_ns, end_ns):
        return 0
    # Nearly always there is one load before each step, and to check that is fast. A start is twice its time plus one.
    first_load = attempt.first_load or (-1, -1)
    if len(codes) == 2 * len(ended) and codes[0] & 1 and takes_turns(codes) and not start_ns <= first_load[0] < end_ns:
        load_starts, load_ends = codes[::2], codes[1::2]
        is_between = all(map(lt, map(add, ended, ended), load_starts)) and all(
            map(le, load_ends, map(add, following, following))
        )
        if is_between:
            return sum_of_pairs(codes, in_turns=True)
    total_ns, pairs, index = 0, loads.pairs_between(start_ns, end_ns), 0
    for lower, upper in zip(ended, following, strict=True):
        while index < len(pairs) and pairs[index][1] <= lower:
            index += 1
        position = index
        while position < len(pairs) and pairs[position][0] < upper:
            if pairs[position] != first_load:
                total_ns += min(pairs[position][1], upper) - max(pairs[position][0], lower)
            position += 1
    return total_ns


def _has_step_ends(facts: Facts, start_ns: int, end_ns: int) -> bool:
    ends = facts.step_ends.times
    return bisect_right(ends, start_ns) < bisect_left(ends, end_ns)


def _single_step(facts: Facts, index: int, attempt: Attempt, *, is_first: bool) -> Iterator[Run]:
    times, numbers = facts.steps.times, facts.steps.numbers
    start_ns, next_ns = times[index], times[index + 1]
    end_ns = recorded_end(facts, index, next_ns)
    if end_ns is None and numbers[index + 1] == numbers[index] + 1:
        end_ns = next_ns
    if end_ns is None:
        yield Run(start_ns, next_ns, Bucket.UNKNOWN)
        return
    yield Run(start_ns, end_ns, Bucket.PRODUCTIVE, 1, first_step=is_first)
    yield from waiting_runs(facts, end_ns, next_ns, attempt)


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
    """Steps of known length, not estimated."""
    awaited_loads_ns: int = 0
    """Data loads between steps, for which training waited, also those whose time another activity has."""

    def counting(self, runs: Iterable[Run]) -> Iterator[Run]:
        """Yield the runs, and count their steps."""
        for run in runs:
            self.steps += run.steps
            if run.first_step:
                self.first_step_ns = self.first_step_ns or 0
            yield run

    def add_pieces(self, pieces: Iterable[Painted]) -> None:
        """Add the pieces to the sums."""
        for piece in pieces:
            length = piece.end_ns - piece.start_ns
            self.buckets[piece.bucket] = self.buckets.get(piece.bucket, 0) + length
            if piece.bucket is Bucket.CUSTOM:
                self.custom[piece.label] = self.custom.get(piece.label, 0) + length
            if piece.run.bucket is Bucket.DATA_LOADING_SYNC:
                self.awaited_loads_ns += length
            if piece.run.estimated:
                self.estimated_ns += length
            if piece.bucket is Bucket.PRODUCTIVE:
                if piece.run.estimated:
                    self.estimated_productive_ns += length
                if piece.run.first_step:
                    self.first_step_ns = (self.first_step_ns or 0) + length

    def add(self, other: Account) -> None:
        """Add the sums of another attempt, but not the fields on the steps of a single attempt."""
        for bucket, length in other.buckets.items():
            self.buckets[bucket] = self.buckets.get(bucket, 0) + length
        for label, length in other.custom.items():
            self.custom[label] = self.custom.get(label, 0) + length
        self.estimated_ns += other.estimated_ns
        self.awaited_loads_ns += other.awaited_loads_ns

    def subtract(self, other: Account) -> None:
        """Subtract the sums of a part, but not the fields on the steps of a single attempt."""
        for bucket, length in other.buckets.items():
            self.buckets[bucket] = self.buckets.get(bucket, 0) - length
        for label, length in other.custom.items():
            self.custom[label] = self.custom.get(label, 0) - length
        self.estimated_ns -= other.estimated_ns
        self.awaited_loads_ns -= other.awaited_loads_ns

    def copy(self) -> Account:
        """Return another account with the same sums."""
        return Account(
            dict(self.buckets),
            dict(self.custom),
            self.estimated_ns,
            self.estimated_productive_ns,
            self.first_step_ns,
            self.steps,
            self.awaited_loads_ns,
        )

    def to_state(self) -> dict[str, Any]:
        """Return the sums as JSON."""
        buckets = {bucket.value: length for bucket, length in self.buckets.items()}
        return {
            "buckets": buckets,
            "custom": self.custom,
            "estimated_ns": self.estimated_ns,
            "estimated_productive_ns": self.estimated_productive_ns,
            "first_step_ns": self.first_step_ns,
            "steps": self.steps,
            "awaited_loads_ns": self.awaited_loads_ns,
        }

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Account:
        """Return the account of a state from `to_state`."""
        buckets = {Bucket(name): length for name, length in state["buckets"].items()}
        return cls(**{**state, "buckets": buckets})

    def startup_ns(self) -> int:
        """Return the additional time of the first step over the mean of the others: compilation and warm-up."""
        others = self.steps - 1
        if self.first_step_ns is None or others < 1:
            return 0
        productive = self.buckets.get(Bucket.PRODUCTIVE, 0) - self.estimated_productive_ns
        return max(0, self.first_step_ns - (productive - self.first_step_ns) // others)

    def split_startup(self, startup_ns: int | None = None) -> None:
        """Move the startup out of the productive time; called once, when the account is complete.

        Args:
            startup_ns: The startup of the attempt, if this is the account of only its beginning.
        """
        startup = self.startup_ns() if startup_ns is None else min(startup_ns, self.first_step_ns or 0)
        if startup:
            self.buckets[Bucket.PRODUCTIVE] -= startup
            self.buckets[Bucket.PROGRAM_STARTUP] = startup


def paint(runs: Iterable[Run], overlays: list[Overlay], start_ns: int, end_ns: int) -> Iterator[Painted]:
    """Yield pieces of runs and of the overlays on them.

    Args:
        runs: Contiguous, in order.
        overlays: The overlays that overlap the runs, in order.
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
            lower, end = max(piece.start_ns, moment), min(piece.end_ns, run.end_ns)
            if moment < lower:
                yield Painted(moment, lower, run.bucket, "", run)
            yield Painted(lower, end, piece.bucket, piece.label, run)
            moment = end
        if moment < run.end_ns:
            yield Painted(moment, run.end_ns, run.bucket, "", run)


_APART_NS = 60 * 10**9
"""Hosts do one operation at about the same time; reports that are further apart are of two operations."""


class CheckpointOverlays:
    """The overlays of checkpoint operations, one for each operation of an attempt."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._laid: dict[CheckpointKey, list[Overlay]] = {}

    def update(self, attempts: Attempts, changes: Changes) -> int:
        """Add overlays of new operations, and replace those of operations that are now in another attempt.

        Returns:
            The moment from which overlays changed, or `NEVER_NS`.
        """
        facts, stale = self._facts, self._facts.changed_checkpoints
        facts.changed_checkpoints = set()
        if changes.redivided:
            stale |= facts.checkpoints.keys()
        elif changes.kept < len(attempts):
            from_ns = attempts[changes.kept].start_ns
            stale |= {key for key, reports in facts.checkpoints.items() if max(reports)[0] >= from_ns}
        starts = [attempt.start_ns for attempt in attempts]
        return self._lay(stale, starts)

    def count(self, bucket: Bucket) -> int:
        """Return the number of operations of a bucket."""
        return sum(len(overlays) for key, overlays in self._laid.items() if key[0] is bucket)

    def restore(self, attempts: Attempts) -> None:
        """Add all overlays to facts without any."""
        starts = [attempt.start_ns for attempt in attempts]
        self._laid = {key: self._overlays(key, starts) for key in self._facts.checkpoints}
        self._facts.changed_checkpoints = set()
        self._facts.overlays.extend(overlay for overlays in self._laid.values() for overlay in overlays)

    def _lay(self, keys: Iterable[CheckpointKey], starts: list[int]) -> int:
        added: list[Overlay] = []
        changed_ns = NEVER_NS
        for key in keys:
            old, new = self._laid.get(key, []), self._overlays(key, starts)
            if old == new:
                continue
            for overlay in old:
                self._facts.overlays.discard(overlay)
            added += new
            self._laid[key] = new
            changed_ns = min([changed_ns, *(overlay.start_ns for overlay in {*old} ^ {*new})])
        self._facts.overlays.extend(added)
        return changed_ns

    def _overlays(self, key: CheckpointKey, starts: list[int]) -> list[Overlay]:
        """Return an overlay for each operation: it starts with the first host, and lasts the mean time of its hosts."""
        return [
            Overlay.of(reports[0][0], reports[0][0] + sum(length for _, length in reports) // len(reports), key[0])
            for reports in _operations(sorted(self._facts.checkpoints[key]), starts)
        ]


def _operations(reports: Iterable[Interval], starts: list[int]) -> list[list[Interval]]:
    """Group reports, (start, duration) in order, by attempt and approximate time."""
    operations: list[list[Interval]] = []
    for report in reports:
        last = operations[-1][-1] if operations else None
        if (
            last is None
            or report[0] - last[0] > _APART_NS
            or bisect_right(starts, report[0]) != bisect_right(starts, last[0])
        ):
            operations.append([])
        operations[-1].append(report)
    return operations
