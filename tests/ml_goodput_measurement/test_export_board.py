"""The states that are exported: refreshed in a thread, stale jobs left out, and never waited for."""

from __future__ import annotations

import argparse
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
from ml_diagnostics_common.environment import diagnostics_directory
from ml_goodput_measurement import cli
from ml_goodput_measurement._cli.export_command import _board
from ml_goodput_measurement._query.job_state import JobFollower, JobState
from ml_goodput_measurement.exporters import board as board_module
from ml_goodput_measurement.exporters.board import Board, jobs_of_this_machine
from ml_goodput_measurement.exporters.gauges import GAUGES
from ml_goodput_measurement.goodput import GoodputRecorder

from ..waiting import LONG_SECONDS, wait_until
from .simulated import SHORT_JOB, record

SECOND = 10**9
ROOT = Path(__file__).parent.parent.parent


def start(name: str, now: float, *, log: str | None = None, ends: bool = False) -> GoodputRecorder:
    """Record a job of 100 s with its last event now."""
    recorder = GoodputRecorder(name, log or f"goodput_{name}", logging_enabled=True)
    recorder.record_job_start_time(now - 100)
    for step in range(9):
        recorder.record_step_start_time(step, now - 80 + 10 * step)
    if ends:
        recorder.record_job_end_time(now)
    return recorder


def board_at(now: Callable[[], float], *names: str) -> Board:
    jobs = [(name, f"goodput_{name}") for name in names]
    return Board(lambda: jobs, clock_ns=lambda: int(now() * SECOND))


def names_of(board: Board) -> list[str]:
    return [state.job_name for state in board.shown().states]


def test_a_job_is_left_out_10_minutes_after_its_end() -> None:
    now = time.time()
    start("run-7", now, ends=True)
    moments = [now + 1]
    board = board_at(lambda: moments[-1], "run-7")
    board.refresh()
    for later, shown in ((now + 599, ["run-7"]), (now + 601, [])):
        moments.append(later)
        assert names_of(board) == shown


def test_a_running_job_is_left_out_an_hour_after_its_last_event() -> None:
    now = time.time()
    start("run-7", now)
    moments = [now + 1]
    board = board_at(lambda: moments[-1], "run-7")
    board.refresh()
    for later, shown in ((now + 3599, ["run-7"]), (now + 3601, [])):
        moments.append(later)
        assert names_of(board) == shown
    board.refresh()
    assert names_of(board) == []


def test_at_most_500_jobs_are_shown_and_the_rest_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(board_module, "MOST_JOBS", 2)
    now = time.time()
    for number in range(5):
        start(f"run-{number}", now - number)
    board = board_at(lambda: now, *(f"run-{number}" for number in range(5)))
    board.refresh()
    shown = board.shown()
    assert [state.job_name for state in shown.states] == ["run-0", "run-1"]
    assert shown.hidden == 3


def test_of_two_logs_with_a_job_of_one_name_the_latest_is_shown() -> None:
    now = time.time()
    start("run-7", now - 50, log="first")
    start("run-7", now, log="second")
    board = Board(lambda: [("run-7", "first"), ("run-7", "second")], clock_ns=lambda: int(now * SECOND))
    board.refresh()
    assert [state.log_id for state in board.shown().states] == ["second"]


def test_a_second_log_of_a_job_takes_no_place_of_another_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(board_module, "MOST_JOBS", 2)
    now = time.time()
    start("run-7", now - 10, log="first")
    start("run-7", now, log="second")
    start("run-8", now - 20)
    start("run-9", now - 30)
    jobs = [("run-7", "first"), ("run-7", "second"), ("run-8", "goodput_run-8"), ("run-9", "goodput_run-9")]
    board = Board(lambda: jobs, clock_ns=lambda: int(now * SECOND))
    board.refresh()
    assert names_of(board) == ["run-7", "run-8"]
    assert board.shown().hidden == 1


@pytest.mark.parametrize("is_named", [False, True])
def test_a_job_without_records_is_logged_once_if_a_user_named_it(
    is_named: bool, caplog: pytest.LogCaptureFixture
) -> None:
    board = Board(lambda: [("rum-7", "goodput_rum-7")], warns_of_missing=is_named)
    board.refresh()
    board.refresh()
    expected = ["job 'rum-7' has recorded nothing yet in log 'goodput_rum-7'"] if is_named else []
    assert [record.getMessage() for record in caplog.records if "rum-7" in record.getMessage()] == expected


def test_how_far_the_mirror_is_behind_is_known_without_a_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.time()
    program = f"from tests.ml_goodput_measurement.test_export_board import start; start('run-7', {now!r})"
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True, timeout=60)
    board = Board(lambda: [("run-7", "goodput_run-7")], local_only=True, clock_ns=lambda: int((now + 600) * SECOND))
    board.refresh()
    assert [state.mirror_lag_seconds for state in board.shown().states] == [None]
    monkeypatch.setenv("ML_DIAGNOSTICS_MIRROR", str(tmp_path / "mirror"))
    board.refresh()
    (lag,) = (state.mirror_lag_seconds for state in board.shown().states)
    assert lag is not None
    assert 500 < lag <= 600  # Nothing was written yet, since the recorder started.
    assert not (tmp_path / "mirror").exists()
    assert cli.main(["mirror", "push"]) == 0
    board.refresh()
    assert [state.mirror_lag_seconds for state in board.shown().states] == [0.0]


def test_reading_the_board_never_waits_for_a_refresh(monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.time()
    start("run-7", now)
    board = board_at(time.time, "run-7")
    board.refresh()
    reading, released, is_read = threading.Event(), threading.Event(), threading.Event()
    read = JobFollower.read

    def slow(self: JobFollower, windows: object = None, *, local_only: bool = False) -> JobState:
        reading.set()
        released.wait(LONG_SECONDS)
        is_read.set()
        return read(self, None, local_only=local_only)

    monkeypatch.setattr(JobFollower, "read", slow)
    board.start()
    assert reading.wait(LONG_SECONDS)
    assert names_of(board) == ["run-7"]
    assert not is_read.is_set()
    released.set()
    board.stop(LONG_SECONDS)


def test_jobs_are_refreshed_at_an_interval() -> None:
    started: list[float] = []

    def jobs() -> list[tuple[str, str]]:
        started.append(time.monotonic())
        return []

    board = Board(jobs, refresh_seconds=0.2)
    board.start()
    wait_until(lambda: len(started) > 3)
    board.stop()
    assert min(later - earlier for earlier, later in pairwise(started)) >= 0.19


def test_a_job_that_cannot_be_read_keeps_its_last_state_and_is_logged_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now = time.time()
    start("run-7", now)
    board = board_at(time.time, "run-7")
    board.refresh()

    def fail(self: JobFollower, *_: object, **__: object) -> JobState:
        raise PermissionError(13, "Permission denied", "/journal")

    monkeypatch.setattr(JobFollower, "read", fail)
    board.refresh()
    board.refresh()
    assert names_of(board) == ["run-7"]
    assert [record.getMessage() for record in caplog.records if "cannot be read" in record.getMessage()] == [
        "job 'run-7' cannot be read: [Errno 13] Permission denied: '/journal'"
    ]


def test_a_job_that_fails_unexpectedly_does_not_keep_the_others_from_being_read(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now = time.time()
    start("run-7", now)
    start("run-8", now)
    board = board_at(time.time, "run-7", "run-8")
    read = JobFollower.read

    def fail(self: JobFollower, windows: object = None, *, local_only: bool = False) -> JobState:
        if self.job_name == "run-7":
            raise ZeroDivisionError("division by zero")
        return read(self, None, local_only=local_only)

    monkeypatch.setattr(JobFollower, "read", fail)
    board.refresh()
    assert names_of(board) == ["run-8"]
    assert "job 'run-7' cannot be read: ZeroDivisionError: division by zero" in caplog.text


def test_a_refresh_that_fails_does_not_end_the_thread() -> None:
    called = threading.Event()
    number = 0

    def jobs() -> list[tuple[str, str]]:
        nonlocal number
        number += 1
        if number == 1:
            raise OSError("no journal")
        called.set()
        return []

    board = Board(jobs, refresh_seconds=0.1)
    board.start()
    assert called.wait(LONG_SECONDS)
    board.stop()


def test_jobs_of_this_machine_are_those_of_the_last_hour() -> None:
    import os

    now = time.time()
    record(SHORT_JOB, "run-6", ends_at=now)
    start("run-7", now)
    for segment in (diagnostics_directory() / "journal" / "goodput_run-6").glob("*.jsonl"):
        os.utime(segment, (now - 4000, now - 4000))
    assert jobs_of_this_machine() == [("run-7", "goodput_run-7")]


def test_a_named_job_in_several_logs_is_exported_from_the_latest() -> None:
    now = time.time()
    start("run-7", now - 50, log="first")
    start("run-7", now, log="second")
    start("run-8", now)
    board = _board(argparse.Namespace(jobs=["run-7", "run-8"]))
    board.refresh()
    assert sorted((state.job_name, state.log_id) for state in board.shown().states) == [
        ("run-7", "second"),
        ("run-8", "goodput_run-8"),
    ]


@pytest.mark.parametrize(
    "arguments",
    [
        ["prometheus", "--once"],
        ["prometheus", "--every", "5s"],
        ["prometheus", "--endpoint", "http://collector:4318/v1/metrics"],
        ["otlp", "--port", "9464"],
        ["otlp", "--listen", "0.0.0.0"],
    ],
    ids=" ".join,
)
def test_an_option_of_the_other_format_is_a_usage_error(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["export", *arguments]) == 2
    other = "otlp" if arguments[0] == "prometheus" else "prometheus"
    assert f"goodput: {arguments[1]} is an option of `goodput export {other}`" in capsys.readouterr().err


def test_the_gauges_have_the_documented_names_and_labels() -> None:
    page = (ROOT / "docs/how-to/export-goodput.md").read_text()
    for gauge in GAUGES:
        assert f"`{gauge.prometheus}`" in page
        assert f"`{gauge.otlp}`" in page
    assert {gauge.prometheus: gauge.labels for gauge in GAUGES if gauge.labels != ("job",)} == {
        "ml_job_time_seconds": ("job", "bucket"),
        "ml_job_info": ("job", "team", "accelerator", "zone", "attempt"),
        "ml_job_hidden": (),
        "ml_diagnostics_mirror_lag_seconds": ("log",),
        "ml_diagnostics_entries_lost": ("log",),
    }


def test_every_gauge_has_a_name_of_both_kinds() -> None:
    assert all(gauge.prometheus.startswith("ml_") and gauge.otlp.startswith("ml.") for gauge in GAUGES)
    assert len({gauge.prometheus for gauge in GAUGES}) == len({gauge.otlp for gauge in GAUGES}) == len(GAUGES)
