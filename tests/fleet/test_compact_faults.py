"""Compaction under attack: races, full disks, refusals, damage, clocks, names; and what is missing is known."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ml_diagnostics_common.entry import LogEntry
from ml_diagnostics_common.exceptions import StorageError
from ml_diagnostics_common.journal import log_folder_name
from ml_diagnostics_common.mirror.names import EndName, LogPaths, day_of
from ml_diagnostics_common.mirror.segments import NewerFormatError
from ml_diagnostics_common.storage import LocalStorage, storage_for
from ml_diagnostics_fleet import event_tables
from ml_diagnostics_fleet.compact import compact
from ml_diagnostics_fleet.local_engine import run_local
from ml_diagnostics_fleet.manifest import Gap, ManifestError, commit, latest_events, latest_rows
from ml_diagnostics_fleet.rows_files import read_table
from ml_diagnostics_fleet.schemas import JobKey
from ml_diagnostics_fleet.synthetic import AS_OF_NS, SyntheticFleet
from ml_diagnostics_fleet.synthetic_files import segments_of, write_segments
from ml_diagnostics_testing.cloud_storage import CloudStorageServer
from ml_diagnostics_testing.faults import Status

from ..ml_goodput_measurement.histories import History
from .fleets import FIRST, NOW_NS, Job, Writer, segment, write_objects
from .test_compact import DAY_NS, expected, identities, one_job, same_rows_of

FLEET = SyntheticFleet(seed=8, jobs=5, events=2_000)
FOLDER = log_folder_name("log")


# --- Races and kills --------------------------------------------------------------------------------------------------

_RACER = """
import sys, time
from pathlib import Path
from ml_diagnostics_fleet.compact import compact
mirror, started, now_ns = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
print("ready", flush=True)
while not started.exists():
    pass
print(compact(mirror, now_ns=now_ns).events)
"""


def race(mirror: Path, started: Path, now_ns: int) -> list[int]:
    """Compact in three processes that start at once; return the events that each added."""
    argv = [sys.executable, "-c", _RACER, str(mirror), str(started), str(now_ns)]
    racers = [subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    for racer in racers:
        assert racer.stdout is not None
        assert racer.stdout.readline() == "ready\n"
    started.touch()
    found = [racer.communicate(timeout=100)[0] for racer in racers]
    assert [racer.returncode for racer in racers] == [0, 0, 0]
    return [int(text) for text in found]


def test_compactors_that_race_as_processes_add_each_entry_once(tmp_path: Path) -> None:
    mirror, objects = tmp_path / "mirror", [one for job in FLEET for one in segments_of("", job, job.table())]
    each, total = -(-len(objects) // 3), 0
    for number in range(3):
        write_objects((f"{mirror}{path}", data) for path, data in objects[number * each : (number + 1) * each])
        total += sum(race(mirror, tmp_path / f"started-{number}", AS_OF_NS + number))
    assert total == sum(expected(FLEET).values())
    assert identities(mirror) == expected(FLEET)


def test_compactors_that_race_to_merge_files_keep_each_entry_once(tmp_path: Path) -> None:
    mirror, job = tmp_path / "mirror", one_job(60)
    objects = list(job.segments(str(mirror), each=6))
    for number, one in enumerate(objects[:9]):
        write_objects([one])
        compact(mirror, now_ns=NOW_NS + number, merges=False)
    write_objects(objects[9:])
    assert sum(race(mirror, tmp_path / "started", NOW_NS + 99)) == 8
    assert (len(latest_events(mirror).files), len(latest_events(mirror).removed)) == (1, 10)
    assert set(identities(mirror).values()) == {1}
    assert same_rows_of(mirror, job)


def test_a_compactor_with_a_clock_that_is_late_loses_no_file(tmp_path: Path) -> None:
    """Its files are as new as the manifest on which they are based, so no other compactor takes them for old ones."""
    job = one_job()
    first, second, *_ = job.segments(str(tmp_path), each=16)
    write_objects([first])
    compact(tmp_path, now_ns=NOW_NS)
    write_objects([second])
    compact(tmp_path, now_ns=NOW_NS - 20 * DAY_NS, through_ns=NOW_NS)
    late = latest_events(tmp_path).files[-1]
    commit(tmp_path, replace(latest_events(tmp_path), files=latest_events(tmp_path).files[:-1]), NOW_NS)
    compact(tmp_path, now_ns=NOW_NS + DAY_NS)
    assert (tmp_path / "v1" / late.path).exists()


def test_an_orphan_is_deleted_after_seven_days_and_not_before(tmp_path: Path) -> None:
    write_objects(one_job().segments(str(tmp_path)))
    compact(tmp_path, now_ns=NOW_NS)
    (path,) = (tmp_path / "v1" / "events").rglob("*.parquet")
    orphan = path.with_name("20231201T000000-0123abcd-0.parquet")
    orphan.write_bytes(b"left by a compactor that was killed")
    started_ns = 1_701_388_800 * 10**9
    assert compact(tmp_path, now_ns=started_ns + 7 * DAY_NS).deleted == 0
    assert orphan.exists()
    assert compact(tmp_path, now_ns=started_ns + 7 * DAY_NS + 1).deleted == 1
    assert (orphan.exists(), path.exists()) == (False, True)


# --- Manifests --------------------------------------------------------------------------------------------------------


def manifest_path(mirror: Path, version: int) -> Path:
    return mirror / "v1" / "manifests" / "events" / f"{version:012d}.json"


def in_three_versions(mirror: Path) -> Job:
    job = one_job()
    for one in list(job.segments(str(mirror), each=12))[:3]:
        write_objects([one])
        compact(mirror, now_ns=NOW_NS)
    assert latest_events(mirror).version == 3
    return job


def test_a_version_that_is_missing_in_between_changes_nothing(tmp_path: Path) -> None:
    job = in_three_versions(tmp_path)
    manifest_path(tmp_path, 2).unlink()
    assert same_rows_of(tmp_path, job)
    write_objects(job.segments(str(tmp_path)))
    assert compact(tmp_path, now_ns=NOW_NS).version == 4
    assert set(identities(tmp_path).values()) == {1}


def test_after_the_newest_version_is_deleted_its_segments_are_added_again(tmp_path: Path) -> None:
    job = in_three_versions(tmp_path)
    manifest_path(tmp_path, 3).unlink()
    assert not same_rows_of(tmp_path, job)
    assert (compact(tmp_path, now_ns=NOW_NS).events, same_rows_of(tmp_path, job)) == (8, True)
    assert set(identities(tmp_path).values()) == {1}


def test_a_damaged_manifest_stops_compaction_and_runs_and_says_what_to_do(tmp_path: Path) -> None:
    job = in_three_versions(tmp_path)
    manifest_path(tmp_path, 3).write_bytes(manifest_path(tmp_path, 3).read_bytes()[:-20])
    for action in (lambda: compact(tmp_path, now_ns=NOW_NS), lambda: run_local(tmp_path, NOW_NS, processes=1)):
        with pytest.raises(ManifestError, match=r"0003\.json is damaged: .*; restore it, or delete it within 7 days"):
            action()
    manifest_path(tmp_path, 3).unlink()
    compact(tmp_path, now_ns=NOW_NS)
    assert same_rows_of(tmp_path, job)


# --- Files of events --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("damage", ["cut", "bit", "empty", "gone"])
def test_a_damaged_file_of_events_is_not_merged_and_the_new_segments_are_added(tmp_path: Path, damage: str) -> None:
    job = one_job(60)
    objects = list(job.segments(str(tmp_path), each=6))
    for one in objects[:8]:
        write_objects([one])
        compact(tmp_path, now_ns=NOW_NS)
    file = tmp_path / "v1" / latest_events(tmp_path).files[3].path
    data = bytearray(file.read_bytes())
    data[30] ^= 1
    file.write_bytes({"cut": bytes(data[:-30]), "bit": bytes(data), "empty": b"", "gone": b""}[damage])
    if damage == "gone":
        file.unlink()
    write_objects(objects[8:])
    done = compact(tmp_path, now_ns=NOW_NS)
    (warning,) = [text for text in done.warnings if "are not merged" in text]
    assert file.name in warning
    assert (done.events, done.merged, len(latest_events(tmp_path).files)) == (14, 0, 9)


# --- Segments ---------------------------------------------------------------------------------------------------------


def missing_of(mirror: Path) -> tuple[int, int]:
    """Return what the row of the only job has: entries that are missing, and writers without an end."""
    run = run_local(mirror, NOW_NS, processes=1)
    (row,) = read_table(mirror, run.snapshot, "jobs").to_pylist()
    return row["missing"], row["open_writers"]


def test_the_entries_of_a_damaged_last_segment_are_missing_in_the_rows(tmp_path: Path) -> None:
    job = one_job()
    first, second, end = job.segments(str(tmp_path), each=16)
    write_objects([first, (second[0], second[1][:-9]), end])
    done = compact(tmp_path, now_ns=NOW_NS)
    assert (done.events, len(done.damaged), done.gaps) == (16, 1, [Gap("log", "w", FIRST + 16, FIRST + 31)])
    assert missing_of(tmp_path) == (16, 0)
    assert compact(tmp_path, now_ns=NOW_NS).gaps == done.gaps
    write_objects([(second[0].replace(".0.jsonl", ".1.jsonl"), second[1])])
    assert compact(tmp_path, now_ns=NOW_NS).gaps == []
    assert (missing_of(tmp_path), same_rows_of(tmp_path, job)) == ((0, 0), True)


def test_a_last_segment_that_is_gone_is_missing_by_the_end_of_its_writer(tmp_path: Path) -> None:
    first, _, end = one_job().segments(str(tmp_path), each=16)
    write_objects([first, (end[0], json.dumps({"last": FIRST + 31, "by": "next"}).encode())])
    assert compact(tmp_path, now_ns=NOW_NS).gaps == [Gap("log", "w", FIRST + 16, FIRST + 31)]
    assert missing_of(tmp_path) == (16, 0)


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b'{"last": "x"}', b'{"last": null}'])
def test_an_end_that_cannot_be_read_is_an_end(tmp_path: Path, text: bytes) -> None:
    first, second, end = one_job().segments(str(tmp_path), each=16)
    write_objects([first, second, (end[0], text)])
    assert compact(tmp_path, now_ns=NOW_NS).gaps == []
    assert missing_of(tmp_path) == (0, 0)


def test_a_log_of_which_all_is_damaged_is_a_gap(tmp_path: Path) -> None:
    first, second, _ = one_job().segments(str(tmp_path), each=16)
    write_objects([(first[0], b"x"), (second[0], b"")])
    done = compact(tmp_path, now_ns=NOW_NS)
    assert (len(done.damaged), done.gaps) == (2, [Gap("log", "w", FIRST, FIRST + 31)])


def test_a_segment_of_a_newer_version_stops_and_is_named(tmp_path: Path) -> None:
    first, second, _ = one_job().segments(str(tmp_path), each=16)
    header, _, lines = gzip.decompress(second[1]).partition(b"\n")
    newer = json.dumps({**json.loads(header), "schema": 2}).encode()
    write_objects([first, (second[0], gzip.compress(newer + b"\n" + lines))])
    with pytest.raises(NewerFormatError, match=r"jsonl\.gz was written by a newer version"):
        compact(tmp_path, now_ns=NOW_NS)
    assert latest_events(tmp_path).version == 0


def test_a_segment_of_another_writer_than_its_name_says_is_damaged(tmp_path: Path) -> None:
    first, second, _ = one_job().segments(str(tmp_path), each=16)
    write_objects([first, (second[0].replace("/w.", "/x."), second[1])])
    done = compact(tmp_path, now_ns=NOW_NS)
    assert (done.events, len(done.damaged), done.gaps) == (16, 1, [Gap("log", "x", FIRST, FIRST + 31)])


def test_a_segment_that_arrives_late_for_a_closed_day_is_added(tmp_path: Path) -> None:
    job = one_job()
    first, second, end = job.segments(str(tmp_path), each=16)
    write_objects([second, end])
    assert compact(tmp_path, now_ns=NOW_NS).events == 16
    assert missing_of(tmp_path) == (16, 0)
    write_objects([first])
    assert compact(tmp_path, now_ns=NOW_NS + 5 * DAY_NS).events == 16
    assert (missing_of(tmp_path), same_rows_of(tmp_path, job)) == ((0, 0), True)


def test_the_end_of_a_writer_counts_when_its_last_day_is_closed(tmp_path: Path) -> None:
    history = History().start(0).steps(range(300), at=86_000).end(89_100)
    job = Job(JobKey("log", "job"), [Writer("w", {"host": "h"}, history.payloads)])
    entries, objects = job.entries(), LogPaths(str(tmp_path), FOLDER)
    days = sorted({day_of(entry.timestamp_ns) for entry in entries})
    for day in days:
        write_objects([segment(objects, [entry for entry in entries if day_of(entry.timestamp_ns) == day])])
    write_objects([(objects.path(EndName(days[-1], "w")), b"{}")])
    compact(tmp_path, now_ns=entries[-1].timestamp_ns)
    assert missing_of(tmp_path) == (0, 1)
    compact(tmp_path, now_ns=entries[-1].timestamp_ns + DAY_NS)
    assert (missing_of(tmp_path), same_rows_of(tmp_path, job)) == ((0, 0), True)


# --- Clocks and names -------------------------------------------------------------------------------------------------

CLOCKS = {"1970": 5, "2262": 2**63 - 1, "2500": 2**64, "before 1970": -(10**18), "no time": 10**40}


@pytest.mark.parametrize("clock", CLOCKS)
def test_entries_of_a_host_with_a_wrong_clock_are_in_the_table(tmp_path: Path, clock: str) -> None:
    """Also on the day on which they are written: what is of a day that has not begun is not waited for."""
    job = one_job()
    entries, objects = job.entries(), LogPaths(str(tmp_path), FOLDER)
    for entry in entries[20:]:
        entry.timestamp_ns = CLOCKS[clock]
    write_objects([segment(objects, entries[:20]), segment(objects, entries[20:])])
    done = compact(tmp_path, now_ns=entries[0].timestamp_ns + DAY_NS)
    assert (done.events, done.gaps, done.warnings) == (32, [], [])
    assert set(identities(tmp_path).values()) == {1}
    (file,) = latest_events(tmp_path).files
    assert -(2**63) <= file.first_t_ns <= file.last_t_ns < 2**63
    run = run_local(tmp_path, NOW_NS, processes=1)
    (row,) = read_table(tmp_path, run.snapshot, "jobs").to_pylist()
    assert (row["entries"], row["rules"]) == (32, "1")


def test_a_clock_that_is_a_day_ahead_is_waited_for(tmp_path: Path) -> None:
    job = one_job()
    write_objects(job.segments(str(tmp_path)))
    now_ns = job.entries()[0].timestamp_ns - DAY_NS
    assert compact(tmp_path, now_ns=now_ns).events == 0
    assert compact(tmp_path, now_ns=now_ns - DAY_NS).events == 32


NAMES = [
    *(chr(number) for number in [0, 1, 9, 10, 13, *range(32, 128), 0x85, 0xA0, 0x2028, 0xFEFF, 0xFFFD]),
    "a/b",
    "..",
    "naïve-Ω-日本-🚀",
    "x" * 5_000,
    "'; DROP TABLE jobs; --",
    '"quoted"\\',
]


def test_jobs_and_logs_with_any_name_have_rows(tmp_path: Path) -> None:
    history = History().start(0).steps(range(3), at=10).end(50)
    keys = [JobKey("one log", name) for name in NAMES] + [JobKey("log" * 50, "j"), JobKey("Ü%/ lög", "j")]
    for number, key in enumerate(keys):
        write_objects(Job(key, [Writer(f"w{number}", {"host": "h"}, history.payloads)]).segments(str(tmp_path)))
    done = compact(tmp_path, now_ns=NOW_NS)
    assert (done.events, done.gaps, done.damaged) == (5 * len(keys), [], [])
    run = run_local(tmp_path, NOW_NS, processes=1)
    jobs = read_table(tmp_path, run.snapshot, "jobs").to_pylist()
    assert {JobKey(row["log"], row["job"]) for row in jobs} == set(keys)
    assert {(row["entries"], row["missing"], row["open_writers"], row["rules"]) for row in jobs} == {(5, 0, 0, "1")}


def test_lines_with_any_numbers_stop_no_other_job(tmp_path: Path) -> None:
    job = one_job()
    good = list(job.segments(str(tmp_path)))
    entries = one_job().entries()
    bad = LogPaths(str(tmp_path), log_folder_name("bad"))
    values: list[Any] = [10**30, -(10**30), 1e300, "text", None, True, [], {}]
    odd = []
    for number, value in enumerate(values):
        payload = {"job_name": "odd", "step_count": value, "step_start_time": value, "job_start_time": value}
        odd.append(LogEntry(entries[0].timestamp_ns, FIRST + number, payload, entries[0].context))
    odd.append(LogEntry(10**9, FIRST + 8, {"job_name": "odd", "lost_entries": {"x": 10**30}}, entries[0].context))
    odd.append(LogEntry(10**40, 10**11 + 99, {"job_name": "odd", "job_start_time": 5.0}, entries[0].context))
    path, data = segment(bad, odd)
    header, _, lines = gzip.decompress(data).partition(b"\n")
    header = json.dumps({**json.loads(header), "log": "bad"}).encode()
    extra = json.dumps({"t": 5, "s": 10**30, "p": {"job_name": "odd", "a": 10**30}}).encode()
    write_objects([*good, (path, gzip.compress(b"\n".join([header, lines, extra])))])
    done = compact(tmp_path, now_ns=NOW_NS)
    assert done.events == 32 + 11
    run = run_local(tmp_path, NOW_NS, processes=1)
    rows = {row["job"]: row for row in read_table(tmp_path, run.snapshot, "jobs").to_pylist()}
    assert (rows["job"]["rules"], rows["job"]["entries"]) == ("1", 32)
    assert (rows["odd"]["entries"], rows["odd"]["missing"]) == (11, 90)


# --- Disks and buckets ------------------------------------------------------------------------------------------------

_LIMITED = """
import resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), int(sys.argv[2])))
mirror, now_ns = sys.argv[1], int(sys.argv[3])
{code}
"""
_COMPACT = "from ml_diagnostics_fleet.compact import compact; compact(mirror, now_ns=now_ns)"
_RUN = "from ml_diagnostics_fleet.local_engine import run_local; run_local(mirror, now_ns, processes=1)"


def limited(code: str, mirror: Path, most_bytes: int) -> str:
    """Run code in a process that can write no larger file, as on a full disk; return its errors."""
    argv = [sys.executable, "-c", _LIMITED.format(code=code), str(mirror), str(most_bytes), str(AS_OF_NS)]
    return subprocess.run(argv, capture_output=True, text=True, check=False, timeout=100).stderr


@pytest.mark.parametrize("most_bytes", [100, 3_000, 8_000])
def test_a_disk_that_is_full_while_compacting_changes_nothing(tmp_path: Path, most_bytes: int) -> None:
    write_segments(tmp_path, FLEET)
    errors = limited(_COMPACT, tmp_path, most_bytes)
    assert "File too large" in errors
    assert "Exception ignored" not in errors
    assert latest_events(tmp_path).version == 0
    compact(tmp_path, now_ns=AS_OF_NS)
    assert identities(tmp_path) == expected(FLEET)


@pytest.mark.parametrize("most_bytes", [100, 4_000])
def test_a_disk_that_is_full_while_rows_are_written_keeps_the_rows_before(tmp_path: Path, most_bytes: int) -> None:
    write_segments(tmp_path, FLEET)
    compact(tmp_path, now_ns=AS_OF_NS)
    before = run_local(tmp_path, AS_OF_NS - 1, processes=1)
    assert "StorageError: cannot write" in limited(_RUN, tmp_path, most_bytes)
    assert latest_rows(tmp_path).snapshots == (before.snapshot,)
    assert run_local(tmp_path, AS_OF_NS, processes=1).jobs == 5


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[CloudStorageServer]:
    with CloudStorageServer(buckets=["bucket"]) as server:
        for name, value in server.environment().items():
            monkeypatch.setenv(name, value)
        yield server
        storage_for("gs://bucket/x").close()  # type: ignore[attr-defined]


MIRROR = "gs://bucket/mirror"


def write_to_bucket(job: Job, each: int = 10) -> None:
    for path, data in job.segments(MIRROR, each=each):
        storage_for(path).write(path, data)


def rows_of_bucket(job: Job) -> list[dict[str, Any]]:
    run = run_local(MIRROR, NOW_NS, processes=1)
    found: list[dict[str, Any]] = read_table(MIRROR, run.snapshot, "jobs").to_pylist()
    return found


def test_a_bucket_that_may_not_be_written_is_an_error_that_names_the_permission(server: CloudStorageServer) -> None:
    job = one_job()
    write_to_bucket(job)
    server.faults.always(Status(403), on="upload")
    with pytest.raises(StorageError, match=r"v1/events/group=.*403|permission|roles"):
        compact(MIRROR, now_ns=NOW_NS)
    server.faults.clear()
    assert compact(MIRROR, now_ns=NOW_NS).events == 32
    server.faults.always(Status(403), on="upload")
    with pytest.raises(StorageError, match=r"v1/rows/"):
        run_local(MIRROR, NOW_NS, processes=1)
    server.faults.clear()
    assert rows_of_bucket(job)[0]["entries"] == 32


@pytest.mark.parametrize("operation", ["list", "read"])
def test_a_bucket_that_may_not_be_read_is_an_error(server: CloudStorageServer, operation: str) -> None:
    write_to_bucket(one_job())
    server.faults.always(Status(403), on=operation)
    with pytest.raises(StorageError):
        compact(MIRROR, now_ns=NOW_NS)


def test_a_bucket_that_is_unavailable_now_and_then_changes_nothing(server: CloudStorageServer) -> None:
    job = one_job()
    write_to_bucket(job)
    server.faults.sometimes(Status(503), probability=0.2, seed=4)
    assert compact(MIRROR, now_ns=NOW_NS).events == 32
    (row,) = rows_of_bucket(job)
    assert (row["entries"], row["missing"], row["open_writers"]) == (32, 0, 0)
    assert server.faults.injected


def test_old_files_that_may_not_be_deleted_are_a_warning(server: CloudStorageServer) -> None:
    job = one_job(60)
    for path, data in list(job.segments(MIRROR, each=6)):
        storage_for(path).write(path, data)
        compact(MIRROR, now_ns=NOW_NS, rolls_up=False)
    assert latest_events(MIRROR).removed
    server.faults.always(Status(403), on="delete")
    done = compact(MIRROR, now_ns=NOW_NS + 8 * DAY_NS, rolls_up=False)
    assert "old files of events are kept, for they cannot be deleted" in done.warnings[-1]
    server.faults.clear()
    assert compact(MIRROR, now_ns=NOW_NS + 8 * DAY_NS, rolls_up=False).deleted == 9


def test_old_rows_that_may_not_be_deleted_are_a_warning(
    server: CloudStorageServer, caplog: pytest.LogCaptureFixture
) -> None:
    write_to_bucket(one_job())
    compact(MIRROR, now_ns=NOW_NS)
    for now_ns in (NOW_NS, NOW_NS):
        run_local(MIRROR, NOW_NS, processes=1, now_ns=now_ns)
    server.faults.always(Status(403), on="delete")
    run = run_local(MIRROR, NOW_NS + 1, processes=1, now_ns=NOW_NS + 8 * DAY_NS)
    assert latest_rows(MIRROR).snapshots[0] == run.snapshot
    assert "Old files of rows are kept, for they cannot be deleted" in caplog.text


def test_a_folder_whose_list_fails_once_is_listed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On NFS a list may be stale."""
    failures = iter([True, False] * 1_000)

    class Storage(LocalStorage):
        def list_prefix(self, path: str, *, after: str = "", limit: int | None = None) -> list[str]:
            if next(failures):
                raise StorageError(f"cannot list {path}: Stale file handle")
            return super().list_prefix(path, after=after, limit=limit)

    monkeypatch.setattr("ml_diagnostics_fleet._paths.storage_for", lambda path: Storage())
    job = one_job()
    write_objects(job.segments(str(tmp_path)))
    assert compact(tmp_path, now_ns=NOW_NS, rolls_up=False).events == 32
    assert same_rows_of(tmp_path, job)


# --- Many small objects -----------------------------------------------------------------------------------------------

_TINY = """
import resource, sys
from ml_diagnostics_fleet.compact import compact
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
done = compact(sys.argv[1], now_ns=int(sys.argv[2]), rolls_up=False)
print(done.events, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024)
"""


def compact_tiny(mirror: Path, writers: int, each: int) -> tuple[int, int]:
    """Compact so many segments of one entry; return the events that were added, and how much memory that took."""
    history = History().start(0).steps(range(each - 1), at=10)
    for number in range(writers):
        job = Job(JobKey("log", f"job-{number}"), [Writer(f"w{number}", {"host": "h"}, history.payloads)])
        write_objects(job.segments(str(mirror), each=1))
    argv = [sys.executable, "-c", _TINY, str(mirror), str(NOW_NS)]
    events, size = subprocess.run(argv, stdout=subprocess.PIPE, check=True, timeout=1500).stdout.split()
    return int(events), int(size)


def test_thousands_of_tiny_segments_take_little_memory(tmp_path: Path) -> None:
    events, size = compact_tiny(tmp_path, writers=40, each=50)
    assert events == 2_000
    assert size < 120 * 2**20


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_hundred_thousand_tiny_segments_take_little_memory(tmp_path: Path) -> None:
    events, size = compact_tiny(tmp_path, writers=400, each=250)
    assert events == 100_000
    assert size < 400 * 2**20


def test_jobs_of_one_log_cost_by_their_events_and_not_by_their_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job has the columns of its own writers: those of all writers would be a million for 1,000 jobs."""
    sizes: list[int] = []
    by_writer = event_tables._by_writer

    def counted(writers: Any, texts: Any) -> Any:
        sizes.append(len(texts))
        return by_writer(writers, texts)

    monkeypatch.setattr(event_tables, "_by_writer", counted)
    tables = event_tables.EventTables("log")
    for number in range(30):
        job = Job(JobKey("log", f"job-{number}"), [Writer(f"w{number}", {"host": "h"}, History().start(0).payloads)])
        tables.add(job.entries())
    assert len(tables.take()) == 30
    assert set(sizes) == {1}
