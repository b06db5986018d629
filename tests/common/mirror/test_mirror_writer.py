"""The thread that mirrors what a process records."""

from __future__ import annotations

import errno
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from ml_diagnostics_common.backoff import Backoff
from ml_diagnostics_common.entry import COMPANION_LOG_ID
from ml_diagnostics_common.exceptions import ConfigurationError
from ml_diagnostics_common.guard import Counters
from ml_diagnostics_common.journal import Journal, list_segments, log_directory, log_folder_name
from ml_diagnostics_common.journal._layout import decode_header
from ml_diagnostics_common.mirror._bucket import Bucket
from ml_diagnostics_common.mirror._pace import Pace
from ml_diagnostics_common.mirror._round import MirrorRound
from ml_diagnostics_common.mirror._upload import Upload
from ml_diagnostics_common.mirror.reader import MirrorReader
from ml_diagnostics_common.mirror.writer import Mirror, finish_mirrors, start_mirror
from ml_diagnostics_testing.cloud_storage import CloudStorageServer
from ml_diagnostics_testing.faults import Hang, Status

from ...waiting import wait_until
from ..journals import LOG, Clock, new_journal, read_all
from .mirrors import ends, flat, identities, objects, raw_identities, read_mirror, write

HOUR = 3600.0


def new_mirror(mirror: str, root: Path, **options: Any) -> Mirror:
    options = {"grace_period_seconds": 20.0, "start_seconds": 1e9, "seconds": 1e9, "request_seconds": 5.0, **options}
    return Mirror(mirror, root=root, **options)


# --- What is written ----------------------------------------------------------------------------------


def test_what_a_process_records_is_in_the_mirror_with_its_end(mirror: str, tmp_path: Path) -> None:
    root = tmp_path / "root"
    journal = new_journal(root)
    thread = new_mirror(mirror, root)
    thread.add(LOG)
    journal.append({"n": 1})
    assert thread.flush(20)
    assert identities(read_mirror(mirror)) == identities(read_all(root))
    assert ends(mirror) == {}
    journal.append({"n": 2}, severity="ERROR")
    assert thread.close()
    assert read_mirror(mirror) == read_all(root)
    assert len(raw_identities(mirror)) == 2
    assert ends(mirror) == {journal.writer: {"last": 10**11 + 1, "by": "self"}}
    statistics = thread.statistics()
    assert statistics.state == "stopped"
    assert statistics.counts["mirrored"] == 2
    assert statistics.last_error == ""


def test_objects_are_gzip_without_a_content_encoding(
    tmp_path: Path, cloud_storage_server: CloudStorageServer, round_of: Any
) -> None:
    new_journal(tmp_path).append({"n": 1})
    assert write(round_of("gs://bucket/m", tmp_path), is_last=True)
    stored = {name: cloud_storage_server.stored("bucket", name) for name in cloud_storage_server.names("bucket")}
    types = {name.rpartition(".")[2]: each.properties.get("contentType") for name, each in stored.items()}
    assert types == {"gz": "application/gzip", "end": "application/json"}
    assert not any("contentEncoding" in each.properties for each in stored.values())


def test_a_folder_of_a_mirror_is_private(tmp_path: Path, round_of: Any) -> None:
    new_journal(tmp_path / "root").append({"n": 1})
    assert write(round_of(str(tmp_path / "mirror"), tmp_path / "root"))
    paths = [tmp_path / "mirror", *(tmp_path / "mirror").rglob("*")]
    assert {path.stat().st_mode & 0o777 for path in paths if path.is_dir()} == {0o700}
    assert {path.stat().st_mode & 0o777 for path in paths if path.is_file()} == {0o600}


def test_each_round_writes_one_object_with_what_is_new(tmp_path: Path, round_of: Any) -> None:
    mirror, root = str(tmp_path / "mirror"), tmp_path / "root"
    journal, round_ = new_journal(root), round_of(mirror, root)
    for n in range(5):
        for _ in range(10):
            journal.append({"n": n})
        assert write(round_)
        assert write(round_)
    assert [(name.first - 10**11, name.last - 10**11, name.level) for name in objects(mirror)] == [
        (10 * n, 10 * n + 9, 0) for n in range(5)
    ]
    assert read_mirror(mirror) == read_all(root)


def test_an_object_has_four_megabytes_at_most(tmp_path: Path, round_of: Any) -> None:
    mirror, root = str(tmp_path / "mirror"), tmp_path / "root"
    journal = new_journal(root, segment_bytes=7_000_000)
    for n in range(200):
        journal.append({"n": n, "text": "x" * 60_000})
    round_ = round_of(mirror, root)
    while not write(round_):
        time.sleep(0.2)  # For the second segment.
    assert 4 <= len(objects(mirror)) <= 5
    assert read_mirror(mirror) == read_all(root)


def test_a_day_has_objects_of_its_own(tmp_path: Path, round_of: Any) -> None:
    mirror, root, clock = str(tmp_path / "mirror"), tmp_path / "root", Clock(1_763_769_598_000_000_000)
    journal = new_journal(root, clock_ns=clock)
    for n in range(4):  # 23:59:58 to 00:00:01
        journal.append({"n": n})
        clock.advance(1)
    assert write(round_of(mirror, root))
    assert [(name.day, name.first - 10**11, name.last - 10**11) for name in objects(mirror)] == [
        ("2025-11-21", 0, 1),
        ("2025-11-22", 2, 3),
    ]
    assert read_mirror(mirror) == read_all(root)


def test_times_that_jump_between_days_make_few_objects(tmp_path: Path, round_of: Any) -> None:
    mirror, root = str(tmp_path / "mirror"), tmp_path / "root"
    journal = new_journal(root)
    for n in range(1000):
        journal.append({"n": n}, timestamp_ns=(n % 7) * 86_400 * 10**9)
    journal.append({"n": -1}, timestamp_ns=-(10**30))
    journal.append({"n": -2}, timestamp_ns=10**18)
    assert write(round_of(mirror, root))
    assert len(objects(mirror)) <= 12
    assert sorted(raw_identities(mirror)) == [f"{journal.writer}.{10**11 + n}" for n in range(1002)]


def test_a_line_that_is_being_written_is_left_for_the_next_round(tmp_path: Path, round_of: Any) -> None:
    mirror, root = str(tmp_path / "mirror"), tmp_path / "root"
    journal, round_ = new_journal(root), round_of(mirror, root)
    journal.append({"n": 1})
    (segment,) = list_segments(log_directory(root, LOG))
    whole = b'\n{"t":1763710310000000000,"s":100000000001,"p":{"n":{"a":1}}}'
    with Path(segment.path).open("ab") as file:
        file.write(whole[:-2])
        file.flush()
        assert not write(round_)
        assert len(raw_identities(mirror)) == 1
        assert not write(round_, is_last=True)
        assert ends(mirror) == {}
        file.write(whole[-2:])
    assert write(round_)
    assert len(raw_identities(mirror)) == 2


def test_lines_that_are_not_entries_are_left_out_and_counted(tmp_path: Path, round_of: Any) -> None:
    mirror, root, counters = str(tmp_path / "mirror"), tmp_path / "root", Counters()
    journal, round_ = new_journal(root), round_of(mirror, root, counters=counters)
    journal.append({"n": 1})
    (segment,) = list_segments(log_directory(root, LOG))
    with Path(segment.path).open("ab") as file:
        file.write(b'\n{"t":17637103,"s":1000\nfoo\n{"t":1763710310000000000,"s":1%s,"p":{}}' % (b"0" * 30))
        file.write(b'\n{"t":1763710310000000000,"s":100000000001,"p":{"n":%s}}' % (b"9" * 400))
        file.write(b'\n{"t":1763710310000000001,"s":100000000002,"p":{"n":3}}\0\0\0')
    assert write(round_)
    assert sorted(entry.sequence - 10**11 for entry in read_mirror(mirror)) == [0, 1, 2]
    assert counters["damaged_line"] == 3


def test_a_damaged_header_is_that_of_the_writers_other_segments(tmp_path: Path, round_of: Any) -> None:
    mirror, root = str(tmp_path / "mirror"), tmp_path / "root"
    journal = new_journal(root, segment_bytes=100)
    for n in range(2):
        journal.append({"n": n})
    first, _ = list_segments(log_directory(root, LOG))
    path = Path(first.path)
    path.write_bytes(b"#" + path.read_bytes()[1:])
    round_ = round_of(mirror, root)
    while not write(round_):
        time.sleep(0.2)
    assert read_mirror(mirror) == read_all(root)
    assert len(raw_identities(mirror)) == 2


def test_entries_that_must_stay_on_this_machine_are_not_mirrored(tmp_path: Path, round_of: Any) -> None:
    mirror, root = str(tmp_path / "mirror"), tmp_path / "root"
    private = Journal(LOG, root=root, labels={"job": "run7"}, shippable=False, mirrored=False)
    private.append({"text": "what the job printed"})
    new_journal(root).append({"n": 1})
    unknown = new_journal(root)
    unknown.append({"text": "of a header that is damaged"})
    path = log_directory(root, LOG) / f"{unknown.writer}.0.jsonl"
    path.write_bytes(b"#" + path.read_bytes()[1:])
    assert write(round_of(mirror, root), is_last=True)
    assert [entry.payload for entry in read_mirror(mirror)] == [{"n": 1}]
    assert len(ends(mirror)) == 1


def test_what_companions_of_earlier_versions_kept_on_this_machine_is_not_mirrored(tmp_path: Path) -> None:
    line = b'{"schema":1,"log":"%s","writer":"w","labels":{},"resource":{},"severity":"INFO","ship":%s}'
    companion = COMPANION_LOG_ID.encode()
    cases = {(companion, b"false"): False, (companion, b"true"): True, (b"goodput", b"false"): True}
    assert {case: decode_header(line % case).mirror for case in cases} == cases


def test_a_new_segment_waits_until_the_one_before_is_complete(tmp_path: Path, round_of: Any) -> None:
    mirror, root = str(tmp_path / "mirror"), tmp_path / "root"
    journal, round_ = new_journal(root, segment_bytes=200), round_of(mirror, root)
    for n in range(10):
        journal.append({"n": n})
    write(round_)
    deadline = time.monotonic() + 20
    while not write(round_) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert read_mirror(mirror) == read_all(root)
    assert len(raw_identities(mirror)) == 10


def test_entries_that_no_cloud_gets_are_mirrored(tmp_path: Path, round_of: Any) -> None:
    journal = Journal(LOG, root=tmp_path / "root", labels={"job": "run7"}, shippable=False)
    journal.append({"n": 1})
    assert write(round_of(str(tmp_path / "mirror"), tmp_path / "root"))
    assert len(read_mirror(str(tmp_path / "mirror"))) == 1


def test_thousands_of_recorders_need_few_files(tmp_path: Path, round_of: Any) -> None:
    mirror, root = str(tmp_path / "mirror"), tmp_path / "root"
    round_ = round_of(mirror, root)
    for n in range(200):
        journal = new_journal(root)
        journal.append({"n": n})
        del journal  # Its file is closed; its entries are not in the mirror yet.
    before = sum(1 for _ in Path("/proc/self/fd").iterdir())
    assert write(round_)
    assert sum(1 for _ in Path("/proc/self/fd").iterdir()) - before <= 64
    assert len(raw_identities(mirror)) == 200
    assert write(round_, is_last=True)
    assert len(ends(mirror)) == 200


# --- Roll-up ------------------------------------------------------------------------------------------


def hours_of_a_job(root: Path, round_: MirrorRound, hours: int = 3) -> Journal:
    clock = Clock(1_763_769_600_000_000_000)  # Midnight.
    journal = new_journal(root, clock_ns=clock)
    for _ in range(hours * 12):
        for n in range(10):
            journal.append({"n": n})
            clock.advance(30)
        assert write(round_)
        round_.maintain(deadline=lambda: 1e18, pause=lambda seconds: None)
    return journal


def test_hours_that_are_over_are_one_object_each(mirror: str, tmp_path: Path, round_of: Any) -> None:
    root, counters = tmp_path / "root", Counters()
    hours_of_a_job(root, round_of(mirror, root, counters=counters))
    found = sorted(objects(mirror), key=lambda name: name.first)
    assert [name.level for name in found] == [1, 1, *[0] * 12]
    assert [(name.first - 10**11, name.last - 10**11) for name in found[:2]] == [(0, 119), (120, 239)]
    assert read_mirror(mirror) == read_all(root)
    assert len(raw_identities(mirror)) == 360
    assert counters["rolled_up"] == 2


def test_with_the_permission_to_create_alone_nothing_is_rolled_up_and_nothing_is_missing(
    tmp_path: Path, cloud_storage_server: CloudStorageServer, round_of: Any, caplog: pytest.LogCaptureFixture
) -> None:
    counters = Counters()
    for operation in ("read", "get", "list", "delete"):
        cloud_storage_server.faults.always(Status(403), on=operation)
    hours_of_a_job(tmp_path, round_of("gs://bucket/m", tmp_path, counters=counters))
    assert "WARNING" not in [record.levelname for record in caplog.records]
    assert counters["not_rolled_up"] == 1
    cloud_storage_server.faults.clear()
    assert {name.level for name in objects("gs://bucket/m")} == {0}
    assert read_mirror("gs://bucket/m") == read_all(tmp_path)


def test_a_reader_in_the_middle_of_roll_ups_misses_nothing(tmp_path: Path, round_of: Any) -> None:
    mirror, root = str(tmp_path / "mirror"), tmp_path / "root"
    reader = MirrorReader(LOG, mirror=mirror, full_listing_seconds=0)
    read: list[Any] = []
    stop = threading.Event()

    def follow() -> None:
        while not stop.is_set():
            read.extend(flat(reader.read_new()))

    thread = threading.Thread(target=follow)
    thread.start()
    try:
        hours_of_a_job(root, round_of(mirror, root), hours=4)
    finally:
        stop.set()
        thread.join()
    read.extend(flat(reader.read_new()))
    assert sorted(identities(read)) == sorted(identities(read_all(root)))


# --- Failures -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [403, 404])
def test_a_bucket_that_refuses_is_one_warning_with_what_to_grant_and_recording_goes_on(
    tmp_path: Path, cloud_storage_server: CloudStorageServer, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("WARNING")
    cloud_storage_server.faults.always(Status(status), on="upload")
    journal = new_journal(tmp_path)
    bucket = f"gs://bucket/refusing-{status}"
    thread = new_mirror(bucket, tmp_path, access_backoff=Backoff(0.01, 0.02))
    thread.add(LOG)
    journal.append({"n": 1})
    assert not thread.flush(0.5)
    journal.append({"n": 2})
    assert not thread.flush(0.5)
    assert thread.statistics().counts[f"failed_{'PERMISSION_DENIED' if status == 403 else 'NOT_FOUND'}"] >= 1
    assert thread.statistics().lag_seconds > 0
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(warnings) == 1
    assert "storage.objects.create" in warnings[0]
    assert "The job goes on" in warnings[0]
    cloud_storage_server.faults.clear()
    assert thread.close()
    assert read_mirror(bucket) == read_all(tmp_path)


def test_a_folder_that_is_full_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("WARNING")
    mirror, root = str(tmp_path / "mirror"), tmp_path / "root"

    def full(folder: Path, data: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("ml_diagnostics_common.storage._local._temporary_file", full)
    journal = new_journal(root)
    thread = new_mirror(mirror, root, access_backoff=Backoff(0.01, 0.02), backoff=Backoff(0.01, 0.02))
    thread.add(LOG)
    for n in range(3):
        journal.append({"n": n})
        assert not thread.flush(0.2)
    (warning,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert "No space left on device; free some space" in warning
    assert "The job goes on" in warning
    monkeypatch.undo()
    assert thread.close()
    assert read_mirror(mirror) == read_all(root)
    assert len(raw_identities(mirror)) == 3


@pytest.mark.parametrize("status", [429, 503])
def test_a_bucket_that_is_busy_is_tried_again(
    tmp_path: Path, cloud_storage_server: CloudStorageServer, status: int
) -> None:
    cloud_storage_server.faults.always(Status(status), on="upload")
    journal = new_journal(tmp_path)
    thread = new_mirror("gs://bucket/m", tmp_path, request_seconds=0.5, backoff=Backoff(0.01, 0.02))
    thread.add(LOG)
    journal.append({"n": 1})
    assert not thread.flush(2.0)
    cloud_storage_server.faults.clear()
    assert thread.close()
    assert read_mirror("gs://bucket/m") == read_all(tmp_path)
    assert len(raw_identities("gs://bucket/m")) == 1


def test_answers_that_are_lost_make_nothing_double(
    tmp_path: Path, cloud_storage_server: CloudStorageServer, round_of: Any
) -> None:
    journal, round_ = new_journal(tmp_path), round_of("gs://bucket/m", tmp_path)
    cloud_storage_server.faults.sometimes(Status(503, after_apply=True), probability=0.5, on="upload")
    for n in range(20):
        journal.append({"n": n})
        write(round_)
    cloud_storage_server.faults.clear()
    assert write(round_, is_last=True)
    assert sorted(raw_identities("gs://bucket/m")) == [f"{journal.writer}.{10**11 + n}" for n in range(20)]


@pytest.mark.timing
def test_a_bucket_that_hangs_stalls_neither_recording_nor_the_end(
    tmp_path: Path, cloud_storage_server: CloudStorageServer
) -> None:
    cloud_storage_server.faults.always(Hang())
    journal = new_journal(tmp_path)
    thread = new_mirror("gs://bucket/hanging", tmp_path, seconds=0.1, start_seconds=0.1, request_seconds=30.0)
    thread.add(LOG)
    deadline = time.monotonic() + 2
    slowest = 0.0
    while time.monotonic() < deadline:
        start = time.perf_counter()
        journal.append({"n": 1})
        slowest = max(slowest, time.perf_counter() - start)
        time.sleep(0.001)
    start = time.monotonic()
    assert not thread.close(1.0)
    assert time.monotonic() - start < 2.0
    assert slowest < 0.5
    cloud_storage_server.faults.clear()
    wait_until(lambda: thread.statistics().state == "stopped")


def test_a_refused_create_of_the_same_range_is_success(mirror: str, tmp_path: Path, round_of: Any) -> None:
    journal, counters = new_journal(tmp_path / "root"), Counters()
    journal.append({"n": 1})
    assert write(round_of(mirror, tmp_path / "root"))
    folder = tmp_path / "root" / "state" / "mirror"
    for note in folder.rglob("*.json"):
        note.unlink()  # As if the process had been killed before it.
    for lock in folder.rglob("*.lock"):
        lock.unlink()
    round_ = round_of(mirror, tmp_path / "root", counters=counters)
    assert write(round_)
    journal.append({"n": 2})
    assert write(round_)
    assert counters["refused_creates"] == 1
    assert len(raw_identities(mirror)) == 2


def test_takers_that_race_for_one_writer_write_everything_once(mirror: str, tmp_path: Path) -> None:
    root = tmp_path / "root"
    journal = new_journal(root)
    for n in range(100):
        journal.append({"n": n})
    barrier = threading.Barrier(4)

    def take(number: int) -> None:
        (tmp_path / str(number)).mkdir()
        # Each with a lock of its own, as on hosts with a file system without locks.
        state = tmp_path / str(number) / "state"
        state.mkdir()
        (tmp_path / str(number) / "journal").symlink_to(root / "journal")
        upload = Upload.claim(Bucket(mirror), tmp_path / str(number), log_folder_name(LOG), journal.writer, Counters())
        assert upload is not None
        barrier.wait()
        while upload.write_next(upload.segments(), ended=True):
            pass
        upload.write_end("next")
        upload.release()

    threads = [threading.Thread(target=take, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(objects(mirror)) == 1
    assert len(raw_identities(mirror)) == 100
    assert ends(mirror) == {journal.writer: {"last": 10**11 + 99, "by": "next"}}


# --- The pace -----------------------------------------------------------------------------------------


def test_the_pace_is_short_at_first_and_while_a_command_watches() -> None:
    now = [1000.0]
    pace = Pace(30.0, lambda: now[0])
    assert pace.seconds() == 30.0
    now[0] += 601
    assert pace.is_old()
    assert pace.seconds() == 120.0
    pace.note_watch("a.watch", 1)
    assert pace.seconds() == 30.0
    now[0] += 301
    pace.note_watch("a.watch", 1)  # No command renewed it.
    assert pace.seconds() == 120.0
    pace.note_watch("a.watch", 2)
    assert pace.seconds() == 30.0
    assert Pace(600.0, lambda: 0.0).seconds() == 600.0
    now[0] += 10_000
    assert Pace(300.0, lambda: now[0]).seconds() == 300.0


def test_a_reader_that_watches_makes_the_writer_write_more_often(mirror: str, tmp_path: Path, round_of: Any) -> None:
    now = [0.0]
    journal = new_journal(tmp_path / "root", clock_ns=Clock())
    journal.append({"n": 1})
    round_ = round_of(mirror, tmp_path / "root")
    assert write(round_)
    pace = Pace(30.0, lambda: now[0])
    now[0] = 700.0
    round_.check_watch(pace)
    assert pace.seconds() == 120.0
    reader = MirrorReader(LOG, mirror=mirror)
    assert len(flat(reader.read_new())) == 1
    assert reader.ask_to_hurry(Clock().now_ns) == 1
    round_.check_watch(pace)
    assert pace.seconds() == 30.0


# --- Settings -----------------------------------------------------------------------------------------


def test_without_a_mirror_there_is_no_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ML_DIAGNOSTICS_MIRROR", " ")
    assert start_mirror(LOG, tmp_path) is None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ML_DIAGNOSTICS_MIRROR", "s3://bucket/x"),
        ("ML_DIAGNOSTICS_MIRROR", "gs:/bucket"),
        ("ML_DIAGNOSTICS_MIRROR_SECONDS", "4"),
        ("ML_DIAGNOSTICS_MIRROR_SECONDS", "3601"),
        ("ML_DIAGNOSTICS_MIRROR_SECONDS", "nan"),
        ("ML_DIAGNOSTICS_MIRROR_SECONDS", "soon"),
    ],
)
def test_an_invalid_setting_is_an_error_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv("ML_DIAGNOSTICS_MIRROR", str(tmp_path / "mirror"))
    monkeypatch.setenv(name, value)
    with pytest.raises(ConfigurationError, match=r"ML_DIAGNOSTICS_MIRROR_SECONDS|s3|slash"):
        start_mirror(LOG, tmp_path)


def test_all_logs_of_a_process_share_one_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ML_DIAGNOSTICS_MIRROR", str(tmp_path / "mirror"))
    logs = ["a", "b", "c"]
    mirrors = {start_mirror(log_id, tmp_path / "root") for log_id in logs}
    (mirror,) = mirrors
    assert mirror is not None
    for log_id in logs:
        Journal(log_id, root=tmp_path / "root", labels={}).append({"log": log_id})
    assert finish_mirrors(20)
    for log_id in logs:
        assert [entry.payload for entry in read_mirror(str(tmp_path / "mirror"), log_id)] == [{"log": log_id}]
    assert start_mirror("a", tmp_path / "root") is not mirror
    assert finish_mirrors(20)
