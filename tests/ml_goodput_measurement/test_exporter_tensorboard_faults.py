"""Each point is in TensorBoard's folder once after any fault of the disk or the process."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ml_diagnostics_common.environment import diagnostics_directory
from ml_diagnostics_common.exceptions import StorageError
from ml_goodput_measurement._export.tensorboard import TensorBoardExporter

from .tensorboard_points import (
    NOW_NS,
    SECOND_NS,
    Point,
    cumulative,
    deviating,
    deviation_points,
    files,
    points,
    steps_of,
    whole_life,
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "goodput"


@pytest.fixture
def exporter(tmp_path: Path) -> TensorBoardExporter:
    return new_exporter(tmp_path)


def new_exporter(tmp_path: Path) -> TensorBoardExporter:
    return TensorBoardExporter(tmp_path, "job", include_badput_breakdown=False)


def note_files(directory: Any) -> Any:
    return list((directory / "goodput_state").glob("tensorboard-*.json"))


def state_file() -> Path:
    (found,) = (diagnostics_directory() / "state" / "monitor").glob("*.json")
    return found


# --- The disk -------------------------------------------------------------------------------------------


def test_a_full_disk_leaves_no_half_points_and_loses_none(exporter: TensorBoardExporter, folder: Path) -> None:
    exporter(deviating(steps_of(range(100))))
    (file,) = files(folder)
    size = file.stat().st_size
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + 1000, hard))
        for _ in range(3):
            with pytest.raises(OSError, match="File too large"):
                exporter(deviating(steps_of(range(500))))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, handler)
    assert file.stat().st_size == size
    exporter(deviating(steps_of(range(500))))
    assert points(folder) == deviation_points(range(500))
    assert len(files(folder)) == 1


@pytest.mark.parametrize("heals", [True, False])
def test_nothing_follows_half_a_batch_that_cannot_be_taken_back(
    exporter: TensorBoardExporter, folder: Path, monkeypatch: pytest.MonkeyPatch, heals: bool
) -> None:
    exporter(deviating(steps_of(range(10))))
    write = os.write

    def write_half(descriptor: int, data: memoryview) -> int:
        write(descriptor, data[: len(data) // 2 + 7])
        return fail()

    def fail(*args: object) -> int:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as broken:
        broken.setattr(os, "write", write_half)
        broken.setattr(os, "ftruncate", fail)
        with pytest.raises(OSError, match="Input/output"):
            exporter(deviating(steps_of(range(20))))
    with monkeypatch.context() as broken:
        if not heals:
            broken.setattr(os, "ftruncate", fail)
        exporter(deviating(steps_of(range(20))))
    if heals:
        assert points(folder) == deviation_points(range(20))
    else:  # Then some are there twice, and none is lost.
        assert points(folder)[-10:] == deviation_points(range(10, 20))
    assert len(files(folder)) == (1 if heals else 2)


def test_a_full_disk_of_the_state_writes_nothing_twice(
    exporter: TensorBoardExporter, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exporter(deviating(steps_of(range(10))))
    with monkeypatch.context() as full:
        full.setattr(Path, "replace", lambda *args: (_ for _ in ()).throw(OSError(errno.ENOSPC, "No space left")))
        with pytest.raises(OSError, match="No space left"):
            exporter(deviating(steps_of(range(20))))
    exporter(deviating(steps_of(range(20))))
    assert points(folder) == deviation_points(range(20))


@pytest.mark.parametrize("where", ["a file blocks the path", "not yet there"])
def test_a_directory_that_cannot_be_written_is_tried_again(tmp_path: Path, folder: Path, where: str) -> None:
    target = tmp_path / "mnt"
    exporter = new_exporter(target / "x")
    if where == "not yet there":
        target.symlink_to(tmp_path / "gone" / "deeper")
        exporter = new_exporter(target)
        (tmp_path / "gone").touch()
    else:
        target.touch()
    for _ in range(2):
        with pytest.raises(OSError, match=r"Not a directory|File exists"):
            exporter(whole_life(1))
    (target if where == "a file blocks the path" else tmp_path / "gone").unlink()
    exporter(whole_life(2))
    root = target / "x" if where == "a file blocks the path" else tmp_path / "gone" / "deeper"
    assert points(root / "goodput") == [Point("goodput/goodput", 2, 80.0)]


@pytest.mark.parametrize("restarted", [False, True])
def test_when_the_directory_was_removed_all_that_is_known_is_written_again(
    tmp_path: Path, folder: Path, restarted: bool
) -> None:
    exporter = new_exporter(tmp_path)
    exporter(deviating(steps_of(range(10))))
    shutil.rmtree(folder)
    if restarted:
        exporter.close()
        exporter = new_exporter(tmp_path)
    exporter(deviating(steps_of(range(20))))
    assert points(folder) == deviation_points(range(20))


def test_a_file_that_is_removed_during_a_write_is_not_believed(
    exporter: TensorBoardExporter, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exporter(deviating(steps_of(range(10))))
    fsync = os.fsync

    def remove_first(descriptor: int) -> None:
        if Path(f"/proc/self/fd/{descriptor}").readlink().is_relative_to(folder):
            shutil.rmtree(folder)
        fsync(descriptor)

    with monkeypatch.context() as removing:
        removing.setattr(os, "fsync", remove_first)
        with pytest.raises(StorageError, match="was removed"):
            exporter(deviating(steps_of(range(20))))
    exporter(deviating(steps_of(range(20))))
    assert points(folder) == deviation_points(range(20))


def test_one_file_of_many_that_was_removed_is_not_replaced(
    tmp_path: Path, exporter: TensorBoardExporter, folder: Path
) -> None:
    exporter(deviating(steps_of(range(10))))
    exporter.close()
    exporter = new_exporter(tmp_path)
    exporter(deviating(steps_of(range(20))))
    files(folder)[1].unlink()
    exporter(deviating(steps_of(range(30))))
    assert points(folder) == deviation_points([*range(10), *range(20, 30)])


def test_files_are_read_in_the_order_of_their_points_also_when_the_clock_went_back(
    tmp_path: Path, folder: Path
) -> None:
    for count, back_seconds in ((1, 0), (2, 0), (3, 3600)):
        exporter = new_exporter(tmp_path)
        snapshot = deviating(steps_of(range(count)))
        exporter(replace(snapshot, time_ns=NOW_NS - back_seconds * SECOND_NS))
        exporter.close()
    assert points(folder) == deviation_points(range(3))
    assert len(files(folder)) == 3


# --- The process ----------------------------------------------------------------------------------------

_KILLED = """
import itertools, os, signal, sys
from ml_goodput_measurement._export.tensorboard import TensorBoardExporter
from ml_goodput_measurement.snapshot import DeviatingStep, Deviation, Snapshot

directory, when = sys.argv[1:]
NOW_NS, SECOND_NS = 1_780_000_000 * 10**9, 10**9
steps = [DeviatingStep(step, NOW_NS + step * SECOND_NS, step / 64) for step in range(200)]
exporter = TensorBoardExporter(directory, "job", include_badput_breakdown=False)

def export(count):
    since = lambda start_ns: (step for step in steps[:count] if step.start_ns > start_ns)
    exporter(Snapshot("job", NOW_NS, deviation=Deviation(0.5, since)))

def die(*args):
    os.kill(os.getpid(), signal.SIGKILL)

write = os.write
export(100)
if when == "before the write":
    os.write = die
elif when == "within the write":
    os.write = lambda descriptor, data: (write(descriptor, data[: len(data) // 2]), die())
elif when == "after the write":
    os.fsync = lambda descriptor: "tfevents" in os.readlink(f"/proc/self/fd/{descriptor}") and die()
export(200)
die()
"""


@pytest.mark.parametrize("when", ["before the write", "within the write", "after the write", "when all is done"])
def test_a_killed_process_neither_repeats_nor_loses_a_point(tmp_path: Path, folder: Path, when: str) -> None:
    killed = subprocess.run([sys.executable, "-c", _KILLED, str(tmp_path), when], check=False)
    assert killed.returncode == -signal.SIGKILL
    exporter = new_exporter(tmp_path)
    exporter(deviating(steps_of(range(300))))
    assert points(folder) == deviation_points(range(300))
    assert len(files(folder)) == 2


def test_the_process_that_stands_by_takes_over_from_a_killed_one(tmp_path: Path, folder: Path) -> None:
    program = _KILLED.replace("export(200)\n", "print(flush=True); sys.stdin.read()\n")
    command = [sys.executable, "-c", program, str(tmp_path), "when all is done"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        exporter = new_exporter(tmp_path)
        exporter(deviating(steps_of(range(150))))
        assert points(folder) == deviation_points(range(100))
        other.kill()
    exporter(deviating(steps_of(range(150))))
    assert points(folder) == deviation_points(range(150))


@pytest.mark.parametrize("content", [None, b"", b"{", b"[]", b"{}", b'{"progress": 3}', b'{"file": "../x"}'])
def test_a_lost_or_damaged_state_costs_duplicates_only(
    tmp_path: Path, exporter: TensorBoardExporter, folder: Path, content: Any
) -> None:
    exporter(deviating(steps_of(range(10))))
    exporter.close()
    state_file().unlink() if content is None else state_file().write_bytes(content)
    for note in note_files(tmp_path):
        note.unlink()
    new_exporter(tmp_path)(deviating(steps_of(range(20))))
    assert points(folder) == deviation_points([*range(10), *range(20)])


def test_another_host_goes_on_where_this_one_ended(tmp_path: Path, exporter: TensorBoardExporter, folder: Path) -> None:
    exporter(deviating(steps_of(range(10)), with_cumulative=cumulative(9)))
    exporter.close()
    state_file().unlink()
    new_exporter(tmp_path)(deviating(steps_of(range(20)), with_cumulative=cumulative(9)))
    assert points(folder) == [Point("goodput/goodput", 9, 80.0), *deviation_points(range(20))]


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"{}", b'{"step": "x"}'])
def test_a_note_of_another_host_that_cannot_be_read_costs_duplicates_only(
    tmp_path: Path, exporter: TensorBoardExporter, folder: Path, content: Any
) -> None:
    exporter(deviating(steps_of(range(10))))
    exporter.close()
    state_file().unlink()
    (note,) = note_files(tmp_path)
    note.write_bytes(content)
    new_exporter(tmp_path)(deviating(steps_of(range(20))))
    assert points(folder) == deviation_points([*range(10), *range(20)])


def test_a_note_that_cannot_be_written_fails_no_export(
    tmp_path: Path, exporter: TensorBoardExporter, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "goodput_state").write_text("a file that blocks the path")
    for count in (10, 20):
        exporter(deviating(steps_of(range(count))))
    assert points(folder) == deviation_points(range(20))
    assert len([record for record in caplog.records if "could not be saved" in record.message]) == 1


def test_where_the_points_of_another_host_were_removed_all_is_written_again(
    tmp_path: Path, exporter: TensorBoardExporter, folder: Path
) -> None:
    exporter(deviating(steps_of(range(10))))
    exporter.close()
    state_file().unlink()
    for file in files(folder):
        file.unlink()
    new_exporter(tmp_path)(deviating(steps_of(range(20))))
    assert points(folder) == deviation_points(range(20))


def test_a_state_that_names_a_file_elsewhere_touches_it_not(
    tmp_path: Path, exporter: TensorBoardExporter, folder: Path
) -> None:
    exporter(deviating(steps_of(range(10))))
    exporter.close()
    other = tmp_path / "precious"
    other.write_bytes(b"x" * 50_000)
    state = state_file().read_text().replace(files(folder)[0].name, "../precious")
    state_file().write_text(state.replace('"length": ', '"length": 1').replace('"next_length": ', '"next_length": 9'))
    new_exporter(tmp_path)(deviating(steps_of(range(20))))
    assert other.read_bytes() == b"x" * 50_000
