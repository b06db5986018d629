"""The map: all facts of one job to its rows. It is a pure function, so any engine can call it.

There is one definition of goodput: the ledger of `ml_goodput_measurement`. This is where it is applied to a table of
events; whatever sums the rows needs no rules.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from ml_goodput_measurement.partition import AttemptSummary, Disruption, JobReport
from ml_goodput_measurement.reading import RULES, JobLedger, Writer

from ml_diagnostics_fleet._batches import FOREIGN, Identities, event_batch, parts_of
from ml_diagnostics_fleet.schemas import TABLES, JobKey

__all__ = ["ERROR", "AttemptHosts", "Cause", "JobCauses", "JobRows", "error_rows", "job_rows"]

ERROR: Final = "error: "
"""`rules` of a job starts with it if its map failed."""

_EPOCH = datetime.date(1970, 1, 1).toordinal()
_LONGEST_ERROR = 500
_MOST_CHIPS = 2**40
_MOST_LOST = 2**62
"""A payload may have any number, and one that does not fit into its column would be an error of all jobs."""


@dataclass(frozen=True, slots=True)
class Cause:
    """The cause of a disruption, as the doctor names it."""

    rule: str
    host: str | None
    confidence: str
    """`proven`, `likely` or `possible`."""
    last_event_ns: int | None = None
    """The last event of the attempt that was judged: a disruption with another one has no known cause. None for any."""

    def columns(self, last_event_ns: int) -> tuple[str | None, str | None, str | None]:
        """Return cause, host and confidence of the disruption with that last event."""
        if self.last_event_ns not in (None, last_event_ns):
            return None, None, None
        return self.rule, self.host, self.confidence


class AttemptHosts(NamedTuple):
    """The hosts of an attempt that started at a moment."""

    start_ns: int
    hosts: tuple[str, ...]

    def added_to(self, recorded: Iterable[str], start_ns: int) -> list[str]:
        """Return the hosts of the attempt that started then, with those that recorded something, by name."""
        return sorted({*recorded, *(self.hosts if self.start_ns == start_ns else ())})


class JobCauses(dict[int, Cause]):
    """The doctor's findings on a job: the causes of its disruptions by number.

    Attributes:
        hosts: The hosts of its attempts by number, also those that record no goodput.
    """

    def __init__(self) -> None:
        super().__init__()
        self.hosts: dict[int, AttemptHosts] = {}


@dataclass(slots=True)
class JobRows:
    """The rows of some jobs: tuples in the order of the columns of `TABLES`."""

    ledger_rows: list[tuple[Any, ...]] = field(default_factory=list)
    jobs: list[tuple[Any, ...]] = field(default_factory=list)
    attempts: list[tuple[Any, ...]] = field(default_factory=list)
    disruptions: list[tuple[Any, ...]] = field(default_factory=list)

    def extend(self, other: JobRows) -> None:
        """Add the rows of other jobs."""
        for name in TABLES:
            getattr(self, name).extend(getattr(other, name))

    def error(self) -> str:
        """Return why the map of the first job failed; empty if it did not."""
        rules = str(self.jobs[0][-1]) if self.jobs else ""
        return rules.removeprefix(ERROR) if rules.startswith(ERROR) else ""

    def table(self, name: str) -> pa.Table:
        """Return the rows of one table of `TABLES`, in the order of its keys."""
        schema, rows = TABLES[name], sorted(getattr(self, name), key=_KEYS[name])
        columns = list(zip(*rows, strict=True)) if rows else [()] * len(schema)
        return pa.table(
            [pa.array(column, item.type) for column, item in zip(columns, schema, strict=True)], schema=schema
        )


_KEYS: Final = {
    "ledger_rows": lambda row: row[:6],
    "jobs": lambda row: row[:2],
    "attempts": lambda row: row[:3],
    "disruptions": lambda row: row[:3],
}


@dataclass(slots=True)
class _Recorded:
    """One writer of a job, and the time of its entries."""

    writer: Writer
    labels: Mapping[str, Any]
    first_ns: int
    last_ns: int


def job_rows(
    key: JobKey,
    batches: Iterable[pa.RecordBatch],
    as_of_ns: int,
    *,
    missing: Mapping[str, int] | None = None,
    ended: Container[str] | None = None,
    causes: Mapping[int, Cause] | None = None,
) -> JobRows:
    """Return the rows of one job: a function of its facts, the moment and the rules, and of nothing else.

    Order, repetition and division of the rows of events change nothing.

    Args:
        key: The job.
        batches: All its events, with the columns of `EVENTS`; columns of text may be dictionaries or not.
        as_of_ns: The moment at which jobs that run end, in ns since 1970; the same for all jobs of a fleet.
        missing: The number of entries that did not arrive, by writer, as far as their numbers show that.
        ended: The writers that recorded their end; None if that is not known.
        causes: Causes of the job's disruptions, by their numbers; the hosts of `JobCauses` are part of its attempts.
    """
    ledger, seen = JobLedger(key.job), Identities()
    recorded: dict[tuple[str, str], _Recorded] = {}
    entries = 0
    for batch in batches:
        for writer, identity, labels, rows in parts_of(batch):
            rows = seen.new(identity, rows)
            if not rows.num_rows:
                continue
            entries += rows.num_rows
            _note(recorded, identity, writer, labels, rows.column("t_ns"))
            ledger.add_batch(writer, event_batch(rows, key.job, ledger.skipped))
    moment = ledger.end_of_life(as_of_ns)
    report = ledger.report(moment, include_ideal=False)
    writers = sorted(recorded.values(), key=lambda one: (one.writer.process_index, one.first_ns, one.writer))
    names = {one.writer.name for one in writers if one.writer.name}
    quality = (
        entries,
        sum(ledger.skipped.values()),
        min(max(ledger.lost, 0), _MOST_LOST),
        sum((missing or {}).get(name, 0) for name in names),
        0 if ended is None else sum(name not in ended for name in names),
        _labels_of(writers),
        as_of_ns,
        RULES,
    )
    if report is None:
        return JobRows(jobs=[(*key, None, None, False, 0, 0, 0, 0, 0, 0, 0, *quality)])
    days = [
        (*key, one.attempt, _date(one.day), one.bucket.value, one.label, one.ns, as_of_ns, RULES)
        for one in ledger.days(moment)
    ]
    job = _job_row(key, report, ledger.saves())
    starts = [attempt.start_ns for attempt in report.attempts]
    hosts = causes.hosts if isinstance(causes, JobCauses) else {}
    attempts = [
        _attempt_row(key, attempt, first_ns, writers, until_ns, hosts.get(attempt.number))
        for attempt, first_ns, until_ns in zip(
            report.attempts, ledger.first_step_times(), [*starts[1:], None], strict=True
        )
    ]
    disruptions = [_disruption_row(key, one, (causes or {}).get(one.number)) for one in report.disruptions]
    return JobRows(days, [(*job, *quality)], attempts, disruptions)


def error_rows(key: JobKey, error: BaseException | str, as_of_ns: int) -> JobRows:
    """Return the row of a job of which the map failed."""
    reason = error if isinstance(error, str) else f"{type(error).__name__}: {error}"
    rules = f"{ERROR}{reason}"[:_LONGEST_ERROR].encode(errors="replace").decode()
    return JobRows(jobs=[(*key, None, None, False, *[0] * 12, "{}", as_of_ns, rules)])


def _job_row(key: JobKey, report: JobReport, saves: int) -> tuple[Any, ...]:
    return (
        *key,
        report.start_ns,
        report.end_ns,
        report.running,
        report.last_step,
        report.steps_kept,
        len(report.disruptions),
        len(report.attempts),
        report.estimated_ns,
        report.data_loading_async_ns,
        saves,
    )


def _attempt_row(
    key: JobKey,
    attempt: AttemptSummary,
    first_step_ns: int | None,
    writers: list[_Recorded],
    until_ns: int | None,
    known: AttemptHosts | None,
) -> tuple[Any, ...]:
    present = [
        one for one in writers if one.last_ns >= attempt.start_ns and (until_ns is None or one.first_ns < until_ns)
    ]
    chips = (_chips(one.labels) for one in present)
    recorded = {one.writer.host for one in present if one.writer.host}
    return (
        *key,
        attempt.number,
        attempt.start_ns,
        attempt.end_ns,
        attempt.ended.value,
        attempt.first_step,
        attempt.last_step,
        first_step_ns,
        attempt.steps_kept,
        attempt.steps_lost,
        sorted(recorded) if known is None else known.added_to(recorded, attempt.start_ns),
        next((count for count in chips if count is not None), None),
    )


def _disruption_row(key: JobKey, one: Disruption, cause: Cause | None) -> tuple[Any, ...]:
    return (
        *key,
        one.number,
        one.attempt,
        one.last_event_ns,
        one.resumed_ns,
        one.infrastructure_ns,
        one.init_ns,
        one.restore_ns,
        one.data_loading_ns,
        one.startup_ns,
        one.recompute_ns,
        one.failed_attempts,
        one.steps_lost,
        *((None, None, None) if cause is None else cause.columns(one.last_event_ns)),
    )


def _note(
    recorded: dict[tuple[str, str], _Recorded], identity: str, writer: Writer, labels: str, times: pa.Array
) -> None:
    """Note that a writer recorded something between the first and the last of some times."""
    values = pc.min_max(times)
    first_ns, last_ns = values["min"].as_py(), values["max"].as_py()
    index = (FOREIGN if identity.startswith(FOREIGN) else identity, f"{writer.host} {labels}")
    known = recorded.get(index)
    if known is None:
        recorded[index] = _Recorded(writer, json.loads(labels), first_ns, last_ns)
    else:
        known.first_ns, known.last_ns = min(known.first_ns, first_ns), max(known.last_ns, last_ns)


_OF_A_PROCESS: Final = {"attempt", "pid"}


def _labels_of(writers: list[_Recorded]) -> str:
    """Return the labels of a job as JSON: of several values the one that counts is that of its latest writer."""
    labels: dict[str, str] = {}
    for one in sorted(writers, key=lambda one: (one.last_ns, -one.writer.process_index, one.writer)):
        labels.update((name, str(value)) for name, value in one.labels.items() if name not in _OF_A_PROCESS)
    # JSON may have half of a character, of which no engine of SQL makes text.
    return json.dumps({_text(name): _text(value) for name, value in labels.items()}, sort_keys=True)


def _text(text: str) -> str:
    return text.encode(errors="replace").decode()


def _chips(labels: Mapping[str, Any]) -> int | None:
    text = str(labels.get("chips", ""))
    return int(text) if text.isascii() and text.isdigit() and len(text) < 13 and 0 < int(text) < _MOST_CHIPS else None


def _date(day: int) -> datetime.date:
    return datetime.date.fromordinal(_EPOCH + day)
