from __future__ import annotations

import os
import threading
import time
from collections import Counter
from pathlib import Path

import pytest
from ml_diagnostics_common.files import write_state
from ml_diagnostics_common.journal import JournalCap, Segment, list_segments, log_directory
from ml_diagnostics_common.journal._layout import shipped_offset_path
from ml_diagnostics_common.reader import JournalReader

from ..waiting import wait_until
from .journals import LOG, Clock, new_journal, numbers, read_all, reported_losses


@pytest.fixture
def segments(tmp_path: Path) -> list[Segment]:
    """Five of one writer, about 1 kB each."""
    journal = new_journal(tmp_path, segment_bytes=1_000)
    for n in range(60):
        journal.append({"n": n})
    return list_segments(journal.folder)


def left(root: Path) -> list[int]:
    return [segment.number for segment in list_segments(log_directory(root, LOG))]


def mark_shipped(root: Path, segment: Segment, offset: int | None = None) -> None:
    state = {"segment": segment.number, "offset": segment.size if offset is None else offset}
    write_state(shipped_offset_path(root, LOG, segment.writer), state)


def test_under_its_limit_nothing_is_dropped(tmp_path: Path, segments: list[Segment]) -> None:
    mark_shipped(tmp_path, segments[-1])
    cap = JournalCap(tmp_path)
    cap.check()
    assert not cap.exceeded
    assert len(left(tmp_path)) == len(segments)


def test_the_oldest_shipped_segments_are_dropped_and_no_more_than_needed(
    tmp_path: Path, segments: list[Segment]
) -> None:
    mark_shipped(tmp_path, segments[3])
    total = sum(segment.size for segment in segments)
    cap = JournalCap(tmp_path, limit_bytes=total - segments[0].size - 1)
    cap.check()
    assert left(tmp_path) == [segment.number for segment in segments[2:]]
    assert not cap.exceeded


def test_what_was_not_shipped_is_never_dropped(tmp_path: Path, segments: list[Segment]) -> None:
    mark_shipped(tmp_path, segments[2], offset=segments[2].size - 1)
    cap = JournalCap(tmp_path, limit_bytes=0)
    cap.check()
    assert left(tmp_path) == [segment.number for segment in segments[2:]]
    assert cap.exceeded


def test_where_nothing_ships_only_what_every_reader_has_read_is_dropped(
    tmp_path: Path, segments: list[Segment]
) -> None:
    cap = JournalCap(tmp_path, limit_bytes=0)
    cap.check()
    assert len(left(tmp_path)) == len(segments)  # No reader has read anything.
    far = JournalReader(LOG, root=tmp_path)
    list(far.read_new())
    far.save_position("far")
    near = far.position()
    offsets = near["writers"][segments[0].writer]
    offsets[str(segments[1].number)] -= 1
    write_state(tmp_path / "state" / "readers" / LOG / "near.json", near)
    cap.check()
    assert left(tmp_path) == [1, len(segments) - 1]  # The newest may still be written to.


def test_the_last_segment_of_a_writer_that_is_long_gone_is_dropped_too(tmp_path: Path, segments: list[Segment]) -> None:
    mark_shipped(tmp_path, segments[-1])
    JournalCap(tmp_path, limit_bytes=0, clock=lambda: time.time() + 2 * 86400).check()
    assert left(tmp_path) == []


def test_a_journal_at_its_limit_refuses_new_entries_rather_than_lose_old_ones(
    tmp_path: Path, segments: list[Segment], caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock(time.time_ns())
    cap = JournalCap(tmp_path, limit_bytes=1)
    cap.check()
    journal = new_journal(tmp_path, clock_ns=clock, cap=cap)
    before = len(read_all(tmp_path))
    for n in range(12):
        journal.append({"n": 1_000 + n, "big": "x" * 2**20})
        clock.advance(1)
    assert len(read_all(tmp_path)) == before
    assert journal.statistics().dropped == {"journal_full": 5}
    assert [message for message in caplog.messages if "limit of its size" in message] == caplog.messages[:1]
    cap.limit_bytes = 2**30  # Space is freed.
    while cap.exceeded:  # The journal has asked for a check too, in a thread.
        cap.check()
    clock.advance(1)
    journal.append({"n": 2_000})
    entries = read_all(tmp_path)
    assert numbers(entries)[before:] == [*range(1_000, 1_007), 2_000]
    assert reported_losses(entries)["journal_full"] >= 5
    assert journal.statistics().written == len(entries) - before


def test_other_folders_and_files_are_left_alone(tmp_path: Path, segments: list[Segment]) -> None:
    mark_shipped(tmp_path, segments[-1])
    mine = tmp_path / "journal" / LOG / "notes.txt"
    mine.write_text("mine")
    (tmp_path / "journal" / "notes.txt").write_text("mine")
    JournalCap(tmp_path, limit_bytes=0).check()
    assert mine.read_text() == "mine"
    JournalCap(tmp_path / "missing", limit_bytes=0).check()


def test_segments_that_are_not_to_be_shipped_wait_for_readers_not_for_the_shipper(tmp_path: Path) -> None:
    private = new_journal(tmp_path, segment_bytes=1_000, shippable=False)
    for n in range(40):
        private.append({"n": n})
    segments = list_segments(private.folder)
    write_state(shipped_offset_path(tmp_path, LOG, "another"), {"segment": 9, "offset": 9})
    JournalCap(tmp_path, limit_bytes=0).check()
    assert len(left(tmp_path)) == len(segments)
    reader = JournalReader(LOG, root=tmp_path)
    list(reader.read_new())
    reader.save_position("report")
    JournalCap(tmp_path, limit_bytes=0).check()
    assert left(tmp_path) == [segments[-1].number]


def test_the_oldest_go_first_whatever_their_writers_are_called(tmp_path: Path) -> None:
    for name, age in (("a", 100), ("b", 200), ("c", 50)):
        journal = new_journal(tmp_path, segment_bytes=1)
        journal.append({"n": name})
        journal.append({"n": name})
        for segment in list_segments(journal.folder):
            if segment.writer == journal.writer:
                os.utime(segment.path, (time.time() - age, time.time() - age))
                mark_shipped(tmp_path, segment)
    total = sum(segment.size for segment in list_segments(journal.folder))
    JournalCap(tmp_path, limit_bytes=total - 1).check()
    assert Counter(numbers(read_all(tmp_path))) == {"a": 2, "c": 2}


def test_the_caller_of_an_append_never_measures_the_journal(tmp_path: Path) -> None:
    threads = []
    measured = threading.Event()

    class Watched(JournalCap):
        def check(self) -> None:
            threads.append(threading.get_ident())
            measured.set()

    new_journal(tmp_path, cap=Watched(tmp_path)).append({"n": 0})
    assert measured.wait(10)
    assert threading.get_ident() not in threads


def test_a_segment_that_cannot_be_read_keeps_no_other(tmp_path: Path, segments: list[Segment]) -> None:
    mark_shipped(tmp_path, segments[-1])
    dangling = Path(segments[0].path).with_name(f"{segments[0].writer}.00.jsonl")
    dangling.symlink_to(tmp_path / "nowhere")
    os.mkfifo(dangling.with_name("a.0.jsonl"))
    JournalCap(tmp_path, limit_bytes=0, clock=lambda: time.time() + 2 * 86400).check()
    assert [Path(segment.path).name for segment in list_segments(dangling.parent)] == ["a.0.jsonl", dangling.name]


def test_a_damaged_position_is_one_of_a_reader_that_has_read_nothing(tmp_path: Path, segments: list[Segment]) -> None:
    reader = JournalReader(LOG, root=tmp_path)
    list(reader.read_new())
    reader.save_position("whole")
    reader.save_position("damaged")
    damaged = tmp_path / "state" / "readers" / LOG / "damaged.json"
    damaged.write_text(damaged.read_text()[:20])
    JournalCap(tmp_path, limit_bytes=0).check()
    assert len(left(tmp_path)) == len(segments)


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_child_forked_in_the_middle_of_a_check_records_and_checks(tmp_path: Path, segments: list[Segment]) -> None:
    cap = JournalCap(tmp_path)
    journal = new_journal(tmp_path, cap=cap)
    cap.exceeded = True

    def is_exceeded() -> bool:
        cap.check()  # It does nothing while the journal's own check is running.
        return cap.exceeded

    with cap._checking:  # As a thread that does not exist in the child.
        child = os.fork()
        if child == 0:
            status = 1
            try:
                journal.append({"n": 1})
                mark_shipped(tmp_path, segments[-1])
                cap.limit_bytes, cap.exceeded = 0, False
                wait_until(is_exceeded)
                status = 0 if journal.statistics().written == 1 else 2
            finally:
                os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert len(left(tmp_path)) < len(segments)
