"""The engine on Apache Beam: every row equals that of the engine for one machine, and of others that call the map."""

from __future__ import annotations

import operator
import pickle
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from ml_diagnostics_common.exceptions import ConfigurationError
from ml_diagnostics_common.storage import storage_for
from ml_diagnostics_fleet import job_map
from ml_diagnostics_fleet.beam_engine import PipelineError, run_beam
from ml_diagnostics_fleet.compact import compact
from ml_diagnostics_fleet.job_map import batches_of, qualities_of
from ml_diagnostics_fleet.job_rows import JobRows, job_rows
from ml_diagnostics_fleet.local_engine import FleetRun, run_local
from ml_diagnostics_fleet.manifest import latest_events, latest_rows
from ml_diagnostics_fleet.rows_files import write_dimensions
from ml_diagnostics_fleet.schemas import EVENTS, TABLES, JobKey
from ml_diagnostics_fleet.synthetic import AS_OF_NS, SyntheticFleet, dimension_tables
from ml_diagnostics_fleet.synthetic_files import write_event_files, write_segments
from ml_diagnostics_testing.cloud_storage import CloudStorageServer
from ml_diagnostics_testing.faults import Status

from ..ml_goodput_measurement.histories import History
from .beam_fleets import assert_same_rows, generated_fleets, in_order, quiet, rows_of_snapshot, write_mirror
from .fleets import NOW_NS, Job, Writer, write_objects

beam = pytest.importorskip(
    "apache_beam", reason="needs Apache Beam, which is in an environment of its own: nox -s beam"
)
quiet()

from ml_diagnostics_fleet import _beam_batch  # noqa: E402

TWO_PROCESSES = ["--direct_running_mode=multi_processing", "--direct_num_workers=2"]
FLEET = SyntheticFleet(seed=2, jobs=10, events=6_000)
Rows = dict[str, list[dict[str, Any]]]


@pytest.fixture(scope="module")
def mirror(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mirror")
    write_mirror(folder, generated_fleets(12, 6))
    return folder


@pytest.fixture(scope="module")
def expected(mirror: Path) -> Rows:
    return rows_of_snapshot(mirror, run_local(mirror, NOW_NS, processes=1).snapshot)


def rows_of(mirror: Path, **how: Any) -> Rows:
    run = run_beam(mirror, NOW_NS, **how)
    assert (run.errors, run.failed_groups) == ([], [])
    assert latest_rows(mirror).snapshots == (run.snapshot,)
    return rows_of_snapshot(mirror, run.snapshot)


def test_rows_of_a_pipeline_are_those_of_one_machine(mirror: Path, expected: Rows) -> None:
    assert len(expected["jobs"]) > 20
    assert_same_rows(rows_of(mirror), expected)


def test_rows_of_a_pipeline_over_segments_are_those_of_the_table_of_events(mirror: Path, expected: Rows) -> None:
    assert_same_rows(rows_of(mirror, source="segments"), expected)


@pytest.mark.parametrize("source", ["events", "segments"])
def test_rows_of_two_worker_processes_are_those_of_one_machine(mirror: Path, expected: Rows, source: str) -> None:
    assert_same_rows(rows_of(mirror, source=source, options=TWO_PROCESSES), expected)


def test_rows_of_a_function_in_duckdb_are_those_of_one_machine(mirror: Path, expected: Rows) -> None:
    assert_same_rows(rows_in_duckdb(mirror), expected)


def test_rows_of_a_bucket_are_those_of_one_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    bucket = "gs://bucket/team/mirror"
    with CloudStorageServer(buckets=["bucket"]) as server:
        for name, value in server.environment().items():
            monkeypatch.setenv(name, value)
        write_segments(bucket, SyntheticFleet(seed=4, jobs=3, events=900))
        compact(bucket, now_ns=AS_OF_NS)
        expected = rows_of_snapshot(bucket, run_local(bucket, AS_OF_NS, processes=1).snapshot)
        for how in ({}, {"source": "segments"}, {"options": TWO_PROCESSES}):
            assert_same_rows(rows_of_snapshot(bucket, run_beam(bucket, AS_OF_NS, **how).snapshot), expected)
        storage_for(bucket).close()  # type: ignore[attr-defined]


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_three_hundred_fleets_have_equal_rows_on_all_engines(tmp_path: Path) -> None:
    members = generated_fleets(300, 20)
    write_mirror(tmp_path, members)
    expected = rows_of_snapshot(tmp_path, run_local(tmp_path, NOW_NS, processes=2).snapshot)
    assert len(expected["jobs"]) == len(members)
    assert_same_rows(rows_of(tmp_path), expected)
    assert_same_rows(rows_of(tmp_path, options=TWO_PROCESSES), expected)
    assert_same_rows(rows_of(tmp_path, source="segments"), expected)
    assert_same_rows(rows_of(tmp_path, source="segments", options=TWO_PROCESSES), expected)
    assert_same_rows(rows_in_duckdb(tmp_path), expected)


def rows_in_duckdb(mirror: Path) -> Rows:
    """Return the rows that the map makes as a function of DuckDB, over lists of a job's events."""
    import duckdb

    manifest = latest_events(mirror)
    qualities = qualities_of(manifest)
    plain = pa.schema([(field.name, pa.string() if field.name in _TEXTS else field.type) for field in EVENTS])

    def rows_as_bytes(log: str, job: str, events: list[dict[str, Any]]) -> bytes:
        batches = pa.Table.from_pylist(events, schema=plain).to_batches()
        quality = qualities[log]
        rows = job_rows(JobKey(log, job), batches, NOW_NS, missing=quality.missing, ended=quality.ended)
        return pickle.dumps(rows)

    connection = duckdb.connect()
    files = [str(mirror / "v1" / entry.path) for entry in manifest.files]
    events = connection.sql(f"FROM read_parquet({files}, hive_partitioning = false)")
    columns = ", ".join(f'"{name}" {kind}' for name, kind in zip(events.columns, events.types, strict=True))
    struct = f"STRUCT({columns})"
    connection.create_function("job_rows", rows_as_bytes, ["VARCHAR", "VARCHAR", f"{struct}[]"], "BLOB")
    fields = ", ".join(f'"{name}" := "{name}"' for name in events.columns)
    found = connection.sql(
        f"SELECT job_rows(log, job, list(struct_pack({fields}))) FROM events GROUP BY log, job"
    ).fetchall()
    rows = JobRows()
    for (data,) in found:
        rows.extend(pickle.loads(data))
    return {name: in_order(name, rows.table(name)) for name in TABLES}


_TEXTS = {field.name for field in EVENTS if pa.types.is_dictionary(field.type)}


@pytest.mark.parametrize("source", ["events", "segments"])
def test_a_wrong_rule_in_the_map_is_found(
    mirror: Path, expected: Rows, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The negative control: one nanosecond more for the last bucket of one job."""
    last = JobKey(*list(expected["jobs"][-1].values())[:2])

    def wrong(key: JobKey, *arguments: Any, **named: Any) -> JobRows:
        rows = job_rows(key, *arguments, **named)
        if key == last:
            rows.ledger_rows[-1] = (*rows.ledger_rows[-1][:6], rows.ledger_rows[-1][6] + 1, *rows.ledger_rows[-1][7:])
        return rows

    monkeypatch.setattr("ml_diagnostics_fleet.job_map.job_rows", wrong)
    found = rows_of(mirror, source=source)
    with pytest.raises(AssertionError, match="ledger_rows"):
        assert_same_rows(found, expected)


def test_no_event_is_an_element_of_the_pipeline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_event_files(tmp_path, FLEET)
    results: list[Any] = []
    run_pipeline = beam.Pipeline.run
    monkeypatch.setattr(
        beam.Pipeline, "run", lambda *given, **named: results.append(run_pipeline(*given, **named)) or results[-1]
    )
    assert run_beam(tmp_path, AS_OF_NS).events > 6_000
    counts = [
        beam.metrics.monitoring_infos.extract_counter_value(info)
        for info in results[0].monitoring_infos()
        if info.urn == "beam:metric:element_count:v1"
    ]
    assert max(counts) == 10  # jobs


def test_a_pipeline_that_fails_leaves_nothing_that_counts_and_a_second_has_every_row_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_event_files(tmp_path, FLEET)

    def fail(*arguments: Any, **named: Any) -> None:
        raise OSError("the worker is gone")

    with monkeypatch.context() as patched:
        patched.setattr("ml_diagnostics_fleet._beam_batch.commit_rows", fail)
        with pytest.raises(PipelineError, match="the worker is gone"):
            run_beam(tmp_path, AS_OF_NS)
    assert latest_rows(tmp_path).snapshots == ()
    assert list(tmp_path.glob("v1/rows/jobs/*/*.parquet"))
    again = run_beam(tmp_path, AS_OF_NS)
    found = rows_of_snapshot(tmp_path, again.snapshot)
    assert_same_rows(found, rows_of_snapshot(tmp_path, run_local(tmp_path, AS_OF_NS, processes=1).snapshot))


def test_a_map_that_raises_is_the_row_of_its_job_and_causes_are_joined(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_event_files(tmp_path, FLEET)
    write_dimensions(tmp_path, dimension_tables(FLEET))
    broken = FLEET.job(3).key

    def raise_for_one(key: JobKey, *arguments: Any, **named: Any) -> JobRows:
        if key == broken:
            raise ZeroDivisionError("a defect")
        return job_rows(key, *arguments, **named)

    monkeypatch.setattr(job_map, "job_rows", raise_for_one)
    expected: FleetRun = run_local(tmp_path, AS_OF_NS, processes=1)
    rows = rows_of_snapshot(tmp_path, expected.snapshot)
    run = run_beam(tmp_path, AS_OF_NS)
    assert (run.jobs, run.events, run.errors) == (10, expected.events, [(broken, "ZeroDivisionError: a defect")])
    assert run.snapshot.errors == 1
    found = rows_of_snapshot(tmp_path, run.snapshot)
    assert_same_rows(found, rows)
    assert any(row["cause_host"] for row in found["disruptions"])


@pytest.mark.parametrize("source", ["events", "segments"])
def test_a_job_that_is_too_large_is_refused_by_name(
    mirror: Path, expected: Rows, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    largest = max(expected["jobs"], key=lambda row: row["entries"])
    monkeypatch.setattr(job_map, "MOST_EVENTS", largest["entries"] - 1)
    run = run_beam(mirror, NOW_NS, source=source)
    assert (JobKey(largest["log"], largest["job"])) in [key for key, _ in run.errors]
    assert all(f"more than {largest['entries'] - 1:,}" in error for _, error in run.errors)
    assert run.jobs == len(expected["jobs"])


def test_a_file_that_is_gone_is_an_error_with_its_name(tmp_path: Path) -> None:
    manifest = write_event_files(tmp_path, FLEET)
    (tmp_path / "v1" / manifest.files[0].path).unlink()
    with pytest.raises(PipelineError, match=manifest.files[0].path):
        run_beam(tmp_path, AS_OF_NS)


@pytest.mark.parametrize("source", ["events", "segments"])
def test_an_empty_mirror_has_empty_rows(tmp_path: Path, source: str) -> None:
    run = run_beam(tmp_path, AS_OF_NS, source=source)
    assert (run.jobs, run.events) == (0, 0)
    assert rows_of_snapshot(tmp_path, run.snapshot) == {name: [] for name in TABLES}


# --- Bundles that are tried again, and pipelines beside each other ----------------------------------------------------


def fail_once(function: Any) -> Any:
    """Return a function that raises at its first call, after it has done its work."""
    calls: list[int] = []

    def failing(*given: Any, **named: Any) -> Any:
        result = function(*given, **named)
        calls.append(1)
        if len(calls) == 1:
            raise OSError("the worker is gone")
        return result

    return failing


@pytest.mark.parametrize("step", ["parts_of_jobs", "rows_or_error", "RowsWriter.finish", "commit_rows"])
def test_a_bundle_that_is_tried_again_after_its_work_was_done_leaves_each_row_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    write_event_files(tmp_path, FLEET)
    expected = rows_of_snapshot(tmp_path, run_local(tmp_path, AS_OF_NS, processes=1).snapshot)
    path = f"ml_diagnostics_fleet._beam_batch.{step}"
    monkeypatch.setattr(path, fail_once(operator.attrgetter(step)(_beam_batch)))
    # The only runner in this process that tries again, as runners with workers do.
    run = run_beam(tmp_path, AS_OF_NS, options=["--runner=BundleBasedDirectRunner"])
    assert run.jobs == 10
    assert_same_rows(rows_of_snapshot(tmp_path, run.snapshot), expected)
    (file,) = run.snapshot.files["jobs"]
    written = {f"{path.relative_to(tmp_path / 'v1')}" for path in tmp_path.glob("v1/rows/jobs/*/*.parquet")}
    assert file in written
    assert len(written) == (
        3 if step == "RowsWriter.finish" else 2
    )  # One is of `run_local`, one of the try that failed.


def test_a_table_that_moves_on_while_a_pipeline_runs_changes_nothing_in_its_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    members = generated_fleets(4, 4)
    objects = [one for job in members for one in job.segments(f"{tmp_path}", 5)]
    write_objects(objects[::2])
    compact(tmp_path, now_ns=NOW_NS, through_ns=2**61, rolls_up=False)
    before = run_local(tmp_path, NOW_NS, processes=1)
    moved: list[int] = []

    def move_on(files: Any) -> Any:
        if not moved:
            write_objects(objects[1::2])
            moved.append(compact(tmp_path, now_ns=NOW_NS, through_ns=2**61, rolls_up=False).version)
        return job_map.parts_of_jobs(files)

    monkeypatch.setattr("ml_diagnostics_fleet._beam_batch.parts_of_jobs", move_on)
    run = run_beam(tmp_path, NOW_NS)
    assert run.snapshot.events_version == before.snapshot.events_version < moved[0]
    assert_same_rows(rows_of_snapshot(tmp_path, run.snapshot), rows_of_snapshot(tmp_path, before.snapshot))


def test_two_pipelines_at_once_leave_the_rows_of_one_of_them(tmp_path: Path) -> None:
    write_event_files(tmp_path, FLEET)
    program = f"from ml_diagnostics_fleet.beam_engine import run_beam; run_beam({f'{tmp_path}'!r}, {AS_OF_NS})"
    processes = [subprocess.Popen([sys.executable, "-c", program]) for _ in range(2)]
    assert [process.wait() for process in processes] == [0, 0]
    (snapshot,) = latest_rows(tmp_path).snapshots
    found = rows_of_snapshot(tmp_path, snapshot)
    assert_same_rows(found, rows_of_snapshot(tmp_path, run_local(tmp_path, AS_OF_NS, processes=1).snapshot))


def test_causes_that_changed_between_two_runs_of_a_process_are_read_again(tmp_path: Path) -> None:
    write_event_files(tmp_path, FLEET)
    first = rows_of_snapshot(tmp_path, run_beam(tmp_path, AS_OF_NS).snapshot)
    write_dimensions(tmp_path, dimension_tables(FLEET))
    second = rows_of_snapshot(tmp_path, run_beam(tmp_path, AS_OF_NS).snapshot)
    assert not any(row["cause_host"] for row in first["disruptions"])
    assert any(row["cause_host"] for row in second["disruptions"])


# --- A mirror that refuses, and damage --------------------------------------------------------------------------------


def test_a_mirror_that_refuses_a_read_is_an_error_of_the_pipeline_and_not_of_a_job(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bucket = "gs://bucket/mirror"
    with CloudStorageServer(buckets=["bucket"]) as server:
        for name, value in server.environment().items():
            monkeypatch.setenv(name, value)
        write_event_files(bucket, FLEET)

        def refused(parts: Any) -> Any:
            server.faults.always(Status(403), on="read")
            yield from batches_of(parts)

        with monkeypatch.context() as patched:
            patched.setattr("ml_diagnostics_fleet._beam_batch.batches_of", refused)
            with pytest.raises(PipelineError, match="403"):
                run_beam(bucket, AS_OF_NS)
        server.faults.clear()
        assert latest_rows(bucket).snapshots == ()
        storage_for(bucket).close()  # type: ignore[attr-defined]


def test_damaged_segments_are_named_and_passed_over_and_rows_are_those_of_the_table_of_events(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    members = generated_fleets(6, 4)
    objects = [one for job in members for one in job.segments(f"{tmp_path}", 6)]
    segments = [path for path, _ in objects if not path.endswith(".end")]
    damaged = set(segments[1::5]) | {segments[-1]}
    write_objects((path, data[:-9] if path in damaged else data) for path, data in objects)
    compact(tmp_path, now_ns=NOW_NS, through_ns=2**61, rolls_up=False)
    expected = rows_of_snapshot(tmp_path, run_local(tmp_path, NOW_NS, processes=1).snapshot)
    assert any(row["missing"] for row in expected["jobs"])
    assert_same_rows(rows_of(tmp_path, source="segments"), expected)
    assert all(f"{path} is damaged" in caplog.text for path in damaged)


def test_a_damaged_segment_of_a_log_with_a_long_name_does_not_end_a_run_over_segments(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    writers = [Writer("w", {"host": "h"}, History().start(0).steps(range(9), at=5).payloads)]
    for log in ("readable " + "x" * 200, "damaged " + "x" * 200):
        job = Job(JobKey(log, "run"), writers)
        objects = [one for one in job.segments(f"{tmp_path}", 4) if not one[0].endswith(".end")]
        assert len(objects) > 2
        for path, data in objects:
            is_damaged = log.startswith("damaged") or path in (objects[0][0], objects[-1][0])
            write_objects([(path, b"" if is_damaged else data)])
    run = run_beam(tmp_path, NOW_NS, source="segments")
    (row,) = rows_of_snapshot(tmp_path, run.snapshot)["jobs"]
    assert row["log"].startswith("readable")
    assert "3 segments of log folder damaged%20xxx" in caplog.text


# --- Options ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (
            ["runner=DataflowRunner"],
            "'runner=DataflowRunner' is not an option of Beam; expected a list of --NAME=VALUE",
        ),
        ("--runner=DataflowRunner", "is not an option of Beam"),
        (["--direct_num_workers=two"], "options of Beam are invalid: argument --direct_num_workers: invalid int value"),
        (["--runner=DataflowRunner", "--region=r"], "Dataflow's workers cannot reach the folder"),
        (["--runner", "dataflow"], "Dataflow's workers cannot reach the folder"),
        (["--no_wait_until_finish"], "--no_wait_until_finish is not for a run that returns its results"),
    ],
)
def test_invalid_options_are_refused_before_anything_is_read(
    tmp_path: Path, options: Any, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ConfigurationError, match=reason):
        run_beam(tmp_path / "none", AS_OF_NS, options=options)
    assert capsys.readouterr().err == ""
    assert not (tmp_path / "none").exists()


def test_an_unknown_runner_is_an_error_with_its_name(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="Unexpected pipeline runner: NoRunner"):
        run_beam(tmp_path, AS_OF_NS, options=["--runner=NoRunner"])


def test_options_of_the_user_reach_the_pipeline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[dict[str, Any]] = []
    run_pipeline = beam.Pipeline.run
    monkeypatch.setattr(
        beam.Pipeline, "run", lambda root: seen.append(root.options.get_all_options()) or run_pipeline(root)
    )
    options = ["--experiments=one", "--labels=team=a", "--save_main_session", "--sdk_container_image", "image"]
    run_beam(tmp_path, AS_OF_NS, options=options)
    (given,) = seen
    assert (given["runner"], given["experiments"][0], given["labels"]) == ("FnApiRunner", "one", ["team=a"])
    assert (given["save_main_session"], given["sdk_container_image"]) == (True, "image")


@pytest.mark.parametrize("state", ["CANCELLED", "RUNNING"])
def test_a_pipeline_that_is_not_done_is_an_error_and_rows_of_an_earlier_run_are_not_taken_for_its(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: str
) -> None:
    write_event_files(tmp_path, FLEET)
    run_local(tmp_path, AS_OF_NS, processes=1)
    monkeypatch.setattr(
        beam.Pipeline, "run", lambda root: SimpleNamespace(state=state, wait_until_finish=lambda: state)
    )
    with pytest.raises(PipelineError, match=f"the pipeline is {state}, and not DONE"):
        run_beam(tmp_path, AS_OF_NS)
