"""If anything around a monitor dies, hangs, forks or ends, the trainer is not affected and the numbers are right."""

from __future__ import annotations

import os
import signal
import socket
import time
from pathlib import Path

import pytest
from ml_goodput_measurement._monitor.settings import Upload
from ml_goodput_measurement._monitor.uploaders import HelperProcess, Uploaders
from ml_goodput_measurement.goodput import GoodputRecorder
from ml_goodput_measurement.monitoring import GoodputMonitor

from ..waiting import LONG_SECONDS, is_alive
from .monitored_trainers import FLUSH_SECONDS, Trainer, goodput_points, last_step, wait_for_end


def test_signals_that_a_trainer_is_sent_do_not_end_its_helper(folder: Path, uploaders: Uploaders) -> None:
    uploaders.start(Upload.CUMULATIVE)
    uploaders.start(Upload.WINDOWS, [60])
    uploaders.stop(Upload.WINDOWS, flush=True)  # It is past its start now.
    pid = uploaders.pid
    assert pid is not None
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        os.kill(pid, number)
    uploaders.stop(Upload.CUMULATIVE, flush=True)
    assert len(goodput_points(folder)) == 1


def test_a_killed_trainer_leaves_a_last_point_and_no_process(folder: Path) -> None:
    trainer = Trainer(
        "monitor.start_goodput_uploader(); train((0, 20)); print(helper(), flush=True); time.sleep(60)", folder
    )
    pid = int(trainer.line())
    trainer.kill()
    wait_for_end(pid)
    assert len(goodput_points(folder)) == 1


def test_a_killed_trainer_without_a_final_flush_leaves_nothing(folder: Path) -> None:
    trainer = Trainer(
        """
monitor = monitoring.GoodputMonitor("job", "log", folder, 1000, True, skip_final_flush=True)
monitor.start_goodput_uploader()
train((0, 20))
print(helper(), flush=True)
time.sleep(60)
""",
        folder,
    )
    pid = int(trainer.line())
    trainer.kill()
    wait_for_end(pid)
    assert goodput_points(folder) == []


def test_a_data_loader_that_outlives_a_killed_trainer_does_not_keep_the_helper(folder: Path) -> None:
    trainer = Trainer(
        """
monitor.start_goodput_uploader()
train((0, 20))
child = os.fork()  # It holds the other end of the helper's socket.
if child:
    print(helper(), child, flush=True)
else:
    sys.stdout.close(); os.close(1); os.close(2)
time.sleep(60)
""",
        folder,
    )
    pid, child = map(int, trainer.line().split())
    trainer.kill()
    try:
        wait_for_end(pid)
        assert is_alive(child)
    finally:
        os.kill(child, signal.SIGKILL)
    assert len(goodput_points(folder)) == 1


def test_a_forked_child_neither_stops_nor_starts_anything(folder: Path) -> None:
    trainer = Trainer(
        """
monitor.start_goodput_uploader()
train((0, 20))
before = helper()
child = os.fork()
if not child:
    monitor.start_rolling_window_goodput_uploader([60])
    monitor.stop_goodput_uploader()
    monitor.stop_rolling_window_goodput_uploader()
    assert helper() == before
    sys.exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
time.sleep(0.1)
os.kill(before, 0)
assert helper() == before
monitor.stop_goodput_uploader()
""",
        folder,
    )
    output, errors = trainer.finish()
    assert output == ""
    assert errors.count("here nothing is started") == errors.count("\n") == 1
    assert len(goodput_points(folder)) == 1


def test_a_child_may_start_a_monitor_that_its_parent_only_made(folder: Path) -> None:
    trainer = Trainer(
        """
child = os.fork()
if not child:
    monitor.start_goodput_uploader()
    train((0, 20))
    monitor.stop_goodput_uploader()
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
""",
        folder,
    )
    assert trainer.finish() == ("", "")
    assert len(goodput_points(folder)) == 1


def test_a_child_that_is_forked_while_a_thread_starts_or_stops_something_can_start_its_own(folder: Path) -> None:
    trainer = Trainer(
        """
import threading
held, forked = threading.Event(), threading.Event()

def hold():
    with monitor._uploaders._lock:
        held.set()
        forked.wait()

threading.Thread(target=hold).start()
held.wait()
child = os.fork()
if not child:
    signal.alarm(20)
    monitor.start_goodput_uploader()
    train((0, 20))
    monitor.stop_goodput_uploader()
    os._exit(0)
forked.set()
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
""",
        folder,
    )
    assert trainer.finish() == ("", "")
    assert len(goodput_points(folder)) == 1


def test_a_trainer_that_becomes_another_program_takes_its_helper_with_it(folder: Path) -> None:
    trainer = Trainer(
        """
monitor.start_goodput_uploader()
train((0, 20))
print(helper(), flush=True)
os.execv(sys.executable, [sys.executable, "-c", "import time; time.sleep(60)"])
""",
        folder,
    )
    pid = int(trainer.line())
    wait_for_end(pid)
    assert trainer.process.poll() is None
    trainer.kill()
    assert len(goodput_points(folder)) == 1


@pytest.mark.parametrize(
    "ending",
    [
        "atexit.register(monitor.stop_goodput_uploader)",
        "signal.signal(signal.SIGTERM, lambda *_: (monitor.stop_goodput_uploader(), sys.exit(0)))\n"
        "os.kill(os.getpid(), signal.SIGTERM)",
        "try:\n    sys.exit(0)\nfinally:\n    monitor.stop_goodput_uploader()",
    ],
    ids=["atexit", "signal", "finally"],
)
def test_a_stop_at_the_end_of_the_trainer_writes_the_last_point(folder: Path, ending: str) -> None:
    trainer = Trainer(
        f"monitor.start_goodput_uploader(); train((0, 20)); print(helper(), flush=True)\n{ending}", folder
    )
    output, errors = trainer.finish()
    assert errors == ""
    assert not is_alive(int(output))
    assert len(goodput_points(folder)) == 1


def test_a_signal_handler_may_stop_what_is_just_being_started(folder: Path) -> None:
    trainer = Trainer(
        """
train((0, 5))
signal.signal(signal.SIGALRM, lambda *_: monitor.stop_goodput_uploader(skip_final_flush=True))
for delay in range(1, 40):
    signal.setitimer(signal.ITIMER_REAL, delay / 10000)
    monitor.start_goodput_uploader()
    time.sleep(delay / 10000)
    monitor.stop_goodput_uploader(skip_final_flush=True)
    assert helper() is None
""",
        folder,
    )
    assert trainer.finish() == ("", "")


@pytest.mark.timing
def test_a_sink_that_hangs_holds_a_stop_up_for_its_deadline_only(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    recorder = GoodputRecorder("job", "log", True)
    recorder.record_job_start_time()
    recorder.record_step_start_time(0)
    recorder.record_step_start_time(1)
    with socket.create_server(("127.0.0.1", 0)) as silent:  # It accepts connections, and never answers.
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", f"http://127.0.0.1:{silent.getsockname()[1]}")
        monitor = GoodputMonitor("job", "log", "gs://bucket/runs", 0.05, True, final_flush_timeout_seconds=1)
        monitor.start_goodput_uploader()
        assert monitor._uploaders is not None
        pid = monitor._uploaders.pid
        assert pid is not None
        silent.settimeout(LONG_SECONDS)
        connection, _ = silent.accept()
        started = time.monotonic()
        monitor.stop_goodput_uploader()
        seconds = time.monotonic() - started
        connection.close()
    assert 0.9 < seconds < 10
    assert not is_alive(pid)
    assert "given up at its deadline" in caplog.text


def test_a_helper_that_stands_still_is_given_up(folder: Path, uploaders: Uploaders) -> None:
    uploaders.start(Upload.CUMULATIVE)
    pid = uploaders.pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    uploaders.stop(Upload.CUMULATIVE, flush=False)
    wait_for_end(pid)


@pytest.mark.timing
def test_stops_that_follow_each_other_share_one_deadline(
    folder: Path, uploaders: Uploaders, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The helper answers nothing: three stops wait as long as one would, and a second for its report."""
    now, waits, longest = 1000.0, list[float](), FLUSH_SECONDS + 1

    def wait(*arguments: float) -> bool:
        nonlocal now
        if arguments[-1] != 0.25:  # for a process that was killed
            waits.append(round(arguments[-1], 3))
        now += arguments[-1]
        return False

    for upload in Upload:
        uploaders.start(upload)
    process = uploaders._process
    assert process is not None
    with monkeypatch.context() as patch:
        for name in ("wait_done", "wait_ended"):
            patch.setattr(HelperProcess, name, lambda _, *arguments: wait(*arguments))
        patch.setattr("ml_goodput_measurement._monitor.uploaders.time.monotonic", lambda: now)
        for upload in Upload:
            uploaders.stop(upload, flush=True)
        assert waits == [longest, 0, 0]
        for _ in range(2):  # An elastic trainer that starts again has all of it each time.
            uploaders.start(Upload.CUMULATIVE)
            now += 15
            uploaders.stop(Upload.CUMULATIVE, flush=True)
        assert waits[3:] == [longest, longest]
        uploaders.start(Upload.CUMULATIVE)
        uploaders.start(Upload.WINDOWS, [60])
        uploaders.stop(Upload.WINDOWS, flush=True)
        now += 100
        uploaders.stop(Upload.CUMULATIVE, flush=True)
        assert waits[5:] == [longest, longest]
    assert process.wait_ended(LONG_SECONDS)


def test_a_trainer_that_is_started_again_goes_on_where_its_last_life_ended(folder: Path) -> None:
    program = "monitor.start_goodput_uploader(); train((%d, %d)); print(helper(), flush=True); time.sleep(60)"
    for first_step in (0, 20):
        trainer = Trainer(program % (first_step, first_step + 20), folder)
        pid = int(trainer.line())
        trainer.kill()
        wait_for_end(pid)
    assert last_step(folder) >= 38
