"""A job's attempts: where one ends and the next starts, and the steps of each that count."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice, pairwise
from operator import sub
from typing import TYPE_CHECKING, Any

from ml_goodput_measurement._ledger.facts import NEVER_NS, Facts, rises
from ml_goodput_measurement._ledger.intervals import Interval
from ml_goodput_measurement._record.process_outcome import ProcessOutcome
from ml_goodput_measurement.partition import Bucket

if TYPE_CHECKING:
    from ml_goodput_measurement._ledger.events import ProcessEnd

__all__ = ["PROCESS_GONE", "Attempt", "Attempts", "Changes", "recorded_end"]

PROCESS_GONE = -1
"""Replaces the moment of a query if the job's process is gone: its life then ends with its last record."""

_FACTOR = 3
_STARTUP_FLOOR_NS = 1_800 * 10**9
_FLOOR_NS = 600 * 10**9
_FEWEST_STEPS = 5
"""The first steps may be compilation."""
_RECENT_STEPS = 1_000
_WAITS = (Bucket.ELASTIC_SLICE_DOWN, Bucket.ELASTIC_SCALE_UP)


@dataclass(slots=True)
class Attempt:
    """One life of the job; its steps are a range of the step columns, and their numbers rise."""

    start_ns: int
    first: int
    """Index of its first step."""
    stop: int
    """Index after its last step."""
    cut: int = NEVER_NS
    """Number of the first step that a later attempt repeats: from there on its steps are wasted."""
    first_load: Interval | None = None
    """Its first complete data load, for which training had to wait."""

    @property
    def has_steps(self) -> bool:
        """True if it made any step."""
        return self.stop > self.first


@dataclass(slots=True)
class Changes:
    """The changes of `Attempts.update`."""

    kept: int
    """The number of earlier attempts that are unchanged."""
    redivided: bool
    """True if late facts changed the borders of attempts, or their steps."""
    cuts: list[tuple[int, int]] = field(default_factory=list)
    """Index, and previous cut, of each attempt with a moved cut."""


class Attempts:
    """The attempts of a job, in order, and the effects of each on the others.

    An attempt starts at a job start; at a step with a number that does not continue from the last one, for the job went
    back; and at a step after a job end. Before the first job start there is one only if there are steps there.
    """

    def __init__(self, facts: Facts) -> None:
        self.facts = facts
        self._attempts: list[Attempt] = []
        self._divided_until_ns = -1

    def __len__(self) -> int:
        return len(self._attempts)

    def __getitem__(self, index: int) -> Attempt:
        return self._attempts[index]

    def __iter__(self) -> Iterator[Attempt]:
        return iter(self._attempts)

    def update(self) -> Changes:
        """Update the attempts to the facts. Costs only new facts, unless some were late."""
        known = len(self._attempts)
        changes = Changes(known, self._undo())
        changes.kept = len(self._attempts)
        self._divide()
        self._divided_until_ns = self.facts.latest_border_ns()
        cut, numbers = NEVER_NS, self.facts.steps.numbers
        for index in range(len(self._attempts) - 1, -1, -1):
            attempt = self._attempts[index]
            if attempt.cut != cut:
                changes.cuts.append((index, attempt.cut))
                attempt.cut = cut
            if attempt.has_steps:
                cut = min(cut, numbers[attempt.first])
        return changes

    def find_first_load(self, index: int) -> None:
        """Find an attempt's first data load again."""
        attempt = self._attempts[index]
        attempt.first_load = self.facts.loads.first_pair(attempt.start_ns, self.next_start_ns(index))

    def next_start_ns(self, index: int) -> int:
        """Return the start of the attempt after this one, or `NEVER_NS`."""
        return self._attempts[index + 1].start_ns if index + 1 < len(self._attempts) else NEVER_NS

    def index_at(self, time_ns: int) -> int:
        """Return the index of the attempt that contains a moment; the first one also contains all before it."""
        return max(0, bisect_right(self._attempts, time_ns, key=_start_ns) - 1)

    def cut_index(self, index: int) -> int:
        """Return the index of an attempt's first wasted step, or after its last step."""
        attempt = self._attempts[index]
        return bisect_left(self.facts.steps.numbers, attempt.cut, attempt.first, attempt.stop)

    def is_undecided(self, index: int) -> bool:
        """Return True while an attempt's last step may not count: there are no later steps, and no end of the job."""
        attempt = self._attempts[index]
        return attempt.cut == NEVER_NS and not self.completed(index, self.facts.steps.times[attempt.stop - 1])

    def ended(self, index: int, since_ns: int) -> bool:
        """Return True if a job end was recorded in an attempt, at a moment or later."""
        job_ends = self.facts.job_ends
        position = bisect_left(job_ends, since_ns)
        return position < len(job_ends) and job_ends[position] <= self.next_start_ns(index)

    def end_exception(self, index: int) -> str:
        """Return the type of the exception that was handled when an attempt's end was recorded; empty for none."""
        job_ends, known = self.facts.job_ends, self.facts.end_exceptions
        first = bisect_left(job_ends, self._attempts[index].start_ns)
        stop = bisect_right(job_ends, self.next_start_ns(index)) if known else first
        return next((known[time_ns] for time_ns in job_ends[first:stop] if time_ns in known), "")

    def process_end(self, index: int) -> ProcessEnd | None:
        """Return the recorded exit of the process that made an attempt; None if none was, or the process went on."""
        if not self.facts.process_ends:
            return None
        job_starts = self.facts.job_starts
        position = bisect_right(job_starts, self._attempts[index].start_ns)
        end = self.facts.process_ends.get(job_starts[position - 1]) if position else None
        # A process may make several attempts, without a job start between them: its end is that of the last one.
        if end is None or self.next_start_ns(index) < (
            job_starts[position] if position < len(job_starts) else NEVER_NS
        ):
            return None
        return end

    def completed(self, index: int, since_ns: int) -> bool:
        """Return True if an attempt recorded the job's end since a moment, or reached its program's last line."""
        if self.ended(index, since_ns):
            return True
        end = self.process_end(index)
        return end is not None and end.outcome is ProcessOutcome.RETURNED and end.time_ns >= since_ns

    def kept_steps(self, index: int) -> tuple[int, int]:
        """Return how many steps of an attempt count, and the number of the last; one in flight does not count."""
        attempt, numbers = self._attempts[index], self.facts.steps.numbers
        stop = self.cut_index(index)
        if stop == attempt.stop > attempt.first and self.is_undecided(index):
            stop -= recorded_end(self.facts, stop - 1, self.next_start_ns(index)) is None
        return stop - attempt.first, numbers[stop - 1] if stop > attempt.first else 0

    def has_failed(self, index: int) -> bool:
        """Return True for an attempt without a step between others: it is recovery of the disruption before it."""
        attempt = self._attempts[index]
        return not attempt.has_steps and attempt.first > 0 and index < len(self._attempts) - 1

    def disrupted(self) -> list[tuple[int, int]]:
        """Return the indices of each attempt with steps and of the next one with steps, or of the last."""
        stepping = [index for index, attempt in enumerate(self._attempts) if attempt.has_steps]
        last = len(self._attempts) - 1
        if stepping and stepping[-1] != last:
            stepping.append(last)
        return list(pairwise(stepping))

    def wall_end(self, now_ns: int) -> tuple[int, bool]:
        """Return the end of the wall time, and True if the job still runs.

        Args:
            now_ns: The moment of the query, or `PROCESS_GONE`.
        """
        job_ends = self.facts.job_ends
        if job_ends and job_ends[-1] == self.facts.latest_border_ns():
            return job_ends[-1], False
        end = self.process_end(len(self) - 1) if self._attempts else None
        if end is not None and end.time_ns >= self.facts.latest_border_ns():
            return end.time_ns, False
        if now_ns == PROCESS_GONE:
            return self.facts.last_before(NEVER_NS), False
        return max(now_ns, self.facts.last_before(NEVER_NS)), True

    def is_silent(self, now_ns: int) -> bool:
        """Return True if the job has recorded nothing for longer than a hang may last.

        The limit follows from the log alone, as that of cloud-tpu-diagnostics does: three times the longest interval
        between steps so far, and at least half an hour while the job starts, or ten minutes later.
        """
        limit_ns = self._longest_silence_ns() if self._attempts else None
        return limit_ns is not None and now_ns - self.facts.last_before(NEVER_NS) > limit_ns

    def _longest_silence_ns(self) -> int | None:
        """Return the longest silence of a running job; None for no limit: it may wait for slices for any time."""
        facts, last = self.facts, self._attempts[-1]
        if any(marks.codes and marks.codes[-1] & 1 for (bucket, _), marks in facts.marks.items() if bucket in _WAITS):
            return None
        if last.stop - last.first < _FEWEST_STEPS:
            startups = [facts.steps.times[one.first] - one.start_ns for one in self._attempts[-2:] if one.has_steps]
            return max(_STARTUP_FLOOR_NS, _FACTOR * max(startups, default=0))
        times = facts.steps.times[max(last.first, last.stop - _RECENT_STEPS) : last.stop]
        longest_ns: int = max(map(sub, islice(times, 1, None), times))
        return max(_FLOOR_NS, _FACTOR * longest_ns)

    def to_state(self) -> list[Any]:
        """Return everything as JSON."""
        return [[attempt.start_ns, attempt.first, attempt.stop, attempt.cut, attempt.first_load] for attempt in self]

    @classmethod
    def from_state(cls, state: list[Any], facts: Facts) -> Attempts:
        """Return the attempts of a state from `to_state`."""
        attempts = cls(facts)
        for start_ns, first, stop, cut, load in state:
            attempts._attempts.append(Attempt(start_ns, first, stop, cut, None if load is None else (load[0], load[1])))
        attempts._divided_until_ns = facts.latest_border_ns()
        return attempts

    def _undo(self) -> bool:
        """Forget the attempts that late facts may have changed; return True if there were any."""
        late_ns, self.facts.attempts_changed_from_ns = self.facts.attempts_changed_from_ns, NEVER_NS
        if self._attempts and self._attempts[0].start_ns != _wall_start_ns(self.facts):
            late_ns = -1
        if late_ns > self._divided_until_ns:
            return False
        while self._attempts and self._attempts[-1].start_ns >= late_ns:
            self._attempts.pop()
        if self._attempts:
            self._attempts[-1].stop = self._attempts[-1].first
        return True

    def _divide(self) -> None:
        """Divide the facts after the start of the last attempt into attempts."""
        if not self._attempts:
            start_ns = _wall_start_ns(self.facts)
            if start_ns == NEVER_NS:
                return
            self._attempts.append(Attempt(start_ns, 0, 0))
        times, last = self.facts.steps.times, self._attempts[-1]
        later = self.facts.job_starts[bisect_right(self.facts.job_starts, last.start_ns) :]
        borders = {(start_ns, bisect_left(times, start_ns)) for start_ns in later}
        taken = {index for _, index in borders}
        borders |= {(times[index], index) for index in self._returns(last) if index not in taken}
        for start_ns, index in sorted(borders):
            self._attempts[-1].stop = index
            self._attempts.append(Attempt(start_ns, index, index))
        self._attempts[-1].stop = len(times)

    def _returns(self, last: Attempt) -> list[int]:
        """Return the indices of the steps, new to the last attempt, that start an attempt without a job start."""
        times, numbers = self.facts.steps.times, self.facts.steps.numbers
        lower = max(last.stop, last.first + 1)
        # Between two job starts numbers nearly always rise, and checking that is fast.
        borders = (bisect_left(times, start_ns) for start_ns in self.facts.job_starts)
        inner = [index for index in borders if lower <= index < len(times)]
        returns = []
        for first, stop in pairwise([lower - 1, *inner, len(times)]):
            run = numbers[first:stop]
            if not rises(run):
                returns += [index for index, (before, after) in enumerate(pairwise(run), first + 1) if after <= before]
        ends = self.facts.job_ends[bisect_left(self.facts.job_ends, last.start_ns) :]
        after_end = (bisect_right(times, end_ns) for end_ns in ends)
        return returns + [index for index in after_end if last.first < index < len(times)]


def recorded_end(facts: Facts, index: int, until_ns: int) -> int | None:
    """Return when a step ended, if that was recorded after its start and no later than a moment."""
    ends = facts.step_ends
    number = facts.steps.numbers[index]
    position = bisect_right(ends.times, facts.steps.times[index])
    while position < len(ends) and ends.times[position] <= until_ns:
        if ends.numbers[position] == number:
            return ends.times[position]
        position += 1
    return None


def _start_ns(attempt: Attempt) -> int:
    return attempt.start_ns


def _wall_start_ns(facts: Facts) -> int:
    """Return the start of the job's wall time, or `NEVER_NS`.

    It is the first job start, or the first fact if there are steps before any job start, or no job start.
    """
    first_step = facts.steps.times[0] if facts.steps.times else NEVER_NS
    if facts.job_starts and facts.job_starts[0] <= first_step:
        return facts.job_starts[0]
    return facts.earliest_ns()
