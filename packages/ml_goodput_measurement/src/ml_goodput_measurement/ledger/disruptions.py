"""Disruptions and attempts, told for a report."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from ml_goodput_measurement.ledger.attempts import Attempts
from ml_goodput_measurement.ledger.books import Books
from ml_goodput_measurement.partition import AttemptEnd, AttemptSummary, Bucket, Disruption

__all__ = ["summarize_attempts", "summarize_disruptions"]

_RESTART = (
    Bucket.TPU_INITIALIZATION,
    Bucket.TRAINING_PREP,
    Bucket.CHECKPOINT_RESTORE,
    Bucket.DATA_LOADING_SYNC,
    Bucket.PROGRAM_STARTUP,
)


def summarize_attempts(attempts: Attempts, books: Books, now_ns: int) -> list[AttemptSummary]:
    """Returns a summary of each attempt, in order."""
    end_ns, running = attempts.wall_end(now_ns)
    return [_summarize(attempts, books, index, end_ns, running=running) for index in range(len(attempts))]


def summarize_disruptions(attempts: Attempts, books: Books, summaries: Sequence[AttemptSummary]) -> list[Disruption]:
    """Returns each time that the job came back after an attempt that had made steps, in order."""
    unlost_stops = [attempt.stop for attempt in attempts]
    disruptions = []
    for number, (before, after) in enumerate(attempts.disrupted(), 1):
        steps_lost, wasted_ns = _newly_lost(attempts, books, before, after, unlost_stops)
        cut_short, resumed = summaries[before], summaries[after]
        disruption = Disruption(
            number=number,
            attempt=cut_short.number,
            last_event_ns=cut_short.end_ns,
            resumed_ns=resumed.start_ns,
            resumed_step=resumed.first_step,
            failed_attempts=after - before - 1,
            steps_lost=steps_lost,
            wasted_ns=wasted_ns,
            recovery_ns=sum(
                summary.buckets.get(Bucket.INFRASTRUCTURE_RECOVERY, 0) for summary in summaries[before:after]
            ),
            restart_ns=sum(resumed.buckets.get(bucket, 0) for bucket in _RESTART),
        )
        disruptions.append(disruption)
    return disruptions


def _summarize(attempts: Attempts, books: Books, index: int, end_ns: int, *, running: bool) -> AttemptSummary:
    attempt, numbers = attempts[index], attempts.facts.steps.numbers
    is_last = index == len(attempts) - 1
    next_ns = min(end_ns, attempts.next_start_ns(index))
    account = books.account_of(index, next_ns, running=running)
    account.split_startup()
    ended = AttemptEnd.JOB_END if attempts.ended(index, attempt.start_ns) else AttemptEnd.LOST
    return AttemptSummary(
        number=index + 1,
        start_ns=attempt.start_ns,
        end_ns=end_ns if is_last else max(attempt.start_ns, attempts.facts.last_before(next_ns)),
        ended=AttemptEnd.RUNNING if is_last and running else ended,
        first_step=numbers[attempt.first] if attempt.has_steps else None,
        last_step=numbers[attempt.stop - 1] if attempt.has_steps else None,
        steps_kept=attempts.kept_steps(index)[0],
        steps_lost=attempt.stop - attempts.cut_index(index),
        last_checkpoint_step=attempts.facts.last_checkpoint_step(attempts.next_start_ns(index)),
        buckets=account.buckets,
        custom=account.custom,
    )


def _newly_lost(attempts: Attempts, books: Books, before: int, after: int, unlost_stops: list[int]) -> tuple[int, int]:
    """Returns how many steps a return went back behind that no earlier one had, and their time in nanoseconds.

    Args:
        attempts: The attempts.
        books: Their books.
        before: Index of the attempt that was cut short.
        after: Index of the attempt that came back.
        unlost_stops: For each attempt the index after its last step that is not lost yet; brought up to date.
    """
    times, numbers = attempts.facts.steps.times, attempts.facts.steps.numbers
    steps = lost_ns = 0
    if not attempts[after].has_steps:
        return steps, lost_ns
    resumed_step = numbers[attempts[after].first]
    for index in range(before + 1):
        attempt, stop = attempts[index], unlost_stops[index]
        cut = bisect_left(numbers, resumed_step, attempt.first, stop)
        if cut == stop:
            continue
        if stop < attempt.stop:
            end_ns = times[stop]
        else:
            end_ns = books.last_step_run(index, attempts.next_start_ns(index), running=False).end_ns
        steps, lost_ns, unlost_stops[index] = steps + stop - cut, lost_ns + end_ns - times[cut], cut
    return steps, lost_ns
