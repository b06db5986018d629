from __future__ import annotations

import contextlib
import errno
import json
import os
import stat
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from ml_diagnostics_common.files import read_state, write_state
from ml_diagnostics_common.journal import Header, Journal, list_segments, log_directory
from ml_diagnostics_common.journal._layout import decode_header, encode_header
from ml_diagnostics_common.reader import JournalReader

from .journals import LOG, Clock, assert_adds_up, new_journal, numbers, read_all


def test_the_format_on_disk_is_the_documented_one(tmp_path: Path) -> None:
    journal = new_journal(tmp_path, clock_ns=Clock(1763710310123456789), resource={"type": "global"}, shippable=False)
    journal.append({"step_count": 3})
    journal.append({"message": "ü"}, severity="ERROR")
    [segment] = list_segments(log_directory(tmp_path, LOG))
    assert segment.path == str(tmp_path / "journal" / LOG / f"{journal.writer}.0.jsonl")
    header, *lines = Path(segment.path).read_text().split("\n")
    assert json.loads(header) == {
        "schema": 1,
        "log": LOG,
        "writer": journal.writer,
        "labels": {"job": "run7", "pid": str(os.getpid())},
        "resource": {"type": "global"},
        "severity": "INFO",
        "ship": False,
    }
    assert lines == [
        '{"t":1763710310123456789,"s":100000000000,"p":{"step_count":3}}',
        '{"t":1763710310123456789,"s":100000000001,"p":{"message":"\\u00fc"},"severity":"ERROR"}',
    ]


def test_a_journal_that_records_nothing_opens_nothing(tmp_path: Path) -> None:
    journal = new_journal(tmp_path)
    journal.flush()
    journal.close()
    assert list(tmp_path.iterdir()) == []
    assert journal.sync() is False


def test_files_are_private(tmp_path: Path) -> None:
    new_journal(tmp_path / "root").append({})
    for path in (tmp_path / "root").rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600)


@pytest.mark.parametrize(
    "log_id",
    ["a", "a b/c", "..", ".hidden", "%41", "ü" * 80, "x" * 10_000, "a\x00b", 'q"\n', "\udc80", "a" * 100, "😀"],
)
def test_any_log_name_has_a_folder_of_its_own_inside_the_journal(tmp_path: Path, log_id: str) -> None:
    folder = log_directory(tmp_path, log_id)
    assert folder.parent == tmp_path / "journal"
    assert len(folder.name) <= 100
    assert not folder.name.startswith(".")
    assert folder != log_directory(tmp_path, log_id + "_")
    folder.mkdir(parents=True)


def test_a_header_has_the_given_values() -> None:
    header = Header("l\ud800", "w", {"job": "\udc80"}, {"type": "global"}, "INFO", ship=False)
    assert decode_header(encode_header(header)) == header._replace(log_id="l\\ud800", labels={"job": "\\udc80"})
    for other in (
        b"",
        b"{}",
        b"[]",
        b'{"schema":2,"log":"a","writer":"w"}',
        b'{"schema":1,"log":5,"writer":"w"}',
        b"\xff",
    ):
        assert decode_header(other) is None


def test_segments_follow_one_another_and_nothing_is_lost_between(tmp_path: Path) -> None:
    journal = new_journal(tmp_path, segment_bytes=1_000)
    descriptors = set()
    for n in range(200):
        journal.append({"n": n})
        descriptors.add(journal._descriptor)
    segments = list_segments(journal.folder)
    assert len(segments) > 5
    assert all(segment.size < 1_300 for segment in segments)
    assert len(descriptors) == 1  # A thread in the middle of a write must not write to another file.
    assert numbers(read_all(tmp_path)) == list(range(200))


def test_every_line_of_four_threads_is_whole_also_while_segments_change(tmp_path: Path) -> None:
    journal = new_journal(tmp_path, segment_bytes=50_000)

    def work(name: str) -> None:
        for n in range(5_000):
            journal.append_text(str(1_763_710_310_000_000_000 + n), f'{{"n":{n},"thread":"{name}"}}')

    threads = [threading.Thread(target=work, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    reader = JournalReader(LOG, root=tmp_path)
    entries = [entry for batch in reader.read_new() for entry in batch]
    assert Counter((entry.payload["thread"], entry.payload["n"]) for entry in entries) == Counter(
        (name, n) for name in "abcd" for n in range(5_000)
    )
    assert len({entry.insert_id for entry in entries}) == 20_000
    assert not reader.skipped
    assert len(list_segments(journal.folder)) > 3  # Threads undo each other's additions to the size: some are longer.
    assert_adds_up(journal, tmp_path)


def test_writers_of_one_process_are_distinguished(tmp_path: Path) -> None:
    journals = [new_journal(tmp_path) for _ in range(20)]
    for journal in journals:
        journal.append({"n": 1})
    assert len({journal.writer for journal in journals}) == 20
    assert len({entry.insert_id for entry in read_all(tmp_path)}) == 20


def test_the_clock_may_jump_and_every_entry_has_the_stamp_of_its_call(tmp_path: Path) -> None:
    clock = Clock()
    journal = new_journal(tmp_path, clock_ns=clock)
    stamps = []
    for n, jump in enumerate((0, 3600, -7200, 0.5, 86400 * 365, -86400 * 365 * 50)):
        clock.advance(jump)
        journal.append({"n": n})
        stamps.append(clock.now_ns)
    entries = read_all(tmp_path)
    assert sorted(entry.timestamp_ns for entry in entries) == sorted(stamps)
    assert [entry.payload["n"] for entry in sorted(entries, key=lambda entry: entry.sequence)] == list(range(6))


def test_entries_may_follow_a_close(tmp_path: Path) -> None:
    journal = new_journal(tmp_path)
    journal.append({"n": 0})
    journal.close()
    journal.append({"n": 1})
    assert numbers(read_all(tmp_path)) == [0, 1]


def open_segments(root: Path) -> list[Path]:
    segments = []
    for link in list(Path("/proc/self/fd").iterdir()):
        with contextlib.suppress(FileNotFoundError):  # Another thread has closed it since.
            file = link.readlink()
            segments += [file] if root in file.parents and ".jsonl" in file.name else []
    return segments


def test_a_forgotten_journal_gives_its_descriptor_back(tmp_path: Path) -> None:
    for _ in range(10):
        journal = new_journal(tmp_path)
        journal.append({})
        journal.close()
        assert open_segments(tmp_path)
    del journal
    assert open_segments(tmp_path) == []


def test_sync_puts_the_file_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced = []
    for name in ("fdatasync", "fsync"):
        monkeypatch.setattr(os, name, lambda descriptor: synced.append(os.fstat(descriptor).st_ino))
    journal = new_journal(tmp_path)
    journal.append({"n": 0})
    assert journal.sync(10.0) is True
    [segment] = list_segments(journal.folder)
    assert synced == [Path(segment.path).stat().st_ino, journal.folder.stat().st_ino]  # The file, and its name.


def test_sync_waits_no_longer_than_it_may_for_a_disk_that_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    released, calls = threading.Event(), []

    def hang(descriptor: int) -> None:
        calls.append(descriptor)
        released.wait(30)

    monkeypatch.setattr(os, "fdatasync", hang)
    journal = new_journal(tmp_path)
    journal.append({"n": 0})
    for _ in range(5):
        assert journal.sync(timeout_seconds=0.01) is False
    assert len(calls) == 1  # No thread after thread for a disk that answers none of them.
    released.set()
    assert journal.sync(10.0) is True


def test_state_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "state" / "x.json"
    assert read_state(path) is None
    write_state(path, {"a": 1})
    write_state(path, {"a": 2})
    assert read_state(path) == {"a": 2}
    assert [file.name for file in path.parent.iterdir()] == ["x.json"]
    path.write_text('{"a":')
    assert read_state(path) is None


def test_state_is_never_seen_in_part_also_after_a_power_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.json"
    write_state(path, {"a": 1})
    synced = []

    def fsync(descriptor: int) -> None:
        assert read_state(path) == {"a": 1}  # Not in place yet.
        synced.append(os.fstat(descriptor).st_ino)

    monkeypatch.setattr(os, "fsync", fsync)
    with path.open() as old:
        write_state(path, {"a": 2})
        assert json.load(old) == {"a": 1}
    assert synced == [path.stat().st_ino]


def test_state_that_cannot_be_written_leaves_the_old_and_no_litter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x.json"
    write_state(path, {"a": 1})

    def fsync(_: int) -> None:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(OSError, match="full"):
        write_state(path, {"a": 2})
    assert read_state(path) == {"a": 1}
    assert [file.name for file in tmp_path.iterdir()] == ["x.json"]


def test_labels_and_resource_may_be_anything(tmp_path: Path) -> None:
    labels: dict[Any, Any] = {"attempt": 1, 2: None}
    Journal(LOG, root=tmp_path, labels=labels, resource={"labels": {"a": {1}, "b": float("nan")}}).append({"n": 0})
    [entry] = read_all(tmp_path)
    assert entry.context.labels == {"attempt": "1", "2": "None"}
    assert entry.context.resource == {"labels": {"a": [1], "b": "NaN"}}
