"""The reader of a mirror: each entry once, whatever became of the objects."""

from __future__ import annotations

import collections
import random
from pathlib import Path

import pytest
from ml_diagnostics_common.entry import LogEntry
from ml_diagnostics_common.exceptions import ConfigurationError, ObjectNotFoundError, StorageError
from ml_diagnostics_common.journal import Journal
from ml_diagnostics_common.mirror._bucket import Bucket
from ml_diagnostics_common.mirror.names import EndName, LogPaths, parse_name
from ml_diagnostics_common.mirror.reader import MirrorReader
from ml_diagnostics_common.mirror.segments import NewerFormatError
from ml_diagnostics_common.reader import JournalReader, UnionReader
from ml_diagnostics_common.storage import LocalStorage
from ml_diagnostics_testing.cloud_storage import CloudStorageServer
from ml_diagnostics_testing.faults import Status

from ..journals import LOG, Clock, new_journal, numbers, read_all
from .mirrors import flat, identities, journal_lines, mirror_by_hand, put, read_mirror


def job_of_two_hosts(root: Path, entries: int = 100) -> None:
    """Record with two writers at the same times, with severities, labels and a segment that is full."""
    clock = Clock()
    first = new_journal(root, clock_ns=clock, segment_bytes=3_000, resource={"type": "x", "labels": {"node": "a"}})
    second = new_journal(root, clock_ns=clock, resource={"type": "x", "labels": {"node": "b"}})
    for n in range(entries):
        first.append({"n": n}, severity="ERROR" if n % 10 == 0 else None)
        second.append({"n": -n}, resource_labels={"namespace": "loss"} if n % 7 == 0 else None)
        clock.advance(0.5)


def test_a_mirror_without_the_log_is_empty(mirror: str, tmp_path: Path) -> None:
    reader = MirrorReader(LOG, mirror=mirror)
    assert flat(reader.read_new()) == []
    job_of_two_hosts(tmp_path / "root", 5)
    mirror_by_hand(tmp_path / "root", mirror)
    reader = MirrorReader(LOG, mirror=mirror, position=reader.position())
    assert len(flat(reader.read_new())) == 10


@pytest.mark.parametrize("level", [0, 1])
@pytest.mark.parametrize("lines_each", [(1,), (7, 30, 2), (1000,)])
def test_the_mirror_of_a_journal_has_its_entries_in_its_order(
    mirror: str, tmp_path: Path, level: int, lines_each: tuple[int, ...]
) -> None:
    job_of_two_hosts(tmp_path / "root")
    mirror_by_hand(tmp_path / "root", mirror, lines_each, level=level)
    expected = read_all(tmp_path / "root")
    assert len(expected) == 200
    assert read_mirror(mirror) == expected  # All fields, with their contexts.


def test_objects_that_are_doubled_split_and_overlap_have_each_entry_once(tmp_path: Path) -> None:
    job_of_two_hosts(tmp_path / "root")
    expected = read_all(tmp_path / "root")
    rng = random.Random(7)
    for attempt in range(10):
        mirror = str(tmp_path / f"mirror-{attempt}")
        for writer, (header, lines) in journal_lines(tmp_path / "root").items():
            pieces = [(start, start + rng.randint(1, 40)) for start in range(0, 100, 10)]
            pieces += [(start, start + rng.randint(1, 90)) for start in rng.choices(range(100), k=10)]
            pieces += [(start, start + 10) for start in range(0, 100, 10)]
            rng.shuffle(pieces)
            for start, end in pieces:
                put(mirror, writer, header, lines[start:end], level=rng.randint(0, 1))
        assert read_mirror(mirror) == expected


def test_an_entry_that_a_range_seems_to_have_is_read_from_its_own_object(tmp_path: Path) -> None:
    job_of_two_hosts(tmp_path / "root", 10)
    for writer, (header, lines) in journal_lines(tmp_path / "root").items():
        put(str(tmp_path / "mirror"), writer, header, lines[:4] + lines[5:])
        put(str(tmp_path / "mirror"), writer, header, lines[4:5])  # A thread wrote it late.
    reader = MirrorReader(LOG, mirror=str(tmp_path / "mirror"))
    assert identities(flat(reader.read_new()))
    assert len(read_mirror(str(tmp_path / "mirror"))) == 20
    assert [writer.gaps for writer in reader.writers()] == [[], []]


def test_what_is_new_is_read_and_nothing_twice(mirror: str, tmp_path: Path) -> None:
    clock = Clock()
    journal = new_journal(tmp_path / "root", clock_ns=clock)
    reader = MirrorReader(LOG, mirror=mirror, full_listing_seconds=1e9)
    read: list[int] = []
    header, done = b"", 0
    for _ in range(5):
        for _ in range(10):
            journal.append({"n": len(read)})
            clock.advance(3 * 3600)
        ((writer, (header, lines)),) = journal_lines(tmp_path / "root").items()
        put(mirror, writer, header, lines[done:])
        done = len(lines)
        new = flat(reader.read_new())
        assert len(new) == 10
        assert flat(reader.read_new()) == []
        reader = MirrorReader(LOG, mirror=mirror, position=reader.position(), full_listing_seconds=1e9)
    assert done == 50


def test_late_objects_of_old_days_are_found_by_the_full_list(tmp_path: Path) -> None:
    mirror, now = str(tmp_path / "mirror"), [0.0]
    job_of_two_hosts(tmp_path / "root", 10)
    (first, (header, lines)), (second, (other, late)) = journal_lines(tmp_path / "root").items()
    put(mirror, first, header, lines)
    put(mirror, first, header, [line.replace(b'"t":176', b'"t":177').replace(b'"s":1', b'"s":2') for line in lines])
    reader = MirrorReader(LOG, mirror=mirror, clock=lambda: now[0], full_listing_seconds=600)
    assert len(flat(reader.read_new())) == 20
    put(mirror, second, other, late)
    assert flat(reader.read_new()) == []
    now[0] = 601.0
    assert len(flat(reader.read_new())) == 10


def test_a_reading_that_is_broken_off_loses_nothing_and_repeats_little(tmp_path: Path) -> None:
    root, mirror = tmp_path / "root", str(tmp_path / "mirror")
    job_of_two_hosts(root)
    mirror_by_hand(root, mirror, (13,))
    expected = identities(read_all(root))
    for stop in range(1, 12):
        reader = MirrorReader(LOG, mirror=mirror)
        batches = reader.read_new()
        before = [entry for _, batch in zip(range(stop), batches, strict=False) for entry in batch]
        after = flat(MirrorReader(LOG, mirror=mirror, position=reader.position()).read_new())
        same = flat(reader.read_new())
        assert identities(after) == identities(same)
        assert sorted(identities(before) + identities(after)) == sorted(expected)


def test_a_reader_of_some_writers_or_resources_yields_no_other(tmp_path: Path) -> None:
    root, mirror = tmp_path / "root", str(tmp_path / "mirror")
    job_of_two_hosts(root)
    mirror_by_hand(root, mirror)
    writers = sorted(journal_lines(root))
    for writer in writers:
        assert {entry.context.writer for entry in read_mirror(mirror, writers={writer})} == {writer}
    chosen = read_mirror(mirror, resource_labels={"node": {"b", "c"}})
    assert numbers(chosen) == [-n for n in range(100)]
    assert read_mirror(mirror, resource_labels={"node": {"z"}}) == []


def test_entries_may_be_taken_before_the_merge(tmp_path: Path) -> None:
    root, mirror = tmp_path / "root", str(tmp_path / "mirror")
    job_of_two_hosts(root)
    mirror_by_hand(root, mirror)
    taken = []

    def take(entries: list) -> list:  # type: ignore[type-arg]
        taken.extend(entries)
        return [entry for entry in entries if entry.payload["n"] < 0]

    left = flat(MirrorReader(LOG, mirror=mirror).read_new(take))
    assert len(taken) == 200
    assert numbers(left) == [-n for n in range(1, 100)]


# --- Objects that vanish or are damaged ---------------------------------------------------------------


def test_objects_that_are_rolled_up_while_they_are_read_are_read_as_one(tmp_path: Path) -> None:
    root, mirror = tmp_path / "root", str(tmp_path / "mirror")
    job_of_two_hosts(root, 600)
    paths = mirror_by_hand(root, mirror)
    reader = MirrorReader(LOG, mirror=mirror)
    batches = reader.read_new()
    before = next(batches)
    mirror_by_hand(root, mirror, (200,), level=1)
    for path in paths:
        Bucket(mirror).delete(path)
    assert sorted(identities(before + flat(batches))) == sorted(identities(read_all(root)))
    assert not reader.skipped


def test_an_object_that_is_listed_and_not_there_twice_is_an_error_with_its_name(
    tmp_path: Path, cloud_storage_server: CloudStorageServer
) -> None:
    job_of_two_hosts(tmp_path / "root", 5)
    path = mirror_by_hand(tmp_path / "root", "gs://bucket/m")[0]
    cloud_storage_server.faults.always(Status(404), on="read")
    with pytest.raises(ObjectNotFoundError, match=path):
        read_mirror("gs://bucket/m")
    cloud_storage_server.faults.clear()
    assert len(read_mirror("gs://bucket/m")) == 10


@pytest.mark.parametrize("damage", ["cut", "bit", "empty", "text", "header"])
def test_a_damaged_object_is_counted_named_and_passed_over(
    tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    root, mirror = tmp_path / "root", str(tmp_path / "mirror")
    job_of_two_hosts(root, 50)
    (writer, (header, lines)), *_ = journal_lines(root).items()
    put(mirror, writer, header, lines[:20])
    path = Path(put(mirror, writer, header if damage != "header" else b'{"sche', lines[20:30]))
    put(mirror, writer, header, lines[30:])
    data = path.read_bytes()
    middle = len(data) // 2
    path.write_bytes(
        {
            "cut": data[:-5],
            "bit": data[:middle] + bytes([data[middle] ^ 4]) + data[middle + 1 :],
            "empty": b"",
            "text": b"no gzip",
            "header": data,
        }[damage]
    )
    reader = MirrorReader(LOG, mirror=mirror)
    assert len(flat(reader.read_new())) == 40
    assert flat(reader.read_new()) == []
    assert reader.skipped == {"damaged_object": 1}
    assert reader.damaged == [str(path)]
    assert [note for note in reader.notes(0) if "damaged" in note]
    assert str(path) in caplog.text
    assert [writer.gaps for writer in reader.writers()] == [[(10**11 + 20, 10**11 + 29)]]
    assert not reader.is_complete(0)


def test_the_journal_has_the_entries_of_a_damaged_object(tmp_path: Path) -> None:
    root, mirror = tmp_path / "root", str(tmp_path / "mirror")
    job_of_two_hosts(root, 50)
    Path(mirror_by_hand(root, mirror)[2]).write_bytes(b"damaged")
    reader = MirrorReader(LOG, mirror=mirror)
    assert flat(UnionReader([JournalReader(LOG, root=root), reader]).read_new()) == read_all(root)
    assert reader.skipped == {"damaged_object": 1}


def test_a_host_with_a_clock_in_the_future_hides_no_new_entries_of_others(tmp_path: Path) -> None:
    root, mirror = tmp_path / "root", str(tmp_path / "mirror")
    wrong, right = new_journal(root, clock_ns=Clock(4_000_000_000 * 10**9)), new_journal(root)
    wrong.append({"n": 1})
    mirror_by_hand(root, mirror)
    reader = MirrorReader(LOG, mirror=mirror, full_listing_seconds=1e9)
    assert numbers(flat(reader.read_new())) == [1]
    right.append({"n": 2})
    header, lines = journal_lines(root)[right.writer]
    put(mirror, right.writer, header, lines)
    assert numbers(flat(reader.read_new())) == [2]


def test_the_objects_of_an_hour_are_read_if_the_one_of_the_hour_is_damaged(tmp_path: Path) -> None:
    root, mirror = tmp_path / "root", str(tmp_path / "mirror")
    job_of_two_hosts(root, 50)
    mirror_by_hand(root, mirror)
    for path in mirror_by_hand(root, mirror, (1000,), level=1):
        Path(path).write_bytes(b"damaged")
    assert read_mirror(mirror) == read_all(root)


def test_objects_of_others_are_passed_over(mirror: str, tmp_path: Path) -> None:
    job_of_two_hosts(tmp_path / "root", 5)
    mirror_by_hand(tmp_path / "root", mirror)
    bucket = Bucket(mirror)
    folder = LogPaths.of(bucket.path, LOG).folder
    for name in ("w.watch", "day=2026-11-22/notes.txt", "day=2026-11-22/w.1-2.0.jsonl.gz", "day=x/w.end"):
        bucket.create(folder + name, b"other")
    bucket.create(f"{bucket.path}/validation/x", b"other")
    assert len(read_mirror(mirror)) == 10


def test_a_newer_layout_is_an_error_and_not_guessed_at(mirror: str, tmp_path: Path) -> None:
    job_of_two_hosts(tmp_path / "root", 5)
    mirror_by_hand(tmp_path / "root", mirror)
    bucket = Bucket(mirror)
    bucket.create(f"{bucket.path}/v2/segments/x", b"")
    with pytest.raises(NewerFormatError, match=r"written by a newer version.*layout v2.*upgrade"):
        read_mirror(mirror)


@pytest.mark.parametrize("version", [2, 9, 10, 123])
def test_a_newer_layout_is_found_among_folders_of_others(mirror: str, tmp_path: Path, version: int) -> None:
    job_of_two_hosts(tmp_path / "root", 5)
    mirror_by_hand(tmp_path / "root", mirror)
    bucket = Bucket(mirror)
    for name in ("v1.txt", "v1beta/x", "v19999/x", "validation/a/b", "videos/1", "v"):
        bucket.create(f"{bucket.path}/{name}", b"other")
    assert len(read_mirror(mirror)) == 10
    bucket.create(f"{bucket.path}/v{version}/segments/x", b"")
    with pytest.raises(NewerFormatError, match=f"layout v{version}"):
        read_mirror(mirror)


def test_a_newer_schema_of_the_journal_is_an_error(tmp_path: Path) -> None:
    job_of_two_hosts(tmp_path / "root", 5)
    (writer, (header, lines)), *_ = journal_lines(tmp_path / "root").items()
    path = put(str(tmp_path / "mirror"), writer, header.replace(b'"schema":1', b'"schema":2'), lines)
    with pytest.raises(NewerFormatError, match=f"{path} was written by a newer version"):
        read_mirror(str(tmp_path / "mirror"))


def test_a_mirror_that_cannot_be_read_is_an_error_and_the_next_call_goes_on(
    tmp_path: Path, cloud_storage_server: CloudStorageServer
) -> None:
    job_of_two_hosts(tmp_path / "root", 50)
    mirror_by_hand(tmp_path / "root", "gs://bucket/m", (10,))
    reader = MirrorReader(LOG, mirror="gs://bucket/m")
    cloud_storage_server.faults.script([None] * 4 + [Status(403)] * 60, on="read")
    read: list[LogEntry] = []
    with pytest.raises(StorageError, match="may not"):
        collections.deque(map(read.extend, reader.read_new()), maxlen=0)
    cloud_storage_server.faults.clear()
    read += flat(reader.read_new())
    assert sorted(identities(read)) == sorted(identities(read_all(tmp_path / "root")))


@pytest.mark.parametrize("mirror", ["s3://bucket/x", "gs:/bucket/x", "gs://", "", " ", "a\0b"])
def test_an_invalid_mirror_is_an_error(mirror: str) -> None:
    with pytest.raises(ConfigurationError):
        MirrorReader(LOG, mirror=mirror)


# --- Completeness -------------------------------------------------------------------------------------


def test_a_mirror_is_complete_if_its_writers_have_ended_or_are_young(mirror: str, tmp_path: Path) -> None:
    job_of_two_hosts(tmp_path / "root", 10)
    paths = mirror_by_hand(tmp_path / "root", mirror)
    reader = MirrorReader(LOG, mirror=mirror)
    assert not reader.is_complete(0)
    entries = flat(reader.read_new())
    now_ns = entries[-1].timestamp_ns + 10**9
    later_ns = now_ns + 3600 * 10**9
    assert reader.is_complete(now_ns)
    assert reader.is_complete(now_ns, job="run7")
    assert not reader.is_complete(now_ns, job="other")
    assert not reader.is_complete(later_ns)
    assert [note.partition(":")[0] for note in reader.notes(later_ns)] == [
        f"no end from writer {writer}" for writer in sorted(journal_lines(tmp_path / "root"))
    ]
    bucket = Bucket(mirror)
    for path in paths:
        name = parse_name(path)
        assert name is not None
        bucket.create(LogPaths.of(bucket.path, LOG).path(EndName(name.day, name.writer)), b"{}")
    assert flat(reader.read_new()) == []
    assert reader.is_complete(later_ns)
    assert not reader.notes(later_ns)
    again = MirrorReader(LOG, mirror=mirror, position=reader.position())
    assert flat(again.read_new()) == []
    assert again.is_complete(later_ns, job="run7")


def test_the_names_of_all_logs_are_found_with_few_requests(mirror: str, tmp_path: Path) -> None:
    long = "x" * 200
    for log_id in ("goodput a/b", LOG, long):
        Journal(log_id, root=tmp_path / "root", labels={}).append({"n": 1})
        mirror_by_hand(tmp_path / "root", mirror, log_id=log_id)
    folders = Bucket(mirror).log_folders()
    assert len(folders) == 3
    assert folders == sorted(folders)
    assert "goodput%20a%2Fb" in folders


class Stale(LocalStorage):
    """A folder whose lists fail at first, as on a network filesystem."""

    def __init__(self, failures: int) -> None:
        super().__init__()
        self.failures = failures

    def list_prefix(self, path: str, *, after: str = "", limit: int | None = None) -> list[str]:
        if self.failures:
            self.failures -= 1
            raise StorageError("cannot list: stale file handle")
        return super().list_prefix(path, after=after, limit=limit)


def test_a_list_of_a_folder_that_fails_is_tried_again_once(tmp_path: Path) -> None:
    root, mirror = tmp_path / "root", str(tmp_path / "mirror")
    job_of_two_hosts(root, 5)
    mirror_by_hand(root, mirror)
    assert len(flat(MirrorReader(LOG, mirror=mirror, storage=Stale(1)).read_new())) == 10
    reader = MirrorReader(LOG, mirror=mirror, storage=Stale(2))
    with pytest.raises(StorageError, match="stale file handle"):
        flat(reader.read_new())
    assert len(flat(reader.read_new())) == 10
