"""Objects that no writer of ours made, or that became other than it made them: read past, named, in bounded memory."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path
from typing import Any

import pytest
from ml_diagnostics_common.entry import LogEntry
from ml_diagnostics_common.mirror._bucket import Bucket
from ml_diagnostics_common.mirror.contents import listed_writers
from ml_diagnostics_common.mirror.names import LogPaths, SegmentName, day_of, parse_name
from ml_diagnostics_common.mirror.reader import MirrorReader
from ml_diagnostics_common.mirror.segments import DamagedObjectError, SegmentContent, encode_segment
from ml_diagnostics_common.storage import LocalStorage

from ..journals import LOG, Clock, new_journal, numbers, read_all
from .mirrors import flat, identities, journal_lines, mirror_by_hand, put, read_mirror


class Altering(LocalStorage):
    """A folder whose first reads of objects arrive other than they are."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self.left = times

    def read_with_generation(self, path: str, *, first_bytes: int | None = None) -> tuple[bytes, int]:
        data, generation = super().read_with_generation(path, first_bytes=first_bytes)
        if self.left:
            self.left -= 1
            data = data[:-6] + b"\xff\xff" + data[-4:]
        return data, generation


def job(root: Path, entries: int = 20) -> None:
    journal = new_journal(root, clock_ns=Clock())
    for n in range(entries):
        journal.append({"n": n})


def test_bytes_that_were_altered_on_the_way_are_read_again(tmp_path: Path) -> None:
    root, mirror = tmp_path / "root", str(tmp_path / "mirror")
    job(root)
    mirror_by_hand(root, mirror, (5,))
    reader = MirrorReader(LOG, mirror=mirror, storage=Altering(2))
    assert flat(reader.read_new()) == read_all(root)
    assert not reader.skipped


def test_an_object_that_is_always_altered_is_damaged(tmp_path: Path) -> None:
    root, mirror = tmp_path / "root", str(tmp_path / "mirror")
    job(root)
    mirror_by_hand(root, mirror, (5,))
    reader = MirrorReader(LOG, mirror=mirror, storage=Altering(10**9))
    assert flat(reader.read_new()) == []
    assert reader.skipped == {"damaged_object": 4}
    assert len(reader.damaged) == 4


def test_an_object_with_the_header_of_another_writer_is_damaged(tmp_path: Path) -> None:
    root, mirror = tmp_path / "root", str(tmp_path / "mirror")
    job(root)
    job(root)
    (first, (header, lines)), (second, _) = journal_lines(root).items()
    put(mirror, first, header, lines[:10])
    path = put(mirror, second, header, lines[10:])
    reader = MirrorReader(LOG, mirror=mirror)
    assert numbers(flat(reader.read_new())) == list(range(10))
    assert reader.damaged == [path]


def test_a_name_with_a_range_that_runs_backwards_is_not_ours(tmp_path: Path) -> None:
    root, mirror = tmp_path / "root", str(tmp_path / "mirror")
    job(root)
    (path,) = mirror_by_hand(root, mirror, (20,))
    name = parse_name(path)
    assert isinstance(name, SegmentName)
    backwards = LogPaths.of(mirror, LOG).path(name._replace(first=name.last + 50, last=name.first))
    Bucket(mirror).create(backwards, Path(path).read_bytes())
    assert parse_name(backwards) is None
    assert read_mirror(mirror) == read_all(root)
    assert [writer.gaps for writer in listed_writers(Bucket(mirror), LogPaths.of(mirror, LOG))] == [[]]


def test_a_link_in_a_folder_is_not_followed(tmp_path: Path) -> None:
    root, mirror = tmp_path / "root", str(tmp_path / "mirror")
    job(root)
    (path,) = mirror_by_hand(root, mirror, (20,))
    elsewhere = tmp_path / "elsewhere.gz"
    Path(path).rename(elsewhere)
    Path(path).symlink_to(elsewhere)
    assert read_mirror(mirror) == []


@pytest.mark.parametrize("kind", ["line", "header", "bomb"])
def test_an_object_that_unpacks_to_a_gigabyte_is_damaged_and_takes_no_memory(kind: str) -> None:
    header = b'{"schema":1,"log":"x","writer":"w","labels":{},"resource":{},"severity":"INFO","ship":true}\n'
    packer = zlib.compressobj(1, zlib.DEFLATED, 31)
    data = packer.compress(b"" if kind == "header" else header)
    piece = b"x" * 2**22 if kind != "bomb" else (b"\n" + b"x" * (2**20 - 1)) * 4
    data += b"".join(packer.compress(piece) for _ in range(300 if kind == "bomb" else 20)) + packer.flush()
    assert len(data) < 8e6
    with pytest.raises(DamagedObjectError, match=r"x\.gz is damaged: .* more than"):
        SegmentContent(data, "x.gz")


def test_an_object_larger_than_any_of_ours_is_read_in_part_and_named(tmp_path: Path) -> None:
    root, mirror = tmp_path / "root", str(tmp_path / "mirror")
    job(root)
    ((writer, (header, lines)),) = journal_lines(root).items()
    put(mirror, writer, header, lines[:10])
    path = Path(put(mirror, writer, header, lines[10:]))
    with path.open("r+b") as file:
        file.truncate(2**40)  # Zeros that take no space.
    reader = MirrorReader(LOG, mirror=mirror)
    assert numbers(flat(reader.read_new())) == list(range(10))
    assert reader.damaged == [str(path)]


@pytest.mark.parametrize(
    "time_ns", [-(10**30), -62_135_596_801 * 10**9, -1, 253_402_300_799 * 10**9, 253_402_300_800 * 10**9, 10**30]
)
def test_any_time_of_an_entry_is_in_a_day_that_readers_find(time_ns: int) -> None:
    name = SegmentName(day_of(time_ns), "w", 1, 2, 0)
    assert parse_name(f"log=x/{name}") == name


def test_a_reader_of_a_thousand_writers_makes_a_request_for_each_object_and_one_list(tmp_path: Path) -> None:
    mirror, now_ns = str(tmp_path / "mirror"), Clock().now_ns
    folder = Path(LogPaths.of(mirror, LOG).day(day_of(now_ns)))
    folder.mkdir(parents=True)
    for number in range(1_000):
        writer = f"host-{number}-1-0"
        header = b'{"schema":1,"log":"%s","writer":"%s","labels":{"job":"run7","process_index":"%d"},"resource":{}}' % (
            LOG.encode(),
            writer.encode(),
            number,
        )
        line = b'\n{"t":%d,"s":%d,"p":{"n":%d}}' % (now_ns + number, 10**11, number)
        name = SegmentName(folder.name[4:], writer, 10**11, 10**11, 0)
        (folder / str(name).partition("/")[2]).write_bytes(encode_segment(header, line, 0))
    counting = Counting()
    reader = MirrorReader(LOG, mirror=mirror, storage=counting)
    assert numbers(flat(reader.read_new())) == list(range(1_000))
    assert counting.requests == {"read_with_generation": 1_000, "list_prefix": 2}  # One for newer layouts.
    assert flat(reader.read_new()) == []
    assert counting.requests == {"read_with_generation": 1_000, "list_prefix": 3}
    assert reader.ask_to_hurry(now_ns) == 1
    assert counting.requests["write"] == 1


class Counting(LocalStorage):
    """A folder, and the number of calls by their names."""

    def __init__(self) -> None:
        super().__init__()
        self.requests: dict[str, int] = {}

    def __getattribute__(self, name: str) -> Any:
        if name in ("read_with_generation", "list_prefix", "write"):
            self.requests[name] = self.requests.get(name, 0) + 1
        return super().__getattribute__(name)


def test_members_of_gzip_that_follow_each_other_are_one_object(tmp_path: Path) -> None:
    """`cat` joins files so: each is whole."""
    root, mirror = tmp_path / "root", str(tmp_path / "mirror")
    job(root)
    ((writer, (header, lines)),) = journal_lines(root).items()
    path = Path(put(mirror, writer, header, lines))
    whole = gzip.decompress(path.read_bytes())
    path.write_bytes(gzip.compress(whole[:100]) + gzip.compress(whole[100:]))
    entries: list[LogEntry] = read_mirror(mirror)
    assert identities(entries) == identities(read_all(root))
