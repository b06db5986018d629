"""A process of ours beside the job: how it is started, and what a job may do to our ends of its pipes."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading

import pytest
from ml_diagnostics_common.child_process import (
    child_environment,
    exists,
    has_ended,
    module_folders,
    program_of,
    python_command,
)
from ml_diagnostics_common.descriptors import Descriptor, channels, send


def test_the_number_of_a_closed_descriptor_is_never_used_for_another_file() -> None:
    number, other = os.pipe()
    descriptor = Descriptor(number)
    assert descriptor.number() == number
    os.close(number)
    assert Descriptor(os.dup(other)).number() == number  # Closed when it is collected, at once.
    assert descriptor.number() is None
    os.dup2(other, number)
    assert descriptor.number() is None
    descriptor.close()
    del descriptor
    os.close(number)
    os.close(other)


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
            assert "PATH" in child_environment()
    finally:
        is_over.set()
        thread.join()


def test_a_send_to_a_dead_or_blocked_process_neither_kills_nor_waits() -> None:
    program = """
import signal
from ml_diagnostics_common.descriptors import channels, send
signal.signal(signal.SIGPIPE, signal.SIG_DFL)
with channels() as (ours, its, _, _):
    try:
        while True:
            send(ours.number(), b"x" * 65536)
    except BlockingIOError:
        print("full")
try:
    send(ours.number(), b"x")
except OSError:
    print("dead")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=30)
    assert done.stdout == "full\ndead\n"


def test_what_is_sent_arrives_and_what_is_answered_too() -> None:
    with channels() as (to_child, its_stdin, from_child, its_stdout):
        number, answers = to_child.number(), from_child.number()
        assert number is not None
        assert answers is not None
        assert send(number, b"do it") == 5
        with socket.socket(fileno=os.dup(its_stdin)) as its_end:
            assert its_end.recv(100) == b"do it"
        os.write(its_stdout, b"done")
    assert os.read(answers, 100) == b"done"
    assert os.read(answers, 100) == b""  # Its ends are closed here.


@pytest.mark.parametrize("is_bare", [False, True])
def test_a_child_finds_the_modules_of_its_parent_but_behind_its_own(
    is_bare: bool, tmp_path: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = os.fspath(tmp_path)  # type: ignore[call-overload]
    for name, text in (("json.py", "raise SystemExit(9)"), ("the_module.py", "import json\ndef main(): print('here')")):
        with open(os.path.join(folder, name), "w") as file:  # noqa: PTH118, PTH123
            file.write(text)
    monkeypatch.setattr(sys, "path", [folder, *sys.path])
    command = [*python_command(is_bare=is_bare), "-c", program_of("the_module"), *module_folders()]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=child_environment(), timeout=30)
    assert (done.returncode, done.stdout, done.stderr) == (0, "here\n", "")


def test_a_python_without_a_known_executable_is_an_error_with_that_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "")
    with pytest.raises(FileNotFoundError, match=r"sys\.executable is empty"):
        python_command()


def test_a_process_that_waits_to_be_reaped_has_ended_and_exists() -> None:
    child = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
    assert not has_ended(child.pid)
    child.send_signal(signal.SIGKILL)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert exists(child.pid)
    assert has_ended(child.pid)
    child.wait()
    assert not exists(child.pid)
    assert has_ended(child.pid)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_the_start_of_a_process_does_not_wait_for_the_workers_that_another_thread_forks() -> None:
    program = """
import os, threading, time
from ml_diagnostics_common.child_process import start_detached

make_pipe = os.pipe
def make_pipe_slowly():  # The thread that forks gets its turn while the pipe for the error of exec is open.
    ends = make_pipe()
    time.sleep(0.5)
    return ends

def fork_workers():
    for _ in range(20):
        if os.fork() == 0:
            time.sleep(20)
            os._exit(0)
        time.sleep(0.05)

os.pipe = make_pipe_slowly
workers = threading.Thread(target=fork_workers)
workers.start()
started = time.monotonic()
start_detached("this", [], variables={}).wait()
print(time.monotonic() - started < 10)
workers.join()
os.killpg(0, 9)
"""
    ended = subprocess.run(
        [sys.executable, "-W", "ignore", "-uc", program],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        start_new_session=True,
    )
    assert (ended.stdout, ended.returncode) == ("True\n", -signal.SIGKILL), ended.stderr


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_thread_that_starts_a_process_may_fork_and_so_may_its_child() -> None:
    program = """
import os, signal
from ml_diagnostics_common.process_hooks import PROCESS_START_LOCK

signal.alarm(20)
def status_of_child():
    pid = os.fork()
    if pid == 0:
        with PROCESS_START_LOCK.held():
            os._exit(3 if os.fork() == 0 else os.waitstatus_to_exitcode(os.wait()[1]) + 1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

with PROCESS_START_LOCK.held():
    print(status_of_child())
print(status_of_child())
"""
    ended = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.stdout == "4\n4\n", ended.stderr
