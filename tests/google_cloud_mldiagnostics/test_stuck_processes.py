"""SIGTERM ends a process that is stuck in native code as it would without us, and its run is FAILED by SIGTERM."""

from __future__ import annotations

import ctypes
import mmap
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from google_cloud_mldiagnostics.cli import main
from ml_diagnostics_testing.faults import Hang

from ..loopback.control_plane import ControlPlaneServer
from ..waiting import free_port, wait_until
from . import run_programs as programs
from .starvation import Starvation, seconds_to_death

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a stuck process gets a second signal")

RUN = "train-w"
LONGEST_SECONDS = 2.0  # The promise. Delays of the machine itself are not counted: see `starvation`.
# A mutex that is locked twice: unlike a sleep, the wait for it continues after a signal. The test can unlock it.
STUCK = """
import ctypes, mmap
library, pages = {library}(None), mmap.mmap(os.open({file!r}, os.O_RDWR), 4096)
mutex, shared = (ctypes.c_char * 64).from_buffer(pages), ctypes.create_string_buffer(64)
library.pthread_mutexattr_init(shared)
library.pthread_mutexattr_setpshared(shared, 1)
library.pthread_mutex_init(mutex, shared)
ready()
sys.stdin.readline()
library.pthread_mutex_lock(mutex)
print(ctypes.addressof(mutex), flush=True)
library.pthread_mutex_lock(mutex)
print("goes on", flush=True)
"""
RELEASED, HELD = "ctypes.CDLL", "ctypes.PyDLL"
RUN_ALONE = "start_run()\n"
TAKES_THE_GIL = """
import ctypes
from ml_diagnostics_common import signal_wakeups
def take_the_gil(signals):
    library, mutex = ctypes.PyDLL(None), ctypes.create_string_buffer(64)
    library.pthread_mutex_lock(mutex)
    library.pthread_mutex_lock(mutex)
signal_wakeups.subscribe(take_the_gil)  # Called before the run's own subscriber.
"""
WITH_DIAGNOSE = """
from cloud_tpu_diagnostics import diagnostic
from cloud_tpu_diagnostics.configuration import debug_configuration, diagnostic_configuration, stack_trace_configuration
stacks = stack_trace_configuration.StackTraceConfig(collect_stack_trace=True, stack_trace_to_cloud=True)
block = diagnostic.diagnose(
    diagnostic_configuration.DiagnosticConfig(debug_config=debug_configuration.DebugConfig(stack_trace_config=stacks))
)
block.__enter__()
"""


def helpers() -> set[int]:
    module = b"ML_DIAGNOSTICS_SIDECAR=google_cloud_mldiagnostics._run.termination_helper"
    folder = str(programs.runs_folder().parent).encode()
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            environment = (process / "environ").read_bytes()
        except OSError:
            continue
        if module in environment and folder in environment:
            found.add(int(process.name))
    return found


def stuck(program: str, library: str, has_helper: bool = True) -> subprocess.Popen[str]:
    """Start a program that is stuck in native code when this returns, until `release`."""
    mutex_file().write_bytes(bytes(4096))
    process = programs.start(program + STUCK.format(library=library, file=str(mutex_file())))
    programs.await_line(process, "ready")
    if has_helper:
        wait_until(helpers)
    process.stdin.write("go on\n")
    process.stdin.flush()
    mutex = int(process.stdout.readline())
    wait_until(lambda: waits_for(process.pid, mutex))
    return process


def mutex_file() -> Path:
    return programs.runs_folder().with_name("mutex")


def release() -> None:
    """Let a program of `stuck` go on, after the time in which it would be ended."""
    time.sleep(LONGEST_SECONDS + 0.5)
    with mutex_file().open("r+b") as file, mmap.mmap(file.fileno(), 4096) as pages:
        mutex = (ctypes.c_char * 64).from_buffer(pages)
        assert ctypes.CDLL(None).pthread_mutex_unlock(mutex) == 0
        del mutex


def waits_for(pid: int, mutex: int) -> bool:
    """Return True if the main thread waits for this mutex, which glibc passes to futex(2)."""
    try:
        system_call = Path(f"/proc/{pid}/syscall").read_text().split()
    except OSError:  # Not every kernel and container has this file.
        time.sleep(0.5)
        return True
    return f"{mutex:#x}" in system_call[1:2]


def terminated(process: subprocess.Popen[str]) -> tuple[int, float]:
    """Send SIGTERM; return the exit code, and how long the process lived."""
    seconds = seconds_to_death(process, signal.SIGTERM)
    return programs.end(process).code, seconds


@pytest.fixture(autouse=True)
def folder_of_traces(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))


@pytest.mark.timing
@pytest.mark.parametrize("library", [RELEASED, HELD])
@pytest.mark.parametrize(
    "program",
    [
        RUN_ALONE,
        RUN_ALONE + WITH_DIAGNOSE,
        pytest.param(WITH_DIAGNOSE, marks=pytest.mark.slow),
        pytest.param(WITH_DIAGNOSE + RUN_ALONE, marks=pytest.mark.slow),
    ],
    ids=["run", "run-and-diagnose", "diagnose", "diagnose-and-run"],
)
def test_sigterm_ends_a_process_that_is_stuck_in_native_code(program: str, library: str) -> None:
    code, seconds = terminated(stuck(program, library, has_helper="start_run" in program))
    assert code == -signal.SIGTERM
    assert seconds <= LONGEST_SECONDS
    if "start_run" in program:
        wait_until(lambda: programs.kept_run()["runPhase"] == "FAILED")
        assert programs.kept_run()["errorDetails"] == "SIGTERM"
        assert programs.kept_run()["attempts"][-1]["processes"][0]["reason"] == "SIGTERM"


@pytest.mark.timing
def test_sigterm_ends_a_process_of_which_native_code_takes_the_gil_as_soon_as_the_signal_is_read() -> None:
    code, seconds = terminated(stuck(TAKES_THE_GIL + RUN_ALONE, RELEASED))
    assert code == -signal.SIGTERM
    assert seconds <= LONGEST_SECONDS
    wait_until(lambda: programs.kept_run()["runPhase"] == "FAILED")


@pytest.mark.timing
def test_the_control_plane_knows_before_a_process_that_waits_in_a_collective_is_dead(
    cloud_of_a_run: ControlPlaneServer,
) -> None:
    code, seconds = terminated(stuck("start_run(strict=True)\n", RELEASED))
    assert code == -signal.SIGTERM
    assert seconds <= LONGEST_SECONDS
    assert cloud_of_a_run.run(RUN)["runPhase"] == "FAILED"


@pytest.mark.timing
@pytest.mark.parametrize("library", [RELEASED, HELD])
def test_where_the_control_plane_does_not_answer_in_time_sync_completes_the_run(
    cloud_of_a_run: ControlPlaneServer, library: str
) -> None:
    process = stuck("start_run(strict=True)\n", library)
    cloud_of_a_run.faults.always(Hang())
    code, seconds = terminated(process)
    assert code == -signal.SIGTERM
    assert seconds <= LONGEST_SECONDS
    cloud_of_a_run.faults.clear()
    wait_until(lambda: programs.kept_run()["runPhase"] == "FAILED")
    assert cloud_of_a_run.run(RUN)["runPhase"] == "ACTIVE"
    assert main(["sync", RUN]) == 0
    assert cloud_of_a_run.run(RUN)["runPhase"] == "FAILED"


@pytest.mark.timing
@pytest.mark.parametrize("library", [RELEASED, HELD])
def test_a_process_with_a_finished_run_is_not_touched(library: str) -> None:
    code, seconds = terminated(stuck("run = start_run()\ntime.sleep(0.5)\nrun.finish()\n", library, has_helper=False))
    assert (code, seconds <= LONGEST_SECONDS) == (-signal.SIGTERM, True)
    assert programs.kept_run()["runPhase"] == "COMPLETED"


@pytest.mark.parametrize("library", [RELEASED, HELD])
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_handler_of_the_users_is_left_in_charge(library: str, when: str) -> None:
    handler = "signal.signal(signal.SIGTERM, lambda *_: print('saved', flush=True))\n"
    program = handler + "start_run()\n" if when == "before" else "start_run()\n" + handler
    process = stuck(program, library, has_helper=False)
    process.send_signal(signal.SIGTERM)
    release()
    ended = programs.end(process)
    assert (ended.code, ended.output.split()) == (0, ["saved", "goes", "on"])
    assert programs.kept_run()["runPhase"] == "COMPLETED"


@pytest.mark.parametrize("library", [RELEASED, HELD])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGUSR2])
def test_other_signals_wait_for_python_as_usual(library: str, number: signal.Signals) -> None:
    handlers = (
        "for each in (signal.SIGINT, signal.SIGUSR2): signal.signal(each, lambda *_: print('signal', flush=True))\n"
    )
    process = stuck(handlers + "start_run()\n", library)
    process.send_signal(number)
    release()
    ended = programs.end(process)
    assert (ended.code, ended.output.split()) == (0, ["signal", "goes", "on"])


def test_a_descriptor_for_wakeups_that_was_set_before_is_served_and_put_back() -> None:
    ended = programs.run("""
        import socket
        reading, writing = socket.socketpair()
        writing.setblocking(False)
        signal.set_wakeup_fd(writing.fileno())
        signal.signal(signal.SIGUSR2, lambda *_: None)
        run = start_run()
        os.kill(os.getpid(), signal.SIGUSR2)
        assert reading.recv(1) == bytes([signal.SIGUSR2])
        run.finish()
        assert signal.set_wakeup_fd(-1) == writing.fileno()
    """)
    assert ended.code == 0, ended.errors


def test_a_signal_to_a_forked_child_is_not_its_parents() -> None:
    ended = programs.run("""
        import ctypes
        start_run()
        for library in (ctypes.CDLL, ctypes.PyDLL):
            pid = os.fork()
            if pid == 0:
                mutex = ctypes.create_string_buffer(64)
                library(None).pthread_mutex_lock(mutex)
                library(None).pthread_mutex_lock(mutex)
            time.sleep(0.2)
            os.kill(pid, signal.SIGTERM)
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGTERM
        time.sleep(2)
        print("alive", flush=True)
    """)
    assert (ended.code, ended.output) == (0, "alive\n"), ended.errors
    assert programs.kept_run()["runPhase"] == "COMPLETED"


def test_a_job_that_waits_for_all_of_its_children_waits_for_none_of_ours() -> None:
    ended = programs.run("""
        start_run()
        time.sleep(1)
        try:
            os.wait()
        except ChildProcessError:
            print("none", flush=True)
    """)
    assert (ended.code, ended.output) == (0, "none\n"), ended.errors


@pytest.mark.parametrize("ending", ["run.finish()", "os._exit(0)", "sys.exit()"])
def test_the_helper_ends_with_the_run_and_with_the_process(ending: str) -> None:
    process = programs.start(
        f"run = start_run()\nready()\nsys.stdin.readline()\n{ending}\nready()\nsys.stdin.readline()"
    )
    programs.await_line(process, "ready")
    wait_until(helpers)
    process.stdin.write("go on\n")
    process.stdin.flush()
    wait_until(lambda: not helpers())
    programs.end(process)


def test_a_job_that_closes_all_descriptors_continues_and_ends_as_usual() -> None:
    ended = programs.run("""
        run = start_run()
        time.sleep(0.5)
        os.closerange(3, 1000)
        files = [open(os.devnull, "rb") for _ in range(50)]
        signal.signal(signal.SIGUSR2, lambda *_: None)
        os.kill(os.getpid(), signal.SIGUSR2)
        time.sleep(0.2)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(60)
    """)
    assert ended.code == -signal.SIGTERM, ended.errors


# --- The helper ---------------------------------------------------------------------------------------

# Nothing releases the GIL between `machinelearning_run` and the native code, so no thread of ours can run.
STUCK_AT_ONCE = """
import ctypes
mutex = ctypes.create_string_buffer(64)
print(ctypes.addressof(mutex), flush=True)
lock = {library}(None).pthread_mutex_lock
{before}
start_run()
lock(mutex)
lock(mutex)
"""
NO_HELPER = {
    "executable unknown": "sys.executable = ''",
    "executable is another program": "sys.executable = '/bin/false'",
    "frozen": "sys.frozen = True",
    "no pidfd": "del os.pidfd_open",
    "no sysv_signal": "import ctypes; ctypes.CDLL = lambda name: object()",
}


def stuck_at_once(library: str, before: str = "") -> subprocess.Popen[str]:
    """Start a program that is stuck in native code when this returns, and has been since the start of its run."""
    process = programs.start(STUCK_AT_ONCE.format(library=library, before=before))
    mutex = int(process.stdout.readline())
    wait_until(lambda: waits_for(process.pid, mutex))
    return process


@pytest.mark.timing
@pytest.mark.parametrize("library", [RELEASED, HELD])
def test_sigterm_ends_a_process_that_is_stuck_directly_after_the_start_of_its_run(library: str) -> None:
    code, seconds = terminated(stuck_at_once(library))
    assert (code, seconds <= LONGEST_SECONDS) == (-signal.SIGTERM, True)
    wait_until(lambda: programs.kept_run()["runPhase"] == "FAILED")
    assert programs.kept_run()["errorDetails"] == "SIGTERM"


def test_sigterm_directly_after_the_start_of_the_run_is_recorded() -> None:
    ended = programs.run("start_run()\nos.kill(os.getpid(), signal.SIGTERM)\ntime.sleep(60)")
    assert ended.code == -signal.SIGTERM, ended.errors
    assert (programs.kept_run()["runPhase"], programs.kept_run()["errorDetails"]) == ("FAILED", "SIGTERM")
    assert "cannot be started" not in ended.errors


@pytest.mark.timing
@pytest.mark.parametrize("before", NO_HELPER.values(), ids=NO_HELPER)
def test_without_a_helper_sigterm_ends_the_process_at_once(before: str, capsys: pytest.CaptureFixture[str]) -> None:
    # The function that locks is found before: one of these takes ctypes.CDLL away.
    process = stuck_at_once(HELD, before)
    with Starvation() as starvation:
        started = time.monotonic()
        process.send_signal(signal.SIGTERM)
        ended = programs.end(process)
        lived_seconds = time.monotonic() - started
    assert (ended.code, lived_seconds - starvation.seconds <= LONGEST_SECONDS) == (-signal.SIGTERM, True)
    assert ended.errors.count("The helper process that records a death by SIGTERM cannot be started: ") == 1
    assert main(["show", programs.kept_run()["name"]]) == 0
    shown = capsys.readouterr().out
    assert shown.splitlines()[0].endswith(": FAILED")
    assert "process gone" in shown


def test_a_helper_that_starts_late_is_awaited_while_the_job_continues(tmp_path: Path) -> None:
    python = tmp_path / "slow-python"
    python.write_text(f'#!/bin/sh\nsleep 2.5\nexec {sys.executable} "$@"\n')
    python.chmod(0o700)
    ended = programs.run(f"""
        sys.executable = {str(python)!r}
        start_run()
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        until = time.monotonic() + 30
        while signal.getsignal(signal.SIGTERM) is signal.SIG_DFL and time.monotonic() < until:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(60)
    """)
    assert ended.code == -signal.SIGTERM, ended.errors
    assert (programs.kept_run()["runPhase"], programs.kept_run()["errorDetails"]) == ("FAILED", "SIGTERM")


def test_a_handler_that_is_installed_before_a_late_helper_watches_is_left_in_charge(tmp_path: Path) -> None:
    python = tmp_path / "slow-python"
    python.write_text(f'#!/bin/sh\nsleep 1.5\nexec {sys.executable} "$@"\n')
    python.chmod(0o700)
    ended = programs.run(f"""
        sys.executable = {str(python)!r}
        start_run()
        signal.signal(signal.SIGTERM, lambda *_: print("saved", flush=True))
        time.sleep(2.5)
        os.kill(os.getpid(), signal.SIGTERM)
    """)
    assert (ended.code, ended.output) == (0, "saved\n"), ended.errors
    assert programs.kept_run()["runPhase"] == "COMPLETED"


@pytest.mark.timing
def test_another_signal_does_not_shorten_the_second_that_python_has_to_handle_sigterm() -> None:
    process = programs.start("""
        import ctypes
        signal.signal(signal.SIGALRM, lambda *_: None)
        start_run()
        library, mutex = ctypes.PyDLL(None), ctypes.create_string_buffer(64)
        library.pthread_mutex_lock(mutex)
        time.sleep(0.5)
        until = time.time() + 1.35
        until = (ctypes.c_long * 2)(int(until), int(until % 1 * 1e9))
        ready()
        library.pthread_mutex_timedlock(mutex, until)
    """)
    programs.await_line(process, "ready")
    process.send_signal(signal.SIGALRM)
    time.sleep(0.9)  # Most of a second counted from any signal. The GIL is held for another 0.45 s.
    process.send_signal(signal.SIGTERM)
    assert programs.end(process).code == -signal.SIGTERM
    assert programs.phases() == ["ACTIVE", "FAILED"]  # The process itself has recorded its end.


@pytest.mark.timing
def test_sigterm_ends_a_process_that_holds_the_gil_while_a_timer_sends_other_signals() -> None:
    timer = "signal.signal(signal.SIGALRM, lambda *_: None); signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)"
    code, seconds = terminated(stuck_at_once(HELD, timer))
    assert (code, seconds <= LONGEST_SECONDS) == (-signal.SIGTERM, True)
    wait_until(lambda: programs.kept_run()["runPhase"] == "FAILED")
    assert programs.kept_run()["errorDetails"] == "SIGTERM"


# --- JAX ----------------------------------------------------------------------------------------------

PREEMPTED = """
import jax
{first}
jax.distributed.initialize("127.0.0.1:{port}", num_processes=2, process_id=int(sys.argv[1]))
{then}
from jax.experimental import multihost_utils
if sys.argv[1] == "0":
    ready()
for step in range(600):
    if multihost_utils.reached_preemption_sync_point(step):
        print("saved", flush=True)
        break
    time.sleep(0.05)
{last}
jax.distributed.shutdown()
"""


@pytest.mark.parametrize(
    ("first", "then", "last"),
    [
        pytest.param("start_run()", "", "", id="before"),
        pytest.param("", "start_run()", "", id="after", marks=pytest.mark.slow),
        pytest.param("run = start_run()", "run.finish()", "", id="finished"),
        pytest.param("start_run()", "start_run('two')", "", id="another", marks=pytest.mark.slow),
    ],
)
def test_jax_saves_at_a_preemption_whenever_the_run_was_started(first: str, then: str, last: str) -> None:
    program = PREEMPTED.format(first=first, then=then, last=last, port=free_port())
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", programs.PREAMBLE + program, str(index)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "ML_DIAGNOSTICS_RAISE": "0", "JAX_PLATFORMS": "cpu", "RUN_WORKLOAD_ID": "w"},
        )
        for index in range(2)
    ]
    programs.await_line(processes[0], "ready")
    processes[0].send_signal(signal.SIGTERM)
    ended = [programs.end(process, timeout_seconds=60) for process in processes]
    assert [(each.code, each.output) for each in ended] == [(0, "saved\n")] * 2, [each.errors for each in ended]
