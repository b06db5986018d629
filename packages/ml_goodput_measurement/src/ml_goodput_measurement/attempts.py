"""A job's attempts: where one ends and the next begins."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from itertools import pairwise

from ml_goodput_measurement.facts import NEVER_NS, Facts, rises
from ml_goodput_measurement.marks import Interval

__all__ = ["Attempt", "extend_attempts", "wall_start_ns"]


@dataclass(slots=True)
class Attempt:
    """One life of the job; its steps are a range of the step columns."""

    start_ns: int
    first: int
    """Index of its first step."""
    stop: int
    """Index after its last step."""
    first_load: Interval | None = None
    """Its first complete data load, the one that training had to wait for."""

    @property
    def has_steps(self) -> bool:
        """Whether it made any step."""
        return self.stop > self.first


def extend_attempts(attempts: list[Attempt], facts: Facts) -> None:
    """Brings a list of attempts up to date, after facts that are all later than the last one's start.

    An attempt begins at a job start; at a step whose number does not go on from the last one (the job went back);
    and at a step after a job end. Before the first job start there is one only if there are steps there.
    """
    times = facts.steps.times
    if not attempts:
        start_ns = wall_start_ns(facts)
        if start_ns == NEVER_NS:
            return
        attempts.append(Attempt(start_ns, 0, 0))
    last = attempts[-1]
    starts = _job_starts_after(facts, last.start_ns)
    taken = {index for _, index in starts}
    borders = starts + [(times[index], index) for index in _returns(facts, last) if index not in taken]
    for start_ns, index in sorted(set(borders)):
        attempts[-1].stop = index
        attempts.append(Attempt(start_ns, index, index))
    attempts[-1].stop = len(times)


def wall_start_ns(facts: Facts) -> int:
    """Returns the start of the job's wall time, or `NEVER_NS`.

    It is the first job start, or the first thing that is known where there are steps before any job start, or none.
    """
    first_step = facts.steps.times[0] if facts.steps.times else NEVER_NS
    if facts.job_starts and facts.job_starts[0] <= first_step:
        return facts.job_starts[0]
    return facts.earliest_ns()


def _job_starts_after(facts: Facts, time_ns: int) -> list[tuple[int, int]]:
    """Returns (time, index of the first step from then on) of each job start after a moment."""
    later = facts.job_starts[bisect_right(facts.job_starts, time_ns) :]
    return [(start_ns, bisect_left(facts.steps.times, start_ns)) for start_ns in later]


def _returns(facts: Facts, attempt: Attempt) -> list[int]:
    """Returns the indices of the steps that begin an attempt without a job start."""
    times, numbers = facts.steps.times, facts.steps.numbers
    unread = attempt.stop if attempt.has_steps else attempt.first
    begin = max(unread, attempt.first + 1)
    # Between two job starts numbers nearly always rise, which is soon seen.
    borders = (bisect_left(times, start_ns) for start_ns in facts.job_starts)
    went_back = []
    for first, stop in pairwise([begin - 1, *(index for index in borders if begin <= index < len(times)), len(times)]):
        run = numbers[first:stop]
        if not rises(run):
            went_back += [index for index, (before, after) in enumerate(pairwise(run), first + 1) if after <= before]
    ends = facts.job_ends[bisect_right(facts.job_ends, attempt.start_ns) :]
    after_end = (bisect_right(times, end_ns) for end_ns in ends)
    return went_back + [index for index in after_end if attempt.first < index < len(times)]
