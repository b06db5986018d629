"""Small fleets of generated lives of jobs, as entries of logs, tables of events, and segments of a mirror."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st
from ml_diagnostics_common.entry import EntryContext, LogEntry
from ml_diagnostics_common.journal import log_folder_name
from ml_diagnostics_common.mirror.names import EndName, LogPaths, SegmentName, day_of
from ml_diagnostics_common.mirror.segments import encode_segment
from ml_diagnostics_fleet.event_tables import EventTables
from ml_diagnostics_fleet.events import write_events
from ml_diagnostics_fleet.job_map import parts_of_jobs, rows_of_job
from ml_diagnostics_fleet.job_rows import JobRows, job_rows
from ml_diagnostics_fleet.schemas import TABLES, JobKey, group_of
from ml_goodput_measurement.partition import JobReport
from ml_goodput_measurement.reading import JobLedger

from ..ml_goodput_measurement.histories import BASE, Payload
from ..ml_goodput_measurement.lives import lives

FIRST = 100_000_000_000
NOW_NS = int((BASE + 30 * 86_400) * 1e9)
"""Long after all lives: each job is silent or has ended."""


@dataclass
class Writer:
    """One process of a job, and what it recorded."""

    name: str
    labels: dict[str, str]
    payloads: list[Payload]


@dataclass
class Job:
    """A job of a fleet."""

    key: JobKey
    writers: list[Writer] = field(default_factory=list)

    def entries(self) -> list[LogEntry]:
        """Return the entries of all writers, merged by time as readers do it."""
        entries = []
        for writer in self.writers:
            labels = {"job": self.key.job, **writer.labels}
            context = EntryContext(self.key.log, "", {}, labels, writer=writer.name)
            last_ns = 0
            for number, payload in enumerate(writer.payloads):
                last_ns = max(last_ns + 1, recorded_ns(payload))
                entries.append(LogEntry(last_ns, FIRST + number, {**payload, "job_name": self.key.job}, context))
        return sorted(entries, key=lambda entry: (entry.timestamp_ns, entry.insert_id))

    def table(self) -> pa.Table:
        """Return its events."""
        tables = EventTables(self.key.log)
        tables.add(self.entries())
        return tables.take()[self.key]

    def segments(self, mirror: str, each: int = 10_000, level: int = 0) -> Iterator[tuple[str, bytes]]:
        """Yield the objects of a mirror, with so many entries in each."""
        objects = LogPaths(mirror, log_folder_name(self.key.log))
        entries = self.entries()
        for writer in self.writers:
            mine = [entry for entry in entries if entry.context.writer == writer.name]
            for start in range(0, len(mine), each):
                yield segment(objects, mine[start : start + each], level)
            if mine:
                yield objects.path(EndName(day_of(mine[-1].timestamp_ns), writer.name)), b'{"by": "self"}'


def recorded_ns(payload: Payload) -> int:
    """Return when a payload was recorded: the time of its event, or long before all if it has none."""
    times = [value for key, value in payload.items() if isinstance(value, float) and key.endswith(("_time", "_ended"))]
    return int((max(times, default=BASE) + sum(_durations(payload))) * 1e9) + 7


def _durations(payload: Payload) -> list[float]:
    return [value for key, value in payload.items() if key.endswith("blocking_duration_secs")][:1]


def segment(objects: LogPaths, entries: Sequence[LogEntry], level: int = 0) -> tuple[str, bytes]:
    """Return path and content of an object with some entries of one writer."""
    context = entries[0].context
    writer = context.writer or ""
    header = {"schema": 1, "log": context.log_id, "writer": writer, "labels": dict(context.labels)}
    header |= {"resource": {}, "severity": "INFO", "ship": True}
    lines = b"".join(
        b"\n" + json.dumps({"t": entry.timestamp_ns, "s": entry.sequence, "p": entry.payload}).encode()
        for entry in entries
    )
    numbers = [entry.sequence for entry in entries]
    name = SegmentName(day_of(entries[0].timestamp_ns), writer, min(numbers), max(numbers), level)
    return objects.path(name), encode_segment(json.dumps(header).encode(), lines, level)


def write_objects(objects: Iterable[tuple[str, bytes]]) -> None:
    """Write objects to a folder."""
    for path, data in objects:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_bytes(data)


def write_files(folder: Path, jobs: Iterable[Job]) -> list[str]:
    """Write a file of events for each group of some jobs; return their paths."""
    by_group: dict[str, list[Job]] = {}
    for job in jobs:
        by_group.setdefault(group_of(job.key), []).append(job)
    paths = []
    for group, members in sorted(by_group.items()):
        path = folder / f"{group}.parquet"
        write_events(str(path), [(job.key, job.table()) for job in sorted(members, key=lambda job: job.key)])
        paths.append(str(path))
    return paths


def rows_of_files(paths: Iterable[str], as_of_ns: int = NOW_NS) -> JobRows:
    """Return the rows of all jobs of some files."""
    rows = JobRows()
    for key, parts in sorted(parts_of_jobs(paths).items()):
        rows.extend(rows_of_job(key, parts, as_of_ns))
    return rows


def rows_of(job: Job, as_of_ns: int = NOW_NS) -> JobRows:
    """Return the rows of one job, from its table of events."""
    return job_rows(job.key, job.table().to_batches(), as_of_ns)


def as_dicts(rows: JobRows, table: str) -> list[dict[str, Any]]:
    """Return the rows of a table by the names of its columns."""
    found: list[dict[str, Any]] = rows.table(table).to_pylist()
    return found


def same_rows(found: JobRows, expected: JobRows) -> bool:
    """Return True if every row of every table is equal."""
    return all(found.table(name).equals(expected.table(name)) for name in TABLES)


def report_of(job: Job, as_of_ns: int = NOW_NS) -> JobReport | None:
    """Return the report of a job from its entries, without a table of events."""
    ledger = JobLedger(job.key.job)
    ledger.add(job.entries())
    return ledger.report(ledger.end_of_life(as_of_ns))


def assert_equals_report(rows: JobRows, report: JobReport | None) -> None:
    """Check every number of a job's rows against its report."""
    (job,) = as_dicts(rows, "jobs")
    if report is None:
        assert (job["start_ns"], rows.ledger_rows, rows.attempts, rows.disruptions) == (None, [], [], [])
        return
    assert_same(job, report, "start_ns end_ns running last_step steps_kept estimated_ns data_loading_async_ns")
    assert (job["attempts"], job["disruptions"]) == (len(report.attempts), len(report.disruptions))
    sums: dict[tuple[int, str, str], int] = {}
    for row in as_dicts(rows, "ledger_rows"):
        key = row["attempt"], row["bucket"], row["label"]
        sums[key] = sums.get(key, 0) + row["ns"]
    expected = {}
    for attempt in report.attempts:
        for bucket, length in attempt.buckets.items():
            if bucket.name != "CUSTOM":
                expected[attempt.number, bucket.value, ""] = length
        for label, length in attempt.custom.items():
            expected[attempt.number, "CUSTOM_BADPUT_EVENTS", label] = length
    assert sums == {key: length for key, length in expected.items() if length}
    assert sum(sums.values()) == report.wall_ns
    for row, attempt in zip(as_dicts(rows, "attempts"), report.attempts, strict=True):
        assert_same(row, attempt, "start_ns end_ns first_step last_step steps_kept steps_lost")
        assert (row["attempt"], row["ended"]) == (attempt.number, attempt.ended.value)
    parts = "infrastructure_ns init_ns restore_ns data_loading_ns startup_ns recompute_ns"
    for row, one in zip(as_dicts(rows, "disruptions"), report.disruptions, strict=True):
        assert_same(row, one, f"number attempt last_event_ns resumed_ns failed_attempts steps_lost {parts}")


def assert_same(row: dict[str, Any], expected: object, names: str) -> None:
    """Check columns of a row against the attributes of the same names."""
    assert {name: row[name] for name in names.split()} == {name: getattr(expected, name) for name in names.split()}


@st.composite
def jobs(draw: st.DrawFn, index: int = 0) -> Job:
    """Return a job: one or two recorders, one or several processes of each, and some entries that are not events."""
    name = draw(st.sampled_from([f"run-{index}", f"Lauf {index} äöü/%", f"r{index}" * 30]))
    job = Job(JobKey(draw(st.sampled_from([f"goodput_{name}", "one log"])), name))
    factor = draw(st.sampled_from([1, 1, 3_000]))
    for process in range(draw(st.sampled_from([1, 1, 1, 2]))):
        payloads, _ = draw(lives())
        payloads = [slower(payload, factor) for payload in payloads]
        payloads += draw(st.lists(st.sampled_from(_ODD), max_size=2))
        labels = {"host": f"host-{process}", "process_index": str(draw(st.sampled_from([process, process, 0])))}
        labels |= draw(st.sampled_from([{}, {"team": "a", "chips": "16"}, {"attempt": "1", "pid": "7"}]))
        parts = draw(st.sampled_from([1, 1, 2]))
        middle = len(payloads) // parts
        for number, part in enumerate((payloads[:middle], payloads[middle:]) if parts == 2 else (payloads,)):
            if part:
                job.writers.append(Writer(f"w{index}-{process}-{number}", labels, part))
    if not job.writers:
        job.writers.append(Writer(f"w{index}", {"host": "h"}, [{"job_start_time": BASE}]))
    return job


@st.composite
def fleets(draw: st.DrawFn, most: int = 20) -> list[Job]:
    """Return jobs with different keys."""
    return [draw(jobs(index)) for index in range(draw(st.integers(1, most)))]


_ODD: list[Payload] = [
    {"step_start_time": None, "step_count": 1},
    {"lost_entries": {"disk full": 3}, "lost_by": "one"},
    {"anything": ["else", None, 1.5]},
    {"job_end_time": BASE + 1, "process_outcome": "failed", "process_began": BASE, "process_ended": BASE + 1},
    {"elastic_slice_counts_timestamp": BASE + 2, "active_slices": 1, "total_slices": 2, "available_slices": 2},
    {"checkpoint_progress_step": 2, "checkpoint_progress_started": BASE + 3},
]


def slower(payload: Payload, factor: int) -> Payload:
    """Return a payload with every time so many times as far from the base."""
    return {key: _slower(key, value, factor) for key, value in payload.items()}


def _slower(key: str, value: Any, factor: int) -> Any:
    if not isinstance(value, float):
        return value
    return value * factor if key.endswith("_secs") else BASE + (value - BASE) * factor
