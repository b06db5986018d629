"""The unshipped entries are known exactly, after any damage to the journal's files."""

from __future__ import annotations

import errno
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ml_diagnostics_common import guard
from ml_diagnostics_common.guard import Counters
from ml_diagnostics_common.journal import Header, Segment, list_segments, log_directory
from ml_diagnostics_common.journal._layout import encode_header, segment_name
from ml_diagnostics_common.shipper import _outbox as module
from ml_diagnostics_common.shipper._outbox import Outbox, OutboxLock

LOG, WRITER = "run", "host-1-2-0"


def line(number: int) -> bytes:
    return b'\n{"t":%d,"s":%d,"p":{"step_count":%d}}' % (number, 10**11 + number, number)


def write(root: Path, number: int, content: bytes, header: bytes | None = None) -> Path:
    folder = log_directory(root, LOG)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / segment_name(WRITER, number)
    path.write_bytes((encode_header(Header(LOG, WRITER)) if header is None else header) + content)
    return path


def drain(
    outbox: Outbox, root: Path, *, ended: bool, most_entries: int = 100, most_bytes: int = 1 << 20
) -> Iterator[int]:
    segments = list_segments(log_directory(root, LOG))
    while True:
        batch = outbox.next_batch(segments, most_entries=most_entries, most_bytes=most_bytes, ended=ended)
        if batch is None:
            return
        assert len(batch.entries) <= most_entries
        assert batch is outbox.next_batch(segments, most_entries=1, most_bytes=1, ended=ended)
        outbox.acknowledge(batch)
        yield from (entry.payload["step_count"] for entry in batch.entries)


def numbers(root: Path, outbox: Outbox | None = None, **limits: int) -> list[int]:
    """Return the numbers of the entries in the order in which the next process would send them."""
    return list(drain(outbox or Outbox(root, LOG, WRITER, Counters()), root, ended=True, **limits))


damage = st.binary(max_size=40).filter(lambda junk: b'"t"' not in junk).map(lambda junk: b"\n" + junk)
torn = st.integers(1, 30).map(lambda length: line(7)[:length])


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.lists(st.one_of(damage, torn, st.just(None)), max_size=12), min_size=1, max_size=4),
    st.integers(1, 5),
    st.integers(1, 200),
    st.integers(20, 400),
)
def test_every_whole_line_is_returned_once_between_any_damage(
    segments: list[list[bytes | None]], most_entries: int, most_bytes: int, chunk_bytes: int
) -> None:
    count = 0
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for number, pieces in enumerate(segments):
            content = b""
            for piece in pieces:
                content += line(count) if piece is None else piece
                count += piece is None
            path = write(root, number, content)
        for expected in (list(range(count)), []):
            outbox = Outbox(root, LOG, WRITER, Counters(), chunk_bytes=chunk_bytes)
            assert numbers(root, outbox, most_entries=most_entries, most_bytes=most_bytes) == expected
        assert Outbox(root, LOG, WRITER, Counters()).position == (number, path.stat().st_size)


def test_a_line_in_the_making_is_waited_for(tmp_path: Path) -> None:
    path = write(tmp_path, 0, line(0) + line(1)[:20])
    outbox = Outbox(tmp_path, LOG, WRITER, Counters())
    assert list(drain(outbox, tmp_path, ended=False)) == [0]
    path.write_bytes(path.read_bytes() + line(1)[20:])
    assert list(drain(outbox, tmp_path, ended=False)) == [1]


def test_what_a_killed_writer_left_of_a_line_is_passed_over(tmp_path: Path) -> None:
    write(tmp_path, 0, line(0) + line(1)[:20])
    counters = Counters()
    assert list(drain(Outbox(tmp_path, LOG, WRITER, counters), tmp_path, ended=True)) == [0]
    assert counters.as_dict() == {"damaged_line": 1}


def test_a_segment_is_not_left_while_a_thread_may_still_write_to_it(tmp_path: Path) -> None:
    """A thread in the middle of its write when another opens the next segment."""
    now = [0.0]
    first = write(tmp_path, 0, line(0))
    outbox = Outbox(tmp_path, LOG, WRITER, Counters(), clock=lambda: now[0])
    assert list(drain(outbox, tmp_path, ended=False)) == [0]
    write(tmp_path, 1, line(2))
    assert list(drain(outbox, tmp_path, ended=False)) == []
    assert outbox.settling
    first.write_bytes(first.read_bytes() + line(1))
    now[0] = 1.5
    assert list(drain(outbox, tmp_path, ended=False)) == [1, 2]
    assert not outbox.settling


def test_a_segment_that_the_cap_dropped_is_passed_over(tmp_path: Path) -> None:
    dropped = write(tmp_path, 0, line(0))
    write(tmp_path, 1, line(1))
    segments = list_segments(log_directory(tmp_path, LOG))
    dropped.unlink()
    outbox = Outbox(tmp_path, LOG, WRITER, Counters())
    batch = outbox.next_batch(segments, most_entries=9, most_bytes=999, ended=True)
    assert batch is not None
    assert [entry.payload["step_count"] for entry in batch.entries] == [1]


DAMAGED = [b"", b"not a header", b"\0" * 100, b'{"schema":1,"log":1}', b"\xff" * 5000]


@pytest.mark.parametrize("header", DAMAGED)
def test_a_damaged_header_is_that_of_the_writers_other_segments(tmp_path: Path, header: bytes) -> None:
    write(tmp_path, 0, line(0), header)
    write(tmp_path, 1, line(1))
    counters = Counters()
    assert list(drain(Outbox(tmp_path, LOG, WRITER, counters), tmp_path, ended=True)) == [0, 1]
    assert counters.as_dict() == {}


@pytest.mark.parametrize("header", DAMAGED)
def test_without_any_header_nothing_is_sent_since_it_might_be_forbidden(tmp_path: Path, header: bytes) -> None:
    write(tmp_path, 0, line(0), header)
    counters = Counters()
    assert list(drain(Outbox(tmp_path, LOG, WRITER, counters), tmp_path, ended=True)) == []
    assert counters.as_dict() == {"unreadable_segment": 1}


def test_a_file_that_was_truncated_is_sent_from_its_start(tmp_path: Path) -> None:
    path = write(tmp_path, 0, line(0) + line(1) + line(2))
    counters = Counters()
    outbox = Outbox(tmp_path, LOG, WRITER, counters)
    assert list(drain(outbox, tmp_path, ended=False)) == [0, 1, 2]
    path.write_bytes(line(3))  # No header, as logrotate leaves the file.
    write(tmp_path, 1, line(4))
    assert list(drain(outbox, tmp_path, ended=True)) == [3, 4]
    assert counters.as_dict() == {"truncated_segment": 1}


def test_a_segment_of_a_later_schema_is_counted_and_stops_nothing(tmp_path: Path) -> None:
    write(tmp_path, 0, line(0), b'{"schema":99}')
    write(tmp_path, 1, line(1))
    counters = Counters()
    assert list(drain(Outbox(tmp_path, LOG, WRITER, counters), tmp_path, ended=True)) == [1]
    assert counters.as_dict() == {"unreadable_segment": 1}


def test_a_line_longer_than_any_is_passed_over_within_bounded_memory(tmp_path: Path) -> None:
    write(tmp_path, 0, line(0) + b'\n{"t":1,"s":1,"p":{"text":"' + b"x" * 20_000 + b'"}}' + line(1))
    outbox = Outbox(tmp_path, LOG, WRITER, Counters(), chunk_bytes=64, longest_line_bytes=4096)
    assert numbers(tmp_path, outbox) == [0, 1]


def test_a_disk_that_takes_no_note_stops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    write(tmp_path, 0, b"".join(line(number) for number in range(10)))
    counters = Counters()
    with monkeypatch.context() as patch:
        patch.setattr(guard, "_logged_in_this_process", set())
        patch.setattr(module, "write_state", full)
        outbox = Outbox(tmp_path, LOG, WRITER, counters)
        assert list(drain(outbox, tmp_path, ended=True, most_entries=2)) == list(range(10))
    assert counters.as_dict() == {"offset_not_saved": 5}
    [warning] = [record.getMessage() for record in caplog.records]
    assert "No space left on device" in warning
    assert numbers(tmp_path) == list(range(10))  # The next process knows nothing of it: again rather than never.


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EROFS])
def test_a_disk_on_which_no_lock_can_be_made_stops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refuse(*_: object) -> int:
        raise OSError(number, "no file can be made")

    monkeypatch.setattr(module.os, "open", refuse)  # type: ignore[attr-defined]
    lock = OutboxLock.take(tmp_path / "a.lock")
    assert lock is not None
    lock.abandon()


@pytest.mark.parametrize("name", ["run.lock", "run.jsonl"])
def test_a_planted_link_is_not_followed(tmp_path: Path, name: str) -> None:
    target = tmp_path / "target"
    target.write_bytes(encode_header(Header(LOG, WRITER)) + line(0))
    (tmp_path / name).symlink_to(target)
    segments = [Segment(WRITER, 0, str(tmp_path / "run.jsonl"), target.stat().st_size)]
    outbox = Outbox(tmp_path, LOG, WRITER, Counters())
    calls = {
        "run.lock": lambda: OutboxLock.take(tmp_path / "run.lock"),
        "run.jsonl": lambda: outbox.next_batch(segments, most_entries=1, most_bytes=1, ended=True),
    }
    with pytest.raises(OSError, match="symbolic link"):
        calls[name]()  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("state", ["", "[]", '{"segment":"x","offset":-5}', '{"segment":0,"offset":99999999}', "\x00"])
def test_a_broken_state_sends_again_rather_than_never(tmp_path: Path, state: str) -> None:
    write(tmp_path, 0, line(0))
    assert numbers(tmp_path) == [0]
    [path] = (tmp_path / "state" / "shipper").rglob("*.json")
    path.write_text(state)
    assert numbers(tmp_path) in ([0], [])
