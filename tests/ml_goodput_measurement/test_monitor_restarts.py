"""A helper process that dies, or cannot be started: another one follows, and the trainer does not notice."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from ml_diagnostics_common import guard
from ml_diagnostics_common.backoff import Backoff
from ml_diagnostics_common.sidecar import Sidecar
from ml_diagnostics_common.worker import thread_names
from ml_goodput_measurement._monitor import uploaders as uploaders_module
from ml_goodput_measurement._monitor.settings import MonitorSettings, Upload
from ml_goodput_measurement._monitor.uploaders import HelperProcess, Uploaders
from ml_goodput_measurement.goodput import GoodputCalculator, GoodputRecorder
from ml_goodput_measurement.monitoring import GoodputMonitor

from ..waiting import LONG_SECONDS, wait_until
from .monitored_trainers import Trainer, goodput_points, uploaders_of_ten_steps, wait_for_end


def kill_helper(uploaders: Uploaders) -> int:
    """Kills it with its uploads on; returns the one that follows it."""
    killed = uploaders.pid
    assert killed is not None
    os.kill(killed, signal.SIGKILL)
    wait_until(lambda: uploaders.pid not in (None, killed))
    assert uploaders.pid is not None
    return uploaders.pid


def threads_of_monitors() -> set[int]:
    return {ident for ident, name in thread_names().items() if name == "goodput-monitor"}


def test_a_killed_helper_is_restarted_with_its_uploads_and_the_numbers_are_right(
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


def test_a_stop_does_not_wait_for_the_start_of_the_helper_that_follows(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with uploaders_of_ten_steps(folder) as uploaders:
        uploaders.start(Upload.CUMULATIVE)
        assert uploaders.pid is not None
        is_starting, is_over, make_pipe = threading.Event(), threading.Event(), os.pipe

        def make_pipe_late() -> tuple[int, int]:
            if thread_names().get(threading.get_ident()) == "goodput-monitor":
                is_starting.set()
                is_over.wait(LONG_SECONDS)
            return make_pipe()

        monkeypatch.setattr(os, "pipe", make_pipe_late)
        os.kill(uploaders.pid, signal.SIGKILL)
        assert is_starting.wait(LONG_SECONDS)
        assert "goodput-monitor" in thread_names().values()
        started = time.monotonic()
        uploaders.stop(Upload.CUMULATIVE, flush=False)
        assert time.monotonic() - started < LONG_SECONDS / 2
        is_over.set()
        # It has ended the helper, which is not wanted any more.
        wait_until(lambda: "goodput-monitor" not in thread_names().values())
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
from ml_goodput_measurement._monitor.uploaders import Upload, Uploaders
logging.disable()
signal.signal(signal.SIGPIPE, signal.SIG_DFL)
sys.executable = "/bin/false"
for _ in range(100):
    uploaders = Uploaders(monitor._settings, sleep=lambda _: time.sleep(1000))
    uploaders.start(Upload.CUMULATIVE)
    process = uploaders._process
    process._sidecar.wait()  # Its follower may still be about to learn of it.
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
    assert f"({type(error).__name__}: {error}); it tries again later" in caplog.text


def test_a_helper_is_restarted_after_any_error_of_its_supervision(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Failing(Backoff):
        def failed(self, retry_after_seconds: float | None = None) -> float:
            if not waits:
                raise ModuleNotFoundError("No module named 'random'")  # As where there is no descriptor left.
            return super().failed(retry_after_seconds)

    waits: list[float] = []
    uploaders = Uploaders(
        GoodputMonitor("job", "log", folder, 1000, True)._settings, backoff=Failing(), sleep=waits.append
    )
    with monkeypatch.context() as patch:
        patch.setattr(sys, "executable", "/nonexistent/python")
        uploaders.start(Upload.CUMULATIVE)
        wait_until(lambda: len(waits) > 3)
    assert waits[0] == 60
    assert caplog.text.count("could not restart its helper process (ModuleNotFoundError: No module") == 1
    wait_until(lambda: uploaders.pid is not None)
    uploaders.stop(Upload.CUMULATIVE, flush=False)


def test_a_frozen_trainer_does_not_start_itself_again(
    uploaders: Uploaders, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    monkeypatch.setattr(guard, "_logged_in_this_process", set())
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


def test_a_helper_that_does_not_understand_its_settings_logs_why_it_ends() -> None:
    helper = Sidecar("ml_goodput_measurement._monitor.helper", {}, is_detached=False)
    assert helper.wait(LONG_SECONDS) == 1
    messages: list[dict[str, Any]] = []
    while len(messages) < 2:  # The first is its `hello`.
        messages += helper.receive(LONG_SECONDS)
    helper.close()
    assert "The goodput monitor's helper process failed (KeyError: " in messages[1]["message"]


class DeadHelper:
    """Active uploads with a killed helper process, which is not restarted before `may_restart` is set."""

    def __init__(self, uploaders: Uploaders) -> None:
        self.uploaders = uploaders
        self.may_restart, self.is_noticed = threading.Event(), threading.Event()
        uploaders._sleep = self._sleep
        uploaders.start(Upload.CUMULATIVE)
        uploaders.start(Upload.WINDOWS, [60])
        assert uploaders.pid is not None
        os.kill(uploaders.pid, signal.SIGKILL)
        assert self.is_noticed.wait(LONG_SECONDS)

    def _sleep(self, _: float) -> None:
        self.is_noticed.set()
        assert self.may_restart.wait(LONG_SECONDS)


def test_a_stop_while_the_helper_is_down_writes_the_last_point_and_the_helper_restarts_for_the_rest_only(
    folder: Path, uploaders: Uploaders
) -> None:
    dead = DeadHelper(uploaders)
    uploaders.stop(Upload.CUMULATIVE, flush=True)
    assert len(goodput_points(folder)) == 1
    assert uploaders.pid is None
    dead.may_restart.set()
    wait_until(lambda: uploaders.pid is not None)
    uploaders.stop(Upload.WINDOWS, flush=False)
    assert uploaders.pid is None
    assert len(goodput_points(folder)) == 1


def test_a_last_stop_while_the_helper_is_dead_that_skips_the_last_point_starts_nothing(uploaders: Uploaders) -> None:
    dead = DeadHelper(uploaders)
    threads = threads_of_monitors()
    uploaders.stop(Upload.CUMULATIVE, flush=False)
    uploaders.stop(Upload.WINDOWS, flush=False)
    assert threads_of_monitors() <= threads  # Those of other tests may just end.
    dead.may_restart.set()
    wait_until(lambda: "goodput-monitor" not in thread_names().values())
    assert uploaders.pid is None
    uploaders.start(Upload.CUMULATIVE)
    assert uploaders.pid is not None


@pytest.mark.parametrize("executable", ["/bin/false", "/nonexistent/python"])
def test_a_last_point_that_cannot_be_written_because_the_helper_is_down_is_logged(
    executable: str, uploaders: Uploaders, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    dead = DeadHelper(uploaders)
    monkeypatch.setattr(sys, "executable", executable)
    uploaders.stop(Upload.CUMULATIVE, flush=True)
    uploaders.stop(Upload.WINDOWS, flush=False)
    dead.may_restart.set()
    assert caplog.text.count("The last upload of goodput (cumulative) failed") == 1


def test_a_last_point_without_a_thread_to_follow_its_helper_is_not_waited_for(
    uploaders: Uploaders, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    dead = DeadHelper(uploaders)
    waits: list[float] = []
    helpers: list[HelperProcess] = []

    def new_process(settings: MonitorSettings) -> HelperProcess:
        helpers.append(HelperProcess(settings))
        return helpers[-1]

    def wait_ended(_: HelperProcess, timeout_seconds: float) -> bool:
        waits.append(timeout_seconds)
        return False

    with monkeypatch.context() as patch:
        patch.setattr(uploaders_module, "start", lambda *_: None)  # As at the exit of Python 3.12 and later.
        patch.setattr(uploaders_module, "HelperProcess", new_process)
        patch.setattr(HelperProcess, "wait_ended", wait_ended)
        uploaders.stop(Upload.CUMULATIVE, flush=True)
    assert not waits
    assert [helper._sidecar.wait(LONG_SECONDS) for helper in helpers] == [-signal.SIGKILL]
    assert not helpers[0]._sidecar.is_connected
    assert "no thread can be started" in caplog.text
    uploaders.stop(Upload.WINDOWS, flush=False)
    dead.may_restart.set()


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


def test_an_unsolicited_answer_is_not_shown_as_the_last_message_of_a_dead_helper(uploaders: Uploaders) -> None:
    uploaders.start(Upload.CUMULATIVE)
    process = uploaders._process
    assert process is not None
    for message in (
        {"kind": "done", "number": None},
        {"kind": "done", "number": 99},
        {"kind": "output", "text": "Segmentation fault"},
    ):
        process._handle(message)
    uploaders.stop(Upload.CUMULATIVE, flush=False)
    assert process.wait_ended(LONG_SECONDS)
    assert process.end is not None
    assert process.end.split("\n")[1:] == ["    Segmentation fault"]


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
