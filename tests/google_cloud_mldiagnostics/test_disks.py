"""The free space where a job writes is recorded before it runs out, and a disk that does not answer stops nothing."""

from __future__ import annotations

import os
import threading
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from google_cloud_mldiagnostics._system_metrics import Reading
from google_cloud_mldiagnostics._system_metrics.disks import DiskMeter, folders_in, folders_of_job
from ml_diagnostics_common.environment import diagnostics_directory
from ml_diagnostics_common.file_systems import FileSystemProbes, announce_checkpoint_folder

from ..waiting import wait_until
from . import run_programs as programs
from .kept_entries import kept_payloads


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for answers for longer than a thread may be kept from the CPU."""
    monkeypatch.setattr(FileSystemProbes.answers, "__defaults__", (30.0,))


class Clock:
    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Return what sets the free bytes of all disks, of 1 TB each."""
    status = types.SimpleNamespace(f_frsize=1, f_blocks=10**12, f_bavail=0, f_files=1000, f_favail=500)
    monkeypatch.setattr(os, "statvfs", lambda path: status)
    return lambda number: setattr(status, "f_bavail", number)


def collected(meter: DiskMeter, clock: Clock, after_seconds: float) -> list[list[float]]:
    clock.seconds += after_seconds
    return [reading.values for reading in meter.collect()]


def test_the_values_are_those_of_the_system(tmp_path: Path) -> None:
    meter = DiskMeter(lambda: [str(tmp_path / "checkpoints")])
    readings: list[Reading] = []
    wait_until(lambda: readings.extend(meter.collect()) or readings)
    status = os.statvfs(tmp_path)
    assert readings[0].name == "host_disk_free"
    assert readings[0].unit == "bytes"
    assert 0 < readings[0].values[0] <= status.f_blocks * status.f_frsize
    assert readings[0].beside["paths"] == [str(tmp_path / "checkpoints")]
    assert readings[0].beside["total_bytes"] == [status.f_blocks * status.f_frsize]
    assert len(readings[0].beside["free_inodes"]) == 1


def test_a_disk_that_fills_is_recorded_at_once_and_one_that_does_not_once_a_minute(
    tmp_path: Path, free: Callable[[int], None]
) -> None:
    clock = Clock()
    meter = DiskMeter(lambda: [str(tmp_path)], clock)
    free(500 * 10**9)
    assert collected(meter, clock, 0) == [[500e9]]
    free(501 * 10**9)
    assert collected(meter, clock, 10) == []
    free(400 * 10**9)
    assert collected(meter, clock, 10) == [[400e9]]
    free(10**6)
    assert collected(meter, clock, 10) == [[1e6]]
    free(0)
    assert collected(meter, clock, 10) == [[0.0]]
    assert collected(meter, clock, 10) == []
    assert collected(meter, clock, 60) == [[0.0]]


def test_disks_are_asked_no_more_often_than_every_ten_seconds(tmp_path: Path, free: Callable[[int], None]) -> None:
    clock = Clock()
    meter = DiskMeter(lambda: [str(tmp_path)], clock)
    free(500)
    assert collected(meter, clock, 0) == [[500.0]]
    free(5)
    assert collected(meter, clock, 9.9) == []
    assert collected(meter, clock, 0.1) == [[5.0]]


def test_a_disk_that_does_not_answer_is_named_and_costs_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    released = threading.Event()
    stuck, fine = str(tmp_path / "nfs"), str(tmp_path / "local")
    stat = os.stat

    def stat_or_wait(path: Any, *arguments: Any, **named: Any) -> os.stat_result:
        if path == stuck:
            released.wait()
        return stat(path, *arguments, **named)

    monkeypatch.setattr(os, "stat", stat_or_wait)
    monkeypatch.setattr(FileSystemProbes.answers, "__defaults__", (1.0,))
    clock = Clock()
    meter = DiskMeter(lambda: [stuck, fine], clock)
    readings = meter.collect()
    clock.seconds += 10
    readings += meter.collect()
    assert [reading.beside["paths"] for reading in readings] == [[fine], [fine]]
    assert [reading.beside.get("not_answering") for reading in readings] == [None, [stuck]]
    released.set()

    def answers() -> bool:
        clock.seconds += 10
        readings.extend(meter.collect())
        return readings[-1].beside["paths"] == [stuck]  # One file system, by its first folder.

    wait_until(answers)


@pytest.mark.parametrize(
    "configs",
    [
        {"checkpoint_dir": "/ckpt"},
        {"trainer": {"checkpointer": {"ckpt_path": Path("/ckpt")}}},
        {"base_output_directory": "/ckpt/", "model_path": "bert-base", "data_dir": "/data"},
        {"output_dir": "/ckpt", "checkpoint_period": 100, "enable_checkpointing": True},
        {"workdir": "/ckpt", "checkpoint_directory": "gs://bucket/run", "save_dir": ""},
    ],
)
def test_folders_of_checkpoints_are_found_in_the_configs(configs: dict[str, Any]) -> None:
    assert folders_in(configs) == ["/ckpt"]


def test_configs_of_any_size_and_form_are_searched_in_no_time() -> None:
    recursive: dict[str, Any] = {"save_dir": b"/bytes", 7: "x"}  # type: ignore[dict-item]
    recursive["self"] = recursive
    assert folders_in(recursive) == []
    assert folders_in({f"output_dir_{number}": 1 for number in range(100_000)}) == []
    assert folders_in({"save_dir": "/a\0b"}) == []


def test_folders_that_orbax_saves_to_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", "/scratch")
    for path in ("/old", "/new", "gs://bucket/run"):
        announce_checkpoint_folder(path)
    expected = ["/new", "/old", "/ckpt", "/profiles", "/scratch", str(diagnostics_directory())]
    assert folders_of_job({"ckpt_dir": "/ckpt"}, "/profiles") == expected
    assert folders_of_job({}, "gs://bucket") == ["/new", "/old", "/scratch", str(diagnostics_directory())]


def test_a_run_records_the_space_for_its_checkpoints(tmp_path: Path) -> None:
    program = f"""
        start_run(log_system_metrics=True, configs={{"checkpoint_dir": {str(tmp_path / "ckpt")!r}}})
        sys.stdin.readline()
        """
    job = programs.start(program)
    wait_until(lambda: kept_payloads("host_disk_free"))
    assert programs.end(job, input_text="go on\n").code == 0
    [first, *_] = kept_payloads("host_disk_free")
    assert first["paths"][0] == str(tmp_path / "ckpt")
    assert first["unit"] == "bytes"
    assert len(first["values"]) == len(first["paths"]) == len(first["total_bytes"]) == len(first["free_inodes"])
