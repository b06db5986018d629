"""The recorders of one job: a ledger of the facts that count, and the facts of other writers, kept aside."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, takewhile, zip_longest
from operator import itemgetter
from typing import Any, NamedTuple

from ml_goodput_measurement._ledger.events import EventBatch, JobStart, read_events
from ml_goodput_measurement._ledger.facts import NEVER_NS, Facts
from ml_goodput_measurement._ledger.ledger import Ledger
from ml_goodput_measurement._ledger.writers import (
    ChosenWriter,
    Span,
    Writer,
    choose_writers,
    describe_choices,
    span_of,
    spans_of,
)
from ml_goodput_measurement.partition import Bucket, Inference

__all__ = ["Recorders"]


class _Records:
    """The facts of one writer: in the ledger if they count, else aside."""

    __slots__ = ("_aside", "first_batch", "has_unplaced", "in_ledger", "is_stale", "spans", "unplaced", "writer")

    def __init__(self, writer: Writer) -> None:
        self.writer = writer
        self.spans: list[Span] = []
        self.is_stale = True
        """True while `spans` have to be computed from the facts."""
        self._aside: Facts | None = None
        self.first_batch: EventBatch | None = None
        """The facts aside, while they are one batch: most of thousands of writers need no `Facts` of their own."""
        self.has_unplaced = False
        """True while `aside` may have facts that belong to the ledger."""
        self.unplaced: list[EventBatch] = []
        """Facts to be put aside, of a writer that completes another: the facts aside are already in the ledger."""
        self.in_ledger = False
        """True if the ledger may have facts of it that are not aside."""

    @property
    def aside(self) -> Facts | None:
        """The facts that are not in the ledger, or None."""
        if self.first_batch is not None:
            self._aside = Facts()
            self._aside.add(self.first_batch)
            self.first_batch = None
        return self._aside

    @aside.setter
    def aside(self, facts: Facts | None) -> None:
        self._aside, self.first_batch = facts, None

    def put_aside(self, batch: EventBatch) -> None:
        """Keep facts that are not in the ledger, or that another writer of the ledger has as well: see `_Owner.own`."""
        aside = self.aside
        if aside is None:
            self.first_batch = batch
        else:
            aside.add(batch)


class _Owner(NamedTuple):
    """The writer with facts in the ledger, for an interval of time."""

    records: _Records
    others: tuple[_Records, ...] = ()
    """Writers with facts that count as well; they are also kept aside."""

    def own(self, facts: Facts, start_ns: int, end_ns: int, *, common_with: EventBatch | None = None) -> EventBatch:
        """Return the ledger's facts of an interval of time without those of the others.

        Of a fact that the owner has as well, it has one aside, too.

        Args:
            facts: The facts of the ledger.
            start_ns: The start of the interval.
            end_ns: Its end.
            common_with: Return only those that this batch has as well.
        """
        found = facts.between(start_ns, end_ns)
        if common_with is not None:
            found = found.common(common_with)
        return found.without(self._of_others(start_ns, end_ns))

    def common(self, batch: EventBatch, start_ns: int, end_ns: int) -> Iterator[EventBatch]:
        """Yield those of the owner's facts of an interval of time that one of the others has as well."""
        common = (batch.common(other) for other in self._of_others(start_ns, end_ns))
        return (events for events in common if events.records_job())

    def _of_others(self, start_ns: int, end_ns: int) -> Iterator[EventBatch]:
        return (records.aside.between(start_ns, end_ns) for records in self.others if records.aside is not None)


class Recorders:
    """A ledger of the writers that count, each at its time: see `writers`.

    The ledger holds each fact of the writer that counts at that time; facts of other writers are kept aside, because
    later entries may change the writer that counts. Checkpoint operations are different: every host may report them, so
    all go to the ledger.
    """

    def __init__(self, job_name: str) -> None:
        self.job_name = job_name
        self.skipped: Counter[str] = Counter()
        """Entries of this job that could not be read, by reason."""
        self.lost: dict[str, dict[str, int]] = {}
        """Entries that a recorder could not write, by reason, under the name of each report."""
        self.untimed: set[str] = set()
        """Checkpoint operations recorded without a start, for which one is assumed."""
        self.inferred: dict[Inference, None] = {}
        """The kinds of events that are inferred, in the order of the log."""
        self.compiled: dict[str, tuple[int, float, int, int]] = {}
        """Compilations of each process: their number and seconds, and the hits and misses of the compilation cache."""
        self._ledger = Ledger()
        self._records: dict[tuple[int, str], _Records] = {}
        self._changed: dict[tuple[int, str], _Records] = {}
        """Writers that recorded something since `_choices` were made."""
        self._changed_order: tuple[int, Writer] = _LAST
        """No span before this one changed since then."""
        self._spans: list[Span] = []
        """The spans of all writers, in order; not maintained while there is only one."""
        self._order: list[tuple[int, Writer]] = []
        self._choices: list[ChosenWriter] = []
        self._borders: list[int] = []
        """The times from which owners count; the first is -1."""
        self._owners: list[_Owner] = []
        self._first_owners: list[int] = []
        """The index of the first owner of each choice."""

    def add(self, writer: Writer, payloads: Iterable[Any]) -> None:
        """Add payloads of one writer, of any job.

        Args:
            writer: The writer.
            payloads: In any order, with repetitions.
        """
        self.add_batch(writer, read_events(payloads, self.job_name, self.skipped))

    def add_batch(self, writer: Writer, batch: EventBatch) -> None:
        """Add events of one writer.

        Args:
            writer: The writer.
            batch: Its events of this job, in any order, with repetitions; it is not used any more by the caller.
        """
        self.lost.update(batch.lost)
        self.untimed.update(batch.untimed)
        self.inferred.update(dict.fromkeys(batch.inferred))
        self.compiled.update(batch.compiled)
        if not batch.records_job():
            if batch.checkpoints:
                self._ledger.add(batch)
            return
        records = self._records.get(writer.key)
        if records is None:
            records = self._records[writer.key] = _Records(writer)
            if len(self._records) == 1:
                self._borders, self._owners, records.in_ledger = [-1], [_Owner(records)], True
            elif len(self._records) == 2:
                self._changed.update(self._records)
        elif writer > records.writer:  # Labels of a damaged segment are lost.
            records.writer, records.is_stale = writer, True
        if len(self._records) == 1:
            self._ledger.add(batch)
            return
        if batch.checkpoints:
            self._ledger.add(EventBatch(checkpoints=batch.checkpoints))
            batch.checkpoints = []
        first_ns, last_ns = batch.span()
        self._changed[writer.key] = records
        self._extend_span(records, batch, first_ns, last_ns)
        owners = self._owners[self._owner_at(first_ns) : self._owner_at(last_ns) + 1]
        if all(owner.records is records and not owner.others for owner in owners):
            self._ledger.add(batch)
            records.in_ledger = True
            return
        if any(records in owner.others for owner in owners):
            records.unplaced.append(batch)
            return
        records.put_aside(batch)
        records.has_unplaced |= any(owner.records is records for owner in owners)

    @property
    def ledger(self) -> Ledger:
        """The ledger of the facts that count; a new object if that changed for known facts."""
        if self._changed:
            self._choose()
        return self._ledger

    @property
    def fact_count(self) -> int:
        """The number of known facts of the job."""
        ledger = self.ledger
        return len(ledger.facts) + sum(len(records.aside) for records in self._stored() if records.aside is not None)

    def writers(self) -> list[Writer]:
        """Return the writers that count, in order of time: mostly one for each attempt of the job."""
        if self._changed:
            self._choose()
        return [owner.records.writer for owner in self._owners]

    def last_writer(self) -> Writer:
        """Return the writer that counts now."""
        if self._changed:
            self._choose()
        return self._owners[-1].records.writer if self._owners else Writer()

    def notes(self) -> list[str]:
        """Return notes on recorders that do not count, and on entries that were lost or could not be read."""
        if self._changed:
            self._choose()
        notes = describe_choices(self._choices)
        if self.compiled:
            notes.append(_describe_compilations(self.compiled.values()))
        lost: Counter[str] = Counter()
        for counts in self.lost.values():
            lost.update(counts)
        if self.untimed:
            count = len(self.untimed)
            notes.append(
                f"{count} {'save or restore' if count == 1 else 'saves or restores'} recorded without a start: counted "
                "from the start of the first part that has one, or else from the time of logging"
            )
        notes += [f"{count} entries were lost while recording: {reason}" for reason, count in sorted(lost.items())]
        return notes + [f"{count} entries were passed over: {reason}" for reason, count in sorted(self.skipped.items())]

    def to_state(self) -> tuple[dict[str, Any], list[Any]]:
        """Return everything as JSON and as columns of 64-bit numbers, some of them in parts: see `column_shapes`."""
        ledger, columns = self.ledger.to_state()
        numbers = {key: number for number, key in enumerate(self._records)}
        writers = []
        for records in self._records.values():
            state: dict[str, Any] = {"writer": records.writer, "in_ledger": records.in_ledger}
            if not records.is_stale:
                state["spans"] = [span.to_state() for span in records.spans]
            if records.aside is not None:
                own = records.aside.columns()
                state["aside"] = records.aside.to_state(), [(column.typecode, len(column)) for column in own]
                columns += own
            writers.append(state)
        owners = [
            (
                border,
                numbers[owner.records.writer.key],
                [numbers[one.writer.key] for one in owner.others],
            )
            for border, owner in zip(self._borders, self._owners, strict=True)
        ]
        state = {"ledger": ledger, "writers": writers, "owners": owners}
        inferred = [[each.bucket.value, each.label, each.source, each.certainty] for each in self.inferred]
        state |= {"inferred": inferred, "compiled": self.compiled}
        return {**state, "skipped": self.skipped, "lost": self.lost, "untimed": sorted(self.untimed)}, columns

    @staticmethod
    def column_shapes(state: dict[str, Any]) -> Iterator[tuple[str, int]]:
        """Yield type and length of each column that `to_state` returned with a state."""
        yield from state["ledger"]["columns"]
        for writer in state["writers"]:
            if "aside" in writer:
                yield from writer["aside"][1]

    @classmethod
    def from_state(cls, job_name: str, state: dict[str, Any], columns: Sequence[Any]) -> Recorders:
        """Return the recorders of a state from `to_state`."""
        recorders = cls(job_name)
        recorders.skipped, recorders.lost = Counter(state["skipped"]), dict(state["lost"])
        recorders.untimed = set(state["untimed"])
        for bucket, *details in state["inferred"]:
            recorders.inferred[Inference(Bucket(bucket), *details)] = None
        recorders.compiled = {process: tuple(counts) for process, counts in state["compiled"].items()}
        used = len(state["ledger"]["columns"])
        recorders._ledger = Ledger.from_state(state["ledger"], list(columns[:used]))
        everyone = []
        for stored in state["writers"]:
            records = _Records(Writer(*stored["writer"]))
            records.in_ledger = stored["in_ledger"]
            if "spans" in stored:
                records.is_stale = False
                records.spans = [Span.from_state(records.writer, span) for span in stored["spans"]]
                recorders._spans += records.spans
            if "aside" in stored:
                facts, shapes = stored["aside"]
                records.aside = Facts.from_state(facts, list(columns[used : used + len(shapes)]))
                used += len(shapes)
            recorders._records[records.writer.key] = records
            everyone.append(records)
        recorders._spans.sort(key=_order)
        recorders._order = [span.order for span in recorders._spans]
        recorders._choices = choose_writers(recorders._spans, [])
        recorders._first_owners = [0, *accumulate(map(len, _turns_of(recorders._choices)))][:-1]
        for border, number, others in state["owners"]:
            recorders._borders.append(border)
            recorders._owners.append(_Owner(everyone[number], tuple(everyone[other] for other in others)))
        return recorders

    def _stored(self) -> Iterator[_Records]:
        """Yield the writers without facts that are both aside and in the ledger."""
        completing = {id(one) for owner in self._owners for one in owner.others}
        return (records for records in self._records.values() if id(records) not in completing)

    def _owner_at(self, time_ns: int) -> int:
        return max(0, bisect_right(self._borders, time_ns) - 1)

    def _ranges(self, first: int, stop: int) -> Iterator[tuple[_Owner, int, int]]:
        """Yield some owners with the start and the end of each."""
        for index in range(first, stop):
            end_ns = self._borders[index + 1] if index + 1 < len(self._borders) else NEVER_NS
            yield self._owners[index], self._borders[index], end_ns

    # --- Spans ----------------------------------------------------------------------------------------------------

    def _extend_span(self, records: _Records, batch: EventBatch, first_ns: int, last_ns: int) -> None:
        """Extend a writer's span by a batch that lies in it; otherwise have the spans computed from the facts."""
        index = bisect_right(records.spans, first_ns, key=_start_ns) - 1
        border_ns = records.spans[index + 1].start_ns if index + 1 < len(records.spans) else NEVER_NS
        starts_attempt = any(isinstance(event, JobStart) for event in batch.others)
        if records.is_stale or index < 0 or last_ns >= border_ns or starts_attempt:
            records.is_stale = True
            return
        if index == 0 and records.spans[0].is_split_by(batch):
            records.is_stale = True
            return
        self._changed_order = min(self._changed_order, records.spans[index].order)
        records.spans[index].extend(batch, last_ns)

    def _spans_of(self, records: _Records) -> list[Span]:
        batch = records.first_batch
        if batch is not None and not records.in_ledger and not records.unplaced:
            span = span_of(records.writer, batch)
            if span is not None:
                return [span]
        return spans_of(records.writer, self._facts_of(records))

    def _facts_of(self, records: _Records) -> Facts:
        """Return all facts of a writer but checkpoint operations."""
        if not records.in_ledger and not records.unplaced:
            return records.aside or Facts()
        has_all = all(owner.records is records and not owner.others for owner in self._owners)
        if has_all and records.aside is None and not records.unplaced:
            return self._ledger.facts  # Not a copy: a job may have millions.
        facts = Facts()
        for owner, start_ns, end_ns in self._ranges(0, len(self._owners)):
            if owner.records is records:
                facts.add(owner.own(self._ledger.facts, start_ns, end_ns))
        if records.aside is not None:
            facts.add(records.aside.between(-1, NEVER_NS))
        for batch in records.unplaced:
            facts.add(batch)
        return facts

    # --- The writer that counts ---------------------------------------------------------------------------------------

    def _choose(self) -> None:
        """Choose the writer for each time, as far as that may have changed, and move facts accordingly."""
        self._renew_spans()
        # One before the first that may have changed: the turns of this one end at the start of that one.
        index = max(0, bisect_right(self._choices, self._changed_order, key=_first_order) - 2)
        known = self._first_owners[index] if index else 0
        position = bisect_left(self._order, _first_order(self._choices[index])) if index else 0
        self._choices = choose_writers(self._spans[position:], self._choices[:index])
        owners, borders = self._owners[:known], self._borders[:known]
        del self._first_owners[index:]
        for turns in _turns_of(self._choices[index:]):
            self._first_owners.append(len(owners))
            for start_ns, span, complementary in turns:
                others = (self._records[one.writer.key] for one in complementary)
                owners.append(_Owner(self._records[span.writer.key], tuple(others)))
                borders.append(start_ns if borders else -1)
        changed_ns = self._first_difference(borders, owners, known)
        if changed_ns <= self._ledger.facts.recorded_span()[1]:
            self._clear_ledger()
            changed_ns = -1
        self._owners, self._borders = owners, borders
        for records in self._changed.values():
            self._assign_completing(records)
        moved = [records for records in self._changed.values() if records.has_unplaced]
        if changed_ns != NEVER_NS:
            moved += [one for owner in owners[self._owner_at(changed_ns) :] for one in (owner.records, *owner.others)]
        self._changed, self._changed_order = {}, _LAST
        self._assign(list({id(records): records for records in moved}.values()))

    def _renew_spans(self) -> None:
        """Update the outdated spans of writers from their facts."""
        added: list[Span] = []
        for records in self._changed.values():
            if not records.is_stale:
                continue
            renewed = self._spans_of(records)
            same = sum(1 for _ in takewhile(_are_equal, zip(records.spans, renewed, strict=False)))
            for span in records.spans[same:]:
                index = bisect_left(self._order, span.order)
                self._changed_order = min(self._changed_order, span.order)
                del self._spans[index], self._order[index]
            added += renewed[same:]
            records.spans[same:], records.is_stale = renewed[same:], False
        if added:
            self._changed_order = min([self._changed_order, *(span.order for span in added)])
            self._spans = sorted([*self._spans, *added], key=_order)
            self._order = [span.order for span in self._spans]

    def _first_difference(self, borders: list[int], owners: list[_Owner], index: int) -> int:
        """Return the first moment that now has another owner, or `NEVER_NS`; owners before an index are the same."""
        for border in sorted({*self._borders[index:], *borders[index:]}):
            before = self._owners[self._owner_at(border)]
            if before != owners[max(0, bisect_right(borders, border) - 1)]:
                return border
        return NEVER_NS

    def _clear_ledger(self) -> None:
        """Put all facts but checkpoint operations aside."""
        facts = self._ledger.facts
        for owner, start_ns, end_ns in self._ranges(0, len(self._owners)):
            batch = owner.own(facts, start_ns, end_ns)
            if batch.records_job():
                owner.records.put_aside(batch)
        for records in self._records.values():
            records.in_ledger = False
        self._ledger = Ledger()
        self._ledger.add(EventBatch(checkpoints=facts.checkpoint_operations()))

    def _assign_completing(self, records: _Records) -> None:
        """Assign the facts of a writer that completed another one."""
        batches, records.unplaced = records.unplaced, []
        for batch in batches:
            first_ns, last_ns = batch.span()
            first, stop = self._owner_at(first_ns), self._owner_at(last_ns) + 1
            owners = self._owners[first:stop]
            for owner, start_ns, end_ns in self._ranges(first, stop):
                if records in owner.others:
                    interval = max(start_ns, first_ns), min(end_ns, last_ns + 1)
                    common = owner.own(self._ledger.facts, *interval, common_with=batch)
                    if common.records_job():
                        owner.records.put_aside(common)
            records.put_aside(batch)
            if all(records in owner.others for owner in owners):
                self._ledger.add(batch)
            else:
                records.has_unplaced = True

    def _assign(self, everyone: list[_Records]) -> None:
        """Move the facts that count from aside to the ledger."""
        parts: list[tuple[int, EventBatch]] = []
        for records in everyone:
            records.has_unplaced = False
            batch = records.first_batch
            if batch is not None:
                first_ns, last_ns = batch.span()
                first = self._owner_at(first_ns)
                owner = self._owners[first]
                if owner.records is records and not owner.others and first == self._owner_at(last_ns):
                    records.aside, records.in_ledger = None, True
                    parts.append((self._borders[first], batch))
                    continue
            aside = records.aside
            if aside is None:
                continue
            kept = Facts()
            first_ns, last_ns = aside.recorded_span()
            first, stop = self._owner_at(first_ns), self._owner_at(last_ns) + 1
            for owner, start_ns, end_ns in self._ranges(first, stop):
                batch = aside.between(start_ns, end_ns)
                if not batch.records_job():
                    continue
                if owner.records is records:
                    records.in_ledger = True
                    for common in owner.common(batch, start_ns, end_ns):
                        kept.add(common)
                else:
                    kept.add(batch)
                if owner.records is records or records in owner.others:
                    parts.append((start_ns, batch))
            records.aside = kept if len(kept) else None
        # In order of time, because facts after the ledger's last one are appended.
        for _, batch in sorted(parts, key=itemgetter(0)):
            self._ledger.add(batch)


_LAST = (NEVER_NS, Writer())


def _turns_of(choices: Sequence[ChosenWriter]) -> Iterator[list[tuple[int, Span, list[Span]]]]:
    """Yield the turns of each choice, of the last to its end, of the others as far as they start before the next."""
    for choice, following in zip_longest(choices, choices[1:]):
        end_ns = following.start_ns() if following else NEVER_NS
        yield [turn for turn in choice.turns() if turn[0] < end_ns or turn[1] is choice.counts]


def _start_ns(span: Span) -> int:
    return span.start_ns


def _order(span: Span) -> tuple[int, Writer]:
    return span.order


def _first_order(choice: ChosenWriter) -> tuple[int, Writer]:
    return choice.first.order


def _are_equal(spans: tuple[Span, Span]) -> bool:
    return spans[0].to_state() == spans[1].to_state()


def _describe_compilations(compiled: Iterable[tuple[int, float, int, int]]) -> str:
    """Return a note on the compilations of all processes."""
    counts, seconds, hits, misses = zip(*compiled, strict=True)
    cache = f"; the compilation cache had {sum(hits)} of {sum(hits) + sum(misses)}" if sum(hits) + sum(misses) else ""
    functions = "1 function" if sum(counts) == 1 else f"{sum(counts)} functions"
    return f"JAX compiled {functions} in {sum(seconds):.1f} s{cache}"
