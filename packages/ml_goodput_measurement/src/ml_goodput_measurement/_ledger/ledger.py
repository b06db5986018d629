"""The ledger: a pure, incremental fold from events to an exact partition of a job's wall time.

    EventBatch -> Facts      all known facts: a set, in sorted columns
               -> Attempts   the borders between lives of the job, and the steps that count
               -> runs       each moment as the steps describe it
               -> pieces     each moment with the activity that takes precedence
               -> Account    sums, of the whole job or of any stretch of time

The result is a function of the set of facts alone, so duplicates, disorder and lateness change nothing. It is
incremental because a new fact changes only what lies after it: earlier attempts keep their sums, and so does the
settled part of the last attempt.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ml_goodput_measurement._ledger.accounting import CheckpointOverlays
from ml_goodput_measurement._ledger.attempts import PROCESS_GONE, Attempts, recorded_end
from ml_goodput_measurement._ledger.books import Books
from ml_goodput_measurement._ledger.facts import NEVER_NS, SIZES, Facts, Sizes
from ml_goodput_measurement._ledger.intervals import Interval, Overlay, resolve
from ml_goodput_measurement._ledger.step_times import JobStepTimes
from ml_goodput_measurement._ledger.windows import Life, Window, exclude
from ml_goodput_measurement._record.process_outcome import ProcessOutcome
from ml_goodput_measurement.partition import AttemptEnd, AttemptSummary, Bucket, BucketedTime, DaySum, Disruption, Piece

if TYPE_CHECKING:
    from ml_goodput_measurement._ledger.events import EventBatch

__all__ = ["PROCESS_GONE", "RULES", "Ledger", "Summary", "Window", "summarize_attempts", "summarize_disruptions"]

RULES = "1"
"""Version of the rules: stored sums of two versions must not be added. It rises with each change that moves time."""


def summarize_attempts(attempts: Attempts, books: Books, now_ns: int) -> list[AttemptSummary]:
    """Return a summary of each attempt, in order."""
    end_ns, running = attempts.wall_end(now_ns)
    return [_summarize(attempts, books, index, end_ns, running=running) for index in range(len(attempts))]


def summarize_disruptions(
    attempts: Attempts, books: Books, summaries: Sequence[AttemptSummary], exclusions: Sequence[Interval] = ()
) -> list[Disruption]:
    """Return each restart of the job after an attempt with steps, in order.

    Args:
        attempts: The attempts.
        books: Their books.
        summaries: Their summaries, the excluded time in a bucket of its own.
        exclusions: Intervals that count for no disruption; disjoint.
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
            data_loading_ns=_first_load_ns(attempts, books, after, summaries[-1].end_ns, exclusions),
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
    last_checkpoint, previous_checkpoint = attempts.facts.last_checkpoint_steps(attempts.next_start_ns(index))
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
        last_checkpoint_step=last_checkpoint,
        previous_checkpoint_step=previous_checkpoint,
        buckets=dict(account.buckets),
        custom=dict(account.custom),
    )


def _step_in_flight(attempts: Attempts, index: int) -> int | None:
    """Return the number of an attempt's last step, unless the end of that step, or of the job, was recorded."""
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
        after: Index of the attempt after the disruption.
        kept: Index of each attempt before it that has steps which are not lost yet, and the index after the last of
            these; brought up to date. Their numbers rise from one attempt to the next, so each is checked once.
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


def _first_load_ns(attempts: Attempts, books: Books, index: int, end_ns: int, exclusions: Sequence[Interval]) -> int:
    """Return how long an attempt waited for its first data load, as far as nothing else has that time.

    A load that ends after the job did counts up to the end of the job.
    """
    facts, load = attempts.facts, attempts[index].first_load
    if load is None or load[0] >= end_ns:
        return 0
    load = load[0], min(load[1], end_ns)
    overlays = [*facts.overlays.between(*load), Overlay.of(*load, Bucket.DATA_LOADING_SYNC)]
    cut = attempts.cut_index(index)
    if cut < attempts[index].stop:
        last_step = books.last_step_run(index, attempts.next_start_ns(index), running=False)
        overlays.append(Overlay.of(facts.steps.times[cut], last_step.end_ns, Bucket.WASTED_PROGRESS))
    return sum(
        _length_without(exclusions, piece.start_ns, piece.end_ns)
        for piece in resolve(sorted(overlays), *load)
        if piece.bucket is Bucket.DATA_LOADING_SYNC
    )


def _length_without(exclusions: Sequence[Interval], start_ns: int, end_ns: int) -> int:
    return end_ns - start_ns - sum(max(0, min(end_ns, stop) - max(start_ns, lower)) for lower, stop in exclusions)


@dataclass(frozen=True, slots=True)
class Summary(BucketedTime):
    """Sums over the time of a job; all in nanoseconds unless specified otherwise."""

    start_ns: int
    end_ns: int
    running: bool
    buckets: dict[Bucket, int]
    """Has every bucket; they sum to `end_ns - start_ns`."""
    custom: dict[str, int]
    data_loading_async_ns: int
    estimated_ns: int
    last_step: int
    steps_kept: int
    disruptions: int
    ideal_step_seconds: float | None
    slice_shares: tuple[float, float] | None
    """Means over time of the slices that were active, and available, of all; None without reports."""


class Ledger:
    """Folds events into a partition of the job's wall time.

    It has one recorder's facts for any moment: see `recorders`.
    """

    def __init__(self, sizes: Sizes = SIZES) -> None:
        self.facts = Facts(sizes)
        self._attempts = Attempts(self.facts)
        self._checkpoints = CheckpointOverlays(self.facts)
        self._step_times = JobStepTimes(self._attempts)
        self._books = Books(self._attempts, self._step_times)
        self._known_life: tuple[int, Life] | None = None
        """The moment of the last query, and the life up to then; None when something is new."""

    def add(self, batch: EventBatch) -> None:
        """Add events, in any order and with repetitions."""
        self.facts.add(batch)

    def summary(
        self, now_ns: int, exclusions: Sequence[Interval] = (), *, include_ideal: bool = True
    ) -> Summary | None:
        """Return the sums up to the end of the job, or to `now_ns` while it runs; None without a fact.

        Costs what was added since the last call, and a little for each exclusion.

        Args:
            now_ns: The moment of the query, or `PROCESS_GONE`.
            exclusions: Disjoint intervals that are only in the bucket of excluded time.
            include_ideal: False to leave out the ideal step time, for which the times of all steps are sorted.
        """
        life = self._life(now_ns)
        if life is None:
            return None
        total = life.without(exclusions) if exclusions else life.total
        loads = (attempt.first_load for attempt in self._attempts)
        awaited_ns = life.total.awaited_loads_ns + sum(load[1] - load[0] for load in loads if load)
        beside_ns = self.facts.loads.total_ns - awaited_ns
        ideal_ns = self._step_times.kept().ideal_ns() if include_ideal else None
        return Summary(
            start_ns=life.start_ns,
            end_ns=life.end_ns,
            running=life.running,
            buckets={bucket: total.buckets.get(bucket, 0) for bucket in Bucket},
            custom=total.custom,
            data_loading_async_ns=beside_ns - sum(life.loads_beside_training_ns(*part) for part in exclusions),
            estimated_ns=total.estimated_ns,
            last_step=life.last_step,
            steps_kept=life.steps_kept,
            disruptions=life.disruptions,
            ideal_step_seconds=None if ideal_ns is None else ideal_ns / 1e9,
            slice_shares=life.slice_shares([(life.start_ns, life.end_ns)], exclusions),
        )

    def is_silent(self, now_ns: int) -> bool:
        """Return True if the job has recorded nothing for longer than a hang may last."""
        self._update()
        return self._attempts.is_silent(now_ns)

    def windows(self, spans: Iterable[Interval], now_ns: int) -> list[Window]:
        """Return the sums of windows, by the whole history; none without a fact.

        Costs what was added since the last call, and a little for each window, however long.
        """
        life = self._life(now_ns)
        if life is None:
            return []
        # In order, so that each continues from the sums of those before it.
        spans = list(spans)
        windows = {span: life.window(*span) for span in sorted(spans)}
        return [windows[span] for span in spans]

    def days(self, now_ns: int) -> list[DaySum]:
        """Return the sums by attempt, day (UTC), bucket and type of custom event, in this order; none without a fact.

        They sum to the wall time. Costs what was added since the last call, and a little for each midnight.

        Args:
            now_ns: The moment of the query, or `PROCESS_GONE`.
        """
        life = self._life(now_ns)
        return [] if life is None else list(life.days())

    def timeline(
        self,
        now_ns: int,
        exclusions: Sequence[Interval] = (),
        between: Interval | None = None,
        most: int | None = None,
    ) -> list[Piece]:
        """Return the job's life as disjoint pieces in order of time, which cover its wall time.

        Args:
            now_ns: The moment of the query, or `PROCESS_GONE`.
            exclusions: Disjoint intervals that are pieces of their own.
            between: Only the pieces of this window, cut at its borders; None for all.
            most: Stop after one more piece than this; None for no limit.
        """
        self._update()
        pieces: list[Piece] = []
        found = self._pieces(now_ns) if between is None else self._pieces_between(now_ns, *between)
        for piece in exclude(found, exclusions) if exclusions else found:
            _join(pieces, piece)
            if most is not None and len(pieces) > most:
                break
        return pieces

    def attempts(self, now_ns: int, exclusions: Sequence[Interval] = ()) -> list[AttemptSummary]:
        """Return the attempts, in order."""
        life = self._life(now_ns)
        if life is None:
            return []
        summaries = summarize_attempts(self._attempts, self._books, now_ns)
        return [self._without(exclusions, summary, life) for summary in summaries] if exclusions else summaries

    def disruptions(self, attempts: Sequence[AttemptSummary], exclusions: Sequence[Interval] = ()) -> list[Disruption]:
        """Return each restart of the job after an attempt with steps, in order.

        Args:
            attempts: The result of `attempts`, with nothing added since.
            exclusions: The exclusions of that call.
        """
        return summarize_disruptions(self._attempts, self._books, attempts, exclusions)

    def saves(self) -> int:
        """Return the number of saves, of each step, storage and attempt, however many hosts reported them."""
        self._update()
        return self._checkpoints.count(Bucket.CHECKPOINT_SAVE)

    def first_step_times(self) -> list[int | None]:
        """Return when the first step of each attempt started; None for one without steps."""
        self._update()
        times = self.facts.steps.times
        return [times[attempt.first] if attempt.has_steps else None for attempt in self._attempts]

    def steps_since(self, time_ns: int) -> Iterator[tuple[int, int, float]]:
        """Yield number, start and seconds of the kept steps that started after a moment and that the next follows."""
        self._update()
        return self._step_times.since(time_ns)

    def steps_between(self, start_ns: int, end_ns: int) -> int:
        """Return how many steps started in a window; those that were repeated count each time."""
        self._update()
        times = self.facts.steps.times
        return bisect_left(times, end_ns) - bisect_left(times, start_ns)

    def latest_step_seconds(self, count: int) -> list[float]:
        """Return the times of the latest kept steps that the next number follows, oldest first."""
        self._update()
        return self._step_times.latest_seconds(count)

    def step_seconds(self) -> dict[int, float]:
        """Return the time from start to start of each kept step that the next number follows. Costs all steps."""
        self._update()
        return self._step_times.seconds()

    def to_state(self) -> tuple[dict[str, Any], list[Any]]:
        """Return facts and derived data, as JSON and as columns of 64-bit numbers.

        The JSON has type and length of each column; the last column is returned in parts, so that nothing is copied.
        """
        self._update()
        step_times, parts = self._step_times.to_state()
        columns = self.facts.columns()
        state = {
            "columns": [*((column.typecode, len(column)) for column in columns), ("d", sum(map(len, parts)))],
            "facts": self.facts.to_state(),
            "attempts": self._attempts.to_state(),
            "step_times": step_times,
            "books": self._books.to_state(),
        }
        return state, [*columns, *parts]

    @classmethod
    def from_state(cls, state: dict[str, Any], columns: list[Any], sizes: Sizes = SIZES) -> Ledger:
        """Return the ledger of a state from `to_state`."""
        ledger = cls(sizes)
        own = len(ledger.facts.columns())
        ledger.facts = Facts.from_state(state["facts"], columns[:own], sizes)
        ledger._attempts = Attempts.from_state(state["attempts"], ledger.facts)
        ledger._checkpoints = CheckpointOverlays(ledger.facts)
        ledger._checkpoints.restore(ledger._attempts)
        ledger._step_times = JobStepTimes.from_state(state["step_times"], columns[own:], ledger._attempts)
        ledger._books = Books.from_state(state["books"], ledger._attempts, ledger._step_times)
        return ledger

    def _life(self, now_ns: int) -> Life | None:
        self._update()
        if not len(self._attempts):
            return None
        if self._known_life is None or self._known_life[0] != now_ns:
            self._known_life = now_ns, Life(self._attempts, self._books, now_ns)
        return self._known_life[1]

    def _pieces(self, now_ns: int) -> Iterator[Piece]:
        end_ns, running = self._attempts.wall_end(now_ns)
        for index in range(len(self._attempts)):
            for start_ns, stop_ns, bucket, label, run in self._books.pieces(index, end_ns, running=running):
                yield Piece(start_ns, stop_ns, bucket, index + 1, label, run.estimated)

    def _pieces_between(self, now_ns: int, start_ns: int, end_ns: int) -> Iterator[Piece]:
        """Yield the pieces of a window; an attempt outside of it is passed over."""
        last_ns, running = self._attempts.wall_end(now_ns)
        for index, attempt in enumerate(self._attempts):
            if attempt.start_ns >= end_ns:
                return
            if min(last_ns, self._attempts.next_start_ns(index)) <= start_ns:
                continue
            pieces = self._books.pieces(index, last_ns, running=running, between=(start_ns, end_ns))
            for first_ns, stop_ns, bucket, label, run in pieces:
                if first_ns >= end_ns:
                    break
                first_ns, stop_ns = max(first_ns, start_ns), min(stop_ns, end_ns)
                if first_ns < stop_ns:
                    yield Piece(first_ns, stop_ns, bucket, index + 1, label, run.estimated)

    def _without(self, exclusions: Sequence[Interval], summary: AttemptSummary, life: Life) -> AttemptSummary:
        """Return an attempt with its excluded time only in the bucket of excluded time."""
        buckets, custom, excluded_ns = dict(summary.buckets), dict(summary.custom), 0
        border_ns = self._attempts.next_start_ns(summary.number - 1)
        for start_ns, end_ns in life.parts(exclusions):
            from_ns, stop_ns = max(start_ns, summary.start_ns), min(end_ns, border_ns)
            if from_ns >= stop_ns:
                continue
            part = life.between(from_ns, stop_ns)
            for bucket, length in part.buckets.items():
                buckets[bucket] = buckets.get(bucket, 0) - length
            for label, length in part.custom.items():
                custom[label] = custom.get(label, 0) - length
            excluded_ns += stop_ns - from_ns
        if excluded_ns:
            buckets[Bucket.EXCLUDED] = excluded_ns
        return replace(summary, buckets=buckets, custom=custom)

    def _update(self) -> None:
        """Update derived data to the facts."""
        changed_ns, self.facts.changed_from_ns = self.facts.changed_from_ns, NEVER_NS
        if changed_ns == NEVER_NS:
            return
        self._known_life = None
        changes = self._attempts.update()
        if changes.redivided:
            self._step_times.forget()
        for index, cut_before in changes.cuts:
            self._step_times.forget_repeated(index, cut_before)
        self._books.update(changes, min(changed_ns, self._checkpoints.update(self._attempts, changes)))


def _join(pieces: list[Piece], piece: Piece) -> None:
    """Append a piece, or extend the last one if both are equal but for their times."""
    last = pieces[-1] if pieces else None
    same = last and (last.bucket, last.label, last.attempt, last.estimated, last.end_ns) == (
        piece.bucket,
        piece.label,
        piece.attempt,
        piece.estimated,
        piece.start_ns,
    )
    if last and same:
        pieces[-1] = Piece(last.start_ns, piece.end_ns, piece.bucket, piece.attempt, piece.label, piece.estimated)
    else:
        pieces.append(piece)
