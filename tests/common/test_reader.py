from __future__ import annotations

import json
import os
import random
import shutil
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ml_diagnostics_common import files
from ml_diagnostics_common.entry import EntryContext, LogEntry
from ml_diagnostics_common.exceptions import StorageError
from ml_diagnostics_common.journal import Header, Journal, list_segments, log_directory
from ml_diagnostics_common.journal._layout import encode_header, reader_position_path, segment_name
from ml_diagnostics_common.reader import JournalReader, UnionReader

from .journals import LOG, Clock, new_journal, numbers, read_all, run_python


def flat(batches: Iterator[list[LogEntry]]) -> list[LogEntry]:
    return [entry for batch in batches for entry in batch]


def write_segment(root: Path, writer: str, lines: str, number: int = 0) -> Path:
    """Write a segment as another process could have left it; `lines` starts with a newline."""
    folder = log_directory(root, LOG)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / segment_name(writer, number)
    path.write_bytes(encode_header(Header(LOG, writer)) + lines.encode())
    return path


def line(timestamp_ns: int, sequence: int, n: object) -> str:
    return f'\n{{"t":{timestamp_ns},"s":{sequence},"p":{{"n":{json.dumps(n)}}}}}'


def test_a_log_that_does_not_exist_is_empty(tmp_path: Path) -> None:
    reader = JournalReader(LOG, root=tmp_path / "missing")
    assert flat(reader.read_new()) == []
    assert reader.position() == {"writers": {}}
    new_journal(tmp_path / "missing").append({"n": 0})
    assert numbers(flat(reader.read_new())) == [0]


def test_a_reader_of_some_writers_opens_no_file_of_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for writer in ("a", "b", "c.0"):
        write_segment(tmp_path, writer, line(1, 10**11, writer) + line(2, 10**11 + 1, writer))
    write_segment(tmp_path, "a", line(3, 10**11 + 2, "later"), number=1)
    opened = []
    open_segment = os.open
    monkeypatch.setattr("os.open", lambda path, *rest: opened.append(Path(path).name) or open_segment(path, *rest))
    reader = JournalReader(LOG, root=tmp_path, writers={"a", "missing"})
    assert numbers(flat(reader.read_new())) == ["a", "a", "later"]
    assert set(opened) == {"a.0.jsonl", "a.1.jsonl"}
    assert set(reader.position()["writers"]) == {"a"}


def test_each_entry_is_returned_once_and_new_ones_cost_only_themselves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = new_journal(tmp_path)
    for n in range(5_000):
        journal.append({"n": n})
    reader = JournalReader(LOG, root=tmp_path)
    assert len(flat(reader.read_new())) == 5_000
    asked: list[bytes] = []

    def counting_read_at(descriptor: int, size: int, offset: int) -> bytes:
        asked.append(data := files.read_at(descriptor, size, offset))
        return data

    for module in ("_segment_reader", "_layout"):
        monkeypatch.setattr(f"ml_diagnostics_common.journal.{module}.read_at", counting_read_at)
    assert flat(reader.read_new()) == []
    assert asked == []
    journal.append({"n": 5_000})
    assert numbers(flat(reader.read_new())) == [5_000]
    assert 0 < sum(map(len, asked)) < 200  # Bytes.


def test_another_reader_goes_on_from_a_saved_position(tmp_path: Path) -> None:
    journal = new_journal(tmp_path, segment_bytes=500)
    for n in range(50):
        journal.append({"n": n})
    first = JournalReader(LOG, root=tmp_path)
    assert len(flat(first.read_new())) == 50
    first.save_position("ledger of job/7")
    for n in range(50, 100):
        journal.append({"n": n})
    new_journal(tmp_path).append({"n": 100})
    position = JournalReader.load_position("ledger of job/7", LOG, root=tmp_path)
    assert position == {**json.loads(json.dumps(first.position())), "job": None}
    second = JournalReader(LOG, root=tmp_path, position=position)
    assert numbers(flat(second.read_new())) == list(range(50, 101))
    assert JournalReader.load_position("other", LOG, root=tmp_path) is None


@pytest.mark.parametrize(
    "position", [{}, {"writers": 5}, {"writers": {"w": [1]}}, {"writers": {"w": {"x": 1, "0": "a"}}}]
)
def test_a_damaged_position_is_the_beginning(tmp_path: Path, position: dict[str, Any]) -> None:
    write_segment(tmp_path, "w", line(1, 1, 0))
    assert numbers(flat(JournalReader(LOG, root=tmp_path, position=position).read_new())) == [0]


def test_all_writers_are_merged_by_time(tmp_path: Path) -> None:
    clock = Clock()
    journals = [new_journal(tmp_path, clock_ns=clock, segment_bytes=5_000) for _ in range(3)]
    choose = random.Random(1)
    for n in range(1_000):
        choose.choice(journals).append({"n": n})
        clock.now_ns += choose.randrange(2)
    entries = flat(JournalReader(LOG, root=tmp_path, chunk_bytes=2_000).read_new())
    assert [(entry.timestamp_ns, entry.insert_id) for entry in entries] == sorted(
        (entry.timestamp_ns, entry.insert_id) for entry in entries
    )
    assert sorted(numbers(entries)) == list(range(1_000))


def test_entries_that_are_taken_before_the_merge_are_not_yielded_and_the_others_are_in_order(tmp_path: Path) -> None:
    clock = Clock()
    journals = [new_journal(tmp_path, clock_ns=clock, segment_bytes=5_000) for _ in range(3)]
    for n in range(1_000):
        journals[n % 3].append({"n": n})
        clock.now_ns += 1
    taken: list[list[LogEntry]] = []

    def take_all_but_hundreds(entries: list[LogEntry]) -> list[LogEntry]:
        taken.append([entry for entry in entries if entry.payload["n"] % 100])
        return [entry for entry in entries if not entry.payload["n"] % 100]

    reader = JournalReader(LOG, root=tmp_path, chunk_bytes=2_000)
    assert numbers(flat(reader.read_new(take_all_but_hundreds))) == list(range(0, 1_000, 100))
    assert all(len({entry.context.writer for entry in entries}) <= 1 for entries in taken)
    for writer in range(3):
        of_writer = [n for n in numbers([entry for entries in taken for entry in entries]) if n % 3 == writer]
        assert of_writer == [n for n in range(writer, 1_000, 3) if n % 100]
    assert flat(reader.read_new(take_all_but_hundreds)) == []


def test_entries_that_arrive_late_and_out_of_order_are_folded_in(tmp_path: Path) -> None:
    write_segment(tmp_path, "a", line(50, 1, "a1") + line(40, 2, "a2") + line(60, 3, "a3"))
    reader = JournalReader(LOG, root=tmp_path)
    assert numbers(flat(reader.read_new())) == ["a2", "a1", "a3"]
    write_segment(tmp_path, "b", line(10, 1, "b1"))
    assert numbers(flat(reader.read_new())) == ["b1"]
    write_segment(tmp_path, "a", line(1, 9, "a9"), number=1)
    assert numbers(flat(reader.read_new())) == ["a9"]


def test_a_line_is_returned_when_it_is_whole_and_not_before(tmp_path: Path) -> None:
    path = write_segment(tmp_path, "w", line(1, 1, 0))
    whole = line(2, 2, 1)
    reader = JournalReader(LOG, root=tmp_path)
    assert numbers(flat(reader.read_new())) == [0]
    written = path.read_bytes()
    for cut in range(1, len(whole)):
        path.write_bytes(written + whole[:cut].encode())
        assert flat(reader.read_new()) == []
        assert reader.skipped.get("torn", 0) == (cut > 1)
    path.write_bytes(written + whole.encode())
    assert numbers(flat(reader.read_new())) == [1]
    assert reader.skipped == {}


def test_the_header_may_also_be_written_in_parts(tmp_path: Path) -> None:
    path = write_segment(tmp_path, "w", line(1, 1, 0))
    whole = path.read_bytes()
    reader = JournalReader(LOG, root=tmp_path)
    for cut in range(0, len(whole) - len(line(1, 1, 0)), 10):
        path.write_bytes(whole[:cut])
        assert flat(reader.read_new()) == []
    path.write_bytes(whole)
    assert numbers(flat(reader.read_new())) == [0]
    assert reader.skipped == {}


def test_torn_and_foreign_lines_are_passed_over_and_counted(tmp_path: Path) -> None:
    lines = [
        line(1, 1, 0),
        '\n{"t":1,"s":',
        "\n\n",
        "\nhello",
        '\n{"t":"x","s":1,"p":{}}',
        "\n[]",
        line(2, 2, 1),
        "\n\x00\x00",
    ]
    lines += ['\n{"t":3,"s":3,"p":{"n":2,"long":' + "9" * 4_000 + "}}", "\n" + "[" * 100_000, line(4, 4, 3)]
    write_segment(tmp_path, "w", "".join(lines))
    reader = JournalReader(LOG, root=tmp_path)
    assert numbers(flat(reader.read_new())) == [0, 1, 2, 3]
    assert reader.skipped == {"torn": 4, "foreign": 2}
    assert flat(reader.read_new()) == []


def test_a_foreign_segment_is_passed_over_and_counted_once(tmp_path: Path) -> None:
    folder = log_directory(tmp_path, LOG)
    folder.mkdir(parents=True)
    (folder / "w.0.jsonl").write_text('{"schema":99,"log":"l","writer":"w"}' + line(1, 1, 0))
    (folder / "w.x.jsonl").write_text("not a segment")
    (folder / "notes.txt").write_text("not a segment")
    new_journal(tmp_path).append({"n": 1})
    reader = JournalReader(LOG, root=tmp_path)
    for _ in range(2):
        flat(reader.read_new())
    assert reader.skipped == {"foreign_segment": 1}


DAMAGED_HEADERS = [b"", b"\0" * 100, b"{", b'{"schema":1,"log', b"\xff" * 5000, b"null", b'{"schema":1,"log":1}']


@pytest.mark.parametrize("header", DAMAGED_HEADERS)
def test_a_segment_with_a_damaged_header_is_read_all_the_same(tmp_path: Path, header: bytes) -> None:
    path = write_segment(tmp_path, "w-1-2-3", line(1, 1, 0) + line(2, 10**11 + 2, 1))
    path.write_bytes(header + path.read_bytes()[path.read_bytes().index(b"\n") :])
    reader = JournalReader(LOG, root=tmp_path)
    entries = flat(reader.read_new())
    assert numbers(entries) == [0, 1]
    assert (entries[1].context.log_id, entries[1].insert_id, entries[1].context.labels) == (
        LOG,
        f"w-1-2-3.{10**11 + 2}",
        {},
    )
    assert reader.skipped == {"damaged_header": 1}
    assert flat(reader.read_new()) == []


def test_a_damaged_header_is_that_of_the_writers_other_segments(tmp_path: Path) -> None:
    journal = new_journal(tmp_path, segment_bytes=300)
    for n in range(20):
        journal.append({"n": n})
    first = Path(list_segments(log_directory(tmp_path, LOG))[0].path)
    content = first.read_bytes()
    first.write_bytes(b"?" * content.index(b"\n") + content[content.index(b"\n") :])
    entries = flat(JournalReader(LOG, root=tmp_path).read_new())
    assert numbers(entries) == list(range(20))
    assert {tuple(entry.context.labels.items()) for entry in entries} == {tuple(entries[-1].context.labels.items())}
    assert entries[0].context.labels


def test_a_header_that_is_being_written_is_waited_for(tmp_path: Path) -> None:
    path = write_segment(tmp_path, "w", line(1, 1, 0))
    whole = path.read_bytes()
    path.write_bytes(whole[:20])
    reader = JournalReader(LOG, root=tmp_path)
    assert flat(reader.read_new()) == []
    path.write_bytes(whole)
    assert numbers(flat(reader.read_new())) == [0]
    assert reader.skipped == {}


@pytest.mark.parametrize("kept", [0, 1])
def test_a_file_that_was_truncated_is_read_from_its_start(tmp_path: Path, kept: int) -> None:
    lines = [line(n + 1, n + 1, n) for n in range(5)]
    path = write_segment(tmp_path, "w", "".join(lines))
    header = path.read_text().partition("\n")[0]
    reader = JournalReader(LOG, root=tmp_path)
    assert numbers(flat(reader.read_new())) == [0, 1, 2, 3, 4]
    path.write_text((header + lines[0] if kept else "") + line(9, 9, 9))
    assert numbers(flat(reader.read_new())) == [9]
    assert flat(reader.read_new()) == []
    later = JournalReader(LOG, root=tmp_path, position=reader.position())
    assert flat(later.read_new()) == []
    assert reader.skipped["truncated_segment"] == 1


def test_segments_and_folders_may_vanish_while_they_are_read(tmp_path: Path) -> None:
    journal = new_journal(tmp_path, segment_bytes=500)
    for n in range(50):
        journal.append({"n": n})
    reader = JournalReader(LOG, root=tmp_path)
    batches = reader.read_new()
    next(batches)
    shutil.rmtree(tmp_path / "journal")
    list(batches)
    assert flat(reader.read_new()) == []
    write_segment(tmp_path, "w", line(1, 1, "again"))
    assert numbers(flat(reader.read_new())) == ["again"]


def test_a_reading_that_is_broken_off_loses_nothing(tmp_path: Path) -> None:
    for writer in ("a", "b"):
        write_segment(
            tmp_path, writer, "".join(line(n * (1 + (writer == "b")), n, f"{writer}{n}") for n in range(1, 50))
        )
    reader = JournalReader(LOG, root=tmp_path)
    batches = reader.read_new()
    read = numbers(next(batches))
    batches.close()  # type: ignore[attr-defined]
    again = JournalReader(LOG, root=tmp_path, position=json.loads(json.dumps(reader.position())))
    assert set(read + numbers(flat(again.read_new()))) >= {f"{w}{n}" for w in "ab" for n in range(1, 50)}
    read += numbers(flat(reader.read_new()))
    assert sorted(read) == sorted(f"{w}{n}" for w in "ab" for n in range(1, 50))


def test_a_line_may_be_longer_than_a_chunk(tmp_path: Path) -> None:
    journal = new_journal(tmp_path)
    journal.append({"n": "x" * 3_000_000})
    journal.append({"n": 1})
    assert [len(str(n)) for n in numbers(read_all(tmp_path))] == [3_000_000, 1]


def test_a_log_that_hundreds_of_processes_wrote_takes_little_memory(tmp_path: Path) -> None:
    for writer in range(300):
        write_segment(tmp_path, f"w{writer}", "".join(line(n, n, n) for n in range(20)))
    reader = JournalReader(LOG, root=tmp_path)
    assert len(flat(reader.read_new())) == 6_000
    assert all(stream.chunk_bytes <= 2**16 for stream in reader._writers.values())


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=200))
def test_whatever_is_in_a_segment_reading_ends_and_the_rest_is_read(tmp_path: Path, junk: bytes) -> None:
    path = write_segment(tmp_path, "w", line(1, 1, 0))
    path.write_bytes(path.read_bytes() + b"\n" + junk + line(2, 2, 1).encode())
    reader = JournalReader(LOG, root=tmp_path)
    assert {0, 1} <= {entry.payload.get("n") for entry in flat(reader.read_new())}


class Entries:
    """A reader of what it is given."""

    def __init__(self, *batches: list[LogEntry]) -> None:
        self.batches = list(batches)

    def read_new(self) -> Iterator[list[LogEntry]]:
        while self.batches:
            yield self.batches.pop(0)

    def position(self) -> dict[str, Any]:
        return {"left": len(self.batches)}


def entry(timestamp_ns: int, insert_id: str, writer: str | None = "w") -> LogEntry:
    return LogEntry.make(timestamp_ns, insert_id, {"n": timestamp_ns}, EntryContext(LOG, "", {}, {}, writer=writer))


def test_an_entry_in_the_journal_and_in_the_cloud_is_returned_once_and_in_order() -> None:
    a, b, c = (entry(n, f"w.{10**11 + n}") for n in range(3))
    foreign = entry(1, "of the server", None)
    journal, cloud = Entries([a, b]), Entries([a, foreign], [c])
    union = UnionReader([journal, cloud])
    assert flat(union.read_new()) == [a, b, foreign, c]
    position = json.loads(json.dumps(union.position()))
    assert position["readers"] == [{"left": 0}, {"left": 0}]
    d = entry(3, f"w.{10**11 + 3}")
    assert flat(UnionReader([Entries([c, d])], position=position).read_new()) == [d]


def test_the_labels_of_a_segment_are_its_entries(tmp_path: Path) -> None:
    Journal(LOG, root=tmp_path, labels={"job": "j" * 10_000}, resource={"type": "global"}).append({"n": 0})
    [only] = read_all(tmp_path)
    assert only.context.labels == {"job": "j" * 10_000}
    assert only.context.resource == {"type": "global"}
    assert only.insert_id == f"{list_segments(log_directory(tmp_path, LOG))[0].writer}.100000000000"


class Failing(Entries):
    """A reader that raises instead of an empty batch."""

    def read_new(self) -> Iterator[list[LogEntry]]:
        for batch in super().read_new():
            if not batch:
                raise StorageError("the cloud is away")
            yield batch


def test_what_one_reader_gave_is_not_lost_when_another_raises() -> None:
    a, b, c = (entry(n, f"w.{10**11 + n}") for n in range(3))
    journal, cloud = Entries([a, c]), Failing([], [b])
    union = UnionReader([journal, cloud])
    with pytest.raises(StorageError):
        flat(union.read_new())
    assert union.position()["readers"] == [{"left": 1}, {"left": 1}]  # Before the batch that was not returned.
    assert flat(union.read_new()) == [a, b, c]
    assert union.position()["readers"] == [{"left": 0}, {"left": 0}]


def test_a_position_in_the_middle_of_a_union_loses_nothing(tmp_path: Path) -> None:
    for n in range(6):
        write_segment(tmp_path, f"w{n % 2}", line(n, n, n), number=n)

    def union(position: Any = None) -> UnionReader:
        readers = position["readers"] if position else [None, None]
        return UnionReader([JournalReader(LOG, root=tmp_path, position=one) for one in readers], position=position)

    everything = numbers(flat(union().read_new()))
    assert sorted(everything) == list(range(6))
    for stop in range(1, 6):
        first = union()
        batches = first.read_new()
        read = [entry for _ in range(stop) for entry in next(batches, [])]
        position = json.loads(json.dumps(first.position()))
        assert sorted(numbers(read + flat(union(position).read_new()))) == list(range(6))
        assert sorted(numbers(read + flat(first.read_new()))) == list(range(6))  # Nor does the same reader.


@pytest.mark.parametrize("ended", [True, False])
def test_a_line_without_end_takes_little_memory_and_no_other_entry(tmp_path: Path, ended: bool) -> None:
    path = write_segment(tmp_path, "w", line(1, 1, 0) + line(2, 2, 1))
    with path.open("ab") as file:
        file.truncate(file.tell() + 2**28)  # NULs, which use no space on the disk.
        file.seek(0, 2)
        file.write(line(3, 3, 2).encode() if ended else b"")
    reader = JournalReader(LOG, root=tmp_path)
    tracemalloc.start()
    try:
        found = numbers(flat(reader.read_new()))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert found == ([0, 1, 2] if ended else [0, 1])
    assert peak < 100 * 2**20
    assert reader.skipped["endless_line"] == 1
    with path.open("ab") as file:
        file.write(line(4, 4, 3).encode())
    assert numbers(flat(reader.read_new())) == [3]


def test_nulls_that_a_power_cut_left_behind_an_entry_do_not_cost_it(tmp_path: Path) -> None:
    path = write_segment(tmp_path, "w", line(1, 1, 0) + "\0" * 5_000 + line(2, 2, 1) + "\0" * 9)
    reader = JournalReader(LOG, root=tmp_path)
    assert numbers(flat(reader.read_new())) == [0, 1]
    with path.open("ab") as file:
        file.write(line(3, 3, 2).encode())
    assert numbers(flat(reader.read_new())) == [2]
    assert reader.skipped == {"torn": 1}  # The end of the file, which might still have been written.


def test_a_first_line_without_end_is_not_a_header(tmp_path: Path) -> None:
    path = write_segment(tmp_path, "w", "")
    path.write_bytes(b"{" * 2**22)
    write_segment(tmp_path, "x", line(1, 1, 0))
    reader = JournalReader(LOG, root=tmp_path)
    assert numbers(flat(reader.read_new())) == [0]
    assert reader.skipped == {"foreign_segment": 1}


def test_planted_links_and_pipes_are_not_read(tmp_path: Path) -> None:
    elsewhere = write_segment(tmp_path / "elsewhere", "w", line(1, 1, 0))
    mine = write_segment(tmp_path, "x", line(2, 2, 1))
    mine.with_name("w.0.jsonl").symlink_to(elsewhere)
    os.mkfifo(mine.with_name("p.0.jsonl"))
    reader = JournalReader(LOG, root=tmp_path)
    assert numbers(flat(reader.read_new())) == [1]
    assert reader.skipped == {"unreadable_segment": 1}


def test_what_a_reader_that_was_killed_while_it_saved_left_is_removed(tmp_path: Path) -> None:
    new_journal(tmp_path).append({"n": 0})
    script = """
import os, sys
from pathlib import Path
from ml_diagnostics_common import files
from ml_diagnostics_common.reader import JournalReader
files.os.fsync = lambda *_: os.kill(os.getpid(), 9)
reader = JournalReader(sys.argv[2], root=Path(sys.argv[1]))
list(reader.read_new())
reader.save_position("mine")
"""
    assert run_python(script, tmp_path, LOG, check=False).returncode == -9
    folder = reader_position_path(tmp_path, LOG, "mine").parent
    [left] = folder.glob(".*.new")
    young = left.with_name(".theirs.json.1-1.new")  # Of a process that runs.
    young.touch()
    long_ago = left.stat().st_mtime - 120
    os.utime(left, (long_ago, long_ago))
    os.utime(young, (long_ago, long_ago))
    files._cleaned_in_this_process.clear()
    JournalReader(LOG, root=tmp_path).save_position("mine")
    assert {path.name for path in folder.iterdir()} == {"mine.json", young.name}
