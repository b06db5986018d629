"""`ml-diagnostics run` is not noticed: exit codes, signals, streams and terminals are those of the program."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from tests.waiting import Child, is_alive, wait_until

from .observed_programs import RUN, run, write

pytestmark = pytest.mark.skipif(not hasattr(os, "posix_spawnp"), reason="there a signal ends any program")

_WAITING = {
    "Python": "time.sleep(100)",
    "native code with the GIL": "ctypes.PyDLL(None).sleep(100)",
    "native code without the GIL": "ctypes.CDLL(None).sleep(100)",
}
_HANDLER = """
import os, signal, sys, time
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
    signal.signal(number, lambda number, _: (print("received", number, flush=True), sys.exit(5)))
print(os.getpid(), flush=True)
while True:
    time.sleep(0.01)
"""


def started(code: str) -> tuple[Child, int]:
    """Start a program below the command that prints its process id first; return both."""
    command = Child([*RUN, sys.executable, "-u", "-c", code])
    return command, int(command.line())


@pytest.mark.parametrize("code", [0, 1, 3, 139])
def test_the_exit_code_is_the_programs(code: int) -> None:
    assert run(sys.executable, "-c", f"raise SystemExit({code})").returncode == code


@pytest.mark.parametrize("name", ["SIGSEGV", "SIGTERM", "SIGKILL", "SIGABRT", "SIGINT", "SIGUSR1", "SIGPIPE"])
def test_the_command_ends_by_the_signal_that_ended_the_program(name: str) -> None:
    code = f"kill -{name.removeprefix('SIG')} $$"
    assert run("sh", "-c", code).returncode == -getattr(signal, name)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
@pytest.mark.parametrize("receiver", ["command", "program"])
def test_a_handler_of_the_program_decides_what_a_signal_does(number: signal.Signals, receiver: str) -> None:
    command, pid = started(_HANDLER)
    os.kill(command.process.pid if receiver == "command" else pid, number)
    code, out, _ = command.end()
    assert (code, out) == (5, f"received {int(number)}\n")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
@pytest.mark.parametrize("receiver", ["command", "program"])
@pytest.mark.parametrize("waiting", _WAITING)
def test_a_signal_ends_a_program_also_in_native_code(number: signal.Signals, receiver: str, waiting: str) -> None:
    command, pid = started(f"import ctypes, os, time; print(os.getpid()); {_WAITING[waiting]}")
    os.kill(command.process.pid if receiver == "command" else pid, number)
    assert command.end()[0] == -number
    assert not is_alive(pid)


def test_a_program_that_is_killed_ends_the_command_and_a_killed_command_leaves_the_program() -> None:
    code = "import os; print(os.getpid()); input(); print('done')"
    command, pid = started(code)
    os.kill(pid, signal.SIGKILL)
    assert command.end()[0] == -signal.SIGKILL
    command, pid = started(code)
    os.kill(command.process.pid, signal.SIGKILL)
    command.process.wait()
    assert is_alive(pid)
    command.go_on()
    assert command.line() == "done"
    wait_until(lambda: not is_alive(pid))


@pytest.mark.parametrize("redirection", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_stream_that_is_closed_is_closed_for_the_program(tmp_path: Path, redirection: str) -> None:
    shown = tmp_path / "shown"
    program = write(
        tmp_path,
        f"""
        import os, sys
        with open({str(shown)!r}, "w") as file:
            open_ones = [os.path.exists(f"/proc/self/fd/{{each}}") for each in range(3)]
            print([stream is None for stream in (sys.stdin, sys.stdout, sys.stderr)], open_ones, file=file)
        sys.exit(4)
        """,
    )
    texts = []
    for words in ([sys.executable, str(program)], [*RUN, sys.executable, str(program)]):
        done = subprocess.run(["sh", "-c", f'exec "$@" {redirection}', "sh", *words], check=False, capture_output=True)
        texts.append((done.returncode, done.stdout, shown.read_text()))
    assert texts[0][0] == 4
    assert texts[0] == texts[1]


@pytest.mark.parametrize("target", ["/dev/full", "a pipe without a reader"])
def test_a_standard_error_that_cannot_be_written_does_not_keep_the_program_from_running(target: str) -> None:
    if target == "/dev/full":
        descriptor = os.open(target, os.O_WRONLY)
    else:
        reader, descriptor = os.pipe()
        os.close(reader)
    command = [*RUN, sys.executable, "-c", "print('runs'); raise SystemExit(6)"]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=descriptor, check=False, text=True)
    os.close(descriptor)
    assert (done.returncode, done.stdout) == (6, "runs\n")


def test_input_and_output_of_any_bytes_pass_unchanged() -> None:
    every = bytes(range(256)) * 1_000
    copy = "import shutil, sys; shutil.copyfileobj(sys.stdin.buffer, sys.stdout.buffer)"
    done = subprocess.run([*RUN, sys.executable, "-c", copy], input=every, capture_output=True, check=True)
    assert done.stdout == every


@pytest.mark.parametrize(("handling", "code"), [("except KeyboardInterrupt: count += 1", 9), ("finally: pass", -2)])
def test_one_ctrl_c_in_a_terminal_interrupts_the_program_once_and_ends_both(
    tmp_path: Path, handling: str, code: int
) -> None:
    program = write(
        tmp_path,
        f"""
        import os, time
        count = 0
        try:
            print("terminal", [os.isatty(each) for each in range(3)], os.tcgetpgrp(0) == os.getpgrp(), flush=True)
            time.sleep(100)
        {handling}
        try: time.sleep(0.3)  # A second interrupt would be received here.
        except KeyboardInterrupt: count += 1
        print("interrupts", count, flush=True)
        raise SystemExit(9)
        """,
    )
    ours, terminal = os.openpty()

    def take_terminal() -> None:
        os.setsid()
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    command = subprocess.Popen(
        [*RUN, sys.executable, str(program)],
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        preexec_fn=take_terminal,
    )
    os.close(terminal)
    shown = b""
    while b"terminal" not in shown or not shown.endswith(b"\n"):
        shown += os.read(ours, 1_000)
    assert b"terminal [True, True, True] True" in shown
    assert b"\x1b[" not in shown  # A line that is not an error is not red.
    os.write(ours, b"\x03")
    try:
        while piece := os.read(ours, 1_000):
            shown += piece
    except OSError:
        pass  # All have closed the terminal.
    os.close(ours)
    assert command.wait(30) == code
    assert (b"interrupts 1" in shown) == (code == 9)
