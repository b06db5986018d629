"""Mirrors across processes: kills, exits, hosts, and the writing of what an ended process has left."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from pathlib import Path

import pytest
from ml_diagnostics_common.exceptions import ConfigurationError, StorageError
from ml_diagnostics_common.files import share_lock
from ml_diagnostics_common.guard import Counters
from ml_diagnostics_common.journal import JournalCap, list_segments, log_directory, log_folder_name
from ml_diagnostics_common.mirror._bucket import Bucket
from ml_diagnostics_common.mirror._upload import Upload
from ml_diagnostics_common.mirror.names import LogPaths
from ml_diagnostics_common.mirror.rest import lifecycle, push
from ml_diagnostics_common.mirror.rollup import roll_up
from ml_diagnostics_common.mirror.status import status
from ml_diagnostics_testing.cloud_storage import CloudStorageServer
from ml_diagnostics_testing.faults import Hang, Status

from ...waiting import wait_until
from ..journals import LOG, new_journal, read_all
from .jobs import assert_the_mirror_has_the_journal_once, finish, recorded_and_killed, run
from .mirrors import ends, identities, objects, read_mirror

# --- The end of a process -----------------------------------------------------------------------------


@pytest.mark.parametrize("ending", ["", "sys.exit(3)", "raise SystemExit(3)", "1 / 0", "os.kill(os.getpid(), 2)"])
def test_a_process_that_exits_leaves_a_complete_mirror(tmp_path: Path, ending: str) -> None:
    root, mirror = tmp_path / "root", str(tmp_path / "mirror")
    body = f"start_mirror('goodput_run7', root)\nfor n in range(100): journal.append({{'n': n}})\n{ending}"
    process = run(body, root, mirror)
    _, errors = process.communicate(timeout=60)
    codes = {"": 0, "1 / 0": 1, "os.kill(os.getpid(), 2)": -signal.SIGINT}
    assert process.returncode == codes.get(ending, 3), errors.decode()
    assert_the_mirror_has_the_journal_once(mirror, root)
    assert [end["by"] for end in ends(mirror).values()] == ["self"]


@pytest.mark.timing
def test_a_bucket_that_hangs_does_not_hold_up_the_end_of_a_process(
    tmp_path: Path, cloud_storage_server: CloudStorageServer
) -> None:
    cloud_storage_server.faults.always(Hang())
    start = time.monotonic()
    body = "start_mirror('goodput_run7', root)\nfor n in range(100): journal.append({'n': n})"
    process = run(body, tmp_path, "gs://bucket/m")
    process.communicate(timeout=60)
    assert process.returncode == 0
    assert time.monotonic() - start < 15
    cloud_storage_server.faults.clear()
    assert [pushed.entries for pushed in push(tmp_path, "gs://bucket/m")] == [100]
    assert_the_mirror_has_the_journal_once("gs://bucket/m", tmp_path)


def test_entries_behind_the_end_of_a_writer_are_mirrored_by_the_next_push(tmp_path: Path) -> None:
    root, mirror = tmp_path / "root", str(tmp_path / "mirror")
    body = """
m = start_mirror('goodput_run7', root)
journal.append({'n': 1})
assert m.close(20)
journal.append({'n': 2})  # As a function of atexit that is called later.
os._exit(0)
"""
    finish(run(body, root, mirror))
    assert len(read_mirror(mirror)) == 1
    assert [pushed.entries for pushed in push(root, mirror)] == [1]
    assert not list(push(root, mirror))
    assert_the_mirror_has_the_journal_once(mirror, root)
    assert [end["by"] for end in ends(mirror).values()] == ["self"]


def test_a_forked_child_neither_hangs_nor_repeats_entries(tmp_path: Path) -> None:
    root, mirror = tmp_path / "root", str(tmp_path / "mirror")
    body = """
mirror = start_mirror('goodput_run7', root)
journal.append({'n': 1})
assert mirror.flush(20)
pid = os.fork()
journal.append({'n': 2 if pid else 3})
if not pid:
    mirror.flush(20)
    again = start_mirror('goodput_run7', root)
    assert again is not mirror
    again.close()
    os._exit(0)
assert os.waitpid(pid, 0)[1] == 0
"""
    finish(run(body, root, mirror))
    assert_the_mirror_has_the_journal_once(mirror, root)
    assert len(ends(mirror)) == 2


# --- What killed processes have left ------------------------------------------------------------------


def test_the_next_process_writes_what_a_killed_one_left(mirror: str, tmp_path: Path) -> None:
    root = tmp_path / "root"
    recorded_and_killed(root, mirror, "mirror(0.01)\nrecord_for_ever()")
    finish(run("m = mirror(0.5)\njournal.append({'n': -1})\nwait_for_an_end()", root, mirror))
    assert_the_mirror_has_the_journal_once(mirror, root)
    assert sorted(end["by"] for end in ends(mirror).values()) == ["next", "self"]


@pytest.mark.timing
def test_the_backlog_of_ended_processes_does_not_delay_what_a_process_records(tmp_path: Path) -> None:
    root, mirror = tmp_path / "root", str(tmp_path / "mirror")
    for _ in range(3):
        large = "j = Journal('goodput_run7', root=root, labels={'job': 'run7'})\n"
        finish(run(large + "for n in range(2000): j.append({'n': n, 'text': 'x' * 9_000})", root, mirror))
    body = """
import time
mirror = Mirror(os.environ["ML_DIAGNOSTICS_MIRROR"], root=root, seconds=0.5, start_seconds=0.0)
mirror.add("goodput_run7")
time.sleep(0.2)
for _ in range(5):
    journal.append({"n": 1})
    start = time.monotonic()
    assert mirror.flush(20)
    assert time.monotonic() - start < 5
deadline = time.monotonic() + 50
while mirror.statistics().counts["mirrored"] < 6005 and time.monotonic() < deadline:
    time.sleep(0.1)
"""
    finish(run(body, root, mirror))
    assert_the_mirror_has_the_journal_once(mirror, root)


def test_the_next_process_leaves_logs_alone_that_were_not_mirrored(tmp_path: Path) -> None:
    root, mirror = tmp_path / "root", str(tmp_path / "mirror")
    finish(run("Journal('other', root=root, labels={}).append({'n': 1})", root, ""))
    finish(run("m = mirror(0.5)\njournal.append({'n': -1})\nassert m.flush(20)\ntime.sleep(1)", root, mirror))
    assert Bucket(mirror).log_folders() == [LOG]
    assert {pushed.log for pushed in push(root, mirror)} == {"other"}
    assert Bucket(mirror).log_folders() == [LOG, "other"]


def test_a_companion_writes_what_a_killed_process_left_before_its_parent_has_noticed(tmp_path: Path) -> None:
    root, mirror = tmp_path / "root", str(tmp_path / "mirror")
    process = run("mirror(0.01)\nrecord_for_ever()", root, mirror)
    while not (Path(mirror).exists() and objects(mirror)):
        time.sleep(0.01)
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # A zombie.
    assert [pushed.has_ended for pushed in push(root, mirror, by="companion", ended_pids={process.pid})] == [True]
    process.communicate()
    assert_the_mirror_has_the_journal_once(mirror, root)
    assert [end["by"] for end in ends(mirror).values()] == ["companion"]


def test_a_push_by_hand_is_complete_and_a_second_one_has_nothing_to_do(mirror: str, tmp_path: Path) -> None:
    root = tmp_path / "root"
    recorded_and_killed(root, mirror)
    ((log, _, entries, has_ended),) = push(root, mirror)
    assert (log, has_ended) == (LOG, True)
    assert entries == len(read_all(root))
    assert not list(push(root, mirror))
    assert_the_mirror_has_the_journal_once(mirror, root)
    assert [(each.behind_bytes, each.has_ended, each.is_running) for each in status(root, mirror)] == [(0, True, False)]


def test_a_push_while_the_process_lives_does_not_end_its_writer(tmp_path: Path) -> None:
    root, mirror = tmp_path / "root", str(tmp_path / "mirror")
    process = run("record_for_ever()", root, "")
    try:
        wait_until(lambda: read_all(root))
        ((_, _, entries, has_ended),) = push(root, mirror)
        assert entries > 0
        assert not has_ended
        assert ends(mirror) == {}
        (found,) = status(root, mirror)
        assert found.is_running
        assert found.labels["job"] == "run7"
    finally:
        process.kill()
        process.communicate()
    assert [pushed.has_ended for pushed in push(root, mirror)] == [True]
    assert_the_mirror_has_the_journal_once(mirror, root)


def test_a_writer_that_a_process_of_another_container_has_open_is_not_ended(tmp_path: Path) -> None:
    root, mirror = tmp_path / "root", str(tmp_path / "mirror")
    recorded_and_killed(root, mirror)
    segment = list_segments(log_directory(root, LOG))[-1]
    with Path(segment.path).open("rb") as file:
        share_lock(file.fileno())
        assert [pushed.has_ended for pushed in push(root, mirror)] == [False]
        assert ends(mirror) == {}
    assert [pushed.has_ended for pushed in push(root, mirror)] == [True]
    assert_the_mirror_has_the_journal_once(mirror, root)


def test_the_journal_of_another_host_is_pushed_by_hand(tmp_path: Path) -> None:
    root, mirror = tmp_path / "root", str(tmp_path / "mirror")
    recorded_and_killed(root, mirror)
    for segment in list_segments(log_directory(root, LOG)):
        path = Path(segment.path)
        path.write_bytes(path.read_bytes().replace(segment.writer.encode(), b"pod-" + segment.writer.encode()))
        os.utime(path, (0, 0))
        path.rename(path.with_name(f"pod-{path.name}"))
    assert [pushed.has_ended for pushed in push(root, mirror)] == [True]
    assert_the_mirror_has_the_journal_once(mirror, root)


def test_two_hosts_mirror_one_log(tmp_path: Path) -> None:
    mirror = str(tmp_path / "mirror")
    for host in ("a", "b"):
        finish(run("m = mirror(0.01)\nfor n in range(50): journal.append({'n': n})", tmp_path / host, mirror))
    expected = read_all(tmp_path / "a") + read_all(tmp_path / "b")
    assert sorted(identities(read_mirror(mirror))) == sorted(identities(expected))
    assert len(ends(mirror)) == 2


@pytest.mark.parametrize("left", ["nothing", "an empty note", "zeros", "an earlier note"])
def test_a_note_that_is_lost_or_old_loses_and_doubles_nothing(mirror: str, tmp_path: Path, left: str) -> None:
    root = tmp_path / "root"
    process = run("mirror(0.01)\nrecord_for_ever()", root, mirror)
    bucket = Bucket(mirror)
    folder = LogPaths.of(bucket.path, LOG).folder
    while not (notes := list((root / "state" / "mirror").rglob("*.json"))):
        time.sleep(0.05)
    (note,) = notes
    contents = {"an empty note": b"", "zeros": bytes(100), "an earlier note": note.read_bytes()}
    first = len(bucket.list_paths(folder))
    while len(bucket.list_paths(folder)) < first + 4:
        time.sleep(0.05)
    process.kill()
    process.communicate()
    if left == "nothing":
        note.unlink()
    else:
        assert note.read_bytes() != contents[left]
        note.write_bytes(contents[left])
    (pushed,) = push(root, mirror)
    assert pushed.has_ended
    if left == "an earlier note":  # The same entries may be in two objects: readers see them once.
        assert identities(read_mirror(mirror)) == identities(read_all(root))
    else:
        assert_the_mirror_has_the_journal_once(mirror, root)


def test_lines_that_threads_wrote_out_of_order_are_not_lost_at_a_crash(tmp_path: Path) -> None:
    root, mirror = tmp_path / "root", str(tmp_path / "mirror")
    recorded_and_killed(root, mirror)
    segment = list_segments(log_directory(root, LOG))[0]
    path = Path(segment.path)
    header, *lines = path.read_bytes().split(b"\n")
    swapped = [*lines[:9], lines[10], lines[9], *lines[11:]]
    path.write_bytes(b"\n".join([header, *swapped[:10]]))
    upload = Upload.claim(Bucket(mirror), root, log_folder_name(LOG), segment.writer, Counters())
    assert upload is not None
    assert upload.write_next([segment], ended=False) is not None  # Its range has number 9, which it lacks.
    upload.release()
    path.write_bytes(b"\n".join([header, *swapped]))
    for note in (root / "state" / "mirror").rglob("*.json"):
        note.unlink()
    assert list(push(root, mirror))
    assert_the_mirror_has_the_journal_once(mirror, root)


@pytest.mark.parametrize(
    ("kind", "count"),
    [
        ("folder", 10),
        pytest.param("folder", 200, marks=pytest.mark.slow),
        pytest.param("bucket", 60, marks=pytest.mark.slow),
    ],
)
def test_kills_at_random_moments_lose_and_double_nothing(
    request: pytest.FixtureRequest, tmp_path: Path, kind: str, count: int
) -> None:
    """The writer, its roll-ups, and the process that takes over are killed; the last push finds what is left."""
    root, mirror, longest_seconds = tmp_path / "root", str(tmp_path / "mirror"), 0.6
    if kind == "bucket":
        request.getfixturevalue("cloud_storage_server")
        mirror, longest_seconds = "gs://bucket/m", 3.0  # Google's client takes a second to import.
    rng = random.Random(11)
    body = "mirror_writer._CHECK_SECONDS = 0.01\nmirror(0.01)\nprint(flush=True)\nrecord_for_ever()"
    for _ in range(count):
        process = run(body, root, mirror)
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(rng.random() * longest_seconds)
        process.kill()
        process.communicate()
    assert list(push(root, mirror))
    assert_the_mirror_has_the_journal_once(mirror, root)
    assert not list(push(root, mirror))
    assert any(name.level == 1 for name in objects(mirror))


# --- Roll-ups that were killed ------------------------------------------------------------------------


def test_what_a_killed_roll_up_left_is_deleted_by_the_next(mirror: str, tmp_path: Path) -> None:
    root = tmp_path / "root"
    recorded_and_killed(root, mirror)
    writer = read_all(root)[0].context.writer
    assert writer is not None
    upload = Upload.claim(Bucket(mirror), root, log_folder_name(LOG), writer, Counters())
    assert upload is not None
    (segment,) = [each for each in upload.segments() if each.number == 0]
    data = Path(segment.path).read_bytes()
    for lines in (20, 30):  # In parts, as it grew.
        Path(segment.path).write_bytes(b"\n".join(data.split(b"\n")[:lines]))
        upload.write_next([segment], ended=False)
    Path(segment.path).write_bytes(data)
    upload.release()
    names = objects(mirror)
    bucket = Bucket(mirror)
    kept = {path: bucket.read(path) for path in map(upload.paths.path, names)}
    assert roll_up(bucket, upload.paths, names) is not None
    for path, content in list(kept.items())[:1]:
        bucket.create(path, content)  # As if it had been killed before it deleted the first of them.
    assert list(push(root, mirror))
    assert_the_mirror_has_the_journal_once(mirror, root)


# --- Refusals -----------------------------------------------------------------------------------------


def test_a_push_to_a_bucket_that_refuses_is_an_error_and_the_next_one_goes_on(
    tmp_path: Path, cloud_storage_server: CloudStorageServer
) -> None:
    recorded_and_killed(tmp_path, "")
    cloud_storage_server.faults.always(Status(403), on="upload")
    with pytest.raises(StorageError, match=r"grant it roles/storage"):
        list(push(tmp_path, "gs://bucket/m"))
    cloud_storage_server.faults.clear()
    assert list(push(tmp_path, "gs://bucket/m"))
    assert_the_mirror_has_the_journal_once("gs://bucket/m", tmp_path)


def test_a_push_with_the_permission_to_create_alone_is_complete(
    tmp_path: Path, cloud_storage_server: CloudStorageServer
) -> None:
    recorded_and_killed(tmp_path, "")
    for operation in ("read", "get", "list", "delete"):
        cloud_storage_server.faults.always(Status(403), on=operation)
    assert [pushed.has_ended for pushed in push(tmp_path, "gs://bucket/m")] == [True]
    cloud_storage_server.faults.clear()
    assert_the_mirror_has_the_journal_once("gs://bucket/m", tmp_path)


def test_the_rules_of_a_bucket_delete_old_segments_and_events() -> None:
    rules = lifecycle("gs://bucket/team/")["rule"]
    assert [(rule["condition"]["age"], rule["condition"]["matchesPrefix"]) for rule in rules] == [
        (30, ["team/v1/segments/"]),
        (400, ["team/v1/events/"]),
    ]
    assert lifecycle("gs://bucket")["rule"][0]["condition"]["matchesPrefix"] == ["v1/segments/"]
    json.dumps(rules)
    with pytest.raises(ConfigurationError, match="not in a bucket"):
        lifecycle("/tmp/mirror")


# --- The cap of the journal ---------------------------------------------------------------------------


def test_the_cap_drops_what_the_mirror_has_and_nothing_that_it_lacks(tmp_path: Path) -> None:
    root, mirror = tmp_path / "root", str(tmp_path / "mirror")
    journal = new_journal(root, segment_bytes=1_000)
    for n in range(100):
        journal.append({"n": n})
    upload = Upload.claim(Bucket(mirror), root, log_folder_name(LOG), journal.writer, Counters())
    assert upload is not None
    upload.save_start()
    cap = JournalCap(root, limit_bytes=100)
    cap.check()
    before = list_segments(upload.log_folder)
    assert before[0].number == 0
    for _ in range(3):
        upload.write_next(before, ended=True)
    cap.check()
    left = list_segments(upload.log_folder)
    assert left[0].number == 3
    assert cap.exceeded
    while upload.write_next(before, ended=True):
        pass
    cap.check()
    assert [segment.number for segment in list_segments(upload.log_folder)] == [before[-1].number]
    assert len(read_mirror(mirror)) == 100
