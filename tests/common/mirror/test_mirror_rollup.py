"""The roll-up of hours: nothing is deleted that an object of an hour lacks, and no ended writer leaves small ones."""

from __future__ import annotations

from pathlib import Path

from ml_diagnostics_common.mirror._bucket import Bucket
from ml_diagnostics_common.mirror.names import LogPaths, SegmentName, parse_name
from ml_diagnostics_common.mirror.rest import push
from ml_diagnostics_common.mirror.rollup import NS_PER_HOUR, delete_covered, roll_up, roll_up_ended
from ml_diagnostics_common.mirror.segments import encode_segment
from ml_diagnostics_testing.cloud_storage import CloudStorageServer
from ml_diagnostics_testing.faults import Status

from ..journals import LOG, Clock, new_journal, read_all
from .jobs import finish, recorded_and_killed, run
from .mirrors import ends, journal_lines, mirror_by_hand, objects, put, raw_identities, read_mirror

UNUSUAL = b'{"t":1763710310000000000,"s":100000000005,"p":{"n":%s}}' % (b"9" * 400)
"""An entry that msgspec does not read, and readers do."""


def lines_of_a_job(root: Path) -> tuple[str, bytes, list[bytes]]:
    journal = new_journal(root, clock_ns=Clock())
    for n in range(10):
        journal.append({"n": n})
    ((writer, (header, lines)),) = journal_lines(root).items()
    return writer, header, lines


def test_an_entry_that_the_object_of_its_hour_lacks_is_kept(mirror: str, tmp_path: Path) -> None:
    """A thread wrote it late, after the others, and its line is an unusual one."""
    writer, header, lines = lines_of_a_job(tmp_path)
    put(mirror, writer, header, lines[:5] + lines[6:], level=1)
    late = LogPaths.of(mirror, LOG).path(SegmentName("2025-11-21", writer, 10**11 + 5, 10**11 + 5, 0))
    bucket = Bucket(mirror)
    bucket.create(late, encode_segment(header, b"\n" + UNUSUAL, 0))
    assert delete_covered(bucket, LogPaths.of(bucket.path, LOG), objects(mirror)) == 0
    assert sorted(entry.sequence - 10**11 for entry in read_mirror(mirror)) == list(range(10))


def test_an_hour_that_another_process_wrote_without_an_entry_deletes_nothing(mirror: str, tmp_path: Path) -> None:
    writer, header, lines = lines_of_a_job(tmp_path)
    lines[5] = UNUSUAL
    put(mirror, writer, header, [*lines[:5], *lines[6:]], level=1)  # As if that line had been written late.
    bucket = Bucket(mirror)
    names = []
    for first, last in ((0, 3), (3, 10)):
        names.append(SegmentName("2025-11-21", writer, 10**11 + first, 10**11 + last - 1, 0))
        text = b"".join(b"\n" + line for line in lines[first:last])
        bucket.create(LogPaths.of(mirror, LOG).path(names[-1]), encode_segment(header, text, 0))
    assert roll_up(bucket, LogPaths.of(bucket.path, LOG), names) is None
    assert len(read_mirror(mirror)) == 10


def test_unusual_lines_are_rolled_up_with_the_others(mirror: str, tmp_path: Path) -> None:
    writer, header, lines = lines_of_a_job(tmp_path)
    put(mirror, writer, header, lines[:5])
    put(mirror, writer, header, lines[6:])
    bucket = Bucket(mirror)
    late = SegmentName("2025-11-21", writer, 10**11 + 5, 10**11 + 5, 0)
    bucket.create(LogPaths.of(bucket.path, LOG).path(late), encode_segment(header, b"\n" + UNUSUAL, 0))
    assert roll_up_ended(bucket, LogPaths.of(bucket.path, LOG), objects(mirror)) == 1
    assert [name.level for name in objects(mirror)] == [1]
    assert len(read_mirror(mirror)) == 10


def test_objects_with_other_labels_are_not_put_under_those_of_the_first(mirror: str, tmp_path: Path) -> None:
    writer, header, lines = lines_of_a_job(tmp_path)
    other = header.replace(b'"run7"', b'"run8"')
    paths = [put(mirror, writer, header, lines[:3]), put(mirror, writer, header, lines[3:6])]
    paths += [put(mirror, writer, other, lines[6:8]), put(mirror, writer, other, lines[8:])]
    names = [name for path in paths if isinstance(name := parse_name(path), SegmentName)]
    bucket = Bucket(mirror)
    assert roll_up(bucket, LogPaths.of(bucket.path, LOG), names) is None
    assert roll_up_ended(bucket, LogPaths.of(bucket.path, LOG), names) == 2
    assert [name.level for name in objects(mirror)] == [1, 1]
    assert [entry.context.labels["job"] for entry in read_mirror(mirror)] == ["run7"] * 6 + ["run8"] * 4


ENDED = """
m = mirror(0.0)
for n in range(5):
    journal.append({"n": n})
    assert m.flush(20)
"""


def test_the_last_hour_of_a_process_that_ended_itself_is_rolled_up_by_a_push(mirror: str, tmp_path: Path) -> None:
    root = tmp_path / "root"
    finish(run(ENDED, root, mirror))
    assert [name.level for name in objects(mirror)] == [0] * 5
    assert not list(push(root, mirror))  # Nothing was missing.
    assert [name.level for name in objects(mirror)] == [1]
    assert [end["by"] for end in ends(mirror).values()] == ["self"]
    assert read_mirror(mirror) == read_all(root)


def test_the_last_hour_of_a_process_that_ended_itself_is_rolled_up_by_the_next(tmp_path: Path) -> None:
    root, mirror = tmp_path / "root", str(tmp_path / "mirror")
    finish(run(ENDED, root, mirror))
    body = """
m = mirror(0.5)
journal.append({"n": 5})
deadline = time.monotonic() + 40
while not m.statistics().counts.get("rolled_up"):
    assert time.monotonic() < deadline
    time.sleep(0.05)
"""
    finish(run(body, root, mirror))
    assert sorted(name.level for name in objects(mirror)) == [0, 1]
    assert read_mirror(mirror) == read_all(root)


def test_what_was_rolled_up_costs_later_pushes_no_request(
    tmp_path: Path, cloud_storage_server: CloudStorageServer
) -> None:
    finish(run(ENDED, tmp_path, "gs://bucket/m"))
    assert not list(push(tmp_path, "gs://bucket/m"))
    before = len(cloud_storage_server.requests)
    assert not list(push(tmp_path, "gs://bucket/m"))
    assert len(cloud_storage_server.requests) == before


def test_with_the_permission_to_create_alone_a_roll_up_is_tried_once(
    tmp_path: Path, cloud_storage_server: CloudStorageServer
) -> None:
    finish(run(ENDED, tmp_path, "gs://bucket/m"))
    for operation in ("read", "get", "list", "delete"):
        cloud_storage_server.faults.always(Status(403), on=operation)
    assert not list(push(tmp_path, "gs://bucket/m"))
    before = len(cloud_storage_server.requests)
    assert not list(push(tmp_path, "gs://bucket/m"))
    assert len(cloud_storage_server.requests) == before
    cloud_storage_server.faults.clear()
    assert read_mirror("gs://bucket/m") == read_all(tmp_path)


def test_a_list_that_fails_for_a_while_leaves_the_roll_up_to_a_later_push(
    tmp_path: Path, cloud_storage_server: CloudStorageServer
) -> None:
    finish(run(ENDED, tmp_path, "gs://bucket/m"))
    cloud_storage_server.faults.always(Status(503), on="list")
    assert not list(push(tmp_path, "gs://bucket/m", deadline_seconds=0.5))
    cloud_storage_server.faults.clear()
    assert not list(push(tmp_path, "gs://bucket/m"))
    assert [name.level for name in objects("gs://bucket/m")] == [1]


def test_a_killed_process_leaves_no_small_objects_once_it_was_pushed(tmp_path: Path) -> None:
    root, mirror = tmp_path / "root", str(tmp_path / "mirror")
    recorded_and_killed(root, mirror, "mirror(0.01)\nrecord_for_ever()")
    assert list(push(root, mirror))
    hours = {entry.timestamp_ns // NS_PER_HOUR for entry in read_mirror(mirror)}
    assert len(objects(mirror)) <= len(hours)
    assert sorted(raw_identities(mirror)) == sorted(entry.insert_id for entry in read_all(root))


def test_a_mirror_without_objects_is_rolled_up_to_nothing(mirror: str) -> None:
    bucket = Bucket(mirror)
    assert roll_up_ended(bucket, LogPaths.of(bucket.path, LOG), []) == 0
    assert roll_up(bucket, LogPaths.of(bucket.path, LOG), []) is None


def test_damaged_objects_are_left_where_they_are(tmp_path: Path) -> None:
    root, mirror = tmp_path / "root", str(tmp_path / "mirror")
    lines_of_a_job(root)
    paths = mirror_by_hand(root, mirror, (2,))
    Path(paths[1]).write_bytes(b"damaged")
    bucket = Bucket(mirror)
    assert roll_up(bucket, LogPaths.of(mirror, LOG), objects(mirror)) is None
    assert roll_up_ended(bucket, LogPaths.of(mirror, LOG), objects(mirror)) == 1
    assert Path(paths[1]).exists()
    assert len(read_mirror(mirror)) == 8
