"""The engine for one machine: the same rows with any number of processes, and whatever dies is named."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from ml_diagnostics_common.exceptions import StorageError
from ml_diagnostics_fleet import job_map, local_engine
from ml_diagnostics_fleet._workers import Failed, run_tasks
from ml_diagnostics_fleet.events import EventsFile, write_events
from ml_diagnostics_fleet.job_map import parts_of_jobs
from ml_diagnostics_fleet.job_rows import JobRows, job_rows
from ml_diagnostics_fleet.local_engine import run_local
from ml_diagnostics_fleet.manifest import EventsManifest, latest_events, latest_rows
from ml_diagnostics_fleet.rows_files import newest_rows, read_causes, read_table, row_paths, write_dimensions
from ml_diagnostics_fleet.schemas import EVENTS, TABLES, JobKey
from ml_diagnostics_fleet.synthetic import AS_OF_NS, SyntheticFleet, SyntheticJob, dimension_tables
from ml_diagnostics_fleet.synthetic_files import write_event_files

from .fleets import NOW_NS, Job, assert_equals_report, fleets, report_of, rows_of, rows_of_files, same_rows, write_files
from .worker_tasks import map_group, work

FLEET = SyntheticFleet(seed=2, jobs=10, events=6_000)


def tables_of(mirror: Path, snapshot: Any) -> list[pa.Table]:
    return [read_table(mirror, snapshot, name) for name in TABLES]


def test_one_process_two_processes_and_the_map_alone_give_the_same_rows(tmp_path: Path) -> None:
    write_event_files(tmp_path, FLEET)
    one = run_local(tmp_path, AS_OF_NS, processes=1)
    two = run_local(tmp_path, AS_OF_NS + 0, processes=2)
    assert (one.jobs, one.events, one.errors, one.failed_groups) == (10, two.events, [], [])
    assert tables_of(tmp_path, one.snapshot) == tables_of(tmp_path, two.snapshot)
    rows = JobRows()
    for job in FLEET:
        rows.extend(job_rows(job.key, job.table().to_batches(), AS_OF_NS))
    assert [rows.table(name) for name in TABLES] == tables_of(tmp_path, one.snapshot)
    (snapshot,) = latest_rows(tmp_path).snapshots
    assert snapshot == two.snapshot


def shuffled_files(folder: Path, members: list[Job]) -> list[str]:
    """The events of all jobs in several files of a group: doubled, and 1 % of each job's, at least one, in the last."""
    parts: dict[str, list[tuple[JobKey, pa.Table]]] = {name: [] for name in "abc"}
    for job in sorted(members, key=lambda job: job.key):
        table = job.table()
        late = max(1, table.num_rows // 100)
        kept = table.slice(late)
        parts["c"].append((job.key, table.slice(0, late)))
        if kept.num_rows:
            parts["b"].append((job.key, kept.slice(kept.num_rows // 3)))
            parts["a"].append((job.key, kept.slice(0, 2 * kept.num_rows // 3 + 1)))
    paths = []
    for name, tables in parts.items():
        write_events(str(folder / name), tables)
        paths.append(str(folder / name))
    return [paths[1], paths[0], paths[1], paths[2]]


def check_fleet(folder: Path, members: list[Job]) -> None:
    """All rows of a fleet are those of its reports, from any files."""
    rows = rows_of_files(write_files(folder, members))
    expected = JobRows()
    for job in members:
        mine = rows_of(job)
        assert_equals_report(mine, report_of(job))
        expected.extend(mine)
    assert same_rows(rows, expected)
    shuffled = JobRows()
    for key, parts in parts_of_jobs(shuffled_files(folder, members)).items():
        batches = [batch for path, groups in parts for batch in EventsFile(path).batches(groups)]
        shuffled.extend(job_rows(key, [*batches[1:], *batches], NOW_NS))
    assert same_rows(shuffled, expected)


@settings(max_examples=12, deadline=None)
@given(fleets(most=4))
def test_fleets_have_the_rows_of_their_reports(tmp_path_factory: pytest.TempPathFactory, members: list[Job]) -> None:
    check_fleet(tmp_path_factory.mktemp("fleet"), members)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@settings(max_examples=300, deadline=None)
@given(fleets(most=20))
def test_three_hundred_fleets_have_the_rows_of_their_reports(
    tmp_path_factory: pytest.TempPathFactory, members: list[Job]
) -> None:
    check_fleet(tmp_path_factory.mktemp("fleet"), members)


def test_parts_of_a_job_are_in_order_of_time(tmp_path: Path) -> None:
    """A ledger inserts what is late: a million entries one by one would take minutes."""
    (job,) = SyntheticFleet(seed=4, jobs=1, events=3_000)
    table = job.table()
    thirds = [table.slice(start, 1_000) for start in (2_000, 0, 1_000)]
    write_events(str(tmp_path / "a"), [(job.key, thirds[0]), (job.key, thirds[1])])
    write_events(str(tmp_path / "b"), [(job.key, thirds[2])])
    (parts,) = parts_of_jobs([str(tmp_path / "a"), str(tmp_path / "b")]).values()
    assert [(Path(path).name, [group.number for group in groups]) for path, groups in parts] == [
        ("a", [1]),
        ("b", [0]),
        ("a", [0]),
    ]
    assert same_rows(rows_of_files([str(tmp_path / "a"), str(tmp_path / "b")]), rows_of_files_of(job, tmp_path))


def rows_of_files_of(job: SyntheticJob, folder: Path) -> JobRows:
    write_events(str(folder / "whole"), [(job.key, job.table())])
    return rows_of_files([str(folder / "whole")])


def test_a_function_of_duckdb_gives_the_same_rows() -> None:
    """Here only, to show that the map needs no engine: it would take twelve times the memory of a process."""
    duckdb = pytest.importorskip("duckdb", reason="DuckDB 2 needs Python 3.11")
    fleet = SyntheticFleet(seed=6, jobs=4, events=2_000)
    events = pa.concat_tables([job.table().cast(PLAIN) for job in fleet])

    def apply(log: str, job: str, entries: list[dict[str, Any]]) -> str:
        batches = pa.Table.from_pylist(entries, PLAIN).to_batches()
        return json.dumps(job_rows(JobKey(log, job), batches, AS_OF_NS).ledger_rows, default=str)

    connection = duckdb.connect()
    connection.register("events", events)
    columns = ", ".join(f"'{name}': {name}" for name in EVENTS.names)
    ((kind,),) = connection.execute(f"SELECT typeof(list({{{columns}}})) FROM events").fetchall()
    connection.create_function("apply", apply, ["VARCHAR", "VARCHAR", kind], "VARCHAR")
    found = connection.execute(
        f"SELECT apply(log, job, list({{{columns}}})) FROM events GROUP BY log, job ORDER BY log, job"
    ).fetchall()
    expected = [job_rows(job.key, job.table().to_batches(), AS_OF_NS).ledger_rows for job in fleet]
    assert [text for (text,) in found] == [json.dumps(rows, default=str) for rows in expected]


PLAIN = pa.schema(
    [pa.field(item.name, pa.string() if pa.types.is_dictionary(item.type) else item.type) for item in EVENTS]
)


def test_a_map_that_raises_is_the_row_of_its_job_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_event_files(tmp_path, FLEET)
    broken = FLEET.job(3).key

    def raise_for_one(key: JobKey, *arguments: Any, **named: Any) -> JobRows:
        if key == broken:
            raise ZeroDivisionError("a defect")
        return job_rows(key, *arguments, **named)

    monkeypatch.setattr(job_map, "job_rows", raise_for_one)
    run = run_local(tmp_path, AS_OF_NS, processes=1)
    assert (run.jobs, run.errors, run.snapshot.errors) == (10, [(broken, "ZeroDivisionError: a defect")], 1)
    jobs = {row["job"]: row for row in read_table(tmp_path, run.snapshot, "jobs").to_pylist()}
    assert jobs[broken.job]["rules"] == "error: ZeroDivisionError: a defect"
    assert {row["rules"] for name, row in jobs.items() if name != broken.job} == {"1"}
    assert broken.job not in set(read_table(tmp_path, run.snapshot, "ledger_rows")["job"].to_pylist())


def test_a_kind_of_a_newer_version_and_a_damaged_payload_are_errors_of_their_jobs(tmp_path: Path) -> None:
    table = FLEET.job(0).table()
    kinds = pa.array(["teleport"] * table.num_rows).dictionary_encode()
    write_events(tmp_path / "a", [(FLEET.job(0).key, table.set_column(8, table.schema.field("kind"), kinds))])
    rows = rows_of_files([str(tmp_path / "a")])
    assert "events have a row of kind 'teleport', which this version does not know" in rows.error()


def test_a_job_that_is_too_large_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_event_files(tmp_path, FLEET)
    sizes = {job.key: job.table().num_rows for job in FLEET}
    largest = max(sizes, key=lambda key: sizes[key])
    monkeypatch.setattr(job_map, "MOST_EVENTS", sizes[largest] - 1)
    run = run_local(tmp_path, AS_OF_NS, processes=1)
    assert run.errors == [(largest, f"{sizes[largest]:,} events are more than {sizes[largest] - 1:,}")]


def test_a_file_that_is_gone_is_an_error_with_its_name(tmp_path: Path) -> None:
    manifest = write_event_files(tmp_path, FLEET)
    (tmp_path / "v1" / manifest.files[0].path).unlink()
    with pytest.raises(FileNotFoundError, match=manifest.files[0].path):
        run_local(tmp_path, AS_OF_NS, processes=1)


def test_rows_of_a_moment_are_replaced_as_a_whole_and_others_are_kept(tmp_path: Path) -> None:
    write_event_files(tmp_path, FLEET)
    first = run_local(tmp_path, AS_OF_NS - 10**15, processes=1, now_ns=AS_OF_NS)
    second = run_local(tmp_path, AS_OF_NS, processes=1, now_ns=AS_OF_NS)
    again = run_local(tmp_path, AS_OF_NS, processes=1, now_ns=AS_OF_NS + 1)
    assert latest_rows(tmp_path).snapshots == (again.snapshot, first.snapshot)
    assert newest_rows(tmp_path) == again.snapshot
    assert newest_rows(tmp_path, AS_OF_NS - 1) == first.snapshot
    assert newest_rows(tmp_path, 5) is None
    old = [Path(path) for path in row_paths(tmp_path, second.snapshot, "jobs")]
    assert all(path.is_file() for path in old)
    run_local(tmp_path, AS_OF_NS + 5, processes=1, now_ns=AS_OF_NS + 8 * 86_400 * 10**9)
    assert not any(path.exists() for path in old)
    assert all(Path(path).is_file() for path in row_paths(tmp_path, again.snapshot, "jobs"))


def test_an_empty_table_has_empty_rows(tmp_path: Path) -> None:
    run = run_local(tmp_path, AS_OF_NS, processes=2)
    assert (run.jobs, run.events) == (0, 0)
    assert all(table.num_rows == 0 for table in tables_of(tmp_path, run.snapshot))
    assert latest_events(tmp_path) == EventsManifest()


def test_causes_of_the_doctor_are_joined(tmp_path: Path) -> None:
    write_event_files(tmp_path, FLEET)
    assert read_causes(tmp_path) == {}
    dimensions = dimension_tables(FLEET)
    write_dimensions(tmp_path, dimensions)
    run = run_local(tmp_path, AS_OF_NS, processes=1)
    found = {
        (row["job"], row["number"]): row["cause_host"]
        for row in read_table(tmp_path, run.snapshot, "disruptions").to_pylist()
    }
    causes = {(row["job"], row["number"]): row["cause_host"] for row in dimensions["causes"].to_pylist()}
    assert found == causes
    assert len(found) > 5


def results_of(folder: Path, *names: str) -> dict[str, str]:
    done = run_tasks(work, [(name, str(folder / "tries")) for name in names], 2)
    return {task[0]: result.reason if isinstance(result, Failed) else result for task, result in done}


def test_a_worker_that_dies_is_replaced_and_its_task_tried_once_more(tmp_path: Path) -> None:
    found = results_of(tmp_path, "a", "killed", "unlucky", "b", "exits", "c", "d")
    assert found == {
        "a": "A",
        "b": "B",
        "c": "C",
        "d": "D",
        "unlucky": "UNLUCKY",
        "killed": "its worker was ended by SIGKILL",
        "exits": "its worker exited with code 3",
    }
    tries = (tmp_path / "tries").read_text()
    assert {letter: tries.count(letter) for letter in "kue"} == {"k": 2, "u": 2, "e": 2}


def test_a_defect_of_a_task_is_raised(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="ZeroDivisionError: a defect"):
        results_of(tmp_path, "a", "raises")


_WITHOUT_GUARD = """
import sys
from ml_diagnostics_fleet.local_engine import run_local
print("imported", flush=True)
run_local(sys.argv[1], int(sys.argv[2]), processes=2)
"""


def test_a_script_that_its_workers_cannot_import_is_an_error_that_says_why(tmp_path: Path) -> None:
    write_event_files(tmp_path, FLEET)
    script = tmp_path / "script.py"
    script.write_text(_WITHOUT_GUARD)
    argv = [sys.executable, str(script), str(tmp_path), str(AS_OF_NS)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 1
    assert "worker processes cannot start: its worker exited with code 1; a script has to call this" in done.stderr
    assert done.stdout.count("imported") <= 1 + 3 + 2
    assert latest_rows(tmp_path).snapshots == ()


def test_a_group_that_fails_twice_is_named_with_its_jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_event_files(tmp_path, FLEET)

    def fail_one(function: Any, tasks: Any, processes: int) -> Any:
        yield tasks[0], Failed(tasks[0], "its worker was ended by SIGKILL")
        for task in tasks[1:]:
            yield task, function(task)

    monkeypatch.setattr(local_engine, "run_tasks", fail_one)
    run = run_local(tmp_path, AS_OF_NS, processes=2)
    ((group, reason),) = run.failed_groups
    assert reason == "its worker was ended by SIGKILL"
    assert run.errors
    assert {error for _, error in run.errors} == {f"group {group} failed twice: {reason}"}
    assert run.jobs == 10


def test_a_worker_that_is_killed_twice_by_a_group_costs_no_other_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = write_event_files(tmp_path, FLEET)
    entry = manifest.files[1]
    (tmp_path / "killed").write_text(entry.group)
    monkeypatch.setattr(local_engine, "_map_group", map_group)
    run = run_local(tmp_path, AS_OF_NS, processes=2)
    assert run.failed_groups == [(entry.group, "its worker was ended by SIGKILL")]
    assert {error for _, error in run.errors} == {f"group {entry.group} failed twice: its worker was ended by SIGKILL"}
    assert (len(run.errors), run.jobs) == (entry.jobs, 10)
    monkeypatch.undo()
    whole = run_local(tmp_path, AS_OF_NS - 1, processes=1)
    names = {key.job for key, _ in run.errors}
    kept = [row for row in rows_but_moment(tmp_path, whole.snapshot) if row["job"] not in names]
    assert [row for row in rows_but_moment(tmp_path, run.snapshot) if row["job"] not in names] == kept


def rows_but_moment(mirror: Path, snapshot: Any) -> list[dict[str, Any]]:
    """The rows of jobs that have ended, without the moment of the run."""
    rows = read_table(mirror, snapshot, "jobs").drop_columns(["as_of_ns"]).to_pylist()
    return [row for row in sorted(rows, key=lambda row: str(row["job"])) if not row["running"]]


def test_a_mirror_that_refuses_a_read_fails_the_run_and_is_no_error_of_a_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_event_files(tmp_path, FLEET)

    def refused(parts: object) -> Iterator[pa.RecordBatch]:
        raise StorageError("503 Service Unavailable")

    monkeypatch.setattr(job_map, "batches_of", refused)
    with pytest.raises(StorageError, match="503"):
        run_local(tmp_path, AS_OF_NS, processes=1)
    assert newest_rows(tmp_path) is None


def test_all_jobs_of_a_run_have_one_moment(tmp_path: Path) -> None:
    """Let jobs that run end then, whatever the clock says meanwhile, and however many processes there are."""
    write_event_files(tmp_path, SyntheticFleet(seed=2, jobs=40, events=6_000))
    for processes in (1, 2):
        run = run_local(tmp_path, AS_OF_NS, processes=processes, now_ns=AS_OF_NS + 12_345)
        for name in ("jobs", "ledger_rows"):
            assert set(read_table(tmp_path, run.snapshot, name)["as_of_ns"].to_pylist()) == {AS_OF_NS}
        running = [row for row in read_table(tmp_path, run.snapshot, "jobs").to_pylist() if row["running"]]
        assert running
        assert {row["end_ns"] for row in running} == {AS_OF_NS}
