"""Recorded values are also in TensorBoard: each once, over restarts and kills, and never at the job's expense."""

from __future__ import annotations

import logging
import math
import os
import shutil
import signal
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from google_cloud_mldiagnostics import metrics
from google_cloud_mldiagnostics.core.global_manager import active_run
from google_cloud_mldiagnostics.mlrun_types import MLRun
from ml_diagnostics_common.exceptions import ConfigurationError, MissingExtraError
from ml_diagnostics_common.guard import LOSSES
from ml_diagnostics_testing.cloud_storage import CloudStorageServer
from ml_diagnostics_testing.faults import Hang, Status
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from ..waiting import wait_until
from .run_programs import SIGKILL, await_line, end, run, run_until_ready, start, start_run

pytestmark = pytest.mark.usefixtures("in_production")
QUICK = 0.1  # seconds


@pytest.fixture(autouse=True)
def _no_run_is_left() -> Iterator[None]:
    """A test that failed costs no other: its run would be the next one's."""
    yield
    active = active_run()
    if active is not None:
        active.run.finish()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "digits"


def accumulated(folder: Path, name: str = "metrics") -> EventAccumulator:
    return EventAccumulator(str(folder / name), size_guidance={"scalars": 0}).Reload()


def lines(folder: Path, name: str = "metrics") -> dict[str, list[tuple[int, float]]]:
    """Return the points of each tag, as TensorBoard shows them."""
    if not (folder / name).exists():
        return {}
    found = accumulated(folder, name)
    return {tag: [(event.step, event.value) for event in found.Scalars(tag)] for tag in found.Tags()["scalars"]}


def attempt(folder: Path) -> MLRun:
    """Start the next attempt of a run whose metrics are written to a folder."""
    metrics.to_tensorboard(folder)
    return start_run("digits", run_workload_id="digits")


# --- What is written ------------------------------------------------------------------------------------


def test_recorded_values_are_lines_with_their_steps_and_times(folder: Path) -> None:
    run = start_run()
    metrics.record("loss", 0.75, step=3)  # Before the call, too.
    metrics.to_tensorboard(folder)
    metrics.record({"loss": 0.5, "lr": 0.25}, step=4)
    metrics.record("loss", 0.125, step=5, timestamp=1_700_000_000.5)
    run.finish()
    assert lines(folder) == {"loss": [(3, 0.75), (4, 0.5), (5, 0.125)], "lr": [(4, 0.25)]}
    assert accumulated(folder).Scalars("loss")[2].wall_time == 1_700_000_000.5


def test_a_call_before_the_run_is_for_the_next_run_alone(folder: Path) -> None:
    metrics.to_tensorboard(folder)
    with start_run("first"):
        metrics.record("loss", 1.0, step=1)
    with start_run("second"):
        metrics.record("loss", 2.0, step=2)
    assert lines(folder) == {"loss": [(1, 1.0)]}


def test_values_arrive_while_the_job_runs(folder: Path) -> None:
    run = start_run()
    metrics.to_tensorboard(folder, interval_seconds=QUICK)
    for step in range(3):
        metrics.record("loss", float(step), step=step)
        wait_until(lambda: lines(folder)["loss"][-1] == (step, float(step)))  # noqa: B023
    run.finish()
    assert len(list((folder / "metrics").iterdir())) == 1


def test_values_without_a_step_are_numbered_and_those_of_chips_become_their_mean(folder: Path) -> None:
    with attempt(folder):
        for value in (4.0, 2.0):
            metrics.record("accuracy", value)
        metrics.record("duty_cycle", [10.0, 20.0, math.nan], step=7)
    with attempt(folder):
        metrics.record("accuracy", 8.0)
    assert lines(folder) == {"accuracy": [(0, 4.0), (1, 2.0), (2, 8.0)], "duty_cycle": [(7, 15.0)]}


def test_labels_make_lines_of_their_own(folder: Path) -> None:
    with attempt(folder):
        metrics.record("loss", 1.0, step=1)
        metrics.record("loss", 2.0, step=1, labels={"split": "val", "a": "b/c"})
        metrics.record("loss", 3.0, step=1, labels={"split": "train"})
        metrics.record("loss", 4.0, step=1, labels={"text": "x" * 10_000})
        metrics.record("loss", 5.0, step=1, labels={"text": "x" * 10_001})
    found = lines(folder)
    assert {tag: points for tag, points in found.items() if len(tag) < 100} == {
        "loss": [(1, 1.0)],
        "loss/a=b/c,split=val": [(1, 2.0)],
        "loss/split=train": [(1, 3.0)],
    }
    assert sorted(points[0][1] for points in found.values()) == [1, 2, 3, 4, 5]
    assert max(map(len, found)) == 600


def test_numbers_that_single_precision_lacks_are_shown_as_such(folder: Path) -> None:
    with attempt(folder):
        for step, value in enumerate((math.nan, math.inf, -math.inf, 1e300, -1e300, 1e-300)):
            metrics.record("loss", value, step=step)
    values = [value for _, value in lines(folder)["loss"]]
    assert math.isnan(values[0])
    assert values[1:] == [math.inf, -math.inf, math.inf, -math.inf, 0.0]


def test_steps_of_any_size_are_exact(folder: Path) -> None:
    steps = [-(2**62), -1, 0, 127, 128, 2**31, 2**53 + 1, 2**63 - 1]
    with attempt(folder):
        for step in steps:
            metrics.record("loss", 1.0, step=step)
    assert [step for step, _ in lines(folder)["loss"]] == steps


def test_metrics_of_the_system_and_entries_of_the_run_are_not_written(folder: Path) -> None:
    metrics.to_tensorboard(folder)
    with start_run(log_system_metrics=True, metrics_record_interval_sec=0.1):
        time.sleep(0.3)
        metrics.record("host_temperature", 60.0, step=1, record_on_all_hosts=True)
    assert lines(folder) == {"host_temperature": [(1, 60.0)]}


def test_a_name_in_any_script_is_a_tag(folder: Path) -> None:
    names = ["Verlust/größe", "損失", "a b\tc", "x" * 500, "<b>&amp;"]
    with attempt(folder):
        for name in names:
            metrics.record(name, 1.0, step=1)
    assert set(lines(folder)) == set(names)


def test_another_process_has_a_folder_of_its_own_and_none_without_values(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAX_PROCESS_ID", "3")
    with attempt(folder):
        metrics.record("loss", 1.0, step=1)
    assert not folder.exists()
    with attempt(folder):
        metrics.record("loss", 1.0, step=1, record_on_all_hosts=True)
    assert lines(folder, "metrics_process_3") == {"loss": [(1, 1.0)]}


def test_values_that_are_still_on_a_device_at_the_end_are_written(folder: Path) -> None:
    jnp = pytest.importorskip("jax").numpy
    with attempt(folder):
        metrics.record("loss", jnp.ones((800, 800)).dot(jnp.ones((800, 800))).mean(), step=1)
    assert lines(folder) == {"loss": [(1, 800.0)]}


# --- Restarts -------------------------------------------------------------------------------------------


def test_a_restart_continues_one_line_in_which_repeated_steps_are_those_of_the_last_attempt(folder: Path) -> None:
    for number, steps in enumerate((range(70), range(50, 90), range(90, 100), range(99, 101))):
        with attempt(folder):
            for step in steps:
                metrics.record({"loss": float(number), "lr": float(step)}, step=step)
    expected = [0.0] * 50 + [1.0] * 40 + [2.0] * 9 + [3.0] * 2
    assert lines(folder) == {
        "loss": list(enumerate(expected)),
        "lr": [(step, float(step)) for step in range(101)],
    }


def test_a_restart_of_one_metric_keeps_those_that_count_otherwise(folder: Path) -> None:
    for first in (0, 2):
        with attempt(folder):
            for epoch in range(first, 4):
                for step in range(10 * epoch, 10 * epoch + 10):
                    metrics.record("loss", float(first), step=1000 + step)
                metrics.record("accuracy", float(first), step=epoch)
                metrics.record("note", float(epoch))
    found = lines(folder)
    assert found["loss"] == [(1000 + step, 0.0 if step < 20 else 2.0) for step in range(40)]
    assert found["accuracy"] == [(0, 0.0), (1, 0.0), (2, 2.0), (3, 2.0)]
    assert [value for _, value in found["note"]] == [0, 1, 2, 3, 2, 3]


def test_a_metric_has_one_value_for_each_step(folder: Path) -> None:
    run = start_run()
    metrics.to_tensorboard(folder, interval_seconds=QUICK)
    for value in range(6):
        metrics.record("loss", float(value), step=value // 2)
        if value == 2:
            wait_until(lambda: len(lines(folder)["loss"]) == 2)
    run.finish()
    assert lines(folder) == {"loss": [(0, 1.0), (1, 3.0), (2, 5.0)]}


# Wait until the first value of a program is in its file.
_UNTIL_WRITTEN = """
from pathlib import Path
while not any(path.stat().st_size > 60 for path in Path({folder!r}).rglob("*tfevents*")):
    time.sleep(0.01)
"""

_KILLED = f"""
metrics.to_tensorboard({{folder!r}}, interval_seconds=0.1)
start_run("digits", run_workload_id="digits")
from ml_diagnostics_common import event_files
write, fsync = os.write, os.fsync

def is_of_events(descriptor):
    return "tfevents" in os.readlink("/proc/self/fd/" + str(descriptor))

def die():
    os.kill(os.getpid(), signal.SIGKILL)

def written(descriptor):
    return os.fstat(descriptor).st_size > 60

def new_write(descriptor, data):
    if is_of_events(descriptor) and written(descriptor):
        if when == "before the write":
            die()
        if when == "within the write":
            write(descriptor, data[: len(data) // 2])
            die()
    return write(descriptor, data)

def new_fsync(descriptor):
    fsync(descriptor)
    if is_of_events(descriptor) and when == "after the write" and written(descriptor):
        die()

when = {{when!r}}
metrics.record("loss", 0.0, step=0)
{_UNTIL_WRITTEN}
os.write, os.fsync = new_write, new_fsync
for step in range(1, 100):
    metrics.record("loss", float(step), step=step)
if when == "at once":
    die()
time.sleep(30)
"""


@pytest.mark.parametrize("when", ["at once", "before the write", "within the write", "after the write"])
def test_what_a_killed_process_had_recorded_is_written_once_by_the_next(folder: Path, when: str) -> None:
    assert run(_KILLED.format(folder=str(folder), when=when)).code == -signal.SIGKILL
    with attempt(folder):
        metrics.record("loss", 100.0, step=100)
    assert lines(folder) == {"loss": [(step, float(step)) for step in range(101)]}


def test_a_process_that_never_came_to_write_loses_nothing(folder: Path) -> None:
    program = f"""
        metrics.to_tensorboard({str(folder)!r}, interval_seconds=3600)
        start_run("digits", run_workload_id="digits")
        time.sleep(0.3)
        metrics.record("loss", 1.0, step=1)
    """
    assert run_until_ready(program, SIGKILL).code == -signal.SIGKILL
    with attempt(folder):
        metrics.record("loss", 2.0, step=2)
    assert lines(folder) == {"loss": [(1, 1.0), (2, 2.0)]}


def test_of_two_processes_the_second_writes_after_the_first(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    program = f"""
metrics.to_tensorboard({str(folder)!r}, interval_seconds=0.1)
start_run("digits", run_workload_id="a")
metrics.record("loss", 1.0, step=1)
{_UNTIL_WRITTEN.format(folder=str(folder))}
ready()
input()
"""
    other = start(program)
    await_line(other, "ready")
    run = start_run("digits", run_workload_id="b")
    metrics.to_tensorboard(folder, interval_seconds=QUICK)
    metrics.record("loss", 2.0, step=2)
    wait_until(lambda: "Another process on this host writes its metrics" in caplog.text)
    assert lines(folder) == {"loss": [(1, 1.0)]}
    end(other, input_text="\n")
    wait_until(lambda: len(lines(folder)["loss"]) == 2)
    run.finish()
    assert lines(folder) == {"loss": [(1, 1.0), (2, 2.0)]}


def test_a_damaged_state_costs_no_value_of_this_process(folder: Path) -> None:
    with attempt(folder):
        metrics.record("loss", 1.0, step=1)
    (state,) = Path(os.environ["ML_DIAGNOSTICS_DIR"], "state", "tensorboard").glob("*.json")
    for content in ("", "[]", '{"progress": {"writers": 3}}', '{"file": "../x"}'):
        state.write_text(content)
        with attempt(folder):
            metrics.record("loss", 2.0, step=2)
    assert lines(folder)["loss"][0] == (1, 1.0)
    assert lines(folder)["loss"][-1] == (2, 2.0)


# --- The job comes first --------------------------------------------------------------------------------


def test_a_folder_that_cannot_be_written_costs_the_job_nothing_and_no_value_once_it_can(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder.write_text("a file")
    run = start_run()
    metrics.to_tensorboard(folder, interval_seconds=QUICK)
    metrics.record("loss", 1.0, step=1)
    wait_until(lambda: "A part of mldiagnostics-tensorboard failed" in caplog.text)
    assert len(caplog.records) == 1
    folder.unlink()
    run.finish()
    assert lines(folder) == {"loss": [(1, 1.0)]}


def test_files_that_are_removed_meanwhile_are_written_again(folder: Path) -> None:
    run = start_run()
    metrics.to_tensorboard(folder, interval_seconds=QUICK)
    metrics.record("loss", 1.0, step=1)
    wait_until(lambda: lines(folder)["loss"])
    shutil.rmtree(folder)
    metrics.record("loss", 2.0, step=2)
    wait_until(lambda: len(lines(folder)["loss"]) == 2)
    run.finish()
    assert lines(folder) == {"loss": [(1, 1.0), (2, 2.0)]}


def test_a_forked_worker_neither_writes_nor_keeps_the_next_attempt_from_it(folder: Path) -> None:
    program = f"""
metrics.to_tensorboard({str(folder)!r}, interval_seconds=0.1)
run = start_run("digits", run_workload_id="digits")
metrics.record("loss", 1.0, step=1)
{_UNTIL_WRITTEN.format(folder=str(folder))}
if os.fork() == 0:
    os.close(1), os.close(2)
    metrics.record("loss", 5.0, step=5)
    time.sleep(20)
    os._exit(0)
os.kill(os.getpid(), signal.SIGKILL)
"""
    assert run(program).code == -signal.SIGKILL
    with attempt(folder):
        metrics.record("loss", 2.0, step=2)
    assert lines(folder) == {"loss": [(1, 1.0), (2, 2.0)]}


def test_a_program_that_closes_all_descriptors_finds_nothing_in_its_own_files(folder: Path, tmp_path: Path) -> None:
    program = f"""
metrics.to_tensorboard({str(folder)!r}, interval_seconds=0.1)
run = start_run("digits", run_workload_id="digits")
metrics.record("loss", 1.0, step=1)
{_UNTIL_WRITTEN.format(folder=str(folder))}
time.sleep(0.3)
os.closerange(3, 1000)
files = [open({str(tmp_path)!r} + f"/own-{{number}}", "w") for number in range(50)]
metrics.record("loss", 2.0, step=2)
run.finish()
"""
    run(program)
    assert {path.stat().st_size for path in tmp_path.glob("own-*")} == {0}
    with attempt(folder):
        metrics.record("loss", 3.0, step=3)
    assert lines(folder) == {"loss": [(1, 1.0), (2, 2.0), (3, 3.0)]}


def test_the_rest_of_a_job_that_records_without_pause_is_written_at_its_end(folder: Path) -> None:
    run = start_run()
    metrics.to_tensorboard(folder, interval_seconds=QUICK)
    for step in range(30_000):
        metrics.record("loss", 1.0, step=step)
    run.finish()
    assert [step for step, _ in lines(folder)["loss"]] == list(range(30_000))


def test_too_many_lines_are_counted(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("google_cloud_mldiagnostics._tensorboard.points.MOST_TAGS", 3)
    with attempt(folder):
        for number in range(5):
            metrics.record(f"metric {number}", 1.0, step=1)
        metrics.record("metric 0", 1.0, step=2)
    assert set(lines(folder)) == {"metric 0", "metric 1", "metric 2"}
    assert LOSSES["tensorboard: too many tags"] == 2
    assert "more than 3 metrics" in caplog.text


def test_recording_does_not_know_of_it(folder: Path) -> None:
    """The function of the hot path is the same, and what it calls."""
    run = start_run()
    metrics.record("loss", 1.0, step=1)
    before = metrics.record, run_log(), run_log().write_text, metrics._recorded_run_of_this_process
    metrics.to_tensorboard(folder)
    assert before == (metrics.record, run_log(), run_log().write_text, metrics._recorded_run_of_this_process)
    run.finish()


@pytest.mark.timing
def test_a_call_of_record_takes_as_long_as_without_it(folder: Path) -> None:
    """Compare the medians of 3,000 calls each, in turns in one process, while the thread writes ten times a second."""
    durations: dict[bool, list[int]] = {False: [], True: []}
    for _ in range(6):
        for is_written in (False, True):
            with start_run():
                if is_written:
                    metrics.to_tensorboard(folder, interval_seconds=QUICK)
                for step in range(500):
                    started = time.perf_counter_ns()
                    metrics.record("loss", 1.0, step=step)
                    durations[is_written].append(time.perf_counter_ns() - started)
                    time.sleep(0.0005)
    ratio = statistics.median(durations[True]) / statistics.median(durations[False])
    assert ratio < 1.3, f"{ratio:.2f} times"


def run_log() -> Any:
    active = active_run()
    assert active is not None
    return active.log


# --- In a bucket ----------------------------------------------------------------------------------------


@pytest.fixture
def server(cloud_storage_server: CloudStorageServer, monkeypatch: pytest.MonkeyPatch) -> CloudStorageServer:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", cloud_storage_server.url)
    return cloud_storage_server


@pytest.fixture
def stored(server: CloudStorageServer, tmp_path: Path) -> Callable[[], dict[str, list[tuple[int, float]]]]:
    def read() -> dict[str, list[tuple[int, float]]]:
        prefix = "runs/digits/metrics/"
        (tmp_path / "bucket").mkdir(exist_ok=True)
        for name in server.names("test-bucket", prefix):
            (tmp_path / "bucket" / name.removeprefix(prefix)).write_bytes(server.read("test-bucket", name))
        return lines(tmp_path, "bucket")

    return read


BUCKET = "gs://test-bucket/runs/digits/"


def test_a_bucket_has_the_lines_over_restarts(stored: Callable[[], dict[str, Any]]) -> None:
    for steps in (range(70), range(50, 90)):
        metrics.to_tensorboard(BUCKET)
        with start_run("digits", run_workload_id="digits"):
            for step in steps:
                metrics.record("loss", float(step), step=step)
    assert stored() == {"loss": [(step, float(step)) for step in range(90)]}


def test_a_bucket_that_fails_is_logged_once_and_has_all_later(
    server: CloudStorageServer, stored: Callable[[], dict[str, Any]], caplog: pytest.LogCaptureFixture
) -> None:
    server.faults.always(Status(403))
    for step in range(2):
        metrics.to_tensorboard(BUCKET, interval_seconds=QUICK)
        with start_run("digits", run_workload_id="digits"):
            metrics.record("loss", float(step), step=step)
            wait_until(lambda: "A part of mldiagnostics-tensorboard failed" in caplog.text)
    assert caplog.text.count("A part of mldiagnostics-tensorboard failed") == 1
    server.faults.clear()
    metrics.to_tensorboard(BUCKET)
    with start_run("digits", run_workload_id="digits"):
        metrics.record("loss", 2.0, step=2)
    assert stored() == {"loss": [(0, 0.0), (1, 1.0), (2, 2.0)]}


@pytest.mark.timing
def test_a_bucket_that_hangs_holds_up_neither_the_job_nor_its_end(
    server: CloudStorageServer, stored: Callable[[], dict[str, Any]]
) -> None:
    server.faults.always(Hang())
    program = f"""
        metrics.to_tensorboard({BUCKET!r}, interval_seconds=0.1)
        run = start_run("digits", run_workload_id="digits")
        for step in range(100):
            metrics.record("loss", float(step), step=step)
            time.sleep(0.01)
        print(time.monotonic())
    """
    ended = run(program)
    assert ended.code == 0
    assert time.monotonic() - float(ended.output) < 6.0
    server.faults.clear()
    metrics.to_tensorboard(BUCKET)
    with start_run("digits", run_workload_id="digits"):
        metrics.record("loss", 100.0, step=100)
    assert stored() == {"loss": [(step, float(step)) for step in range(101)]}


# --- Arguments ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("given", ["s3://bucket/x", "gs:/bucket/x", "gs://", "gs:///x", "a\0b", "", 3, None, b"x"])
def test_a_folder_that_cannot_be_one_is_an_error_at_once(given: Any) -> None:
    with pytest.raises(ConfigurationError):
        metrics.to_tensorboard(given)


@pytest.mark.parametrize("seconds", [0, -1, math.nan, math.inf, "10", None, True])
def test_an_interval_that_cannot_be_one_is_an_error_at_once(folder: Path, seconds: Any) -> None:
    with pytest.raises(ConfigurationError, match="expected interval_seconds"):
        metrics.to_tensorboard(folder, interval_seconds=seconds)


def test_a_missing_client_of_cloud_storage_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("google_cloud_mldiagnostics._tensorboard.exports.find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"google-cloud-mldiagnostics\[gcs\]"):
        metrics.to_tensorboard("gs://bucket/folder")


def test_a_folder_is_that_of_the_call_wherever_the_job_goes(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    metrics.to_tensorboard("digits")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    with start_run():
        metrics.record("loss", 1.0, step=1)
    assert lines(folder) == {"loss": [(1, 1.0)]}


def test_a_second_call_moves_to_another_folder_and_the_same_call_changes_nothing(folder: Path, tmp_path: Path) -> None:
    run = start_run()
    metrics.record("loss", 1.0, step=1)
    metrics.to_tensorboard(folder)
    metrics.to_tensorboard(folder)
    metrics.to_tensorboard(tmp_path / "other")
    metrics.record("loss", 2.0, step=2)
    run.finish()
    assert lines(tmp_path / "other") == {"loss": [(1, 1.0), (2, 2.0)]}
    assert lines(folder)["loss"][0] == (1, 1.0)
