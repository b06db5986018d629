"""A log with a mirror is one thing, too: journal, mirror and Cloud Logging, each entry once, and no request in vain."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from ml_diagnostics_common.entry import LogEntry, encode_cloud
from ml_diagnostics_common.exceptions import ConfigurationError
from ml_diagnostics_common.log_source import INCOMPLETE, Cloud, LogSource, notes_of
from ml_diagnostics_common.mirror._bucket import Bucket
from ml_diagnostics_common.mirror.names import EndName, LogPaths, SegmentName, day_of, parse_name
from ml_diagnostics_common.mirror.segments import NewerFormatError
from ml_diagnostics_testing.cloud_logging import CloudLoggingServer
from ml_diagnostics_testing.cloud_storage import CloudStorageServer
from ml_diagnostics_testing.faults import Status

from ..journals import LOG, Clock, new_journal, numbers, read_all
from .mirrors import flat, mirror_by_hand

AN_HOUR_LATER = Clock(Clock().now_ns + 3_600 * 10**9)


@pytest.fixture
def cloud_logging(cloud_logging_server: CloudLoggingServer, monkeypatch: pytest.MonkeyPatch) -> CloudLoggingServer:
    for name, value in cloud_logging_server.environment().items():
        monkeypatch.setenv(name, value)
    return cloud_logging_server


def write(root: Path, first: int, last: int) -> str:
    """Write the entries from a number up to another; return the writer."""
    journal = new_journal(root, clock_ns=Clock())
    for number in range(first, last):
        journal.append({"job_name": "run7", "n": number})
    journal.close()
    return journal.writer


def end(mirror: str, writer: str) -> None:
    paths = LogPaths.of(mirror, LOG)
    Bucket(mirror).create(paths.path(EndName(day_of(Clock().now_ns), writer)), b"{}")


def ship(server: CloudLoggingServer, entries: list[LogEntry]) -> None:
    server.write([encode_cloud(entry) for entry in entries], log_id=LOG)


def lists(server: CloudLoggingServer) -> int:
    return sum(request.operation == "list" for request in server.requests)


def source(root: Path, mirror: str, cloud: Cloud | None = None, **options: object) -> LogSource:
    return LogSource(
        LOG, root=root, cloud=cloud, job_name="run7", mirror=mirror, clock_ns=AN_HOUR_LATER, **options  # type: ignore[arg-type]
    )  # fmt: skip


def read(subject: LogSource) -> list[int]:
    return sorted(numbers(flat(subject.read_new())))


def without(mirror: str, chosen: Callable[[SegmentName], bool]) -> None:
    """Delete the objects that a function chooses."""
    for path in Bucket(mirror).list_paths(LogPaths.of(mirror, LOG).folder):
        name = parse_name(path)
        if isinstance(name, SegmentName) and chosen(name):
            Bucket(mirror).delete(path)


def test_the_journal_and_the_mirror_are_read_once_together(mirror: str, tmp_path: Path) -> None:
    write(tmp_path / "a", 0, 10)
    mirror_by_hand(tmp_path / "a", mirror)
    shutil.copytree(tmp_path / "a", tmp_path / "here")
    write(tmp_path / "here", 10, 15)
    write(tmp_path / "b", 15, 20)
    mirror_by_hand(tmp_path / "b", mirror)
    subject = source(tmp_path / "here", mirror)
    assert read(subject) == list(range(20))
    assert read(subject) == []
    later = source(tmp_path / "here", mirror)
    later.resume(subject.position())
    write(tmp_path / "c", 20, 22)
    mirror_by_hand(tmp_path / "c", mirror)
    assert read(later) == [20, 21]


def test_a_complete_mirror_spares_requests_of_cloud_logging(
    cloud_logging: CloudLoggingServer, mirror: str, tmp_path: Path
) -> None:
    writer = write(tmp_path / "a", 0, 10)
    mirror_by_hand(tmp_path / "a", mirror, [4])
    end(mirror, writer)
    ship(cloud_logging, read_all(tmp_path / "a"))
    foreign = {"jsonPayload": {"job_name": "run7", "n": 99}, "severity": "INFO", "timestamp": "2025-11-21T08:00:00Z"}
    cloud_logging.write([foreign], log_id=LOG)
    subject = source(tmp_path, mirror, Cloud())
    assert read(subject) == list(range(10))
    assert (subject.is_complete(), notes_of([subject]), lists(cloud_logging)) == (True, [], 0)
    assert read(source(tmp_path, mirror, Cloud(), always_asks_cloud=True)) == [*range(10), 99]


def test_an_incomplete_mirror_is_completed_by_cloud_logging(
    cloud_logging: CloudLoggingServer, mirror: str, tmp_path: Path
) -> None:
    writer = write(tmp_path / "a", 0, 10)
    mirror_by_hand(tmp_path / "a", mirror, [4])
    end(mirror, writer)
    without(mirror, lambda name: name.first % 10 == 4)
    first = min(entry.sequence for entry in read_all(tmp_path / "a"))
    subject = source(tmp_path, mirror)
    assert read(subject) == [0, 1, 2, 3, 8, 9]
    note = f"{INCOMPLETE}entries {first + 4} to {first + 7} of writer {writer} are not in the mirror"
    assert (notes_of([subject]), subject.is_complete()) == ([note], False)
    ship(cloud_logging, read_all(tmp_path / "a"))
    subject = source(tmp_path, mirror, Cloud())
    assert read(subject) == list(range(10))
    assert (notes_of([subject]), subject.is_complete()) == ([], True)
    asked = lists(cloud_logging)
    assert read(subject) == []
    assert lists(cloud_logging) == asked


def test_a_writer_without_an_end_is_noted_unless_its_journal_is_here(mirror: str, tmp_path: Path) -> None:
    writer = write(tmp_path / "a", 0, 10)
    mirror_by_hand(tmp_path / "a", mirror)
    elsewhere, here = source(tmp_path, mirror), source(tmp_path / "a", mirror)
    assert read(elsewhere) == read(here) == list(range(10))
    assert notes_of([elsewhere]) == [f"{INCOMPLETE}no end from writer {writer}: its last entries may be missing"]
    assert (notes_of([here]), here.is_complete()) == ([], True)
    fresh = LogSource(LOG, root=tmp_path, mirror=mirror, clock_ns=Clock())
    assert read(fresh) == list(range(10))
    assert (notes_of([fresh]), fresh.is_complete(), fresh.mirror_lag_seconds()) == ([], True, 0.0)


def test_a_mirror_that_is_far_behind_the_journal_is_noted(mirror: str, tmp_path: Path) -> None:
    write(tmp_path, 0, 10)
    mirror_by_hand(tmp_path, mirror, [4])
    without(mirror, lambda name: name.first % 10 == 8)
    clock = Clock(Clock().now_ns + 400 * 10**9)
    subject = LogSource(LOG, root=tmp_path, mirror=mirror, clock_ns=clock)
    assert read(subject) == list(range(10))
    assert notes_of([subject]) == ["the mirror is 6 min 40 s behind"]
    assert subject.mirror_lag_seconds() == 400.0


def test_a_damaged_object_is_named_and_filled_from_the_journal(tmp_path: Path) -> None:
    mirror = str(tmp_path / "mirror")
    writer = write(tmp_path / "a", 0, 10)
    damaged = mirror_by_hand(tmp_path / "a", mirror, [4])[1]
    end(mirror, writer)
    Path(damaged).write_bytes(Path(damaged).read_bytes()[:-9] + b"123456789")
    elsewhere, here = source(tmp_path, mirror), source(tmp_path / "a", mirror)
    assert read(elsewhere) == [0, 1, 2, 3, 8, 9]
    assert notes_of([elsewhere])[0] == f"{INCOMPLETE}{damaged} is damaged"
    assert read(here) == list(range(10))
    assert notes_of([here]) == [f"{damaged} is damaged; its entries were read from the journal"]


def test_a_mirror_that_refuses_is_noted_and_the_journal_is_read(
    cloud_storage_server: CloudStorageServer, tmp_path: Path
) -> None:
    write(tmp_path, 0, 3)
    cloud_storage_server.faults.always(Status(403))
    subject = source(tmp_path, "gs://bucket/mirror")
    assert read(subject) == [0, 1, 2]
    (note,) = notes_of([subject])
    assert note.startswith(f"{INCOMPLETE}the mirror could not be read to the end: ")
    assert "grant it roles/storage.objectUser on the bucket" in note
    assert not subject.is_complete()


def test_a_mirror_of_a_newer_version_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "mirror" / "v2").mkdir(parents=True)
    (tmp_path / "mirror" / "v2" / "something").touch()
    with pytest.raises(NewerFormatError, match="written by a newer version"):
        read(source(tmp_path, str(tmp_path / "mirror")))


def test_a_text_that_is_no_mirror_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="s3"):
        source(tmp_path, "s3://bucket/x")


def test_a_local_read_asks_no_mirror(cloud_storage_server: CloudStorageServer, tmp_path: Path) -> None:
    write(tmp_path, 0, 3)
    subject = source(tmp_path, "gs://bucket/mirror")
    assert sorted(numbers(flat(subject.read_new(local_only=True)))) == [0, 1, 2]
    assert cloud_storage_server.requests == []
