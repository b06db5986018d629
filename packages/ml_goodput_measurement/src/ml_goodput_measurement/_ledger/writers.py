"""The choice of the writer with records that count: one at a time, for each attempt of a job.

A writer is one recorder in one process. Several record one job if processes have no index, if each slice counts its
workers from 0, or if an old process continues after its job was restarted. Choices follow from the times of records
alone, so the order in which entries arrive does not matter.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

from ml_goodput_measurement._ledger.events import EventBatch, JobStart
from ml_goodput_measurement._ledger.facts import NEVER_NS, Facts

__all__ = ["ChosenWriter", "Span", "Writer", "choose_writers", "describe_choices", "span_of", "spans_of"]

_TOGETHER_NS = 30 * 10**9
"""Processes that are started as one attempt, without waiting for each other, start within this time."""

_SHORT_NS = 60 * 10**9
_MOST_NAMED = 8
"""A note names this many processes at most."""


class Writer(NamedTuple):
    """A recorder in a process; the fields are in the order in which writers of one time are preferred."""

    process_index: int = 0
    """0 if the process does not know it."""
    name: str = ""
    """Id of the journal's writer; empty for all entries that did not pass through a journal."""
    attempt: str = ""
    """The number of restarts by the scheduler, as text; empty if it does not report it."""
    host: str = ""
    pid: str = ""

    @property
    def key(self) -> tuple[int, str]:
        """Identifies it among other writers."""
        return (0, self.name) if self.name else (self.process_index, "")

    def __str__(self) -> str:
        where = ", ".join(part for part in (self.host, self.pid and f"pid {self.pid}") if part)
        return where or self.name or "an unnamed recorder"


@dataclass(slots=True, eq=False)
class Span:
    """The records of a writer from one job start to its next one."""

    writer: Writer
    start_ns: int
    last_ns: int
    first_step: tuple[int, int] | None
    """Time and number."""
    last_step: tuple[int, int] | None
    kinds: dict[str, tuple[int, int]]
    """Times of the first and the last event of each kind, see `EventBatch.kinds`."""

    @property
    def step_ns(self) -> int:
        """The mean time of a step; 0 if it is not known."""
        if self.first_step is None or self.last_step is None or self.first_step[1] >= self.last_step[1]:
            return 0
        return (self.last_step[0] - self.first_step[0]) // (self.last_step[1] - self.first_step[1])

    @property
    def order(self) -> tuple[int, Writer]:
        """The order in which spans are considered."""
        return self.start_ns, self.writer

    @property
    def preference(self) -> tuple[bool, int, int, str]:
        """The lowest of an attempt's spans counts; a span without steps does not show the job's progress."""
        return self.first_step is None, self.writer.process_index, self.start_ns, self.writer.name

    def to_state(self) -> list[Any]:
        """Return everything but the writer as JSON."""
        return [self.start_ns, self.last_ns, self.first_step, self.last_step, self.kinds]

    @classmethod
    def from_state(cls, writer: Writer, state: Sequence[Any]) -> Span:
        """Return the span of a state from `to_state`."""
        start_ns, last_ns, *steps, kinds = state
        first_step, last_step = (None if step is None else (step[0], step[1]) for step in steps)
        times = {kind: (first_ns, last_ns) for kind, (first_ns, last_ns) in kinds.items()}
        return cls(writer, start_ns, last_ns, first_step, last_step, times)

    def extend(self, batch: EventBatch, last_ns: int) -> None:
        """Add events that lie in this span; the last of them is at `last_ns`."""
        self.last_ns = max(self.last_ns, last_ns)
        for kind, (first_ns, latest_ns) in batch.kinds().items():
            known = self.kinds.get(kind, (first_ns, latest_ns))
            self.kinds[kind] = (min(known[0], first_ns), max(known[1], latest_ns))
        steps = batch.step_span()
        if steps is not None:
            first_step, last_step = steps
            self.first_step = first_step if self.first_step is None else min(self.first_step, first_step)
            self.last_step = last_step if self.last_step is None else max(self.last_step, last_step)

    def is_split_by(self, batch: EventBatch) -> bool:
        """Return True for a writer's first span if a step of the batch was before its job start: see `spans_of`."""
        if "JobStart" not in self.kinds:
            return False
        steps = batch.step_span()
        return steps is not None and steps[0][0] < self.kinds["JobStart"][0]

    def completes(self, span: Span) -> bool:
        """Return True if both may be parts of one attempt: they never recorded events of one kind at the same time."""
        if "JobStart" in self.kinds and "JobStart" in span.kinds and self.first_step and span.first_step:
            return False  # Two attempts, also if an old process reports late.
        if self._is_aside(span) or span._is_aside(self):
            return False
        return all(
            last_ns < span.kinds[kind][0] or span.kinds[kind][1] < first_ns
            for kind, (first_ns, last_ns) in self.kinds.items()
            if kind in span.kinds
        )

    def keeps_pace(self, span: Span) -> bool:
        """Return True if both were last at the same step at the same time, like processes of one attempt."""
        if self.last_step is None or span.last_step is None:
            return False
        return (
            abs(self.last_step[1] - span.last_step[1]) <= 1
            and abs(self.last_step[0] - span.last_step[0]) <= _TOGETHER_NS + 2 * self.step_ns
        )

    def outlasts(self, span: Span) -> bool:
        """Return True if it recorded further steps after another one had stopped without ending the job.

        One step more, or a minute, may be a clock that is fast, or the other's last entries that have not arrived yet.
        """
        if self.last_step is None or span.last_step is None or "JobEnd" in span.kinds:
            return False
        return self.last_step[1] > span.last_step[1] + 1 and self.last_step[0] > span.last_ns + _SHORT_NS

    def _is_aside(self, span: Span) -> bool:
        """Return True for a side process: it starts or ends the job during another one that trains, without steps."""
        return (
            self.first_step is None
            and ("JobStart" in self.kinds or "JobEnd" in self.kinds)
            and span.first_step is not None
            and "JobStart" in span.kinds
            and span.start_ns <= self.start_ns
            and self.last_ns <= span.last_ns
        )


@dataclass(slots=True)
class ChosenWriter:
    """The writers of one attempt of a job, and the one that counts."""

    counts: Span
    first: Span
    """The first one to start."""
    others: list[Span] = field(default_factory=list)

    before: list[Span] = field(default_factory=list)
    """Spans without steps of earlier attempts that continue in this one."""

    def start_ns(self) -> int:
        """Return when the writer that counts, or one of its attempt that completes it, started."""
        others = {id(span) for span in self.others}
        return min(
            span.start_ns for span in (self.counts, *self.complementary()) if span is self.counts or id(span) in others
        )

    def complementary(self) -> list[Span]:
        """Return the others that count as well.

        They are of the same process index and did not record the same as one before them at the same time: a launcher
        that records start and end of the job, and a program that records its steps.
        """
        chosen = [self.counts]
        for span in sorted([*self.before, *self.others], key=lambda span: span.preference):
            if span.writer.process_index == self.counts.writer.process_index and all(map(span.completes, chosen)):
                chosen.append(span)
        return chosen[1:]

    def turns(self) -> list[tuple[int, Span, list[Span]]]:
        """Return the spans that count one after another: start, span, and the spans that complete it.

        Mostly there is one. If it stops before its attempt does, for example by a full disk, the next one follows.
        """
        complementary = self.complementary()
        turns = [(self.start_ns(), self.counts, complementary)]
        for span in sorted(self.others, key=lambda span: span.preference):
            before = turns[-1][1]
            if span.outlasts(before):
                # It recorded the other's last step as well, less than half a step earlier or later.
                start_ns = before.last_ns + 1 + span.step_ns // 2
                turns.append(
                    (start_ns, span, [one for one in complementary if one is not span and one.completes(span)])
                )
        return turns

    def add(self, span: Span) -> None:
        """Add another span of this attempt."""
        if span.preference < self.counts.preference:
            self.counts, span = span, self.counts
        self.others.append(span)


def spans_of(writer: Writer, facts: Facts) -> list[Span]:
    """Return the spans of a writer, in order of time.

    Args:
        writer: The writer.
        facts: All that it recorded, without checkpoint operations.
    """
    first_ns, _ = facts.recorded_span()
    if first_ns == NEVER_NS:
        return []
    times, numbers = facts.steps.times, facts.steps.numbers
    starts = list(facts.job_starts)
    if not starts or (times and times[0] < starts[0]):
        starts.insert(0, first_ns)
    starts[0] = first_ns
    spans = []
    for start_ns, end_ns in pairwise([*starts, NEVER_NS]):
        kinds = facts.kinds_between(start_ns, end_ns)
        index = bisect_left(times, start_ns)
        last = bisect_left(times, end_ns) - 1
        first_step = last_step = None
        if index <= last:
            first_step, last_step = (times[index], numbers[index]), (times[last], numbers[last])
        last_ns = max((last_ns for _, last_ns in kinds.values()), default=start_ns)
        spans.append(Span(writer, start_ns, last_ns, first_step, last_step, kinds))
    return spans


def span_of(writer: Writer, batch: EventBatch) -> Span | None:
    """Return the only span of a writer that recorded one batch; None if `spans_of` may find several.

    Args:
        writer: The writer.
        batch: All that it recorded, without checkpoint operations.
    """
    starts = {event.time_ns for event in batch.others if isinstance(event, JobStart)}
    first_step, last_step = batch.step_span() or (None, None)
    if len(starts) > 1 or (starts and first_step is not None and first_step[0] < min(starts)):
        return None
    kinds = batch.kinds()
    first_ns, last_ns = min(first for first, _ in kinds.values()), max(last for _, last in kinds.values())
    return Span(writer, first_ns, last_ns, first_step, last_step, kinds)


def choose_writers(spans: Iterable[Span], before: list[ChosenWriter]) -> list[ChosenWriter]:
    """Return the attempts of a job.

    Args:
        spans: Spans of all writers, in their order.
        before: The attempts before these spans; they are added to it.
    """
    for span in spans:
        if before and _is_same_attempt(span, before[-1]):
            before[-1].add(span)
        else:
            going_on = [*before[-1].before, *before[-1].others, before[-1].counts] if before else []
            going_on = [one for one in going_on if one.first_step is None and one.last_ns >= span.start_ns]
            before.append(ChosenWriter(span, span, before=going_on))
    return before


def _is_same_attempt(span: Span, attempt: ChosenWriter) -> bool:
    """Return True if a span belongs to an attempt that started before it; otherwise it starts the next one."""
    counts = attempt.counts
    if span.start_ns > counts.last_ns:
        return False
    if span.writer.attempt and counts.writer.attempt and span.writer.attempt != counts.writer.attempt:
        return False
    if span.completes(counts) or span.keeps_pace(counts):
        return True
    # A program waits for all its processes before the first step, however long some of them take to start.
    if counts.first_step is not None and span.start_ns <= counts.first_step[0]:
        return True
    has_same_first_step = (
        span.first_step is None or counts.first_step is None or span.first_step[1] == counts.first_step[1]
    )
    if span.start_ns - attempt.first.start_ns <= _TOGETHER_NS and has_same_first_step:
        return True
    # A process that replaces another outlives it. The margins keep the result stable while both are running.
    if counts.last_ns - span.last_ns > max(_SHORT_NS, span.last_ns - span.start_ns):
        return True
    shared_ns = min(counts.last_ns, span.last_ns) - span.start_ns
    outlives = span.last_ns - counts.last_ns > max(_SHORT_NS, shared_ns)
    return span.writer.process_index > counts.writer.process_index and not outlives


def describe_choices(choices: Sequence[ChosenWriter]) -> list[str]:
    """Return notes on the writers that do not count, and on those that went on after the next attempt started."""
    by_index: dict[tuple[int, int], dict[Writer, Writer]] = defaultdict(dict)
    successions = []
    for choice in choices:
        turns = choice.turns()
        counting = {span.writer for _, turn, complementary in turns for span in (turn, *complementary)}
        for (_, before, _), (_, after, _) in pairwise(turns):
            step = before.last_step[1] if before.last_step else 0
            successions.append(
                f"{before.writer} recorded nothing after step {step}; {after.writer} counts from there on"
            )
        for span in choice.others:
            if span.writer not in counting:
                counted = choice.counts.writer
                by_index[span.writer.process_index, counted.process_index].setdefault(span.writer, counted)
    notes = []
    for (index, counted_index), writers in sorted(by_index.items()):
        if index != counted_index:
            reason = "the lowest index" if index > counted_index else "the lowest index that recorded steps"
            notes.append(f"process {index} recorded this job as well; process {counted_index} counts, as {reason}")
        else:
            notes.append(
                f"{len(writers)} more {'recorder' if len(writers) == 1 else 'recorders'} with process index {index} "
                f"recorded this job at the same time: {_named(writers)}; of each attempt the one that started first "
                f"counts ({next(iter(writers.values()))}). Enable logging in one process only, or set JAX_PROCESS_ID"
            )
    if len(notes) > _MOST_NAMED:
        notes[_MOST_NAMED:] = [f"{len(notes) - _MOST_NAMED} more processes recorded this job as well"]
    notes += successions[:_MOST_NAMED]
    late = {
        before.counts.writer: before.counts.last_ns - after.start_ns()
        for before, after in pairwise(choices)
        if before.counts.writer not in (after.counts.writer, *(span.writer for span in after.complementary()))
        and before.counts.writer.name
        and before.counts.last_ns >= after.start_ns()
    }
    if late:
        longest_ns = max(late.values())
        notes.append(
            f"{len(late)} {'process' if len(late) == 1 else 'processes'} of an earlier attempt went on recording after "
            f"the next attempt started, for up to {longest_ns / 1e9:.0f} s: {_named(late)}; this time counts once, for "
            "the new attempt"
        )
    return notes


def _named(writers: Iterable[Writer]) -> str:
    names = sorted(map(str, writers))
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return "; ".join(names[:_MOST_NAMED]) + more
