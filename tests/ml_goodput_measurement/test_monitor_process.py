"""A monitor with its real helper process: what it uploads, and how it starts, stops and ends."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from ml_goodput_measurement.goodput import GoodputCalculator, GoodputRecorder
from ml_goodput_measurement.monitoring import GoodputMonitor

from ..waiting import is_alive, wait_until
from .monitored_trainers import FLUSH_SECONDS, Trainer, goodput_points, last_step, wait_for_end
from .tensorboard_points import points


def monitor_of(folder: Path, *, upload_interval: float = 1000, **arguments: object) -> GoodputMonitor:
    arguments.setdefault("final_flush_timeout_seconds", FLUSH_SECONDS)
    return GoodputMonitor("job", "log", folder, upload_interval, monitoring_enabled=True, **arguments)  # type: ignore[arg-type]


def helper_of(monitor: GoodputMonitor) -> int | None:
    assert monitor._uploaders is not None
    return monitor._uploaders.pid


@pytest.fixture
def recorder() -> Iterator[GoodputRecorder]:
    recorder = GoodputRecorder("job", "log", True)
    recorder.record_job_start_time()
    for step in range(20):
        recorder.record_step_start_time(step)
        time.sleep(0.002)
    yield recorder
    recorder.flush()


def test_tensorboard_shows_the_numbers_of_the_calculator(folder: Path, recorder: GoodputRecorder) -> None:
    monitor = monitor_of(
        folder, include_badput_breakdown=True, include_step_deviation=True, configured_ideal_step_time=0.001
    )
    monitor.start_goodput_uploader()
    monitor.start_step_deviation_uploader()
    monitor.start_rolling_window_goodput_uploader([60, 3600])
    pids = {helper_of(monitor)}
    recorder.record_job_end_time()
    monitor.stop_step_deviation_uploader()
    monitor.stop_rolling_window_goodput_uploader()
    pids.add(helper_of(monitor))
    monitor.stop_goodput_uploader()
    (pid,) = pids
    assert pid is not None
    assert not is_alive(pid)
    assert helper_of(monitor) is None
    calculator = GoodputCalculator("job", "log")
    goodput, badput, step = calculator.get_job_goodput(True, configured_ideal_step_time=0.001)
    deviations = calculator.get_step_deviation(configured_ideal_step_time=0.001)
    found = points(folder / "goodput")
    assert [(p.step, p.value) for p in found if p.tag == "goodput/goodput"] == [(step, pytest.approx(goodput))]
    expected = {f"badput/{kind.name.lower()}": value for kind, value in badput.items() if isinstance(value, float)}
    assert {p.tag: p.value for p in found if p.tag.startswith("badput/")} == pytest.approx(expected, abs=1e-4)
    assert {p.step: p.value for p in found if p.tag == "step_deviation"} == pytest.approx(deviations, rel=1e-5)


def test_goodput_is_uploaded_at_its_interval(folder: Path, recorder: GoodputRecorder) -> None:
    monitor = monitor_of(folder, upload_interval=0.1)
    monitor.start_goodput_uploader()
    wait_until(lambda: bool(goodput_points(folder)))
    recorder.record_step_start_time(20)
    recorder.record_step_start_time(21)
    wait_until(lambda: last_step(folder) == 20)
    monitor.stop_goodput_uploader(skip_final_flush=True)


def test_a_monitor_that_is_started_before_anything_is_recorded_waits_for_it(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    monitor = monitor_of(folder, upload_interval=0.05)
    monitor.start_goodput_uploader()
    wait_until(lambda: "nothing to upload yet" in caplog.text)
    recorder = GoodputRecorder("job", "log", True)
    recorder.record_job_start_time()
    for step in range(3):
        recorder.record_step_start_time(step)
    wait_until(lambda: bool(goodput_points(folder)))
    monitor.stop_goodput_uploader()
    assert [record for record in caplog.records if record.levelno > logging.INFO] == []


def test_a_monitor_may_be_started_and_stopped_repeatedly(folder: Path, recorder: GoodputRecorder) -> None:
    monitor = monitor_of(folder)
    monitor.stop_goodput_uploader()
    monitor.start_goodput_uploader()
    first = helper_of(monitor)
    monitor.start_goodput_uploader()
    assert helper_of(monitor) == first
    monitor.stop_goodput_uploader()
    monitor.stop_goodput_uploader()
    assert len(goodput_points(folder)) == 1
    recorder.record_step_start_time(20)
    monitor.start_goodput_uploader()
    second = helper_of(monitor)
    assert second not in (None, first)
    monitor.stop_goodput_uploader()
    assert len(goodput_points(folder)) == 2


def test_the_process_stays_while_any_upload_is_on(folder: Path, recorder: GoodputRecorder) -> None:
    monitor = monitor_of(folder)
    monitor.start_goodput_uploader()
    monitor.start_rolling_window_goodput_uploader([60])
    monitor.stop_goodput_uploader()
    assert len(goodput_points(folder)) == 1
    pid = helper_of(monitor)
    assert pid is not None
    assert is_alive(pid)
    monitor.stop_rolling_window_goodput_uploader()
    assert not is_alive(pid)
    assert len(goodput_points(folder)) == 1  # Windows are not for TensorBoard.


@pytest.mark.parametrize(("default", "argument", "count"), [(True, None, 0), (False, True, 0), (True, False, 1)])
def test_the_last_point_may_be_skipped(
    folder: Path, recorder: GoodputRecorder, default: bool, argument: bool | None, count: int
) -> None:
    monitor = monitor_of(folder, skip_final_flush=default)
    monitor.start_goodput_uploader()
    pid = helper_of(monitor)
    assert pid is not None
    monitor.stop_goodput_uploader(argument)
    assert not is_alive(pid)
    assert len(goodput_points(folder)) == count


def test_without_a_deadline_the_last_point_is_waited_for(folder: Path, recorder: GoodputRecorder) -> None:
    monitor = monitor_of(folder, final_flush_timeout_seconds=None)
    monitor.start_goodput_uploader()
    monitor.stop_goodput_uploader()
    assert len(goodput_points(folder)) == 1


def test_two_monitors_of_one_job_do_not_disturb_each_other(folder: Path, recorder: GoodputRecorder) -> None:
    monitors = [monitor_of(folder), monitor_of(folder)]
    for monitor in monitors:
        monitor.start_goodput_uploader()
    assert helper_of(monitors[0]) != helper_of(monitors[1])
    monitors[0].stop_goodput_uploader()
    other = helper_of(monitors[1])
    assert other is not None
    assert is_alive(other)
    monitors[1].stop_goodput_uploader()
    assert last_step(folder) == GoodputCalculator("job", "log").get_job_goodput().last_step


def test_what_goes_wrong_in_the_helper_is_a_warning_of_the_trainer(
    tmp_path: Path, recorder: GoodputRecorder, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("no folder")
    monitor = monitor_of(tmp_path / "file" / "runs", upload_interval=0.05)
    monitor.start_goodput_uploader()
    wait_until(lambda: "The TensorBoard log in" in caplog.text)
    monitor.stop_goodput_uploader()
    assert {record.name for record in caplog.records} == {"ml_diagnostics.goodput"}
    assert sum("The TensorBoard log in" in record.message for record in caplog.records) == 1
    assert capfd.readouterr() == ("", "")


def test_a_python_that_cannot_be_started_is_a_warning(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for executable in ("/nonexistent/python", ""):
        monkeypatch.setattr(sys, "executable", executable)
        monitor = monitor_of(folder)
        monitor.start_goodput_uploader()
        monitor.stop_goodput_uploader()
    assert caplog.text.count("could not start its helper process") == 2


def test_unencodable_folders_on_the_path_do_not_prevent_the_start_of_the_helper(folder: Path) -> None:
    trainer = Trainer(
        """
import subprocess  # Python itself can find no new module behind the first of these.
sys.path += ["a\\0b", "/tmp/\\ud800", "/tmp/\\udcff", b"bytes", None]
train((0, 5))
monitor.start_goodput_uploader()
monitor.stop_goodput_uploader()
""",
        folder,
    )
    assert trainer.finish() == ("", "")
    assert goodput_points(folder)


def test_modules_in_the_working_directory_do_not_shadow_those_of_the_helper(folder: Path) -> None:
    elsewhere = folder.parent / "elsewhere"
    elsewhere.mkdir()
    for name in ("json", "logging", "queue", "random", "tensorboardX", "ml_goodput_measurement"):
        (elsewhere / f"{name}.py").write_text("raise SystemExit('shadowed')")
    trainer = Trainer(
        """
train((0, 20))
sys.path.insert(0, "")
monitor.start_goodput_uploader()
monitor.stop_goodput_uploader()
""",
        folder,
        cwd=elsewhere,
    )
    assert trainer.finish() == ("", "")
    assert len(goodput_points(folder)) == 1


def test_a_trainer_that_spawns_without_a_main_guard_is_unaffected(folder: Path) -> None:
    trainer = Trainer(
        """
import multiprocessing
multiprocessing.set_start_method("spawn")
train((0, 20))
monitor.start_goodput_uploader()
monitor.stop_goodput_uploader()
print("once")
""",
        folder,
    )
    assert trainer.finish() == ("once\n", "")
    assert len(goodput_points(folder)) == 1


def test_interpreter_exit_waits_for_nothing_and_the_helper_writes_the_last_point(folder: Path) -> None:
    trainer = Trainer("monitor.start_goodput_uploader(); train((0, 20)); print(helper())", folder)
    output, errors = trainer.finish()
    assert errors == ""
    wait_for_end(int(output))
    assert len(goodput_points(folder)) == 1
