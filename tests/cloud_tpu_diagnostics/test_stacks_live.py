"""The present stacks of processes of this machine: `tpu-stacks dump`."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cloud_tpu_diagnostics._collect import trace_file
from cloud_tpu_diagnostics._stacks import live
from cloud_tpu_diagnostics._stacks.local_processes import LocalProcess, choose_signal, find_processes, signal_number

from ..waiting import wait_until
from . import diagnosed_jobs

if not sys.platform.startswith("linux"):
    pytest.skip("needs /proc", allow_module_level=True)

Run = Callable[..., tuple[int, str, str]]
Start = Callable[..., subprocess.Popen[bytes]]

_JOB = """
import faulthandler, os, pathlib, signal, sys, threading
folder, prepare = pathlib.Path(sys.argv[1]), sys.argv[2]
file = open(folder / f"stack_trace_2026_11_21_15_00_00_host-1_{os.getpid()}.txt", "ab", buffering=0)
exec(prepare)
reader, _writer = os.pipe()
def psum():
    print("ready", flush=True), os.read(reader, 1)  # In one line: a dump taken between them shows the same frame.
psum()
"""
_REGISTERED = "faulthandler.register(signal.SIGUSR1, file=file, all_threads=True)"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(trace_file, "FOLDER", tmp_path)
    return tmp_path


@pytest.fixture
def start(folder: Path) -> Iterator[Start]:
    """Start jobs that hold a trace file, and wait until they are stuck in `psum`."""
    started: list[subprocess.Popen[bytes]] = []

    def start(prepare: str = _REGISTERED) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-c", _JOB, str(folder), prepare]
        process = subprocess.Popen(command, stdout=subprocess.PIPE)
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def fake_py_spy(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Replace py-spy by a program; an empty one removes it."""

    def put(script: str) -> None:
        program = tmp_path_factory.mktemp("bin") / "py-spy"
        program.write_text(f"#!{sys.executable}\n{script}")
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setattr(live, "_py_spy", lambda: str(program) if script else None)

    return put


def test_all_processes_inside_diagnose_are_found_and_dumped(start: Start, run: Run) -> None:
    jobs = [start(), start()]
    code, out, err = run("dump")
    assert (code, err) == (0, "")
    assert out.startswith("all 2 wait in psum (<string>:")
    assert all(f"host-1:{job.pid}" in out for job in jobs)
    assert [job.poll() for job in jobs] == [None, None]


def test_a_process_can_be_dumped_repeatedly(start: Start, run: Run) -> None:
    job = start()
    start()
    for _ in range(3):
        picture = json.loads(run("dump", str(job.pid), "--format", "json")[1])
        (process,) = picture["groups"][0]["processes"]
        assert process["pid"] == job.pid


def test_a_process_that_has_left_is_not_signalled(start: Start, run: Run, fake_py_spy: Callable[[str], None]) -> None:
    fake_py_spy("")
    job = start("file.close()")
    assert find_processes() == ()
    code, out, err = run("dump")
    assert (code, out) == (3, "")
    assert "no process of this machine" in err
    assert run("dump", str(job.pid))[0] == 1
    assert job.poll() is None


def test_a_process_that_does_not_exist_is_not_found(start: Start, run: Run) -> None:
    gone = start()
    gone.kill()
    gone.wait()
    for options in ((), ("--native",)):
        assert run("dump", str(gone.pid), *options) == (3, "", f"tpu-stacks: no process {gone.pid}\n")
    code, out, err = run("dump", str(gone.pid), str(start().pid))
    assert (code, err) == (0, f"tpu-stacks: no process {gone.pid}\n")
    assert out.startswith("host-1 waits in psum")


def test_a_signal_that_is_not_caught_is_not_sent(start: Start, run: Run, fake_py_spy: Callable[[str], None]) -> None:
    fake_py_spy("")
    job = start("pass")
    code, _, err = run("dump", str(job.pid))
    assert code == 1
    assert f"process {job.pid} does not catch SIGUSR1, which would end it: not sent" in err
    assert job.poll() is None


def test_a_signal_that_may_be_the_jobs_own_is_not_sent(
    start: Start, run: Run, fake_py_spy: Callable[[str], None]
) -> None:
    fake_py_spy("")
    ours_is_second = (
        "signal.signal(signal.SIGUSR1, lambda *_: os._exit(3)); "
        "faulthandler.register(signal.SIGUSR2, file=file, all_threads=True)"
    )
    job = start(ours_is_second)
    code, _, err = run("dump")
    assert code == 3
    assert "give that one with --signal" in err
    assert run("dump", "--signal", "SIGUSR2")[1].startswith("host-1 waits in psum")
    assert job.poll() is None


def test_the_file_may_name_the_signal(start: Start, run: Run) -> None:
    signal_of = (
        "signal.signal(signal.SIGUSR1, lambda *_: os._exit(3)); "
        "faulthandler.register(signal.SIGUSR2, file=file, all_threads=True); "
        "file.write(b'INFO: SIGUSR1 is taken: for stack traces at any time, send SIGUSR2 instead.\\n')"
    )
    job = start(signal_of)
    code, out, err = run("dump")
    assert (code, err) == (0, "")
    assert out.startswith("host-1 waits in psum")
    assert job.poll() is None


@pytest.mark.parametrize("padding", [0, 5_000, (1 << 20) - 40, 3 << 20])
def test_the_last_sentence_on_the_signal_in_a_trace_file_applies(folder: Path, padding: int) -> None:
    def signal_of(*which: str) -> int:
        words = [f"INFO: SIGUSR1 is {each}.\n" for each in which]
        path = folder / "a"
        path.write_text(("x" * 99 + "\n") * (padding // 100) + "y\n".join(words) + "\n" * padding)
        return choose_signal(LocalProcess(os.getpid(), "a", path))

    second, third, free = (
        "taken: for stack traces at any time, send SIGUSR2 instead",
        "taken: for stack traces at any time, send SIGRTMIN+3 instead",
        "free: for stack traces at any time, send SIGUSR1",
    )
    caught = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGRTMIN + 3)
    handlers = {number: signal.signal(number, lambda *_: None) for number in caught}
    try:
        assert signal_of(third, second) == signal.SIGUSR2
        assert signal_of(second, third) == signal.SIGRTMIN + 3
        assert signal_of(second, third, free) == signal.SIGUSR1
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def test_a_process_with_no_signal_left_is_not_signalled(
    start: Start, run: Run, fake_py_spy: Callable[[str], None]
) -> None:
    fake_py_spy("")
    none = "file.write(b'INFO: SIGUSR1 is taken: for stack traces at any time, no signal is free.\\n')"
    job = start(f"{_REGISTERED}; {none}")
    assert "has none left for stack traces" in run("dump")[2]
    assert job.poll() is None


_TAKES_THE_SIGNAL = "signal.signal(signal.SIGUSR1, lambda *_: os._exit(3))"


@pytest.mark.parametrize("when", ["before the block", "in the block"])
def test_a_job_with_its_own_handler_of_sigusr1_is_sent_the_signal_in_its_trace_file(
    folder: Path, run: Run, when: str
) -> None:
    program = f"""
from cloud_tpu_diagnostics._collect import timer
timer._RECHECK_SECONDS = 0.2

def psum():
    with diagnostic.diagnose(config(cloud=True)):
        {_TAKES_THE_SIGNAL if when == "in the block" else "pass"}
        output("inside")
        threading.Event().wait()
{_TAKES_THE_SIGNAL if when == "before the block" else "pass"}
psum()
"""
    job = diagnosed_jobs.Job(program, folder)
    try:
        assert job.line() == "inside"
        wait_until(lambda: "INFO: SIGUSR1 is taken" in job.trace())
        code, out, err = run("dump", "--format", "json")
        assert (code, err) == (0, ""), job.trace()
        assert "psum" in out
        assert job.process.poll() is None
    finally:
        job.kill()


@pytest.mark.timing
def test_all_processes_are_signalled_before_any_is_read(
    start: Start, run: Run, fake_py_spy: Callable[[str], None]
) -> None:
    fake_py_spy("")
    jobs = [start() for _ in range(4)]
    for job in jobs[:3]:
        job.send_signal(signal.SIGSTOP)
    measured_from = time.monotonic()
    try:
        code, out, err = run("dump", "--timeout", "2")
        took = time.monotonic() - measured_from
    finally:
        for job in jobs:
            job.send_signal(signal.SIGCONT)
    assert code == 0
    assert "host-1 waits in psum" in out
    assert err.count("within 2 s of SIGUSR1") == 3
    assert took < 3 * 2  # One after another they would take longer.


def test_a_process_that_does_not_answer_is_reported_after_the_timeout(
    start: Start, run: Run, fake_py_spy: Callable[[str], None]
) -> None:
    fake_py_spy("")
    job = start(_REGISTERED)
    job.send_signal(signal.SIGSTOP)
    try:
        code, _, err = run("dump", "--timeout", "0.3")
    finally:
        job.send_signal(signal.SIGCONT)
    assert code == 3
    assert "within 0.3 s of SIGUSR1" in err


def test_the_main_thread_of_a_dump_that_was_cut_is_waited_for(start: Start, run: Run) -> None:
    many = (
        "[threading.Thread(target=threading.Event().wait, daemon=True).start() for _ in range(120)]; "
        "faulthandler.register(signal.SIGUSR2, file=file, all_threads=False); " + _REGISTERED
    )
    job = start(many)
    timer = threading.Timer(0.8, job.send_signal, [signal.SIGUSR2])  # As a companion does that has seen the cut.
    timer.start()
    _, out, err = run("dump", "--signal", "USR1")
    timer.join()
    assert err == ""
    assert out.startswith("host-1 waits in psum")


def test_a_signal_is_given_by_name_or_number() -> None:
    assert signal_number("usr2") == signal_number("SIGUSR2") == signal_number(str(int(signal.SIGUSR2)))
    assert signal_number("SIGRTMIN+2") == signal.SIGRTMIN + 2


def test_a_signal_that_does_not_exist_is_exit_code_2(run: Run) -> None:
    code, _, err = run("dump", "--signal", "SIGNOTHING")
    assert code == 2
    assert "unknown signal" in err


# --- From outside ---

_ANSWER = """
import json, sys
frames = [{"name": "__poll", "filename": "libc.so.6", "line": 0}] * ("--native" in sys.argv)
frames += [{"name": "all_gather", "filename": "/job/a.py", "line": 7}]
print(json.dumps([{"thread_id": 1, "thread_name": "MainThread", "owns_gil": True, "frames": frames}]))
"""


def test_native_frames_come_from_py_spy(start: Start, run: Run, fake_py_spy: Callable[[str], None]) -> None:
    fake_py_spy(_ANSWER)
    start()
    _, out, err = run("dump", "--native")
    assert err == ""
    assert "    __poll (libc.so.6:0)\n    all_gather (/job/a.py:7)\n" in out


def test_a_process_without_a_block_is_read_by_py_spy(
    run: Run, folder: Path, fake_py_spy: Callable[[str], None]
) -> None:
    fake_py_spy(_ANSWER)
    code, out, _ = run("dump", str(os.getpid()))
    assert code == 0
    assert "waits in all_gather (a.py:7)" in out


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("import sys; sys.exit('Permission Denied: Try running again with elevated permissions')", "SYS_PTRACE"),
        ("import time; time.sleep(100)", "had not read process"),
        ("print('not JSON')", "could not be read"),
        ("", r"pip install 'cloud-tpu-diagnostics[native]'"),
    ],
    ids=["not allowed", "too slow", "another answer", "not installed"],
)
def test_without_py_spy_the_signal_is_used_with_a_note(
    start: Start, run: Run, fake_py_spy: Callable[[str], None], script: str, message: str
) -> None:
    fake_py_spy(script)
    start()
    code, out, err = run("dump", "--native", "--timeout", "5")
    assert code == 0
    assert out.startswith("host-1 waits in psum")
    assert err.startswith("tpu-stacks: no native frames: ")
    assert message in err


@pytest.mark.skipif(live._py_spy() is None, reason="py-spy is not installed")
def test_the_output_of_the_real_py_spy_is_parsed(start: Start) -> None:
    job = start()
    try:
        threads = live._dump_with_py_spy(job.pid, native=False, timeout_seconds=30)
    except live.PySpyError as error:
        pytest.skip(str(error))
    assert "psum" in [frame.function for frame in threads[-1].frames]
    assert job.poll() is None


@pytest.mark.parametrize("plant", ["symlink", "hard link"])
def test_no_process_is_signalled_for_a_planted_file(
    tmp_path_factory: pytest.TempPathFactory, folder: Path, plant: str
) -> None:
    """Its own handler of SIGUSR1 would be run, whatever that does."""
    theirs = tmp_path_factory.mktemp("theirs") / "log"
    theirs.write_text("")
    program = "import sys; file = open(sys.argv[1], sys.argv[2]); print('ready', flush=True); input()"
    command = [sys.executable, "-c", program, str(theirs), "a" if plant == "symlink" else "r"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        planted = folder / f"stack_trace_2026_11_21_15_00_00_host-1_{process.pid}.txt"
        if plant == "symlink":
            planted.symlink_to(theirs)
        else:
            planted.hardlink_to(theirs)
        assert find_processes() == ()
        process.communicate(b"\n")
