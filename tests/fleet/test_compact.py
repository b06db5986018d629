"""Compaction: each entry is in the table once, whatever objects have it, and whenever a compactor is killed."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ml_diagnostics_common.exceptions import ObjectNotFoundError, StorageError
from ml_diagnostics_common.journal import log_folder_name
from ml_diagnostics_common.mirror.names import LogPaths
from ml_diagnostics_common.storage import LocalStorage
from ml_diagnostics_fleet import compact as compaction
from ml_diagnostics_fleet import event_files
from ml_diagnostics_fleet.compact import compact
from ml_diagnostics_fleet.events import EventsFile
from ml_diagnostics_fleet.local_engine import run_local
from ml_diagnostics_fleet.manifest import Gap, latest_events
from ml_diagnostics_fleet.rows_files import read_table
from ml_diagnostics_fleet.schemas import JobKey
from ml_diagnostics_fleet.synthetic import AS_OF_NS, SyntheticFleet
from ml_diagnostics_fleet.synthetic_files import segments_of, write_segments

from ..ml_goodput_measurement.histories import History
from .fleets import FIRST, NOW_NS, Job, Writer, fleets, rows_of, segment, write_objects

DAY_NS = 86_400 * 10**9
FLEET = SyntheticFleet(seed=5, jobs=6, events=3_000)


def identities(mirror: Path) -> Counter[tuple[str, str, str, int]]:
    """How often each entry is in the files that belong to the table."""
    found: Counter[tuple[str, str, str, int]] = Counter()
    for entry in latest_events(mirror).files:
        with EventsFile(str(mirror / "v1" / entry.path)) as file:
            groups = [group for groups in file.jobs().values() for group in groups]
            rows = file.table(groups).select(["log", "job", "writer", "seq"]).to_pylist()
        assert len(rows) == entry.rows
        found.update(tuple(row.values()) for row in rows)
    return found


def expected(fleet: SyntheticFleet) -> Counter[tuple[str, str, str, int]]:
    rows = (row for job in fleet for row in job.table().select(["log", "job", "writer", "seq"]).to_pylist())
    return Counter(tuple(row.values()) for row in rows)


def one_job(count: int = 30) -> Job:
    history = History().start(0).steps(range(count), at=10).end(10.0 * count + 10)
    return Job(JobKey("log", "job"), [Writer("w", {"host": "h"}, history.payloads)])


def test_the_table_has_each_entry_of_the_segments_once(tmp_path: Path) -> None:
    entries = write_segments(tmp_path, FLEET)
    done = compact(tmp_path, now_ns=AS_OF_NS)
    assert (done.events, done.version, done.gaps, done.damaged, done.warnings) == (entries, 1, [], [], [])
    assert identities(tmp_path) == expected(FLEET)
    again = compact(tmp_path, now_ns=AS_OF_NS)
    assert (again.events, again.segments, again.files, again.version) == (0, 0, [], 1)


def test_the_table_has_the_events_as_they_were_made(tmp_path: Path) -> None:
    write_segments(tmp_path, FLEET)
    compact(tmp_path, now_ns=AS_OF_NS)
    tables = {job.key: job.table() for job in FLEET}
    for entry in latest_events(tmp_path).files:
        file = EventsFile(str(tmp_path / "v1" / entry.path))
        for key, groups in file.jobs().items():
            assert file.table(groups).to_pylist() == tables[key].to_pylist()


@settings(max_examples=25, deadline=None)
@given(fleets(most=3), st.data())
def test_objects_that_overlap_are_doubled_or_late_change_nothing(
    tmp_path_factory: pytest.TempPathFactory, members: list[Job], data: st.DataObject
) -> None:
    mirror = tmp_path_factory.mktemp("mirror")
    objects = [one for job in members for one in job.segments(str(mirror), data.draw(st.integers(1, 9)))]
    objects += [one for job in members for one in job.segments(str(mirror), data.draw(st.integers(1, 40)), level=1)]
    objects = data.draw(st.permutations(objects))
    middle = data.draw(st.integers(0, len(objects)))
    for part in (objects[:middle], objects[middle:]):
        write_objects(part)
        compact(mirror, now_ns=NOW_NS)
    run = run_local(mirror, NOW_NS, processes=1)
    rows = rows_of(members[0])
    for job in members[1:]:
        rows.extend(rows_of(job))
    for name in ("ledger_rows", "attempts", "disruptions"):
        assert read_table(mirror, run.snapshot, name).equals(rows.table(name))
    found = read_table(mirror, run.snapshot, "jobs").to_pylist()
    assert [{**row, "missing": 0, "open_writers": 0} for row in found] == rows.table("jobs").to_pylist()


def test_a_day_that_goes_on_is_left_until_it_is_over(tmp_path: Path) -> None:
    job = one_job()
    write_objects(job.segments(str(tmp_path)))
    now_ns = job.entries()[-1].timestamp_ns + 10**9
    assert compact(tmp_path, now_ns=now_ns).events == 0
    assert compact(tmp_path, now_ns=now_ns, through_ns=now_ns + DAY_NS).events == 32
    assert compact(tmp_path, now_ns=now_ns + DAY_NS).events == 0


def test_a_gap_is_listed_until_its_entries_arrive(tmp_path: Path) -> None:
    entries, objects = one_job().entries(), LogPaths(str(tmp_path), log_folder_name("log"))
    write_objects([segment(objects, [*entries[2:10], *entries[15:]])])
    done = compact(tmp_path, now_ns=NOW_NS)
    gaps = [Gap("log", "w", FIRST, FIRST + 1), Gap("log", "w", FIRST + 10, FIRST + 14)]
    assert (done.events, done.gaps) == (25, gaps)
    assert compact(tmp_path, now_ns=NOW_NS).segments == 0  # The object with the gap is not read each time.
    run = run_local(tmp_path, NOW_NS, processes=1)
    (row,) = read_table(tmp_path, run.snapshot, "jobs").to_pylist()
    assert (row["missing"], row["open_writers"], row["entries"]) == (7, 1, 25)
    write_objects([segment(objects, entries[8:16]), segment(objects, entries[:2])])
    assert compact(tmp_path, now_ns=NOW_NS).gaps == []
    run = run_local(tmp_path, NOW_NS, processes=1)
    assert same_rows_of(tmp_path, one_job())
    write_objects(list(one_job().segments(str(tmp_path)))[-1:])
    compact(tmp_path, now_ns=NOW_NS)
    run = run_local(tmp_path, NOW_NS, processes=1)
    (row,) = read_table(tmp_path, run.snapshot, "jobs").to_pylist()
    assert (row["missing"], row["open_writers"], row["entries"]) == (0, 0, 32)


def same_rows_of(mirror: Path, job: Job) -> bool:
    run = run_local(mirror, NOW_NS, processes=1)
    names = ("ledger_rows", "attempts", "disruptions")
    return all(read_table(mirror, run.snapshot, name).equals(rows_of(job).table(name)) for name in names)


@pytest.mark.parametrize("damage", ["cut", "bit", "empty", "text"])
def test_a_damaged_object_is_named_and_the_others_count(tmp_path: Path, damage: str) -> None:
    first, second, *_ = objects = list(one_job().segments(str(tmp_path), each=16))
    data = bytearray(first[1])
    if damage == "bit":
        data[len(data) // 2] ^= 4
    damaged = {"cut": bytes(data[:-9]), "bit": bytes(data), "empty": b"", "text": b"text"}[damage]
    write_objects([(first[0], damaged), second])
    done = compact(tmp_path, now_ns=NOW_NS)
    assert (done.events, len(done.damaged), done.gaps) == (16, 1, [Gap("log", "w", FIRST, FIRST + 15)])
    assert done.damaged[0].startswith("segments/log=log/day=")
    assert compact(tmp_path, now_ns=NOW_NS).segments == 0
    write_objects([(objects[0][0].replace(".0.jsonl", ".1.jsonl"), objects[0][1])])  # Written once more, of the hour.
    assert (compact(tmp_path, now_ns=NOW_NS).gaps, same_rows_of(tmp_path, one_job())) == ([], True)


def test_small_files_are_merged_and_old_ones_deleted_after_a_week(tmp_path: Path) -> None:
    job = one_job(60)
    objects, merged = list(job.segments(str(tmp_path), each=6)), list[int]()
    for number, one in enumerate(objects[:10]):
        write_objects([one])
        merged.append(compact(tmp_path, now_ns=NOW_NS + number).merged)
    assert (sum(merged), len(latest_events(tmp_path).files)) == (9, 2)
    files = list((tmp_path / "v1" / "events").rglob("*.parquet"))
    assert len(files) == 11
    assert compact(tmp_path, now_ns=NOW_NS + 6 * DAY_NS).deleted == 0
    orphan = files[0].with_name("20200101T000000-0123abcd-0.parquet")
    orphan.write_bytes(b"left by a compactor that was killed")
    mine = files[0].with_name("mine.parquet")
    mine.write_bytes(b"of another program")
    assert compact(tmp_path, now_ns=NOW_NS + 8 * DAY_NS).deleted == 10
    left = {str(path.relative_to(tmp_path / "v1")) for path in (tmp_path / "v1" / "events").rglob("*.parquet")}
    assert left == {entry.path for entry in latest_events(tmp_path).files} | {str(mine.relative_to(tmp_path / "v1"))}
    write_objects(objects)
    compact(tmp_path, now_ns=NOW_NS + 8 * DAY_NS)
    assert set(identities(tmp_path).values()) == {1}
    assert same_rows_of(tmp_path, job)


def test_large_files_are_not_merged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_files, "_SMALL_BYTES", 100)
    for one in one_job(60).segments(str(tmp_path), each=6):
        write_objects([one])
        assert compact(tmp_path, now_ns=NOW_NS).merged == 0
    assert len(latest_events(tmp_path).files) == 11


@pytest.mark.parametrize("bound", ["_MOST_SORTED", "_MOST_SORTED_BYTES"])
def test_large_jobs_are_merged_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bound: str) -> None:
    monkeypatch.setattr(event_files, bound, 10)
    monkeypatch.setattr(compaction, "_MOST_ROWS", 4)
    monkeypatch.setattr(event_files, "_LARGEST_BYTES", 10_000)
    job = one_job(60)
    for one in list(job.segments(str(tmp_path), each=6)):
        write_objects([one])
        compact(tmp_path, now_ns=NOW_NS)
    assert (set(identities(tmp_path).values()), same_rows_of(tmp_path, job)) == ({1}, True)


def test_two_compactors_at_once_add_each_entry_once(tmp_path: Path) -> None:
    write_segments(tmp_path, FLEET)
    done: list[int] = []
    threads = [
        threading.Thread(target=lambda: done.append(compact(tmp_path, now_ns=AS_OF_NS).events)) for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(done) == [0, 0, sum(expected(FLEET).values())]
    assert identities(tmp_path) == expected(FLEET)


class _VanishingStorage(LocalStorage):
    """A folder from which one object is deleted between the list and the read."""

    victim = ""
    replacement: tuple[str, bytes] | None = None

    def read(self, path: str) -> bytes:
        if path == self.victim and Path(path).exists():
            if self.replacement is not None:
                write_objects([self.replacement])
                Path(path).unlink()
            raise ObjectNotFoundError(f"{path} does not exist")
        return super().read(path)


@pytest.fixture
def vanishing(monkeypatch: pytest.MonkeyPatch) -> type[_VanishingStorage]:
    class Storage(_VanishingStorage):
        pass

    monkeypatch.setattr("ml_diagnostics_fleet._paths.storage_for", lambda path: Storage())
    return Storage


def test_an_object_that_was_rolled_up_meanwhile_is_listed_again(
    tmp_path: Path, vanishing: type[_VanishingStorage]
) -> None:
    job = one_job()
    objects = list(job.segments(str(tmp_path), each=16))
    write_objects(objects)
    vanishing.victim = objects[0][0]
    vanishing.replacement = next(job.segments(str(tmp_path), level=1))
    done = compact(tmp_path, now_ns=NOW_NS)
    assert (done.events, done.gaps, same_rows_of(tmp_path, job)) == (32, [], True)


def test_an_object_that_is_listed_and_never_there_is_an_error_with_its_name(
    tmp_path: Path, vanishing: type[_VanishingStorage]
) -> None:
    objects = list(one_job().segments(str(tmp_path), each=16))
    write_objects(objects)
    vanishing.victim = objects[0][0]
    with pytest.raises(ObjectNotFoundError, match=r"w\.100000000000-100000000015\.0\.jsonl\.gz is listed"):
        compact(tmp_path, now_ns=NOW_NS)


def test_segments_that_waited_too_long_are_a_warning(tmp_path: Path) -> None:
    write_objects(one_job().segments(str(tmp_path)))
    (warning,) = compact(tmp_path, now_ns=NOW_NS).warnings
    assert "segments of 2023-11-14 were not compacted for more than 20 days" in warning
    assert compact(tmp_path, now_ns=NOW_NS).warnings == []


def test_small_segments_of_an_ended_writer_are_rolled_up_for_readers(tmp_path: Path) -> None:
    job = one_job(300)
    write_objects(job.segments(str(tmp_path), each=10))
    before = len(list(tmp_path.rglob("*.0.jsonl.gz")))
    done = compact(tmp_path, now_ns=NOW_NS)
    assert (before, done.events, done.gaps) == (31, 302, [])
    large = list(tmp_path.rglob("*.1.jsonl.gz"))
    assert 0 < len(large) == done.rolled_up < 5
    assert not list(tmp_path.rglob("*.0.jsonl.gz"))
    again = compact(tmp_path, now_ns=NOW_NS)
    assert (again.segments, again.events, again.rolled_up, again.gaps) == (0, 0, 0, [])
    assert same_rows_of(tmp_path, job)


def test_segments_that_may_not_be_deleted_are_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Storage(LocalStorage):
        def delete(self, path: str) -> None:
            raise StorageError(f"{path}: 403: grant storage.objects.delete")

    monkeypatch.setattr("ml_diagnostics_fleet._paths.storage_for", lambda path: Storage())
    write_objects(one_job(300).segments(str(tmp_path), each=10))
    done = compact(tmp_path, now_ns=NOW_NS)
    assert (done.events, done.rolled_up) == (302, 0)
    assert "stay small, for they cannot be rolled up" in done.warnings[-1]
    assert "grant storage.objects.delete" in done.warnings[-1]


def test_an_empty_mirror_is_no_error(tmp_path: Path) -> None:
    done = compact(tmp_path / "none", now_ns=NOW_NS)
    assert (done.version, done.events, done.gaps) == (0, 0, [])


_UNTIL_A_MERGE = 6
"""At most so many compactors finish before a group has enough small files for a merge."""


def _compactor(mirror: Path, temporary: Path) -> subprocess.Popen[bytes]:
    imports = "from ml_diagnostics_fleet.compact import compact; from ml_diagnostics_fleet import event_files"
    call = f"event_files._MOST_SMALL = 2; compact({str(mirror)!r}, now_ns={AS_OF_NS})"  # Merges are killed, too.
    # Python tries a folder for temporary files with a file of its own, once a process; a kill just then would leave it.
    searched = "import tempfile; tempfile.gettempdir()"
    code = f"{imports}; {searched}; print('started', flush=True); {call}"
    environ = {**os.environ, "TMPDIR": str(temporary)}
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, env=environ)


def kill_compactors(mirror: Path, times: int, seed: int) -> None:
    """Kill so many compactors at random moments while segments arrive; then one finishes its work."""
    moments, fleet = random.Random(seed), SyntheticFleet(seed=seed, jobs=times, events=500 * times)
    objects = [one for job in fleet for one in segments_of(str(mirror), job, job.table())]
    # A job with new objects each time, so that there are files to merge, and small objects to roll up.
    busy = one_job(8 * times)
    objects += busy.segments(str(mirror), each=4)
    all_entries = expected(fleet)
    all_entries.update((*busy.key, "w", entry.sequence) for entry in busy.entries())
    moments.shuffle(objects)
    each, start, lasts = -(-len(objects) // (times + _UNTIL_A_MERGE)), 0, 0.0
    temporary = mirror.with_name(f"{mirror.name}-temporary")
    temporary.mkdir(parents=True)
    while not latest_events(mirror).removed:  # However slow this machine is, not all are killed before a merge.
        write_objects(objects[start : start + each])
        start += each
        process = _compactor(mirror, temporary)
        assert process.stdout is not None
        process.stdout.readline()
        started = time.monotonic()
        process.communicate()
        assert process.returncode == 0
        lasts = time.monotonic() - started
    assert start <= each * _UNTIL_A_MERGE
    killed = 0
    while killed < times:
        write_objects(objects[start : start + each])
        start += each
        process = _compactor(mirror, temporary)
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(moments.uniform(0, lasts))
        process.send_signal(signal.SIGKILL)
        process.communicate()
        assert process.returncode in (0, -signal.SIGKILL)
        # Moments are to be within the work of a compactor, however fast this machine is at present.
        lasts *= 0.7 if process.returncode == 0 else 1.2
        killed += process.returncode != 0
        assert set(identities(mirror).values()) <= {1}
        assert not list(temporary.iterdir())  # No killed process leaves anything on its own disk.
    write_objects(objects[start:])
    compact(mirror, now_ns=AS_OF_NS)
    assert identities(mirror) == all_entries
    assert latest_events(mirror).removed
    assert list(mirror.rglob("w.*.1.jsonl.gz"))


def test_a_compactor_may_be_killed_at_any_moment(tmp_path: Path) -> None:
    kill_compactors(tmp_path, 10, 1)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_compactor_may_be_killed_at_two_hundred_moments(tmp_path: Path) -> None:
    for seed in range(8):
        kill_compactors(tmp_path / str(seed), 25, seed)
