"""Compaction from BigQuery: each entry of a view is in the table once, whatever breaks, and whoever has it too."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import grpc  # type: ignore[import-untyped]
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from ml_diagnostics_common.entry import LogEntry
from ml_diagnostics_common.exceptions import ConfigurationError, CredentialsError, MissingExtraError
from ml_diagnostics_fleet import _event_spill
from ml_diagnostics_fleet import compact_view as compact_view_module
from ml_diagnostics_fleet._bigquery_view import BigQueryError, BigQueryView, ViewName
from ml_diagnostics_fleet.compact import compact
from ml_diagnostics_fleet.compact_view import ViewCompaction, compact_view
from ml_diagnostics_fleet.event_tables import EventTables
from ml_diagnostics_fleet.events import EventsFile
from ml_diagnostics_fleet.job_map import parts_of_jobs, rows_of_job
from ml_diagnostics_fleet.manifest import latest_events
from ml_diagnostics_fleet.schemas import JobKey
from ml_diagnostics_testing.faults import Status

from ..loopback.bigquery import BigQueryServer, Break
from ..ml_goodput_measurement.histories import BASE, History
from .fleets import NOW_NS, Job, Writer, fleets, rows_of, same_rows, write_objects
from .log_views import analytics_view, foreign_entries, sink_table

DAY_NS = 86_400 * 10**9
JSON = ("labels", "json_payload")
VIEW = "logs.goodput"
GOODPUT = Path(sys.executable).with_name("goodput")
UNAVAILABLE = grpc.StatusCode.UNAVAILABLE


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[BigQueryServer]:
    with BigQueryServer() as running:
        for name, value in running.environment().items():
            monkeypatch.setenv(name, value)
        yield running


def a_job(name: str = "run", count: int = 300, writer: str = "w") -> Job:
    history = History().start(0).steps(range(count), at=10).end(10.0 * count + 10)
    return Job(JobKey(f"goodput_{name}", name), [Writer(writer, {"host": "h", "team": "a"}, history.payloads)])


def added(mirror: Path, view: str | BigQueryView = VIEW, since_ns: int | None = None) -> ViewCompaction:
    return compact_view(mirror, view, since_ns=since_ns, now_ns=NOW_NS)


def identities(mirror: Path) -> Counter[tuple[str, ...]]:
    """How often each entry is in the files that belong to the table."""
    found: Counter[tuple[str, ...]] = Counter()
    for entry in latest_events(mirror).files:
        with EventsFile(str(mirror / "v1" / entry.path)) as file:
            groups = [group for groups in file.jobs().values() for group in groups]
            found.update(tuple(row.values()) for row in file.table(groups).select(["log", "writer", "seq"]).to_pylist())
    return found


def same_as_from_a_mirror(mirror: Path, jobs: list[Job]) -> bool:
    """Return True if the rows of all jobs in the table equal those of their entries."""
    parts = parts_of_jobs(str(mirror / "v1" / entry.path) for entry in latest_events(mirror).files)
    assert sorted(parts) == sorted(job.key for job in jobs)
    return all(same_rows(rows_of_job(job.key, parts[job.key], NOW_NS), rows_of(job)) for job in jobs)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(fleets(most=3))
def test_rows_from_a_view_equal_those_from_a_mirror(
    server: BigQueryServer, tmp_path_factory: pytest.TempPathFactory, jobs: list[Job]
) -> None:
    entries = [entry for job in jobs for entry in job.entries()]
    server.add(VIEW, analytics_view(entries), json=JSON)
    mirror, other = tmp_path_factory.mktemp("view"), tmp_path_factory.mktemp("mirror")
    done = added(mirror)
    assert (done.rows, done.events, done.known, done.unreadable, done.gaps) == (len(entries), len(entries), 0, {}, [])
    assert same_as_from_a_mirror(mirror, jobs)
    write_objects(one for job in jobs for one in job.segments(str(other)))
    compact(other, now_ns=NOW_NS)
    assert identities(mirror) == identities(other)


def test_table_of_a_log_sink_gives_the_same_rows_as_a_view(server: BigQueryServer, tmp_path: Path) -> None:
    jobs = [a_job("one"), a_job("two/of a team", 50)]
    entries = [entry for job in jobs for entry in job.entries()]
    server.add("logs.sink", sink_table(entries), kind="TABLE")
    assert added(tmp_path, f"{server.project}.logs.sink").events == len(entries)
    assert same_as_from_a_mirror(tmp_path, jobs)
    assert server.queries == []
    assert server.selected == [["logName", "insertId", "labels", "jsonPayload", "timestamp"]]


def test_project_of_the_view_pays_if_the_environment_names_none(
    server: BigQueryServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.add(VIEW, analytics_view(a_job(count=3).entries()), json=JSON)
    monkeypatch.delenv("GOOGLE_CLOUD_PROJECT")
    monkeypatch.delenv("CLOUDSDK_CORE_PROJECT")
    assert added(tmp_path, f"{server.project}.{VIEW}").events == 5
    with pytest.raises(CredentialsError, match="no Google Cloud project was found"):
        added(tmp_path)


def test_view_of_the_four_columns_alone_is_enough(server: BigQueryServer, tmp_path: Path) -> None:
    job = a_job()
    server.add(VIEW, analytics_view(job.entries(), times=False), json=JSON)
    assert added(tmp_path).events == len(job.entries())
    assert same_as_from_a_mirror(tmp_path, [job])
    with pytest.raises(ConfigurationError, match="has no column timestamp"):
        added(tmp_path, since_ns=0)


def test_repeated_and_overlapping_runs_add_each_entry_once(server: BigQueryServer, tmp_path: Path) -> None:
    job = a_job()
    entries = job.entries()
    entries += foreign_entries(*job.key, [entry.timestamp_ns + 1_000_000 for entry in entries[10:20]])
    server.add(VIEW, analytics_view(entries[:200] + entries[-5:]), json=JSON)
    assert added(tmp_path).events == 205
    assert (added(tmp_path).events, added(tmp_path).known, latest_events(tmp_path).version) == (0, 205, 1)
    server.add(VIEW, analytics_view(entries + entries[50:]), json=JSON)  # Rows of a view may be there twice, too.
    assert added(tmp_path).events == len(entries) - 205
    assert set(identities(tmp_path).values()) == {1}
    assert len(identities(tmp_path)) == len(entries)
    assert sum(name.startswith("insertId:") for _, name, _ in identities(tmp_path)) == 10


def test_job_that_only_another_library_records_is_added_once(server: BigQueryServer, tmp_path: Path) -> None:
    entries = foreign_entries("goodput_run", "run", [int(BASE * 1e9) + number for number in range(0, 10**7, 10**5)])
    server.add(VIEW, analytics_view(entries[:60]), json=JSON)
    assert added(tmp_path).events == 60
    server.add(VIEW, analytics_view(entries), json=JSON)
    assert (added(tmp_path).events, added(tmp_path).known) == (40, 100)
    assert (len(identities(tmp_path)), set(identities(tmp_path).values())) == (100, {1})


@pytest.mark.parametrize("view_first", [True, False])
def test_view_and_segments_of_the_same_job_give_each_entry_once(
    server: BigQueryServer, tmp_path: Path, view_first: bool
) -> None:
    job = a_job()
    entries = job.entries()
    server.add(VIEW, analytics_view(entries[:250]), json=JSON)
    objects = list(job.segments(str(tmp_path), each=40))
    if view_first:
        added(tmp_path)
    write_objects(objects)
    compact(tmp_path, now_ns=NOW_NS)
    added(tmp_path)
    assert (len(identities(tmp_path)), set(identities(tmp_path).values())) == (len(entries), {1})
    assert same_as_from_a_mirror(tmp_path, [job])


@pytest.mark.parametrize("kind", ["VIEW", "TABLE"])
def test_only_days_that_have_ended_and_those_asked_for_are_read(
    server: BigQueryServer, tmp_path: Path, kind: str
) -> None:
    start_ns = (int(BASE * 1e9) // DAY_NS + 1) * DAY_NS
    entries = a_job().entries()[:100]
    spread = [entry_at(entry, start_ns + number * DAY_NS // 25) for number, entry in enumerate(entries)]
    server.add(VIEW, analytics_view(spread), json=JSON, kind=kind)
    done = compact_view(tmp_path, VIEW, since_ns=start_ns + DAY_NS, through_ns=start_ns + 3 * DAY_NS + 1, now_ns=NOW_NS)
    assert (done.rows, done.events) == (50, 50)
    compact_view(tmp_path, VIEW, through_ns=start_ns + 4 * DAY_NS, now_ns=NOW_NS)
    assert len(identities(tmp_path)) == 100
    assert bool(server.restrictions[0]) is (kind == "TABLE")
    assert len(server.queries) == (2 if kind == "VIEW" else 0)


def entry_at(entry: LogEntry, time_ns: int) -> LogEntry:
    return LogEntry(time_ns, entry.sequence, entry.payload, entry.context)


def test_broken_stream_continues_where_it_broke(server: BigQueryServer, tmp_path: Path) -> None:
    job = a_job(count=400)
    server.streams, server.rows = 2, 50
    server.add(VIEW, analytics_view(job.entries()), json=JSON)
    server.breaks.extend([Break(2, UNAVAILABLE), Break(0, UNAVAILABLE), Break(1, grpc.StatusCode.DEADLINE_EXCEEDED)])
    done = added(tmp_path)
    assert (done.events, done.known) == (len(job.entries()), 0)
    assert {offset for _, offset in server.offsets} >= {0, 100}
    assert same_as_from_a_mirror(tmp_path, [job])


def test_nothing_is_added_if_a_stream_ends_for_good(server: BigQueryServer, tmp_path: Path) -> None:
    server.add(VIEW, analytics_view(a_job().entries()), json=JSON)
    server.breaks.extend([Break(1, grpc.StatusCode.FAILED_PRECONDITION, "session expired at 2026-11-22")] * 3)
    with pytest.raises(BigQueryError, match="nothing was added: read fewer days at a time"):
        added(tmp_path)
    server.breaks.clear()
    server.breaks.extend([Break(0, UNAVAILABLE)] * 100)
    with pytest.raises(BigQueryError, match="cannot read loop-project") as caught:
        added(tmp_path, BigQueryView(VIEW, retry_seconds=0.5))
    assert caught.value.is_temporary
    assert not (tmp_path / "v1").exists()


def test_requests_that_cannot_be_answered_are_made_again(server: BigQueryServer, tmp_path: Path) -> None:
    job = a_job()
    server.add(VIEW, analytics_view(job.entries()), json=JSON)
    for operation in ("table", "query", "queries"):
        server.faults.script([Status(503, reason="backendError")], on=operation)
    server.session_breaks.append(Break(0, UNAVAILABLE))
    assert added(tmp_path).events == len(job.entries())
    assert len(server.faults.injected) == 3


def test_result_that_is_too_large_is_to_be_read_in_parts(server: BigQueryServer, tmp_path: Path) -> None:
    server.add(VIEW, analytics_view(a_job().entries()), json=JSON)
    server.faults.always(Status(403, reason="responseTooLarge"), on="queries")
    with pytest.raises(BigQueryError, match="limited to 10 GB: read fewer days at a time, with --since and --as-of"):
        added(tmp_path)


def test_refusals_name_the_roles_to_grant(server: BigQueryServer, tmp_path: Path) -> None:
    server.add(VIEW, analytics_view(a_job().entries()), json=JSON)
    server.faults.script([Status(403)], on="table")
    with pytest.raises(BigQueryError, match=r"roles/bigquery\.dataViewer on dataset loop-project\.logs"):
        added(tmp_path)
    server.faults.script([Status(403)], on="query")
    with pytest.raises(BigQueryError, match=r"roles/bigquery\.jobUser"):
        added(tmp_path)
    server.session_breaks.append(Break(0, grpc.StatusCode.PERMISSION_DENIED, "no bigquery.readsessions.create"))
    with pytest.raises(BigQueryError, match=r"roles/bigquery\.readSessionUser on project loop-project"):
        added(tmp_path)


@pytest.mark.parametrize(
    ("name", "message"),
    [("absent.view", "Not found: Dataset"), ("logs.absent", "Not found: Table"), ("other.logs.x", "project: other")],
)
def test_missing_dataset_and_view_are_named(server: BigQueryServer, tmp_path: Path, name: str, message: str) -> None:
    server.add(VIEW, analytics_view(a_job().entries()), json=JSON)
    with pytest.raises(BigQueryError, match=message):
        added(tmp_path, name)


def test_missing_columns_and_other_types_are_named(server: BigQueryServer, tmp_path: Path) -> None:
    view = analytics_view(a_job(count=3).entries())
    server.add(VIEW, view.drop_columns(["insert_id", "labels"]), json=JSON)
    with pytest.raises(ConfigurationError, match=r"lacks the columns insert_id \(or insertId\), labels; it has: lo"):
        added(tmp_path)
    numbers = pa.array(range(view.num_rows), pa.int64())
    server.add(VIEW, view.drop_columns(["labels"]).append_column("labels", numbers), json=("json_payload",))
    with pytest.raises(ConfigurationError, match=r"column labels of .* has the type INTEGER; expected JSON"):
        added(tmp_path)


@pytest.mark.parametrize("name", ["view", "a.b.c.", "data set.view", "p.d.v`; DROP", "d.v\n"])
def test_name_that_is_not_one_of_a_view_is_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match=r"expected DATASET\.VIEW"):
        ViewName.parse(name)


def test_names_of_views_have_an_optional_project() -> None:
    assert ViewName.parse("data.view-1") == (None, "data", "view-1")
    assert ViewName.parse("example.com:a-b.data._AllLogs") == ("example.com:a-b", "data", "_AllLogs")


def test_missing_clients_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "google.cloud.bigquery_storage", None)
    with pytest.raises(MissingExtraError, match=r"ml-diagnostics-fleet\[bigquery\]"):
        added(tmp_path)


@pytest.mark.parametrize("kind", ["VIEW", "TABLE"])
def test_empty_view_adds_nothing(server: BigQueryServer, tmp_path: Path, kind: str) -> None:
    server.add(VIEW, analytics_view(a_job().entries()).slice(0, 0), json=JSON, kind=kind)
    done = added(tmp_path)
    assert (done.rows, done.events, done.version, done.files) == (0, 0, 0, [])


def test_rows_that_cannot_be_read_are_counted_and_named(server: BigQueryServer, tmp_path: Path) -> None:
    job = a_job(count=20)
    rows = analytics_view(job.entries()).to_pylist()
    good = dict(rows[0])
    bad = [
        {**good, "insert_id": "text", "json_payload": None},
        {**good, "insert_id": "cut", "json_payload": '{"job_name": "ru'},
        {**good, "insert_id": "list", "json_payload": "[1]"},
        {**good, "insert_id": None},
        {**good, "insert_id": "nolog", "log_id": None},
        {**good, "insert_id": "labels", "labels": "{"},
        {**good, "insert_id": "nojob", "json_payload": '{"message": "x"}'},
        {**good, "insert_id": "odd", "json_payload": json.dumps({"job_name": "run", "step_start_time": None})},
        {**good, "insert_id": "timeless", "timestamp": None, "labels": None},
    ]
    server.add(VIEW, pa.Table.from_pylist([*rows, *bad], analytics_view(job.entries()).schema), json=JSON)
    done = added(tmp_path)
    assert (done.rows, done.events, done.known) == (len(rows) + 9, len(rows) + 2, 0)
    assert (done.without_payload, done.without_job) == (1, 1)
    assert done.unreadable == {
        "the payload is not JSON": 1,
        "the payload is not a JSON object": 1,
        "insert_id is empty": 1,
        "the log is empty": 1,
        "the labels are not JSON": 1,
    }
    assert done.unreadable_ids["the payload is not JSON"] == ["cut"]
    kinds = {row["writer"]: row["kind"] for row in events(tmp_path)}
    assert kinds["insertId:odd"] == "other"
    assert kinds["insertId:timeless"] == "job_start"


def events(mirror: Path) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    for entry in latest_events(mirror).files:
        with EventsFile(str(mirror / "v1" / entry.path)) as file:
            rows += file.table([group for groups in file.jobs().values() for group in groups]).to_pylist()
    return rows


@pytest.mark.parametrize("most", [40, 1_000_000])
def test_events_are_sorted_in_parts_that_fit_into_memory(
    server: BigQueryServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    jobs = [a_job(f"run-{number}", 100 * number + 50, writer=f"w{number}") for number in range(4)]
    server.add(VIEW, analytics_view([entry for job in jobs for entry in job.entries()]), json=JSON)
    monkeypatch.setattr(compact_view_module, "_MOST_ROWS", 100)
    monkeypatch.setattr(_event_spill, "_MOST_SORTED", most)
    monkeypatch.setattr(_event_spill, "_BATCH_ROWS", 16)
    monkeypatch.setattr(_event_spill, "group_of", lambda key: "00")
    added(tmp_path)
    assert same_as_from_a_mirror(tmp_path, jobs)
    for key in (job.key for job in jobs):
        times = [row["t_ns"] for row in events(tmp_path) if row["job"] == key.job]
        assert times == sorted(times)  # type: ignore[type-var]


def test_parts_have_the_texts_of_their_own_events_alone() -> None:
    entries = foreign_entries("goodput_run", "run", [int(BASE * 1e9) + number for number in range(1_000)])
    tables = EventTables("goodput_run")
    tables.add(entries)
    file, parts = _event_spill._File(), [_event_spill._File() for _ in range(2)]
    (table,) = tables.take().values()
    file.write(table.append_column(_event_spill._SCHEMA.field("number"), pa.array([0] * 1_000, pa.int32())))
    _event_spill._divide(file, [(0, entries[500].timestamp_ns)], parts)
    for part in parts:
        batches = list(part.batches())
        assert [len(batch.column("writer").dictionary) for batch in batches] == [500]
        part.close()
    file.close()


def test_memory_of_waiting_events_does_not_grow_with_jobs() -> None:
    tables = EventTables("goodput_run")
    file = _event_spill._File()
    for number in range(200):
        tables.add(foreign_entries("goodput_run", f"run-{number}", [int(BASE * 1e9)]))
        (table,) = tables.take().values()
        file.write(table.append_column(_event_spill._SCHEMA.field("number"), pa.array([number], pa.int32())))
        assert len(file._waiting) <= _event_spill._MOST_WAITING
    assert file.table().num_rows == 200
    file.close()


def test_two_compactors_of_a_view_add_each_entry_once(server: BigQueryServer, tmp_path: Path) -> None:
    from threading import Thread

    server.add(VIEW, analytics_view(a_job().entries()), json=JSON)
    done: list[int] = []
    threads = [Thread(target=lambda: done.append(added(tmp_path).events)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(done) == [0, 0, len(a_job().entries())]
    assert set(identities(tmp_path).values()) == {1}


def test_killed_command_leaves_nothing_that_counts_and_runs_again(server: BigQueryServer, tmp_path: Path) -> None:
    jobs = [a_job(f"run-{number}", 200, writer=f"w{number}") for number in range(5)]
    server.add(VIEW, analytics_view([entry for job in jobs for entry in job.entries()]), json=JSON)
    killed = 0
    for wait in (0.0, 0.02, 0.05, 0.1, 0.2):
        reads = len(server.offsets)
        process = subprocess.Popen(command(tmp_path), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        while len(server.offsets) == reads and process.poll() is None:
            time.sleep(0.005)
        time.sleep(wait)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        killed += process.returncode == -signal.SIGKILL
        assert set(identities(tmp_path).values()) <= {1}
    assert killed
    added(tmp_path)
    assert same_as_from_a_mirror(tmp_path, jobs)
    assert set(identities(tmp_path).values()) == {1}


def command(mirror: Path, *options: str, source: str = f"bigquery:{VIEW}") -> list[str]:
    return [str(GOODPUT), "fleet", "compact", "--mirror", str(mirror), "--from", source, *options]


def test_command_adds_a_view_and_prints_what_it_did(server: BigQueryServer, tmp_path: Path) -> None:
    job = a_job(count=20)
    view = analytics_view(job.entries())
    broken = pa.Table.from_pylist([{**view.to_pylist()[0], "insert_id": "x", "json_payload": "{"}], view.schema)
    server.add(VIEW, pa.concat_tables([view, broken]), json=JSON)
    done = subprocess.run(command(tmp_path, "--strict"), capture_output=True, text=True, check=False)
    count = len(job.entries())
    assert done.stdout == f"{count} events of {count + 1} rows added in 1 file: version 1\n"
    assert "1 row passed over: the payload is not JSON: x" in done.stderr
    assert done.returncode == 1
    again = subprocess.run(command(tmp_path, "--format", "json"), capture_output=True, text=True, check=True)
    assert json.loads(again.stdout)["known"] == count
    assert json.loads(again.stdout)["unreadable"] == 1


def test_command_has_the_exit_code_of_each_error(server: BigQueryServer, tmp_path: Path) -> None:
    server.add(VIEW, analytics_view(a_job(count=3).entries()), json=JSON)

    def code(*options: str, source: str = f"bigquery:{VIEW}") -> tuple[int, str]:
        done = subprocess.run(command(tmp_path, *options, source=source), capture_output=True, text=True, check=False)
        return done.returncode, done.stderr

    assert code(source="bigquery:absent.view")[0] == 3
    assert code(source="bigquery:view")[0] == 2
    assert "expected segments, or bigquery:DATASET.VIEW" in code(source="gcs:x")[1]
    assert "--since is for --from bigquery:" in code("--since", "3d", source="segments")[1]
    server.session_breaks.append(Break(0, grpc.StatusCode.PERMISSION_DENIED, "no"))
    status, text = code()
    assert (status, "grant" in text) == (4, True)
