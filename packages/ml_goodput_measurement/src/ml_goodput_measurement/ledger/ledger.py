"""The ledger: a pure, incremental fold from events to an exact partition of a job's wall time.

    EventBatch -> Facts      what is known: a set, in sorted columns
               -> Attempts   where one life of the job ends and the next begins, which steps count
               -> runs       what the steps say of each moment
               -> pieces     what lies over them, by precedence
               -> Account    sums, of all or of any stretch of time

The answer is a function of the set of facts alone, so duplicates, disorder and lateness change nothing. It is
incremental because a new fact changes only what lies after it: attempts before it keep their sums, and so does the
part of the last attempt that is settled.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ml_goodput_measurement.events import EventBatch
from ml_goodput_measurement.ledger.attempts import PROCESS_GONE, Attempts
from ml_goodput_measurement.ledger.books import Books
from ml_goodput_measurement.ledger.checkpoints import CheckpointOverlays
from ml_goodput_measurement.ledger.disruptions import summarize_attempts, summarize_disruptions
from ml_goodput_measurement.ledger.facts import NEVER_NS, Facts
from ml_goodput_measurement.ledger.job_step_times import JobStepTimes
from ml_goodput_measurement.ledger.marks import Interval
from ml_goodput_measurement.ledger.silence import is_silent
from ml_goodput_measurement.ledger.windows import Life, Window, exclude
from ml_goodput_measurement.partition import AttemptSummary, Bucket, Disruption, Piece

__all__ = ["PROCESS_GONE", "Ledger", "Summary", "Window"]


@dataclass(frozen=True, slots=True)
class Summary:
    """Where the time of a job went, in sums; all in nanoseconds unless said otherwise."""

    start_ns: int
    end_ns: int
    running: bool
    buckets: dict[Bucket, int]
    """Every bucket is there; they sum to `end_ns - start_ns`."""
    custom: dict[str, int]
    data_loading_async_ns: int
    estimated_ns: int
    last_step: int
    steps_kept: int
    disruptions: int
    ideal_step_seconds: float | None
    slice_shares: tuple[float, float] | None
    """Means over time of the slices that were active, and available, of all; None where nobody reported any."""

    @property
    def wall_ns(self) -> int:
        """The job's wall time."""
        return self.end_ns - self.start_ns


class Ledger:
    """Folds events into a partition of the job's wall time.

    Of two recorders of one job each has a ledger of its own: see `recorders`.
    """

    def __init__(self) -> None:
        self.facts = Facts()
        self._attempts = Attempts(self.facts)
        self._checkpoints = CheckpointOverlays(self.facts)
        self._step_times = JobStepTimes(self._attempts)
        self._books = Books(self._attempts, self._step_times)
        self._known_life: tuple[int, Life] | None = None
        """The moment of the last query, and the life up to then; None when something is new."""

    def add(self, batch: EventBatch) -> None:
        """Adds events, in any order and as often as they come."""
        self.facts.add(batch)

    def summary(self, now_ns: int, exclusions: Sequence[Interval] = ()) -> Summary | None:
        """Returns where the time went up to the end of the job, or to `now_ns` while it runs; None without a fact.

        Costs what was added since the last call, and a little for each exclusion.

        Args:
            now_ns: The moment of the query, or `PROCESS_GONE`.
            exclusions: Whose time is in the bucket of excluded time, and in no other; disjoint.
        """
        life = self._life(now_ns)
        if life is None:
            return None
        total = life.without(exclusions) if exclusions else life.total
        loads = (attempt.first_load for attempt in self._attempts)
        beside_ns = self.facts.loads.total_ns - sum(load[1] - load[0] for load in loads if load)
        ideal_ns = self._step_times.kept().ideal_ns()
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
        """Return True if the job has recorded nothing for longer than a hang may last; see `silence`."""
        self._update()
        return len(self._attempts) > 0 and is_silent(self._attempts, now_ns)

    def windows(self, spans: Iterable[Interval], now_ns: int) -> list[Window]:
        """Returns where the time of some windows went, as the whole history says; none without a fact.

        Costs what was added since the last call, and a little for each window, however long.
        """
        life = self._life(now_ns)
        if life is None:
            return []
        # From the first to the last each goes on from what those before it have added up.
        spans = list(spans)
        windows = {span: life.window(*span) for span in sorted(spans)}
        return [windows[span] for span in spans]

    def timeline(self, now_ns: int, exclusions: Sequence[Interval] = ()) -> list[Piece]:
        """Returns the job's life as disjoint pieces in order of time, which cover its wall time."""
        self._update()
        pieces: list[Piece] = []
        found = self._pieces(now_ns)
        for piece in exclude(found, exclusions) if exclusions else found:
            _join(pieces, piece)
        return pieces

    def attempts(self, now_ns: int, exclusions: Sequence[Interval] = ()) -> list[AttemptSummary]:
        """Returns the attempts, in order."""
        life = self._life(now_ns)
        if life is None:
            return []
        summaries = summarize_attempts(self._attempts, self._books, now_ns)
        return [self._without(exclusions, summary, life) for summary in summaries] if exclusions else summaries

    def disruptions(self, attempts: Sequence[AttemptSummary], exclusions: Sequence[Interval] = ()) -> list[Disruption]:
        """Returns each time that the job came back after an attempt that had made steps, in order.

        Args:
            attempts: What `attempts` returned, with nothing added since.
            exclusions: Those that `attempts` was given.
        """
        return summarize_disruptions(self._attempts, self._books, attempts, exclusions)

    def steps_since(self, time_ns: int) -> Iterator[tuple[int, int, float]]:
        """Yields number, start and seconds of the kept steps that began after a moment and that the next follows."""
        self._update()
        return self._step_times.since(time_ns)

    def latest_step_seconds(self, count: int) -> list[float]:
        """Returns the times of the latest kept steps that the next number follows, oldest first."""
        self._update()
        return self._step_times.latest_seconds(count)

    def step_seconds(self) -> dict[int, float]:
        """Returns the time from start to start of each kept step that the next number follows. Costs all steps."""
        self._update()
        return self._step_times.seconds()

    def to_state(self) -> tuple[dict[str, Any], list[Any]]:
        """Return everything, facts and what is derived, as JSON and as columns of 64-bit numbers.

        The state has type and length of each column; the last one is returned in parts, to copy nothing.
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
    def from_state(cls, state: dict[str, Any], columns: list[Any]) -> Ledger:
        """Returns the ledger that `to_state` was asked of."""
        ledger = cls()
        own = len(ledger.facts.columns())
        ledger.facts = Facts.from_state(state["facts"], columns[:own])
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

    def _without(self, exclusions: Sequence[Interval], summary: AttemptSummary, life: Life) -> AttemptSummary:
        """Returns an attempt with what is excluded of its time in that bucket alone."""
        buckets, custom, excluded_ns = dict(summary.buckets), dict(summary.custom), 0
        border_ns = self._attempts.next_start_ns(summary.number - 1)
        for start_ns, end_ns in life.parts(exclusions):
            begin_ns, stop_ns = max(start_ns, summary.start_ns), min(end_ns, border_ns)
            if begin_ns >= stop_ns:
                continue
            part = life.between(begin_ns, stop_ns)
            for bucket, length in part.buckets.items():
                buckets[bucket] = buckets.get(bucket, 0) - length
            for label, length in part.custom.items():
                custom[label] = custom.get(label, 0) - length
            excluded_ns += stop_ns - begin_ns
        if excluded_ns:
            buckets[Bucket.EXCLUDED] = excluded_ns
        return replace(summary, buckets=buckets, custom=custom)

    def _update(self) -> None:
        """Brings everything that is derived up to the facts."""
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
    """Appends a piece, or lengthens the last one by it where they are the same."""
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
