"""Whatever dies, hangs, forks or ends around a monitor: the trainer does not notice, and the figures are right."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from ml_diagnostics_common import guard
from ml_diagnostics_common.backoff import Backoff
from ml_goodput_measurement.goodput import GoodputCalculator, GoodputRecorder
from ml_goodput_measurement.monitor import helper, helper_process
from ml_goodput_measurement.monitor.settings import Upload
from ml_goodput_measurement.monitor.uploaders import Uploaders
from ml_goodput_measurement.monitoring import GoodputMonitor

from .monitored_trainers import LONG_SECONDS, Trainer, goodput_points, is_alive, last_step, wait_for_end, wait_until


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "runs"


@pytest.fixture
def uploaders(folder: Path) -> Iterator[Uploaders]:
    """Of a job with ten steps; its helper process is started again at once."""
    recorder = GoodputRecorder("job", "log", True)
    recorder.record_job_start_time()
    for step in range(10):
        recorder.record_step_start_time(step)
        time.sleep(0.002)
    monitor = GoodputMonitor("job", "log", folder, 1000, True, final_flush_timeout_seconds=20)
    uploaders = Uploaders(monitor._settings, backoff=Backoff(0.01, 0.01))
    yield uploaders
    for upload in Upload:
        uploaders.stop(upload, flush=False)


def kill_helper(uploaders: Uploaders) -> int:
    """Kills it with its uploads on; returns the one that follows it."""
    killed = uploaders.pid
    assert killed is not None
    os.kill(killed, signal.SIGKILL)
    wait_until(lambda: uploaders.pid not in (None, killed))
    assert uploaders.pid is not None
    return uploaders.pid


def test_a_helper_that_is_killed_comes_back_with_its_uploads_and_the_figures_are_right(
    folder: Path, uploaders: Uploaders, caplog: pytest.LogCaptureFixture
) -> None:
    uploaders.start(Upload.CUMULATIVE)
    uploaders.start(Upload.WINDOWS, [60])
    for _ in range(2):
        kill_helper(uploaders)
    GoodputRecorder("job", "log", True).record_step_start_time(10)
    uploaders.stop(Upload.CUMULATIVE, flush=True)
    assert caplog.text.count("killed by signal 9") == 2
    goodput = GoodputCalculator("job", "log").get_job_goodput()
    assert [point.step for point in goodput_points(folder)] == [goodput.last_step]


def test_a_helper_that_is_killed_while_nothing_is_on_stays_dead(uploaders: Uploaders) -> None:
    uploaders.start(Upload.CUMULATIVE)
    process = uploaders._process
    assert process is not None
    uploaders.stop(Upload.CUMULATIVE, flush=False)
    assert process.wait_ended(LONG_SECONDS)
    assert uploaders.pid is None


def test_a_helper_that_cannot_live_is_started_ever_more_seldom(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    waits: list[float] = []
    monitor = GoodputMonitor("job", "log", folder, 1000, True)
    uploaders = Uploaders(monitor._settings, sleep=waits.append)
    monkeypatch.setattr(sys, "executable", "/bin/false")
    uploaders.start(Upload.CUMULATIVE)
    wait_until(lambda: len(waits) >= 12)
    uploaders.stop(Upload.CUMULATIVE, flush=True)
    assert waits[0] <= 1
    assert 300 <= waits[11] <= 600
    assert "exit code 1" in caplog.text


def test_a_helper_that_is_dead_at_once_does_not_take_a_trainer_along_for_which_sigpipe_is_deadly(folder: Path) -> None:
    trainer = Trainer(
        """
import logging
from ml_goodput_measurement.monitor.uploaders import Upload, Uploaders
logging.disable()
signal.signal(signal.SIGPIPE, signal.SIG_DFL)
sys.executable = "/bin/false"
for _ in range(100):
    uploaders = Uploaders(monitor._settings, sleep=lambda _: time.sleep(1000))
    uploaders.start(Upload.CUMULATIVE)
    process = uploaders._process
    process._process.wait()  # Its follower may still be about to learn of it.
    process.send({}, flush=False, flush_seconds=0)
print("alive")
""",
        folder,
    )
    assert trainer.finish() == ("alive\n", "")


def test_a_helper_that_could_not_be_started_is_started_later(
    uploaders: Uploaders, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(sys, "executable", "/nonexistent/python")
        uploaders.start(Upload.CUMULATIVE)
    wait_until(lambda: uploaders.pid is not None)
    uploaders.stop(Upload.CUMULATIVE, flush=True)
    assert len(goodput_points(folder)) == 1


@pytest.mark.parametrize("error", [RuntimeError("at shutdown"), MemoryError(), KeyError("NAME"), ValueError("null")])
def test_whatever_keeps_a_helper_from_being_started_it_is_started_later(
    error: Exception, uploaders: Uploaders, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(subprocess, "Popen", fail)
        uploaders.start(Upload.CUMULATIVE)
    wait_until(lambda: uploaders.pid is not None)
    assert f"({type(error).__name__}: {error}); it is tried again later" in caplog.text


def test_an_environment_that_threads_change_does_not_keep_a_helper_from_being_started() -> None:
    is_over = threading.Event()

    def change() -> None:
        while not is_over.is_set():
            for number in range(100):
                os.environ[f"CHANGED_{number}"] = ""
            for number in range(100):
                del os.environ[f"CHANGED_{number}"]

    thread = threading.Thread(target=change)
    thread.start()
    try:
        for _ in range(300):
            assert "PATH" in helper_process._environment()
    finally:
        is_over.set()
        thread.join()


def test_a_frozen_trainer_does_not_start_itself_again(
    uploaders: Uploaders, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    monkeypatch.setattr(guard, "_said_in_this_process", set())
    uploaders.start(Upload.CUMULATIVE)
    uploaders.start(Upload.WINDOWS, [60])
    assert uploaders.pid is None
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "is frozen" in caplog.text
    uploaders.stop(Upload.CUMULATIVE, flush=True)


def test_a_monitor_that_each_python_starts_is_not_started_in_its_own_helper(folder: Path) -> None:
    trainer = Trainer(
        '''
program, count = folder + ".sh", folder + ".started"
with open(program, "w") as file:
    file.write(f"""#!/bin/sh
echo once more >> {count}
[ $(wc -l < {count}) -lt 4 ] && exec {sys.executable} {__file__} {folder}
""")
os.chmod(program, 0o700)
sys.executable = program  # As where Python is embedded in a program, and that is what starts.
monitor.start_goodput_uploader()
if helper():
    monitor._uploaders._process.wait_ended(30)
monitor.stop_goodput_uploader(True)
''',
        folder,
    )
    trainer.finish()
    assert Path(f"{folder}.started").read_text() == "once more\n"


@pytest.mark.parametrize(("hello", "why"), [("{}", "(KeyError: 'settings')"), ("no JSON", "(JSONDecodeError: ")])
def test_a_helper_that_does_not_understand_says_why_it_ends(hello: str, why: str) -> None:
    program = "from ml_goodput_measurement.monitor.helper import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", program], input=f"{hello}\n", capture_output=True, text=True, timeout=LONG_SECONDS
    )
    assert done.returncode == 1
    assert f"The goodput monitor's helper process failed {why}" in json.loads(done.stdout)["message"]


class DeadHelper:
    """Uploads that are on, whose helper process was killed, and is not started again before `come_back`."""

    def __init__(self, uploaders: Uploaders) -> None:
        self.uploaders = uploaders
        self.come_back, self.is_noticed = threading.Event(), threading.Event()
        uploaders._sleep = self._sleep
        uploaders.start(Upload.CUMULATIVE)
        uploaders.start(Upload.WINDOWS, [60])
        assert uploaders.pid is not None
        os.kill(uploaders.pid, signal.SIGKILL)
        assert self.is_noticed.wait(LONG_SECONDS)

    def _sleep(self, _: float) -> None:
        self.is_noticed.set()
        assert self.come_back.wait(LONG_SECONDS)


def test_a_stop_while_the_helper_is_dead_writes_the_last_point_and_the_helper_comes_back_for_the_rest_only(
    folder: Path, uploaders: Uploaders
) -> None:
    dead = DeadHelper(uploaders)
    uploaders.stop(Upload.CUMULATIVE, flush=True)
    assert len(goodput_points(folder)) == 1
    assert uploaders.pid is None
    dead.come_back.set()
    wait_until(lambda: uploaders.pid is not None)
    uploaders.stop(Upload.WINDOWS, flush=False)
    assert uploaders.pid is None
    assert len(goodput_points(folder)) == 1


def test_a_last_stop_while_the_helper_is_dead_that_skips_the_last_point_starts_nothing(uploaders: Uploaders) -> None:
    dead = DeadHelper(uploaders)
    threads = set(threading.enumerate())
    uploaders.stop(Upload.CUMULATIVE, flush=False)
    uploaders.stop(Upload.WINDOWS, flush=False)
    assert set(threading.enumerate()) == threads
    dead.come_back.set()
    for thread in threads - {threading.main_thread()}:
        thread.join(LONG_SECONDS)
    assert uploaders.pid is None
    uploaders.start(Upload.CUMULATIVE)
    assert uploaders.pid is not None


@pytest.mark.parametrize("executable", ["/bin/false", "/nonexistent/python"])
def test_a_last_point_that_cannot_be_written_as_the_helper_is_dead_is_told(
    executable: str, uploaders: Uploaders, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    dead = DeadHelper(uploaders)
    monkeypatch.setattr(sys, "executable", executable)
    uploaders.stop(Upload.CUMULATIVE, flush=True)
    uploaders.stop(Upload.WINDOWS, flush=False)
    dead.come_back.set()
    assert caplog.text.count("The last upload of goodput (cumulative) could not be done") == 1


def test_a_helper_that_dies_amid_its_last_upload_is_followed_by_one_that_does_it(
    folder: Path, uploaders: Uploaders
) -> None:
    uploaders.start(Upload.CUMULATIVE)
    pid = uploaders.pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    killer = threading.Timer(0.1, os.kill, (pid, signal.SIGKILL))
    killer.start()
    uploaders.stop(Upload.CUMULATIVE, flush=True)
    killer.join()
    assert len(goodput_points(folder)) == 1


def test_what_is_not_waited_for_is_not_kept(uploaders: Uploaders) -> None:
    uploaders.start(Upload.CUMULATIVE)
    process = uploaders._process
    assert process is not None
    for _ in range(3):
        uploaders.start(Upload.WINDOWS, [60])
        uploaders.stop(Upload.WINDOWS, flush=True)
    assert not process._awaited


def test_an_answer_to_nothing_is_not_shown_as_what_a_dead_helper_said_last(uploaders: Uploaders) -> None:
    uploaders.start(Upload.CUMULATIVE)
    process = uploaders._process
    assert process is not None
    for line in (b'{"done": null}', b'{"done": 99}', b"Segmentation fault"):
        process._hear(line)
    uploaders.stop(Upload.CUMULATIVE, flush=False)
    assert process.wait_ended(LONG_SECONDS)
    assert process.end is not None
    assert process.end.split("\n")[1:] == ["    Segmentation fault"]


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


def test_a_killed_trainer_whose_last_point_is_skipped_leaves_nothing(folder: Path) -> None:
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
child = os.fork()  # It holds the other ends of the helper's pipes.
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


class Orphan:
    """The commands of a helper process where there are no process descriptors; the other end stays open."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(helper, "process_descriptor", lambda _: None)
        monkeypatch.setattr(helper, "_LOOK_FOR_TRAINER_SECONDS", 0.01)
        self._ours, self._its = socket.socketpair()
        self.commands = helper._Commands(self._its.fileno())
        self._ours.send(b'{"number": 1}\n{"num')
        assert self.commands.next_message(None) == {"number": 1}

    def close(self) -> None:
        self._ours.close()
        self._its.close()


@pytest.fixture
def orphan(monkeypatch: pytest.MonkeyPatch) -> Iterator[Orphan]:
    orphan = Orphan(monkeypatch)
    yield orphan
    orphan.close()


def test_where_there_are_no_process_descriptors_an_orphan_notices_by_its_parent(
    orphan: Orphan, monkeypatch: pytest.MonkeyPatch
) -> None:
    orphan.commands.watch_trainer(os.getpid())
    parents = iter([os.getppid(), os.getppid()])
    monkeypatch.setattr(os, "getppid", lambda: next(parents, 1))
    assert orphan.commands.next_message(None) is None
    assert next(parents, None) is None


def test_where_there_are_no_process_descriptors_a_trainer_that_is_not_the_parent_is_looked_for(orphan: Orphan) -> None:
    trainer = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    orphan.commands.watch_trainer(trainer.pid)
    assert orphan.commands.next_message(time.monotonic() + 0.05) is None
    assert not orphan.commands._is_over
    trainer.communicate()
    assert orphan.commands.next_message(None) is None
    assert orphan.commands._is_over


def wrapped_python(folder: Path) -> Path:
    """A Python in a script that waits for it, as some launchers have it."""
    wrapper = folder.parent / "wrapper.sh"
    wrapper.write_text(f'#!/bin/sh\n"{sys.executable}" "$@"\nexit $?\n')
    wrapper.chmod(0o700)
    return wrapper


def test_a_python_behind_a_program_that_waits_for_it_does_as_well(
    folder: Path, uploaders: Uploaders, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sys, "executable", str(wrapped_python(folder)))
    uploaders.start(Upload.CUMULATIVE)
    uploaders.start(Upload.WINDOWS, [60])
    uploaders.stop(Upload.CUMULATIVE, flush=True)
    uploaders.stop(Upload.WINDOWS, flush=True)
    assert len(goodput_points(folder)) == 1
    assert caplog.text == ""


def test_a_helper_behind_a_program_that_waits_for_it_ends_with_a_killed_trainer(folder: Path) -> None:
    wrapper = wrapped_python(folder)
    program = "monitor.start_goodput_uploader(); train((0, 20)); print(helper(), flush=True); time.sleep(60)"
    trainer = Trainer(f"sys.executable = {str(wrapper)!r}\n{program}", folder)
    pid = int(trainer.line())
    trainer.kill()
    wait_for_end(pid)
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
    assert trainer.finish() == ("", "")
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


def test_a_sink_that_hangs_holds_a_stop_up_for_its_deadline_only(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    recorder = GoodputRecorder("job", "log", True)
    recorder.record_job_start_time()
    recorder.record_step_start_time(0)
    recorder.record_step_start_time(1)
    with socket.create_server(("127.0.0.1", 0)) as silent:  # It takes connections, and says nothing ever.
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", f"http://127.0.0.1:{silent.getsockname()[1]}")
        monitor = GoodputMonitor("job", "log", "gs://bucket/runs", 0.05, True, final_flush_timeout_seconds=1)
        monitor.start_goodput_uploader()
        assert monitor._uploaders is not None
        pid = monitor._uploaders.pid
        assert pid is not None
        silent.settimeout(LONG_SECONDS)
        connection, _ = silent.accept()
        begin = time.monotonic()
        monitor.stop_goodput_uploader()
        seconds = time.monotonic() - begin
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


def test_a_trainer_that_is_started_again_goes_on_where_its_last_life_ended(folder: Path) -> None:
    program = "monitor.start_goodput_uploader(); train((%d, %d)); print(helper(), flush=True); time.sleep(60)"
    for begin in (0, 20):
        trainer = Trainer(program % (begin, begin + 20), folder)
        pid = int(trainer.line())
        trainer.kill()
        wait_for_end(pid)
    assert last_step(folder) >= 38
