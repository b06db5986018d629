"""The continuous pipeline: late, doubled and unordered objects make their jobs due; rows of a job are replaced."""

from __future__ import annotations

import contextlib
import inspect
import itertools
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ml_diagnostics_common.exceptions import ConfigurationError, StorageError
from ml_diagnostics_common.mirror.names import LogPaths
from ml_diagnostics_common.storage import storage_for
from ml_diagnostics_fleet import job_map
from ml_diagnostics_fleet.beam_engine import PipelineError, run_beam, run_beam_continuously
from ml_diagnostics_fleet.compact import compact
from ml_diagnostics_fleet.local_engine import run_local
from ml_diagnostics_fleet.manifest import latest_rows
from ml_diagnostics_fleet.rows_files import newest_rows, replace_jobs
from ml_diagnostics_fleet.schemas import TABLES, JobKey
from ml_diagnostics_fleet.segment_events import SegmentEvents
from ml_diagnostics_testing.cloud_storage import CloudStorageServer

from ..ml_goodput_measurement.histories import History
from ..waiting import wait_until
from .beam_fleets import assert_same_rows, quiet, rows_of_snapshot
from .fleets import NOW_NS, Job, Writer, write_objects

beam = pytest.importorskip(
    "apache_beam", reason="needs Apache Beam, which is in an environment of its own: nox -s beam"
)
quiet()

from apache_beam.portability.api import beam_runner_api_pb2  # noqa: E402
from apache_beam.testing import test_stream, util  # noqa: E402
from ml_diagnostics_fleet.beam_continuous import NewObjects, keep_rows, objects_of_message, pipeline  # noqa: E402

from .pubsub import SUBSCRIPTION, PubSubServer  # noqa: E402

PACE = 600
Rows = dict[str, list[dict[str, Any]]]
Object = tuple[str, bytes]

ticks = itertools.count()
seen: list[tuple[int, Rows]] = []
"""The rows after each commit, with the number of jobs in it."""


def clock_ns() -> int:
    return NOW_NS + next(ticks)


def upload(element: Object) -> Iterable[str]:
    """Write an object when its notification comes."""
    if element[1]:
        write_objects([element])
    yield element[0]


def look(_moment: int, mirror: str) -> None:
    snapshot = newest_rows(mirror)
    assert snapshot is not None
    seen.append((snapshot.jobs, rows_of_snapshot(Path(mirror), snapshot)))


def keep(mirror: Path, *panes: list[Object]) -> list[tuple[int, Rows]]:
    """Run the pipeline over objects that come in some panes of a job's pace; return the rows after each commit."""
    seen.clear()
    stream = test_stream.TestStream()
    for objects in panes:
        stream = stream.add_elements(objects).advance_processing_time(PACE + 1).advance_processing_time(61)
    with beam.Pipeline(options=beam.options.pipeline_options.PipelineOptions(["--streaming"])) as root:
        objects = root | stream.advance_watermark_to_infinity() | beam.FlatMap(upload).with_output_types(str)
        keep_rows(objects, f"{mirror}", pace_seconds=PACE, clock_ns=clock_ns) | beam.Map(look, f"{mirror}")
    return list(seen)


def job(name: str = "a", log: str = "log") -> Job:
    first = History().start(0).init(1, 3).steps(range(40), at=5).save(9, 105, 108)
    second = History().start(500).restore(9, 502, 505).steps(range(10, 60), at=510).step_end(59, 1005).end(1010)
    labels = {"host": "h", "process_index": "0", "team": "llm"}
    return Job(
        JobKey(log, name),
        [
            Writer(f"{name}-1", {**labels, "attempt": "1"}, first.payloads),
            Writer(f"{name}-2", {**labels, "attempt": "2"}, second.payloads),
        ],
    )


def objects_of(mirror: Path, *jobs: Job) -> list[Object]:
    """Return all objects of some jobs, segments of ten entries in order, without the ends of writers."""
    return [one for job in jobs for one in job.segments(f"{mirror}", 10) if not one[0].endswith(".end")]


def ends_of(mirror: Path, *jobs: Job) -> list[Object]:
    return [one for job in jobs for one in job.segments(f"{mirror}") if one[0].endswith(".end")]


def expected_rows(folder: Path, objects: list[Object], mirror: Path | str, as_of_ns: int) -> Rows:
    """Return the rows of one machine over these objects, as of a moment."""
    write_objects((path.replace(str(mirror), f"{folder}"), data) for path, data in objects)
    compact(folder, now_ns=NOW_NS, through_ns=2**61, rolls_up=False)
    return rows_of_snapshot(folder, run_local(folder, as_of_ns, processes=1).snapshot)


def as_of(rows: Rows, name: str = "a") -> int:
    (found,) = [row["as_of_ns"] for row in rows["jobs"] if row["job"] == name]
    return int(found)


def test_a_second_pane_replaces_the_rows_of_the_first_as_a_whole(tmp_path: Path) -> None:
    mirror = tmp_path / "mirror"
    objects = objects_of(mirror, job())
    half = len(objects) // 2
    (_, first), (_, second) = keep(mirror, objects[:half], objects[half:])
    assert_same_rows(first, expected_rows(tmp_path / "1", objects[:half], mirror, as_of(first)))
    assert_same_rows(second, expected_rows(tmp_path / "2", objects, mirror, as_of(second)))
    assert as_of(first) < as_of(second)
    (snapshot,) = latest_rows(mirror).snapshots
    assert snapshot.continuous


def test_objects_in_any_order_and_doubled_have_the_same_rows(tmp_path: Path) -> None:
    mirror = tmp_path / "mirror"
    objects = [*objects_of(mirror, job()), *ends_of(mirror, job())]
    found = keep(mirror, [*reversed(objects), *objects[3:7]], objects[2:4])
    assert len(found) == 2
    for _, rows in found:
        assert_same_rows(rows, expected_rows(tmp_path / f"{as_of(rows)}", objects, mirror, as_of(rows)))


def test_a_late_object_of_a_day_that_was_compacted_makes_its_job_due_again(tmp_path: Path) -> None:
    mirror = tmp_path / "mirror"
    objects = [*objects_of(mirror, job(), job("b", "other")), *ends_of(mirror, job(), job("b", "other"))]
    late = objects.pop(2)
    write_objects(objects)
    compact(mirror, now_ns=NOW_NS, through_ns=2**61, rolls_up=False)
    before = rows_of_snapshot(mirror, run_local(mirror, NOW_NS - 1, processes=1).snapshot)
    assert [row["missing"] for row in before["jobs"]] == [10, 0]
    ((jobs, rows),) = keep(mirror, [late])
    assert jobs == 2
    assert as_of(rows, "b") == NOW_NS - 1
    complete = expected_rows(tmp_path / "1", [*objects, late], mirror, as_of(rows))
    for name in TABLES:
        of_a, of_b = ([row for row in rows[name] if row["job"] == key] for key in "ab")
        assert of_a == [row for row in complete[name] if row["job"] == "a"]
        assert of_b == [row for row in before[name] if row["job"] == "b"]
    # The rows of the run that had ended before are kept, too, and a later run has all.
    assert newest_rows(mirror, NOW_NS - 1) == latest_rows(mirror).snapshots[-1]
    compact(mirror, now_ns=NOW_NS, through_ns=2**61, rolls_up=False)
    later = run_beam(mirror, NOW_NS + 10**6)
    assert newest_rows(mirror) == later.snapshot
    assert {row["as_of_ns"] for row in rows_of_snapshot(mirror, later.snapshot)["jobs"]} == {NOW_NS + 10**6}


def test_jobs_of_a_pane_have_one_commit_and_jobs_of_one_log_are_told_apart(tmp_path: Path) -> None:
    mirror = tmp_path / "mirror"
    jobs = [job("a"), job("b"), job("c", "other")]
    objects = [*objects_of(mirror, *jobs), *ends_of(mirror, *jobs)]
    ((count, rows),) = keep(mirror, objects)
    assert count == 3
    complete = expected_rows(tmp_path / "1", objects, mirror, NOW_NS)
    for row, other in zip(rows["jobs"], complete["jobs"], strict=True):
        assert {**row, "as_of_ns": 0} == {**other, "as_of_ns": 0}


def test_the_end_of_a_writer_makes_its_job_due(tmp_path: Path) -> None:
    mirror = tmp_path / "mirror"
    found = keep(mirror, objects_of(mirror, job()), ends_of(mirror, job()))
    assert [rows["jobs"][0]["open_writers"] for _, rows in found] == [2, 0]


def test_an_object_that_the_object_of_its_hour_replaced_makes_its_job_due(tmp_path: Path) -> None:
    mirror = tmp_path / "mirror"
    small = objects_of(mirror, job())
    write_objects(job().segments(f"{mirror}", 10_000, 1))
    ((_, rows),) = keep(mirror, [(small[1][0], b"")])
    assert rows["jobs"][0]["attempts"] == 2


def test_a_damaged_object_and_objects_of_others_are_passed_over(tmp_path: Path) -> None:
    mirror = tmp_path / "mirror"
    objects = objects_of(mirror, job())
    damaged = (objects[1][0], b"not gzip")
    others = [(f"{mirror}/v1/events/group=00/x.parquet", b""), ("/elsewhere/x", b""), (f"{mirror}/v1/segments/x", b"")]
    ((_, rows),) = keep(mirror, [objects[0], damaged, *objects[2:], *others])
    assert rows["jobs"][0]["missing"] == 10


def test_a_list_has_only_what_no_earlier_list_had(tmp_path: Path) -> None:
    log = LogPaths(f"{tmp_path}", "log")
    name = "day=2026-11-22/w"
    first, second, third = (f"{log.folder}{name}.{100 + 10 * n:012d}-{109 + 10 * n:012d}.0.jsonl.gz" for n in range(3))
    hour, end = f"{log.folder}{name}.{100:012d}-{119:012d}.1.jsonl.gz", f"{log.folder}{name}.end"
    stream = test_stream.TestStream()
    for paths in ([second], [first, second], [hour], [hour, third, end], [hour, third, end]):
        stream = stream.add_elements([("log", paths)]).advance_processing_time(300)
    with beam.Pipeline(options=beam.options.pipeline_options.PipelineOptions(["--streaming"])) as root:
        lists = root | stream.advance_watermark_to_infinity().with_output_types(tuple[str, Any])
        found = lists | beam.ParDo(NewObjects())
        util.assert_that(found, util.equal_to([second, first, third, end]))


@pytest.mark.parametrize("subscription", ["", SUBSCRIPTION])
def test_a_runner_gets_panes_of_ten_minutes_of_processing_time_in_the_global_window(
    tmp_path: Path, subscription: str
) -> None:
    pace = inspect.signature(run_beam_continuously).parameters["pace_seconds"].default
    root = pipeline(["--streaming", "--runner=PrismRunner"], f"{tmp_path}", subscription, pace)
    parts = root.to_runner_api().components
    of_jobs, of_commits = (
        parts.windowing_strategies[parts.pcollections[next(iter(one.outputs.values()))].windowing_strategy_id]
        for name in ("Due", "Commits")
        for one in parts.transforms.values()
        if one.unique_name == name
    )
    for windows, seconds in ((of_jobs, 600), (of_commits, 60)):
        assert windows.window_fn.urn == "beam:window_fn:global_windows:v1"
        assert windows.accumulation_mode == beam_runner_api_pb2.AccumulationMode.DISCARDING
        (delay,) = windows.trigger.repeat.subtrigger.after_processing_time.timestamp_transforms
        assert delay.delay.delay_millis == seconds * 1_000


@pytest.mark.parametrize(
    "options",
    [
        [],
        ["--runner", "DirectRunner"],
        ["--runner=FnApiRunner"],
        ["--runner=direct"],
        ["--runner=BundleBasedDirectRunner"],  # Without a subscription: it has no clock for lists.
    ],
)
def test_a_runner_that_would_wait_for_the_end_is_refused(tmp_path: Path, options: list[str]) -> None:
    with pytest.raises(ConfigurationError, match="has no results of a pipeline without an end; name another one"):
        run_beam_continuously(tmp_path, options=options)


def test_only_a_notification_of_a_new_object_counts() -> None:
    def message(event: str) -> Any:
        attributes = {"eventType": event, "bucketId": "b", "objectId": "p/v1/segments/log=x/day=2026-11-22/w.end"}
        return beam.io.PubsubMessage(b"{}", attributes)

    assert list(objects_of_message(message("OBJECT_FINALIZE"))) == ["gs://b/p/v1/segments/log=x/day=2026-11-22/w.end"]
    assert list(objects_of_message(message("OBJECT_DELETE"))) == []
    for strange in ({"eventType": "OBJECT_FINALIZE"}, {"kind": "other"}, None):
        found = list(objects_of_message(beam.io.PubsubMessage(b"{}", strange)))
        assert found in ([], ["gs://None/None"])  # which is not in the mirror


def test_a_job_that_is_too_large_is_refused_by_name_and_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mirror, large, small = tmp_path / "mirror", job("large"), job("small", "other")
    small.writers.pop()
    monkeypatch.setattr(job_map, "MOST_EVENTS", len(small.entries()))
    ((_, rows),) = keep(mirror, [*objects_of(mirror, large, small), *ends_of(mirror, large, small)])
    first, second = rows["jobs"]
    assert first["rules"] == f"error: {len(large.entries())} events are more than {len(small.entries())}"
    assert (second["job"], second["entries"]) == ("small", len(small.entries()))


def test_a_mirror_that_refuses_for_a_moment_makes_the_bundle_be_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mirror, calls = tmp_path / "mirror", list[int]()

    def parts_of_jobs(files: Iterable[str]) -> Any:
        calls.append(1)
        if len(calls) < 3:
            raise StorageError("503")
        return job_map.parts_of_jobs(files)

    monkeypatch.setattr("ml_diagnostics_fleet.beam_continuous.parts_of_jobs", parts_of_jobs)
    objects = objects_of(mirror, job())
    ((_, rows),) = keep(mirror, objects)
    assert_same_rows(rows, expected_rows(tmp_path / "1", objects, mirror, as_of(rows)))


def test_a_commit_that_is_tried_again_after_it_was_done_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mirror, calls = tmp_path / "mirror", list[int]()

    def replace(*given: Any) -> Any:
        snapshot = replace_jobs(*given)
        calls.append(1)
        if len(calls) == 1:
            raise OSError("the worker is gone")
        return snapshot

    monkeypatch.setattr("ml_diagnostics_fleet.beam_continuous.replace_jobs", replace)
    ((jobs, _),) = keep(mirror, objects_of(mirror, job()))
    assert (jobs, len(calls)) == (1, 2)
    assert latest_rows(mirror).version == 1


def test_a_damaged_file_of_events_is_the_error_of_the_jobs_that_are_due(tmp_path: Path) -> None:
    mirror = tmp_path / "mirror"
    objects = objects_of(mirror, job())
    write_objects(objects[1:])
    compact(mirror, now_ns=NOW_NS, through_ns=2**61, rolls_up=False)
    (file,) = mirror.glob("v1/events/*/*.parquet")
    file.write_bytes(file.read_bytes()[:100])
    ((_, rows),) = keep(mirror, objects[:1])
    assert f"{file} is damaged" in rows["jobs"][0]["rules"]


def test_a_job_of_which_the_objects_were_deleted_keeps_the_rows_that_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mirror = tmp_path / "mirror"
    objects = objects_of(mirror, job())
    write_objects(objects)
    monkeypatch.setattr("ml_diagnostics_fleet.beam_continuous.SegmentEvents", no_segments)
    assert keep(mirror, objects[:2]) == []
    assert latest_rows(mirror).snapshots == ()


def no_segments(mirror: str, log: str, **_named: Any) -> SegmentEvents:
    return SegmentEvents(f"{mirror}-deleted", log)


def test_a_log_with_a_long_and_strange_name_is_kept(tmp_path: Path) -> None:
    mirror = tmp_path / "mirror"
    jobs = [Job(JobKey("team a/%2F ü", "Lauf äöü/%"), job().writers), job("b", "long " + "x" * 200)]
    found = keep(mirror, objects_of(mirror, *jobs), ends_of(mirror, *jobs))
    assert [[row["open_writers"] for row in rows["jobs"]] for _, rows in found] == [[2, 2], [0, 0]]


@pytest.mark.parametrize(("state", "is_error"), [("CANCELLED", False), ("DRAINED", False), ("FAILED", True)])
def test_a_pipeline_that_its_user_ended_is_not_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: str, is_error: bool
) -> None:
    def wait() -> None:
        raise RuntimeError(f"Dataflow pipeline failed. State: {state}, Error:\nnone")

    monkeypatch.setattr(beam.Pipeline, "run", lambda root: SimpleNamespace(state=state, wait_until_finish=wait))
    with pytest.raises(PipelineError, match="none") if is_error else contextlib.nullcontext():
        run_beam_continuously(tmp_path, options=["--runner=PrismRunner"])


# --- In real time -----------------------------------------------------------------------------------------------------

LIVE = "gs://bucket/team/mirror"
_PROGRAM = """
from ml_diagnostics_fleet.beam_engine import run_beam_continuously
options = ["--runner=BundleBasedDirectRunner"]
run_beam_continuously({mirror!r}, subscription={subscription!r}, options=options, pace_seconds=1.0)
"""


@pytest.fixture
def messages(monkeypatch: pytest.MonkeyPatch) -> Iterator[PubSubServer]:
    """Serve the bucket, and its notifications."""
    with CloudStorageServer(buckets=["bucket"]) as bucket, PubSubServer() as server:
        for name, value in {**bucket.environment(), **server.environment()}.items():
            monkeypatch.setenv(name, value)
        yield server
        storage_for(LIVE).close()  # type: ignore[attr-defined]


@contextlib.contextmanager
def running() -> Iterator[subprocess.Popen[bytes]]:
    """Run a pipeline without an end in a process of its own, until it is killed."""
    program = _PROGRAM.format(mirror=LIVE, subscription=SUBSCRIPTION)
    process = subprocess.Popen([sys.executable, "-c", program], env=dict(os.environ))
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def live_rows() -> Rows:
    snapshot = newest_rows(LIVE)
    return rows_of_snapshot(LIVE, snapshot) if snapshot is not None else {"jobs": []}


@pytest.mark.timeout(300)
def test_a_pipeline_in_real_time_follows_a_bucket_and_goes_on_after_it_was_killed(
    tmp_path: Path, messages: PubSubServer
) -> None:
    """Late, doubled and unordered objects, messages of others, and a process that is killed; rows come by a timer."""
    storage, jobs = storage_for(LIVE), [job(), job("b", "other")]
    of_a, of_b = (list(each.segments(LIVE, 25)) for each in jobs)

    def publish(objects: list[Object]) -> None:
        for path, data in objects:
            storage.write(path, data)
            messages.publish_object(path)

    def rows_with(*entries: int) -> Rows:
        def found() -> Rows | None:
            rows = live_rows()
            return rows if [row["entries"] for row in rows["jobs"]] == list(entries) else None

        return wait_until(found, 120, running=process)

    complete = [len(each.entries()) for each in jobs]
    with running() as process:
        publish(of_a[:1])
        first = rows_with(25)
        messages.publish({"eventType": "OBJECT_FINALIZE"})
        messages.publish_object(f"{LIVE}/v1/events/group=00/other.parquet")
        publish([*of_b[::-1], *of_b[:2]])
        second = rows_with(25, complete[1])
    publish([*of_a[2:], *of_a[:2]])
    with running() as process:
        third = rows_with(*complete)
    assert as_of(first) == as_of(second) < as_of(third)
    assert as_of(second, "b") == as_of(third, "b")
    for name, moments in (("a", third), ("b", second)):
        objects = of_a if name == "a" else of_b
        expected = expected_rows(tmp_path / name, objects, LIVE, as_of(moments, name))
        for table in TABLES:
            assert [row for row in third[table] if row["job"] == name] == expected[table]
