"""In Cloud Storage every point arrives once too, whatever the bucket answers and whenever the process ends."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ml_diagnostics_common.environment import diagnostics_directory
from ml_diagnostics_common.event_files import UploadLimits
from ml_diagnostics_common.exceptions import StorageError
from ml_diagnostics_common.guard import LOSSES
from ml_diagnostics_testing.cloud_storage import CloudStorageServer
from ml_diagnostics_testing.faults import Hang, Reset, Status
from ml_goodput_measurement._export.tensorboard import TensorBoardExporter
from ml_goodput_measurement.snapshot import Snapshot

from .tensorboard_points import Point, cumulative, deviating, deviation_points, points, steps_of, whole_life

DIRECTORY = "gs://test-bucket/my runs/näme"
PREFIX = "my runs/näme/goodput/"
QUICK = UploadLimits(seconds=1.0)
"""For a bucket that fails; one that answers has the limits of users, so that a loaded machine is no fault."""
LONG = 6_000  # steps; they make more than one file

Stored = Callable[[], list[Point]]


@pytest.fixture
def server(cloud_storage_server: CloudStorageServer, monkeypatch: pytest.MonkeyPatch) -> CloudStorageServer:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", cloud_storage_server.url)
    return cloud_storage_server


@pytest.fixture
def _note_soon_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read the note of another host, which no test here has, for as long as one upload takes; by default for 5 s."""
    monkeypatch.setattr("ml_goodput_measurement._export.tensorboard._NOTE_SECONDS", QUICK.seconds / 2)


@pytest.fixture
def stored(server: CloudStorageServer, tmp_path_factory: pytest.TempPathFactory) -> Stored:
    """Read the contents of the bucket."""

    def read_back() -> list[Point]:
        folder = tmp_path_factory.mktemp("bucket")
        for name in server.names("test-bucket", PREFIX):
            (folder / name.removeprefix(PREFIX)).write_bytes(server.read("test-bucket", name))
        return points(folder)

    return read_back


def new_exporter(directory: str = DIRECTORY, limits: UploadLimits = UploadLimits()) -> TensorBoardExporter:  # noqa: B008
    return TensorBoardExporter(directory, "job", include_badput_breakdown=False, upload_limits=limits)


def export_all(exporter: TensorBoardExporter, snapshot: Snapshot) -> None:
    """Export, and upload what did not fit into the short time of one call."""
    with contextlib.suppress(StorageError):
        exporter(snapshot)
    exporter.flush(20.0)


def kept_files() -> list[Path]:
    return sorted((diagnostics_directory() / "state" / "monitor").glob("*/*"))


def uploads(server: CloudStorageServer) -> int:
    return sum(request.operation == "upload" for request in server.requests)


def test_points_are_in_the_bucket_after_each_call(server: CloudStorageServer, stored: Stored) -> None:
    exporter = new_exporter()
    exporter(whole_life(1))
    assert stored() == [Point("goodput/goodput", 1, 80.0)]
    exporter(deviating(steps_of(range(50)), with_cumulative=cumulative(2)))
    assert stored() == [
        Point("goodput/goodput", 1, 80.0),
        Point("goodput/goodput", 2, 80.0),
        *deviation_points(range(50)),
    ]
    assert len(server.names("test-bucket", PREFIX)) == 1
    exporter.close()


def test_what_is_up_is_not_sent_again(server: CloudStorageServer) -> None:
    exporter = new_exporter()
    for _ in range(5):
        exporter(whole_life(1))
    exporter.flush(20.0)
    assert uploads(server) == 2  # The file, and the note of how far it is.


def test_a_file_ends_at_a_quarter_of_a_mebibyte_and_leaves_the_disk(server: CloudStorageServer, stored: Stored) -> None:
    exporter = new_exporter()
    history = steps_of(range(3 * LONG))
    for count in range(LONG, 3 * LONG + 1, LONG):
        exporter(deviating(history[:count]))
    assert stored() == deviation_points(range(3 * LONG))
    sizes = [len(server.read("test-bucket", name)) for name in server.names("test-bucket", PREFIX)]
    assert len(sizes) > 2
    assert max(sizes) < 2 * QUICK.part_bytes
    assert min(sizes[:-1]) >= QUICK.part_bytes
    assert len(kept_files()) == 1


@pytest.mark.usefixtures("_note_soon_given_up")
@pytest.mark.parametrize("fault", [Status(503), Status(403), Status(404), Reset(), Hang()], ids=str)
def test_what_could_not_be_uploaded_is_uploaded_later(server: CloudStorageServer, stored: Stored, fault: Any) -> None:
    exporter, history = new_exporter(limits=QUICK), steps_of(range(LONG))
    server.faults.always(fault)
    for count in (10, LONG):
        with pytest.raises(StorageError, match="cannot write gs://test-bucket/my runs/näme/goodput/events"):
            exporter(deviating(history[:count]))
    server.faults.clear()
    assert stored() == []
    export_all(exporter, deviating(history))
    assert stored() == deviation_points(range(LONG))
    assert len(kept_files()) == 1


def test_a_write_without_an_answer_is_not_repeated(server: CloudStorageServer, stored: Stored) -> None:
    server.faults.script([Status(503, after_apply=True), Reset(after_apply=True)], on="upload")
    exporter = new_exporter(limits=QUICK)
    with pytest.raises(StorageError):
        exporter(whole_life(1))
    export_all(exporter, whole_life(1))
    export_all(exporter, whole_life(2))
    assert stored() == [Point("goodput/goodput", 1, 80.0), Point("goodput/goodput", 2, 80.0)]


@pytest.mark.usefixtures("_note_soon_given_up")
@pytest.mark.timing
def test_a_bucket_that_hangs_costs_a_bounded_time_however_much_waits(server: CloudStorageServer) -> None:
    exporter, history = new_exporter(limits=UploadLimits(seconds=0.2, part_bytes=1_000)), steps_of(range(1_000))
    server.faults.always(Hang())
    for count in range(100, 1_000, 100):
        with pytest.raises(StorageError):
            exporter(deviating(history[:count]))
    started = time.monotonic()
    with pytest.raises(StorageError):
        exporter.flush(0.4)
    assert time.monotonic() - started < 4.0


@pytest.mark.usefixtures("_note_soon_given_up")
@pytest.mark.parametrize("ends_well", [True, False])
def test_the_next_process_uploads_what_this_one_could_not(
    server: CloudStorageServer, stored: Stored, ends_well: bool
) -> None:
    exporter, history = new_exporter(limits=QUICK), steps_of(range(LONG + 10))
    server.faults.always(Status(503))
    with pytest.raises(StorageError):
        exporter(deviating(history[:LONG]))
    exporter.close() if ends_well else exporter._log._lock.release()  # The kernel does as much for a killed one.
    server.faults.clear()
    exporter = new_exporter(DIRECTORY + "/")  # Spelled otherwise, and the same.
    exporter(deviating(history))
    assert stored() == deviation_points(range(LONG + 10))
    assert len(kept_files()) == 1
    exporter.close()
    new_exporter()(deviating(history))
    assert kept_files() == []
    assert stored() == deviation_points(range(LONG + 10))


@pytest.mark.usefixtures("_note_soon_given_up")
def test_flush_uploads_without_a_snapshot(server: CloudStorageServer, stored: Stored) -> None:
    exporter = new_exporter(limits=QUICK)
    server.faults.always(Status(503))
    with pytest.raises(StorageError):
        exporter(whole_life(1))
    server.faults.clear()
    exporter.flush(20.0)
    assert stored() == [Point("goodput/goodput", 1, 80.0)]


@pytest.mark.usefixtures("_note_soon_given_up")
def test_what_waits_on_this_host_is_bounded_and_the_oldest_go(
    server: CloudStorageServer, stored: Stored, caplog: pytest.LogCaptureFixture
) -> None:
    limits = UploadLimits(seconds=0.01, part_bytes=1_000, kept_bytes=10_000)
    exporter, history = new_exporter(limits=limits), steps_of(range(1_000))
    server.faults.always(Status(503))
    for count in range(50, 1_001, 50):
        with pytest.raises(StorageError):
            exporter(deviating(history[:count]))
    assert sum(path.stat().st_size for path in kept_files()) <= limits.kept_bytes
    assert [record.levelname for record in caplog.records if "are dropped" in record.message] == ["WARNING"]
    server.faults.clear()
    exporter.flush(40.0)
    kept = [point.step for point in stored()]
    assert kept == [*range(1_000 - len(kept), 1_000)]
    assert 100 < len(kept) < 300
    assert LOSSES["tensorboard_part_dropped"] == (1_000 - len(kept)) // 50


@pytest.mark.usefixtures("_note_soon_given_up")
def test_files_on_this_host_are_private(server: CloudStorageServer) -> None:
    server.faults.always(Status(503))
    with pytest.raises(StorageError):
        new_exporter(limits=QUICK)(whole_life(1))
    (file,) = kept_files()
    assert file.stat().st_mode & 0o777 == 0o600
    assert file.parent.stat().st_mode & 0o777 == 0o700


def test_after_the_private_folder_was_removed_it_goes_on(server: CloudStorageServer, stored: Stored) -> None:
    exporter = new_exporter()
    exporter(deviating(steps_of(range(10))))
    for file in kept_files():
        file.unlink()
        file.parent.rmdir()
    exporter(deviating(steps_of(range(20))))
    assert stored() == deviation_points(range(20))
