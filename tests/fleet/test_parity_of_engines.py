"""Fleets have the same rows from every source and engine: every row of every table, to the nanosecond.

Sources are segments of both levels, shuffled, doubled, overlapping, and with the last part of them late. Engines are
one process, two processes, and a function in DuckDB, which is here only: it would take twelve times the memory.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from ml_diagnostics_fleet import _batches
from ml_diagnostics_fleet.compact import compact
from ml_diagnostics_fleet.job_rows import JobRows, job_rows
from ml_diagnostics_fleet.local_engine import run_local
from ml_diagnostics_fleet.rows_files import read_table
from ml_diagnostics_fleet.schemas import EVENTS, TABLES, JobKey

from .fleets import NOW_NS, Job, Writer, assert_equals_report, fleets, report_of, rows_of, write_objects

PLAIN = pa.schema(
    [pa.field(item.name, pa.string() if pa.types.is_dictionary(item.type) else item.type) for item in EVENTS]
)
Rows = dict[str, pa.Table]


def generated(count: int, most: int) -> list[Job]:
    """Return the jobs of so many generated fleets; the log of each names its fleet."""
    members: list[Job] = []
    numbers = iter(range(count))

    @settings(
        max_examples=count,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(fleets(most=most))
    def collect(jobs: list[Job]) -> None:
        number = next(numbers)
        for job in jobs:
            writers = [Writer(f"{one.name}-{number}", one.labels, one.payloads) for one in job.writers]
            members.append(Job(JobKey(f"{number} {job.key.log}", job.key.job), writers))

    collect()
    return members


def expected_rows(members: Iterable[Job]) -> Rows:
    """Return the rows of the map of each job by itself, each of which equals its report."""
    rows = JobRows()
    for job in members:
        mine = rows_of(job)
        assert_equals_report(mine, report_of(job))
        rows.extend(mine)
    return {name: rows.table(name) for name in TABLES}


def rows_of_mirror(mirror: Path, processes: int) -> Rows:
    run = run_local(mirror, NOW_NS, processes=processes)
    assert (run.errors, run.failed_groups) == ([], [])
    found = {name: read_table(mirror, run.snapshot, name) for name in TABLES}
    keys = {"ledger_rows": ["log", "job", "attempt", "day", "bucket", "label"], "jobs": ["log", "job"]}
    keys |= {"attempts": ["log", "job", "attempt"], "disruptions": ["log", "job", "number"]}
    return {name: table.sort_by([(key, "ascending") for key in keys[name]]) for name, table in found.items()}


def from_hours(mirror: Path, members: list[Job]) -> None:
    """Compact objects of level 1."""
    write_objects(one for job in members for one in job.segments(str(mirror), 1_000, level=1))
    compact(mirror, now_ns=NOW_NS)


def from_small_objects(mirror: Path, members: list[Job]) -> None:
    """Compact objects of both levels, shuffled, overlapping and doubled, in three parts: the last one has 1 %."""
    order = random.Random(5)
    objects = [one for job in members for each in (3, 4) for one in job.segments(str(mirror), each)]
    objects += [one for job in members[::2] for one in job.segments(str(mirror), 7, level=1)]
    order.shuffle(objects)
    late = -(-len(objects) // 100)
    for start, end in ((0, len(objects) // 2), (len(objects) // 2, -late), (-late, None)):
        write_objects(objects[start:end])
        compact(mirror, now_ns=NOW_NS)


def from_duckdb(members: Iterable[Job]) -> Rows:
    """Apply the map as a function of DuckDB, over rows in any order."""
    duckdb = pytest.importorskip("duckdb", reason="DuckDB 2 needs Python 3.11")
    rows = JobRows()

    def apply(log: str, job: str, entries: list[dict[str, Any]]) -> int:
        rows.extend(job_rows(JobKey(log, job), pa.Table.from_pylist(entries, PLAIN).to_batches(), NOW_NS))
        return len(entries)

    connection = duckdb.connect()
    connection.execute("SET threads = 1")
    connection.register("events", pa.concat_tables([job.table().cast(PLAIN) for job in members]))
    columns = ", ".join(f"'{name}': {name}" for name in EVENTS.names)
    ((kind,),) = connection.execute(f"SELECT typeof(list({{{columns}}})) FROM events").fetchall()
    connection.create_function("apply", apply, ["VARCHAR", "VARCHAR", kind], "BIGINT", side_effects=True)
    connection.execute(f"SELECT apply(log, job, list({{{columns}}})) FROM events GROUP BY log, job").fetchall()
    return {name: rows.table(name) for name in TABLES}


def found_rows(folder: Path, members: list[Job]) -> Iterator[tuple[str, Rows]]:
    """Yield the rows by each source and engine."""
    for name, source in (("hours", from_hours), ("small", from_small_objects)):
        source(folder / name, members)
        for processes in (1, 2):
            yield f"{name}, {processes} processes", rows_of_mirror(folder / name, processes)
    yield "duckdb", from_duckdb(members)


def different(found: Rows, expected: Rows) -> list[str]:
    """Return the names of tables that differ in any row."""
    return [name for name in TABLES if found[name].to_pylist() != expected[name].to_pylist()]


def check(folder: Path, members: list[Job]) -> None:
    expected = expected_rows(members)
    assert expected["jobs"].num_rows == len(members)
    for name, found in found_rows(folder, members):
        assert different(found, expected) == [], name


def test_fleets_have_the_same_rows_from_every_source_and_engine(tmp_path: Path) -> None:
    check(tmp_path, generated(8, most=4))


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_three_hundred_fleets_have_the_same_rows_from_every_source_and_engine(tmp_path: Path) -> None:
    members = generated(300, most=20)
    assert len({job.key.log.split()[0] for job in members}) == 300
    check(tmp_path, members)


def test_a_map_that_is_wrong_by_a_nanosecond_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The negative control: the comparison above is not blind."""
    members = generated(3, most=3)
    expected = expected_rows(members)
    from_hours(tmp_path, members)
    assert different(rows_of_mirror(tmp_path, 1), expected) == []
    read = _batches.event_batch

    def read_wrongly(*arguments: Any) -> Any:
        batch = read(*arguments)
        batch.step_times = [time_ns + 1 for time_ns in batch.step_times]
        return batch

    monkeypatch.setattr("ml_diagnostics_fleet.job_rows.event_batch", read_wrongly)
    assert "ledger_rows" in different(rows_of_mirror(tmp_path, 1), expected)
    assert "ledger_rows" in different(from_duckdb(members), expected)


def test_one_entry_that_is_lost_is_found(tmp_path: Path) -> None:
    members = generated(3, most=3)
    expected = expected_rows(members)
    lost = dataclasses.replace(members[0].writers[0], payloads=members[0].writers[0].payloads[:-1])
    members[0].writers[0] = lost
    from_hours(tmp_path, members)
    assert "jobs" in different(rows_of_mirror(tmp_path, 1), expected)
