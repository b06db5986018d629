"""The continuous pipeline: late, doubled and unordered objects make their jobs due; rows of a job are replaced."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from ml_diagnostics_common.exceptions import ConfigurationError
from ml_diagnostics_common.mirror.names import LogPaths
from ml_diagnostics_fleet.beam_engine import run_beam, run_beam_continuously
from ml_diagnostics_fleet.compact import compact
from ml_diagnostics_fleet.local_engine import run_local
from ml_diagnostics_fleet.manifest import latest_rows
from ml_diagnostics_fleet.rows_files import newest_rows
from ml_diagnostics_fleet.schemas import TABLES, JobKey

from ..ml_goodput_measurement.histories import History
from .beam_fleets import assert_same_rows, quiet, rows_of_snapshot
from .fleets import NOW_NS, Job, Writer, write_objects

beam = pytest.importorskip(
    "apache_beam", reason="needs Apache Beam, which is in an environment of its own: nox -s beam"
)
quiet()

from apache_beam.testing import test_stream, util  # noqa: E402
from ml_diagnostics_fleet.beam_continuous import NewObjects, keep_rows, objects_of_message  # noqa: E402

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


def expected_rows(folder: Path, objects: list[Object], mirror: Path, as_of_ns: int) -> Rows:
    """Return the rows of one machine over these objects, as of a moment."""
    write_objects((path.replace(f"{mirror}", f"{folder}"), data) for path, data in objects)
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


@pytest.mark.parametrize("options", [[], ["--runner", "DirectRunner"], ["--runner=FnApiRunner"]])
def test_a_runner_that_would_wait_for_the_end_is_refused(tmp_path: Path, options: list[str]) -> None:
    with pytest.raises(ConfigurationError, match="has no results of a pipeline without an end; name another one"):
        run_beam_continuously(tmp_path, options=options)


def test_only_a_notification_of_a_new_object_counts() -> None:
    def message(event: str) -> Any:
        attributes = {"eventType": event, "bucketId": "b", "objectId": "p/v1/segments/log=x/day=2026-11-22/w.end"}
        return beam.io.PubsubMessage(b"{}", attributes)

    assert list(objects_of_message(message("OBJECT_FINALIZE"))) == ["gs://b/p/v1/segments/log=x/day=2026-11-22/w.end"]
    assert list(objects_of_message(message("OBJECT_DELETE"))) == []
