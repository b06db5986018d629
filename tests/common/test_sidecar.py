"""Sidecars: how they start, the messages between a job and its sidecar, and how each sees the end of the other."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ml_diagnostics_common.descriptors import Descriptor
from ml_diagnostics_common.processes import exists, handled_signals, has_ended
from ml_diagnostics_common.sidecar import IN_SIDECAR, Sidecar, child_environment, python_argv
from ml_diagnostics_common.sidecar_parent import Parent

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="sidecars need fork and socket pairs")

LONG_SECONDS = 30.0

ECHO = """
import os, sys, time
from ml_diagnostics_common.sidecar_parent import Parent, WARNING, ignore_signals, lower_priority

def main():
    ignore_signals()
    lower_priority()
    job = Parent()
    while (message := job.next_message(None)) is not None:
        if message["kind"] == "print":
            os.write(2, message["text"].encode() + b"\\n")
        elif message["kind"] == "log":
            job.log(WARNING, message["text"])
        elif message["kind"] == "sleep":
            time.sleep(message["seconds"])
        elif message["kind"] == "fork":
            if (pid := os.fork()) == 0:
                time.sleep(20)
                os._exit(0)
            job.send({"kind": "forked", "pid": pid})
        else:
            job.send({**message, "settings": job.settings, "pid": job.pid, "nice": os.nice(0)})
    job.send({"kind": "end", "is_dead": job.is_dead()})
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of modules, those of the parent and of its sidecars."""
    (tmp_path / "echo_sidecar.py").write_text(ECHO)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    return tmp_path


@pytest.fixture(params=[False, True], ids=["child", "detached"])
def sidecar(request: pytest.FixtureRequest) -> Iterator[Sidecar]:
    sidecar = Sidecar("echo_sidecar", {"name": "x"}, is_detached=request.param)
    yield sidecar
    sidecar.close()
    sidecar.wait()


def received(sidecar: Sidecar, count: int = 1) -> list[dict[str, Any]]:
    """Return the next messages, without the `hello`."""
    messages: list[dict[str, Any]] = []
    deadline = time.monotonic() + LONG_SECONDS
    while len(messages) < count:
        assert time.monotonic() < deadline
        messages += [message for message in sidecar.receive() if message["kind"] != "hello"]
    return messages


def all_to_the_end(sidecar: Sidecar) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    deadline = time.monotonic() + LONG_SECONDS
    try:
        while True:
            assert time.monotonic() < deadline
            messages += sidecar.receive()
    except EOFError:
        return messages


def eventually(is_so: Callable[[], object]) -> None:
    deadline = time.monotonic() + LONG_SECONDS
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_a_message_is_answered_and_the_settings_arrive(sidecar: Sidecar) -> None:
    sidecar.send({"kind": "ping", "text": "ä\nb"})
    (answer,) = received(sidecar)
    assert (answer["kind"], answer["text"]) == ("ping", "ä\nb")
    assert (answer["settings"], answer["pid"]) == ({"name": "x"}, os.getpid())
    assert sidecar.pid is not None
    assert not sidecar.has_ended()


def test_a_sidecar_has_a_low_priority_and_knows_that_it_is_one(sidecar: Sidecar) -> None:
    sidecar.send({"kind": "ping"})
    assert received(sidecar)[0]["nice"] >= min(os.nice(0) + 10, 19)
    assert f"{IN_SIDECAR}=echo_sidecar".encode() in Path(f"/proc/{sidecar.pid}/environ").read_bytes().split(b"\0")


def test_a_sidecar_ends_with_the_messages_and_that_is_seen(sidecar: Sidecar) -> None:
    sidecar.send({"kind": "ping"})
    sidecar.end_messages()
    *_, answer, end = all_to_the_end(sidecar)
    assert (answer["kind"], end) == ("ping", {"kind": "end", "is_dead": False})
    eventually(sidecar.has_ended)


def test_what_is_printed_becomes_a_message_and_spoils_no_other(sidecar: Sidecar) -> None:
    sidecar.send({"kind": "print", "text": "Fatal error"})
    sidecar.send({"kind": "ping"})
    printed, answer = received(sidecar, 2)
    assert printed == {"kind": "output", "text": "Fatal error"}
    assert answer["kind"] == "ping"


def test_the_same_text_is_logged_once(sidecar: Sidecar) -> None:
    for text in ("disk full", "disk full", "network down"):
        sidecar.send({"kind": "log", "text": text})
    sidecar.send({"kind": "ping"})
    assert [each.get("message") for each in received(sidecar, 3)] == ["disk full", "network down", None]


def test_a_sidecar_that_does_not_read_holds_nothing_up_and_gets_everything_later(sidecar: Sidecar) -> None:
    sidecar.send({"kind": "sleep", "seconds": 0.5})
    for number in range(30):  # More than the socket holds.
        sidecar.send({"kind": "log", "text": f"{number} {'x' * 50_000}"})
    sidecar.send({"kind": "ping"})
    messages = received(sidecar, 1)
    while messages[-1]["kind"] != "ping":
        messages += received(sidecar)
    assert [each["message"].split()[0] for each in messages[:-1]] == [str(number) for number in range(30)]


def test_a_send_to_a_dead_sidecar_neither_kills_nor_raises() -> None:
    program = """
import os, signal, sys, time
signal.signal(signal.SIGPIPE, signal.SIG_DFL)
from ml_diagnostics_common.sidecar import Sidecar
sidecar = Sidecar("echo_sidecar", {}, is_detached=False)
sidecar.kill()
sidecar.wait()
sidecar.send({"kind": "ping"})
sidecar.send({"kind": "ping"})
print("lives")
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=LONG_SECONDS, check=True
    )
    assert done.stdout == "lives\n"


def test_the_death_of_a_sidecar_is_seen_at_once_though_a_worker_was_forked_while_it_was_started(folder: Path) -> None:
    program = f"""
import os, signal, sys, threading, time
sys.path.insert(0, {str(folder)!r})
from ml_diagnostics_common.sidecar import Sidecar

make_pipe = os.pipe
def make_pipe_slowly():  # The thread that forks runs while the pipe for the error of exec is open.
    ends = make_pipe()
    time.sleep(0.5)
    return ends

def fork_workers():
    for _ in range(20):
        if os.fork() == 0:
            time.sleep(100)
            os._exit(0)
        time.sleep(0.05)

os.pipe = make_pipe_slowly
workers = threading.Thread(target=fork_workers)
workers.start()
started = time.monotonic()
sidecar = Sidecar("echo_sidecar", {{}})
assert time.monotonic() - started < 50, "it waited for the workers"
sidecar.has_ended = lambda: False  # Only the socket shows its death.
while sidecar.pid is None:
    sidecar.receive()
os.kill(sidecar.pid, signal.SIGKILL)
try:
    while time.monotonic() - started < 80:
        sidecar.receive()
except EOFError:
    print("seen")
workers.join()
os.killpg(0, 9)
"""
    ended = subprocess.run(
        [sys.executable, "-W", "ignore", "-uc", program],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        start_new_session=True,
    )
    assert (ended.stdout, ended.returncode) == ("seen\n", -signal.SIGKILL), ended.stderr


def test_the_death_of_a_sidecar_is_seen_though_another_process_has_its_end_open(sidecar: Sidecar) -> None:
    sidecar.send({"kind": "fork"})
    (forked,) = received(sidecar)
    try:
        assert sidecar.pid is not None
        os.kill(sidecar.pid, signal.SIGKILL)
        assert all_to_the_end(sidecar) == []
        assert sidecar.has_ended()
    finally:
        os.kill(forked["pid"], signal.SIGKILL)


def test_a_job_that_waits_for_all_its_children_does_not_wait_for_a_detached_sidecar(folder: Path) -> None:
    program = f"""
import os, sys
sys.path.insert(0, {str(folder)!r})
from ml_diagnostics_common.sidecar import Sidecar
sidecar = Sidecar("echo_sidecar", {{}})
try:
    while True:
        os.wait()
except ChildProcessError:
    sidecar.send({{"kind": "ping"}})
    while not any(message["kind"] == "ping" for message in sidecar.receive()):
        pass
print("done")
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=LONG_SECONDS, check=False
    )
    assert done.stdout == "done\n", done.stderr


def test_a_job_that_closes_all_descriptors_keeps_its_own_files_under_their_numbers(folder: Path) -> None:
    program = f"""
import os, sys
sys.path.insert(0, {str(folder)!r})
from ml_diagnostics_common.sidecar import Sidecar
sidecar = Sidecar("echo_sidecar", {{}})
number = sidecar._socket.number()
os.closerange(3, 1024)
file = os.dup2(os.open({str(folder / "its")!r}, os.O_RDWR | os.O_CREAT), number)
assert not sidecar.is_connected
sidecar.send({{"kind": "ping"}})
sidecar.end_messages()
try:
    sidecar.receive()
except EOFError as error:
    print(error)
sidecar.close()
assert os.fstat(file).st_size == 0
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=LONG_SECONDS, check=False
    )
    assert done.stdout == "the program has closed the socket to its sidecar\n", done.stderr


def test_a_frozen_program_and_a_python_that_does_not_know_itself_are_errors_with_the_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "executable", "")
    with pytest.raises(FileNotFoundError, match=r"sys\.executable is empty"):
        Sidecar("echo_sidecar", {})
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    with pytest.raises(FileNotFoundError, match=r"sys\.frozen"):
        Sidecar("echo_sidecar", {})


@pytest.mark.parametrize(("hello", "why"), [("{}", "KeyError: 'settings'"), ("no JSON", "settings")])
def test_a_sidecar_that_does_not_understand_its_settings_reports_why_it_ends(hello: str, why: str) -> None:
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            process = subprocess.Popen(  # type: ignore[call-overload]
                [sys.executable, "-c", "from ml_diagnostics_common.sidecar_parent import Parent; Parent()"],
                stdin=theirs,
                stdout=theirs,
                stderr=theirs,
            )
        ours.sendall(f"{hello}\n".encode())
        ours.shutdown(socket.SHUT_WR)
        output = b"".join(iter(lambda: ours.recv(65_536), b""))
    assert process.wait() == 1
    assert why in output.decode()


def test_process_1_of_a_container_reaps_its_sidecars(folder: Path) -> None:
    container = ["unshare", "--user", "--pid", "--fork"]
    try:
        subprocess.run([*container, "true"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("this machine has no unprivileged pid namespaces")
    program = f"""
import os, sys, time
sys.path.insert(0, {str(folder)!r})
from ml_diagnostics_common.sidecar import Sidecar
assert os.getpid() == 1
sidecar = Sidecar("echo_sidecar", {{}})
while sidecar.pid is None:
    sidecar.receive()
sidecar.end_messages()
try:
    while True:
        sidecar.receive()
except EOFError:
    sidecar.close()
deadline = time.monotonic() + 20
try:
    while time.monotonic() < deadline:
        os.waitid(os.P_PID, sidecar.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        time.sleep(0.01)
    print("a zombie is left")
except ChildProcessError:
    print("reaped")
"""
    done = subprocess.run(
        [*container, sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout == "reaped\n", done.stderr


# --- The job's death, without process descriptors -----------------------------------------------------


class _StandInJob:
    """A process that a `Parent` in this process takes for its job."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, pid: int) -> None:
        self.ours, theirs = socket.socketpair()
        monkeypatch.setattr(Parent, "descriptor", theirs.fileno())
        monkeypatch.setattr(sys, "stdout", sys.stdout)
        monkeypatch.setattr(sys, "stderr", sys.stderr)
        self._theirs = theirs
        self.ours.sendall(b'{"settings": {}, "descriptors": {}, "pid": %d}\n{"kind": "first"}\n{"kind"' % pid)
        self.parent = Parent(poll_seconds=0.01)
        assert self.parent.next_message(None) == {"kind": "first"}

    def close(self) -> None:
        sys.stdout.close()  # That of the parent, which is /dev/null.
        self.ours.close()
        self._theirs.close()


def test_without_process_descriptors_a_sidecar_notices_that_it_is_an_orphan(monkeypatch: pytest.MonkeyPatch) -> None:
    job = _StandInJob(monkeypatch, os.getppid())
    assert job.parent.next_message(time.monotonic() + 0.05) is None
    assert job.parent.is_open
    monkeypatch.setattr(os, "getppid", lambda: 1)
    assert job.parent.next_message(None) is None
    assert not job.parent.is_open
    job.close()  # type: ignore[unreachable]


def test_without_process_descriptors_a_detached_sidecar_notices_that_the_job_is_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    job = _StandInJob(monkeypatch, process.pid)
    assert job.parent.next_message(time.monotonic() + 0.05) is None
    assert job.parent.is_open
    process.communicate()
    assert job.parent.next_message(None) is None
    assert not job.parent.is_open
    job.close()  # type: ignore[unreachable]


# --- Parts of it --------------------------------------------------------------------------------------


def test_a_descriptor_that_another_file_has_taken_is_not_used() -> None:
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


def test_threads_that_change_the_environment_do_not_prevent_a_start() -> None:
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


@pytest.mark.parametrize("is_detached", [False, True])
def test_a_sidecar_finds_the_modules_of_its_job_but_after_its_own(is_detached: bool, folder: Path) -> None:
    (folder / "json.py").write_text("raise SystemExit(9)")
    (folder / "the_module.py").write_text("import json\ndef main(): print('here')")
    done = subprocess.run(
        python_argv("the_module", is_detached=is_detached),
        capture_output=True,
        text=True,
        check=False,
        env=child_environment(),
        timeout=LONG_SECONDS,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "here\n", "")


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


def test_a_process_shows_the_signals_that_it_handles() -> None:
    last = signal.SIGRTMAX
    before = signal.signal(last, lambda *_: None)
    try:
        assert {signal.SIGINT, last} <= handled_signals()
    finally:
        signal.signal(last, before)
    assert last not in handled_signals(os.getpid())


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
