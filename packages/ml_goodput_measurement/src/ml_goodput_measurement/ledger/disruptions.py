"""Disruptions and attempts, told for a report."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from ml_goodput_measurement.ledger.attempts import Attempts
from ml_goodput_measurement.ledger.books import Books
from ml_goodput_measurement.ledger.marks import Interval
from ml_goodput_measurement.ledger.runs import recorded_end
from ml_goodput_measurement.partition import AttemptEnd, AttemptSummary, Bucket, Disruption
from ml_goodput_measurement.process_outcome import ProcessOutcome

__all__ = ["summarize_attempts", "summarize_disruptions"]


def summarize_attempts(attempts: Attempts, books: Books, now_ns: int) -> list[AttemptSummary]:
    """Returns a summary of each attempt, in order."""
    end_ns, running = attempts.wall_end(now_ns)
    return [_summarize(attempts, books, index, end_ns, running=running) for index in range(len(attempts))]


def summarize_disruptions(
    attempts: Attempts, books: Books, summaries: Sequence[AttemptSummary], exclusions: Sequence[Interval] = ()
) -> list[Disruption]:
    """Returns each time that the job came back after an attempt that had made steps, in order.

    Args:
        attempts: The attempts.
        books: Their books.
        summaries: Their summaries, the excluded time in a bucket of its own.
        exclusions: Whose time no disruption costs; disjoint.
    """
    kept: list[tuple[int, int]] = []
    disruptions = []
    for number, (before, after) in enumerate(attempts.disrupted(), 1):
        kept.append((before, attempts[before].stop))
        steps_lost, lost = _newly_lost(attempts, books, after, kept)
        cut_short, spent = summaries[before], summaries[after].buckets
        between = [summary.buckets for summary in summaries[before:after]]
        disruption = Disruption(
            number=number,
            attempt=cut_short.number,
            last_event_ns=cut_short.end_ns,
            step_in_flight=_step_in_flight(attempts, before),
            resumed_ns=summaries[after].start_ns,
            resumed_step=summaries[after].first_step,
            failed_attempts=after - before - 1,
            steps_lost=steps_lost,
            infrastructure_ns=sum(buckets.get(Bucket.INFRASTRUCTURE_RECOVERY, 0) for buckets in between),
            init_ns=spent.get(Bucket.TPU_INITIALIZATION, 0) + spent.get(Bucket.TRAINING_PREP, 0),
            restore_ns=spent.get(Bucket.CHECKPOINT_RESTORE, 0),
            data_loading_ns=spent.get(Bucket.DATA_LOADING_SYNC, 0),
            startup_ns=spent.get(Bucket.PROGRAM_STARTUP, 0),
            recompute_ns=sum(_length_without(exclusions, *span) for span in lost),
        )
        disruptions.append(disruption)
    return disruptions


def _summarize(attempts: Attempts, books: Books, index: int, end_ns: int, *, running: bool) -> AttemptSummary:
    attempt, numbers = attempts[index], attempts.facts.steps.numbers
    is_last = index == len(attempts) - 1
    next_ns = min(end_ns, attempts.next_start_ns(index))
    account = books.account_of(index, next_ns, running=running)
    process_end = attempts.process_end(index)
    last_ns = attempts.facts.last_before(next_ns)
    exception = ""
    if attempts.ended(index, attempt.start_ns):
        ended, exception = AttemptEnd.JOB_END, attempts.end_exception(index)
    elif process_end is None:
        ended = AttemptEnd.LOST
    else:
        ended = AttemptEnd.FAILED if process_end.outcome is ProcessOutcome.FAILED else AttemptEnd.EXITED
        exception = process_end.exception if ended is AttemptEnd.FAILED else ""
        last_ns = max(last_ns, min(process_end.time_ns, next_ns))
    return AttemptSummary(
        number=index + 1,
        start_ns=attempt.start_ns,
        end_ns=end_ns if is_last else max(attempt.start_ns, last_ns),
        ended=AttemptEnd.RUNNING if is_last and running else ended,
        exception=exception,
        first_step=numbers[attempt.first] if attempt.has_steps else None,
        last_step=numbers[attempt.stop - 1] if attempt.has_steps else None,
        steps_kept=attempts.kept_steps(index)[0],
        steps_lost=attempt.stop - attempts.cut_index(index),
        last_checkpoint_step=attempts.facts.last_checkpoint_step(attempts.next_start_ns(index)),
        buckets=dict(account.buckets),
        custom=dict(account.custom),
    )


def _step_in_flight(attempts: Attempts, index: int) -> int | None:
    """Returns the number of an attempt's last step, unless the end of that step, or of the job, was recorded."""
    facts, final = attempts.facts, attempts[index].stop - 1
    if attempts.completed(index, facts.steps.times[final]):
        return None
    if recorded_end(facts, final, attempts.next_start_ns(index)) is not None:
        return None
    return facts.steps.numbers[final]


def _newly_lost(
    attempts: Attempts, books: Books, after: int, kept: list[tuple[int, int]]
) -> tuple[int, list[Interval]]:
    """Return how many steps a disruption lost that no earlier one had, and when they were made.

    Args:
        attempts: The attempts.
        books: Their books.
        after: Index of the attempt that came back.
        kept: Index of each attempt before it that has steps which are not lost yet, and the index after the last of
            these; brought up to date. Their numbers rise from one attempt to the next, so each is looked at once.
    """
    times, numbers = attempts.facts.steps.times, attempts.facts.steps.numbers
    steps, spans = 0, list[Interval]()
    if not attempts[after].has_steps:
        return steps, spans
    resumed_step = numbers[attempts[after].first]
    while kept and numbers[kept[-1][1] - 1] >= resumed_step:
        index, stop = kept.pop()
        attempt = attempts[index]
        cut = bisect_left(numbers, resumed_step, attempt.first, stop)
        if stop < attempt.stop:
            end_ns = times[stop]
        else:
            end_ns = books.last_step_run(index, attempts.next_start_ns(index), running=False).end_ns
        spans.append((times[cut], end_ns))
        steps += stop - cut
        if cut > attempt.first:
            kept.append((index, cut))
    return steps, spans


def _length_without(exclusions: Sequence[Interval], start_ns: int, end_ns: int) -> int:
    return end_ns - start_ns - sum(max(0, min(end_ns, stop) - max(start_ns, begin)) for begin, stop in exclusions)
