"""Entries while the disk cannot be written to. Each test asserts the counters too."""

from __future__ import annotations

import errno
import os
import re
import resource
import shutil
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest
from ml_diagnostics_common import worker
from ml_diagnostics_common.journal import Journal, JournalCap, list_segments, log_directory
from ml_diagnostics_common.journal import _journal as journal_module
from ml_diagnostics_common.journal import _segment_file as segment_file
from ml_diagnostics_common.journal._layout import segment_name
from ml_diagnostics_common.reader import JournalReader

from ..waiting import wait_until
from .journals import LOG, Clock, assert_adds_up, new_journal, numbers, read_all, reported_losses, run_python

NEEDS_ROOT_TO_MOUNT = "a small file system cannot be mounted here"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 256 KiB."""
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(tmp_path)], capture_output=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip(NEEDS_ROOT_TO_MOUNT)
    yield tmp_path
    subprocess.run(["umount", "-l", str(tmp_path)], check=True)


class Disk:
    """Replaces `os.write` for the journal, and fails on demand."""

    def __init__(self) -> None:
        self.error: int | None = None
        self.writes_at_most: int | None = None
        self.calls = 0

    def write(self, descriptor: int, data: bytes) -> int:
        self.calls += 1
        if self.error is not None:
            raise OSError(self.error, os.strerror(self.error))
        if self.writes_at_most is not None:
            data, self.writes_at_most = data[: self.writes_at_most], None
        return os.write(descriptor, data)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    disk = Disk()
    monkeypatch.setattr(journal_module, "_write", disk.write)
    return disk


def test_recording_survives_a_full_disk(small_disk: Path, caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    journal = new_journal(small_disk, clock_ns=clock, cap=JournalCap(small_disk, limit_bytes=2**20))
    ballast = small_disk / "ballast"
    ballast.write_bytes(b"x" * 200_000)
    for n in range(2_000):
        journal.append({"n": n})
    statistics = journal.statistics()
    assert 0 < statistics.written < 2_000
    assert statistics.held == 2_000 - statistics.written
    ballast.unlink()
    clock.advance(1)
    journal.append({"n": 2_000})
    assert numbers(read_all(small_disk)) == list(range(2_001))  # Held, then written: nothing is lost.
    assert_adds_up(journal, small_disk)
    [message] = caplog.messages
    assert "No space left" in message
    assert "ML_DIAGNOSTICS_DIR" in message


def test_entries_without_space_are_dropped_counted_and_reported_in_the_log(tmp_path: Path, disk: Disk) -> None:
    clock = Clock()
    journal = new_journal(tmp_path, clock_ns=clock)
    journal.append({"n": 0})
    disk.error = errno.ENOSPC
    big = "x" * 2**20
    for n in range(1, 21):
        journal.append({"n": n, "big": big})
    statistics = journal.statistics()
    assert statistics.written == 1
    assert statistics.held == 7  # 8 MiB
    assert statistics.dropped == {"disk_full": 13}
    disk.error = None
    clock.advance(1)
    journal.append({"n": 21, "big": big})  # There is no space for it either, but it makes the journal retry.
    entries = read_all(tmp_path)
    assert numbers(entries) == list(range(8))
    assert reported_losses(entries) == {"disk_full": 14}
    assert [entry.payload["job_name"] for entry in entries if "lost_entries" in entry.payload] == ["run7"]
    journal.append({"n": 22})
    clock.advance(5)
    journal.append({"n": 23})
    assert reported_losses(read_all(tmp_path)) == {"disk_full": 14}  # Once.
    assert_adds_up(journal, tmp_path)


def test_a_disk_that_fails_is_tried_once_a_second_at_most(tmp_path: Path, disk: Disk) -> None:
    clock = Clock()
    journal = new_journal(tmp_path, clock_ns=clock)
    journal.append({"n": 0})
    disk.error = errno.ENOSPC
    journal.append({"n": 1})
    before = disk.calls
    for n in range(1_000):
        journal.append({"n": n})
        clock.advance(0.0009)
    assert disk.calls == before
    clock.advance(0.2)
    journal.append({"n": 0})
    assert disk.calls == before + 1
    clock.advance(-3600)  # A clock that is put back does not put off the next attempt by an hour.
    disk.error = None
    journal.append({"n": 1})
    assert journal.statistics().held == 0


def test_a_line_that_was_written_in_part_is_written_again_whole(tmp_path: Path, disk: Disk) -> None:
    journal = new_journal(tmp_path)
    journal.append({"n": 0})
    disk.writes_at_most = 20
    journal.append({"n": 1})
    journal.append({"n": 2})
    reader = JournalReader(LOG, root=tmp_path)
    assert numbers([entry for batch in reader.read_new() for entry in batch]) == [0, 1, 2]
    assert reader.skipped == {"torn": 1}
    assert_adds_up(journal, tmp_path)


@pytest.mark.parametrize("cut", range(0, 400, 7))
def test_held_lines_that_were_written_in_part_are_read_once_each(tmp_path: Path, disk: Disk, cut: int) -> None:
    clock = Clock()
    journal = new_journal(tmp_path, clock_ns=clock)
    journal.append({"n": 0})
    disk.error = errno.EIO
    for n in range(1, 6):
        journal.append({"n": n})
    disk.error, disk.writes_at_most = None, cut
    clock.advance(1)
    journal.append({"n": 6})
    journal.flush()
    assert numbers(read_all(tmp_path)) == list(range(7))
    assert_adds_up(journal, tmp_path)


@pytest.mark.parametrize(
    ("error", "reason"),
    [(errno.EIO, "io_error"), (errno.EROFS, "read_only"), (errno.EACCES, "no_permission"), (errno.EDQUOT, "disk_full")],
)
def test_recording_survives_a_disk_with_errors(tmp_path: Path, disk: Disk, error: int, reason: str) -> None:
    clock = Clock()
    journal = new_journal(tmp_path, clock_ns=clock)
    journal.append({"n": 0})
    disk.error = error
    for n in range(1, 11):
        journal.append({"n": n, "big": "x" * 2**20})
    assert journal.statistics().dropped == {reason: 3}
    disk.error = None
    clock.advance(2)
    journal.append({"last": True})
    assert numbers(read_all(tmp_path)) == list(range(8))
    assert_adds_up(journal, tmp_path)


def test_a_file_that_may_not_grow_is_followed_by_the_next(tmp_path: Path) -> None:
    script = """
import resource, sys
from pathlib import Path
from ml_diagnostics_common.journal import Journal
resource.setrlimit(resource.RLIMIT_FSIZE, (5_000, 5_000))
journal = Journal("goodput_run7", root=Path(sys.argv[1]), labels={})
for n in range(500):
    journal.append({"n": n})
print(*journal.statistics()[:3])
"""
    assert run_python(script, tmp_path).stdout.split() == ["500", "500", "0"]
    assert numbers(read_all(tmp_path)) == list(range(500))


def test_recording_survives_a_limit_under_which_no_file_can_be_written(tmp_path: Path) -> None:
    script = """
import resource, sys
from pathlib import Path
from ml_diagnostics_common.journal import Journal
resource.setrlimit(resource.RLIMIT_FSIZE, (10, resource.RLIM_INFINITY))
now = 1_763_710_310_000_000_000
journal = Journal("goodput_run7", root=Path(sys.argv[1]), labels={"job": "j"}, clock_ns=lambda: now)
for n in range(500):
    journal.append({"n": n})
print(*journal.statistics()[:3])
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
"""
    # At exit what was held is written.
    assert run_python(script, tmp_path).stdout.split() == ["500", "0", "500"]
    assert numbers(read_all(tmp_path)) == list(range(500))
    assert len(list_segments(tmp_path / "journal" / LOG)) == 1


def test_recording_survives_a_read_only_disk(small_disk: Path) -> None:
    clock = Clock()
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    journal = new_journal(small_disk, clock_ns=clock)
    for n in range(10):
        journal.append({"n": n})
    assert journal.statistics() == (10, 0, 10, {})
    subprocess.run(["mount", "-o", "remount,rw", str(small_disk)], check=True)
    clock.advance(1)
    journal.append({"n": 10})
    assert numbers(read_all(small_disk)) == list(range(11))


def test_recording_survives_a_folder_that_is_a_file(tmp_path: Path) -> None:
    clock = Clock()
    (tmp_path / "journal").write_text("a file that blocks the path")
    journal = new_journal(tmp_path, clock_ns=clock)
    journal.append({"n": 0})
    assert journal.statistics().held == 1
    (tmp_path / "journal").unlink()
    clock.advance(1)
    journal.append({"n": 1})
    assert numbers(read_all(tmp_path)) == [0, 1]


def test_recording_goes_on_in_a_new_file_when_the_folder_is_deleted(tmp_path: Path) -> None:
    clock = Clock()
    journal = new_journal(tmp_path, clock_ns=clock)
    journal.append({"n": 0})
    shutil.rmtree(tmp_path / "journal")
    clock.advance(5)
    journal.append({"n": 1})  # Five seconds later it is noticed, before anything goes to nowhere.
    journal.append({"n": 2})
    assert numbers(read_all(tmp_path)) == [1, 2]
    shutil.rmtree(tmp_path / "journal")
    for n in range(3, 10):  # Within five seconds: these are lost, and counted.
        journal.append({"n": n})
    clock.advance(5)
    journal.append({"n": 10})
    entries = read_all(tmp_path)
    assert numbers(entries) == [10]
    # 0 in the first folder, 1 and 2, which had been read, and 3 to 9 in the second.
    assert reported_losses(entries)["file_deleted"] >= 7
    assert journal.statistics().held == 0


def test_a_folder_that_is_deleted_just_before_the_end_of_the_process_is_counted(tmp_path: Path) -> None:
    clock = Clock()
    journal = new_journal(tmp_path, clock_ns=clock)
    for n in range(5):
        journal.append({"n": n})
    shutil.rmtree(tmp_path / "journal")
    clock.advance(0.5)
    journal.append({"n": 5})
    journal.close()
    assert reported_losses(read_all(tmp_path)) == {"file_deleted": 6}


def rotated(path: Path, how: str) -> None:
    """Do what another program does to a file that it takes for a log of its own."""
    if how == "moved away":
        path.rename(path.parents[2] / "elsewhere")
    elif how == "renamed":
        path.rename(path.with_name(path.name + ".1"))
    elif how == "renamed and created":
        path.rename(path.with_name(path.name + ".1"))
        path.touch()
    elif how == "copied and truncated":
        os.truncate(path, 0)
    elif how == "cut":
        os.truncate(path, path.read_bytes().index(b'"n":2}'))


MOVED = {"moved away": "file_moved", "renamed": "file_moved", "renamed and created": "file_moved"}
TRUNCATED = {"copied and truncated": "file_truncated", "cut": "file_truncated"}


@pytest.mark.parametrize(("how", "reason"), [*MOVED.items(), *TRUNCATED.items()])
def test_a_live_file_that_another_program_rotates_is_noticed_and_its_entries_are_counted(
    tmp_path: Path, how: str, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()
    journal = new_journal(tmp_path, clock_ns=clock)
    for n in range(10):
        journal.append({"n": n})
    clock.advance(6)
    journal.append({"n": 10})
    [segment] = list_segments(log_directory(tmp_path, LOG))
    rotated(Path(segment.path), how)
    for n in range(11, 16):  # Within five seconds: they go where the descriptor leads.
        journal.append({"n": n})
    clock.advance(6)
    for n in range(16, 20):
        journal.append({"n": n})
    entries = read_all(tmp_path)
    found = numbers(entries)
    statistics = journal.statistics()
    expected = {"copied and truncated": [*range(11, 20)], "cut": [0, 1, *range(11, 20)]}
    assert found == expected.get(how, [*range(16, 20)])
    assert statistics.dropped == {reason: 20 - len(found)}
    assert reported_losses(entries)[reason] == 20 - len(found)
    assert statistics.accepted == statistics.written + statistics.held + sum(statistics.dropped.values())
    assert "log rotation" in caplog.text


def test_a_full_segment_that_was_moved_is_noticed_before_the_next(tmp_path: Path) -> None:
    journal = new_journal(tmp_path, clock_ns=Clock(), segment_bytes=1_000)
    journal.append({"n": 0})
    [segment] = list_segments(log_directory(tmp_path, LOG))
    rotated(Path(segment.path), "renamed")
    n = 0
    while len(list_segments(log_directory(tmp_path, LOG))) < 1:
        journal.append({"n": (n := n + 1)})
    assert journal.statistics().dropped["file_moved"] >= n


def give_descriptor_away(journal: Journal, path: Path) -> int:
    """Replace it, as if a daemon had closed it, and the next file that was opened had its number."""
    others = os.open(path, os.O_CREAT | os.O_WRONLY)
    os.dup2(others, journal._descriptor)
    return others


def test_a_descriptor_given_to_another_file_is_not_used_after_the_next_check(tmp_path: Path) -> None:
    clock = Clock()
    journal = new_journal(tmp_path / "root", clock_ns=clock)
    journal.append({"n": 0})
    others = give_descriptor_away(journal, tmp_path / "others")
    clock.advance(5)
    journal.append({"n": 1})
    assert numbers(read_all(tmp_path / "root")) == [0, 1]
    assert os.fstat(others).st_size == 0
    os.close(others)


def test_files_that_are_opened_after_all_descriptors_were_closed_get_nothing_of_ours(tmp_path: Path) -> None:
    script = """
import os, sys
from pathlib import Path
from ml_diagnostics_common.journal import Journal
root = Path(sys.argv[1])
journal = Journal(sys.argv[2], root=root / "root", labels={})
journal.append({"n": 0})
os.closerange(3, 4096)
files = [os.open(root / f"mine-{number}", os.O_CREAT | os.O_WRONLY) for number in range(100)]
journal.append({"n": 1})
assert not any(os.fstat(file).st_size for file in files)
"""
    run_python(script, tmp_path, LOG)
    assert numbers(read_all(tmp_path / "root")) == [0, 1]


def test_where_few_descriptors_are_allowed_the_journal_uses_one_of_them(tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (150, before[1]))
    try:
        journal = new_journal(tmp_path)
        journal.append({"n": 0})
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert numbers(read_all(tmp_path)) == [0]


def test_entries_in_another_file_before_the_next_check_are_counted(tmp_path: Path) -> None:
    clock = Clock()
    journal = new_journal(tmp_path / "root", clock_ns=clock)
    journal.append({"n": 0})
    clock.advance(5)
    journal.append({"n": 1})  # A check: earlier entries are known to be in the journal.
    others = give_descriptor_away(journal, tmp_path / "others")
    journal.append({"n": 2})
    journal.append({"n": 3})
    clock.advance(5)
    journal.append({"n": 4})
    entries = read_all(tmp_path / "root")
    assert numbers(entries) == [0, 1, 4]
    assert reported_losses(entries)["descriptor_taken"] in (2, 3)  # 1 was written right after the check.
    os.close(others)


def test_a_segment_that_is_full_does_not_take_another_files_descriptor(tmp_path: Path) -> None:
    clock = Clock()
    journal = new_journal(tmp_path / "root", clock_ns=clock, segment_bytes=1_000)
    journal.append({"n": 0})
    taken = journal._descriptor
    others = give_descriptor_away(journal, tmp_path / "others")
    for n in range(1, 39):
        journal.append({"n": n})
    clock.advance(5)
    journal.append({"n": 39})
    assert os.path.samestat(os.fstat(taken), os.fstat(others))
    entries = read_all(tmp_path / "root")
    lost = 40 - len(numbers(entries))
    assert 0 < lost <= reported_losses(entries)["descriptor_taken"] <= lost + 1
    os.close(taken)
    os.close(others)


def test_a_clock_that_is_set_back_does_not_delay_the_check_of_the_file(tmp_path: Path) -> None:
    clock = Clock()
    journal = new_journal(tmp_path, clock_ns=clock)
    journal.append({"n": 0})
    shutil.rmtree(tmp_path / "journal")
    clock.advance(-3600)
    journal.append({"n": 1})
    journal.append({"n": 2})
    assert numbers(read_all(tmp_path)) == [1, 2]


def test_a_next_segment_opens_though_a_signal_handler_raised_in_the_middle_of_the_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = new_journal(tmp_path)

    def interrupt(_: object) -> bytes:  # It runs right after the file was made.
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(segment_file, "encode_header", interrupt)
        with pytest.raises(KeyboardInterrupt):
            journal.append({"n": 0})
    journal.append({"n": 1})
    assert numbers(read_all(tmp_path)) == [0, 1]
    assert_adds_up(journal, tmp_path)


def test_a_planted_link_is_not_followed(tmp_path: Path) -> None:
    journal = new_journal(tmp_path / "root")
    journal.folder.mkdir(parents=True)
    (journal.folder / segment_name(journal.writer, 0)).symlink_to(tmp_path / "planted")
    journal.append({"n": 0})
    journal.flush()
    assert numbers(read_all(tmp_path / "root")) == [0]
    assert not (tmp_path / "planted").exists()


def test_a_full_disk_is_not_filled_with_next_segments(tmp_path: Path, disk: Disk) -> None:
    clock = Clock()
    journal = new_journal(tmp_path, clock_ns=clock)
    journal.append({"n": 0})
    disk.error = errno.ENOSPC
    for n in range(1, 4):
        journal.append({"n": n})
        clock.advance(1)
    assert len(list_segments(journal.folder)) == 1
    assert journal.statistics().held == 3


def test_on_a_network_filesystem_the_caller_never_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writers = []

    def write(descriptor: int, data: bytes) -> int:
        writers.append(threading.get_ident())
        return os.write(descriptor, data)

    monkeypatch.setattr(journal_module, "_write", write)
    journal = new_journal(tmp_path, queued=True)
    for n in range(20):
        journal.append({"n": n})
        assert journal.flush(10.0)  # So that the file is open, and written to without trouble.
    assert numbers(read_all(tmp_path)) == list(range(20))
    assert writers
    assert threading.get_ident() not in writers


def test_a_network_filesystem_is_written_by_a_thread(tmp_path: Path) -> None:
    journal = new_journal(tmp_path, queued=True)
    for n in range(1_000):
        journal.append({"n": n})
    assert journal.flush(10.0)
    assert numbers(read_all(tmp_path)) == list(range(1_000))
    assert_adds_up(journal, tmp_path)


def test_a_network_filesystem_gets_a_line_that_is_appended_after_the_last_write_and_before_a_flush(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = new_journal(tmp_path, queued=True)
    is_written, may_end = threading.Event(), threading.Event()
    write_queued = journal._write_queued

    def write_and_pause() -> None:
        write_queued()
        is_written.set()
        may_end.wait(30)

    monkeypatch.setattr(journal, "_write_queued", write_and_pause)
    journal.append({"n": 0})
    assert is_written.wait(30)
    flush = worker.start(lambda: journal._queue.drain(30), "test-flush")
    wait_until(lambda: journal._queue.pending_count() == 2)
    journal.append({"n": 1})
    may_end.set()
    assert flush is not None
    assert flush.wait(30)
    wait_until(lambda: journal.statistics().held == 0)
    assert numbers(read_all(tmp_path)) == [0, 1]


def test_a_network_filesystem_that_hangs_delays_no_caller_and_uses_bounded_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = threading.Event()

    def write(descriptor: int, data: bytes) -> int:
        answers.wait(30)
        return os.write(descriptor, data)

    monkeypatch.setattr(journal_module, "_write", write)
    journal = new_journal(tmp_path, queued=True)
    for n in range(20):
        journal.append({"n": n, "big": "x" * 2**20})
    statistics = journal.statistics()
    assert statistics.held <= 8
    assert statistics.dropped == {"queue_full": 20 - statistics.held}
    assert journal.flush(0.01) is False
    answers.set()
    assert journal.flush(20.0)
    entries = read_all(tmp_path)
    assert numbers(entries) == list(range(statistics.held))
    assert reported_losses(entries) == {"queue_full": 20 - statistics.held}


def test_a_network_filesystems_thread_releases_an_unused_journal_and_ends(tmp_path: Path) -> None:
    journal = new_journal(tmp_path, queued=True)
    for n in range(5):
        journal.append({"n": n})
        assert journal.flush(10.0)
    assert numbers(read_all(tmp_path)) == list(range(5))
    forgotten, thread = weakref.ref(journal), journal._queue
    assert not thread.wait(0)
    del journal
    wait_until(lambda: forgotten() is None)
    assert thread.wait(10.0)


def test_a_network_filesystem_is_never_written_by_the_caller_also_when_there_can_be_no_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = new_journal(tmp_path, queued=True)
    with monkeypatch.context() as patch:
        patch.setattr(worker, "start", lambda *_: None)  # As at the interpreter's end.
        journal.append({"n": 0})
        assert not journal.flush(10.0)
        assert not journal.folder.exists()
        assert journal.statistics().held == 1
    journal.append({"n": 1})
    assert journal.flush(10.0)
    assert numbers(read_all(tmp_path)) == [0, 1]


def test_a_network_filesystem_that_hangs_at_the_exit_delays_it_a_bounded_time(tmp_path: Path) -> None:
    script = f"""
import _thread, atexit, os, pathlib, sys, threading
from ml_diagnostics_common.journal import Journal, _journal

journal = Journal({LOG!r}, root=pathlib.Path(sys.argv[1]), labels={{}}, queued=True)
journal.append({{"n": 0}})
assert journal.flush(30)
assert not journal._queue.wait(1.5)  # Its thread does not end for lack of work.

def refuse(*_):
    raise RuntimeError("can't create new thread at interpreter shutdown")

def hang(*_):
    assert threading.current_thread() is not threading.main_thread()
    threading.Event().wait()

def record():
    _thread.start_new_thread = refuse  # As in Python 3.12 and later.
    _journal._write = hang
    journal.append({{"n": 1}})

atexit.register(record)
"""
    ended = run_python(script, tmp_path)
    assert "1 of its entries are lost" in ended.stderr
    assert numbers(read_all(tmp_path)) == [0]


def test_entries_that_a_process_could_not_write_until_its_end_are_reported(small_disk: Path) -> None:
    (small_disk / "ballast").write_bytes(b"x" * 200_000)
    program = f"""
from pathlib import Path
from ml_diagnostics_common.journal import Journal

journal = Journal({LOG!r}, root=Path({str(small_disk)!r}), labels={{}})
for n in range(3_000):
    journal.append({{"n": n, "text": "x" * 100}})
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    lost = re.search(r"(\d+) of its entries are lost", ended.stderr)
    assert lost is not None, ended.stderr
    assert int(lost[1]) == 3_000 - len(numbers(read_all(small_disk))) > 0
