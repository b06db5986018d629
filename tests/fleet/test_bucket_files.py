"""Events in a bucket: a job is read by its own bytes, so many jobs of a file cost no more than the file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from ml_diagnostics_common.exceptions import ObjectNotFoundError
from ml_diagnostics_common.storage import GoogleCloudStorage, storage_for
from ml_diagnostics_fleet.events import EventsFile, write_events
from ml_diagnostics_fleet.synthetic import SyntheticFleet
from ml_diagnostics_testing.cloud_storage import CloudStorageServer

FLEET = SyntheticFleet(seed=5, jobs=12, events=600_000)
PATH = "gs://bucket/mirror/v1/events/group=00/x.parquet"


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with CloudStorageServer(buckets=["bucket"]) as server:
        for name, value in server.environment().items():
            monkeypatch.setenv(name, value)
        yield
        storage_for(PATH).close()  # type: ignore[attr-defined]


@pytest.fixture
def ranges(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The bytes of each request."""
    found: list[int] = []
    read_part = GoogleCloudStorage.read_part

    def counted(self: GoogleCloudStorage, path: str, start: int, end: int) -> bytes:
        data = read_part(self, path, start, end)
        found.append(len(data))
        return data

    def read(self: GoogleCloudStorage, path: str) -> bytes:
        raise AssertionError(f"all of {path} is read")

    monkeypatch.setattr(GoogleCloudStorage, "read_part", counted)
    monkeypatch.setattr(GoogleCloudStorage, "read", read)
    return found


def test_a_job_in_a_bucket_is_read_with_two_requests_and_not_with_its_whole_file(
    bucket: None, ranges: list[int], tmp_path: Path
) -> None:
    jobs = sorted(FLEET, key=lambda job: job.key)
    write_events(f"{tmp_path}/x", [(job.key, job.table()) for job in jobs])
    data = (tmp_path / "x").read_bytes()
    storage_for(PATH).write(PATH, data)
    assert len(data) > 5 * 2**18
    total = 0
    for job in jobs:
        ranges.clear()
        with EventsFile(PATH) as file, EventsFile(f"{tmp_path}/x") as same:
            groups = file.jobs()[job.key]
            batches = list(file.batches(groups))
            assert batches == list(same.batches(groups))
        assert len(ranges) <= 2
        total += sum(ranges) - 2**18
        with EventsFile(PATH) as file:
            assert file.table(groups) == job.table()
    assert total <= len(data)


def test_an_object_that_is_not_there_is_an_error_with_its_name(bucket: None) -> None:
    with pytest.raises(ObjectNotFoundError, match=r"group=00/x\.parquet"):
        EventsFile(PATH)


def test_an_object_that_is_not_a_file_of_events_is_an_error_with_its_name(bucket: None) -> None:
    storage_for(PATH).write(PATH, b"PAR1")
    with pytest.raises(ValueError, match=r"group=00/x\.parquet is not a file of Parquet"):
        EventsFile(PATH)
    storage_for(PATH).write(PATH, b"")
    with pytest.raises(ValueError, match=r"group=00/x\.parquet is not a file of Parquet"):
        EventsFile(PATH)
