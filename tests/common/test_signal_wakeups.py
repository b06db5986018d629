"""Signals as they arrive: even if the main thread runs no Python, and shared with an earlier user of the descriptor."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

_HEAD = """
import ctypes, os, queue, signal, sys, threading, time
from ml_diagnostics_common import signal_wakeups
received = queue.Queue()
def receive(data):
    for number in data:
        received.put(number)
def get():
    return received.get(timeout=20)
signal.signal(signal.SIGUSR1, lambda *_: None)
signal.signal(signal.SIGUSR2, lambda *_: None)
def wait_for_end_of_thread():
    deadline = time.monotonic() + 20
    while threading.active_count() > 1 or any(each != threading.get_ident() for each in sys._current_frames()):
        assert time.monotonic() < deadline, "the thread polls a closed socket"
        time.sleep(0.01)
"""


def _run(program: str) -> str:
    # A fork beside threads: Python 3.12 and later warn of it.
    command = [sys.executable, "-W", "ignore:This process:DeprecationWarning", "-c", _HEAD + program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout


def test_a_signal_is_received_while_the_main_thread_is_stuck_in_native_code() -> None:
    out = _run(
        """
signal_wakeups.subscribe(receive)
def report():
    time.sleep(0.2)
    os.kill(os.getpid(), signal.SIGUSR1)
    print(get() == signal.SIGUSR1, flush=True)
    os._exit(0)
threading.Thread(target=report).start()
mutex = ctypes.create_string_buffer(64)
libc = ctypes.CDLL(None)
libc.pthread_mutex_lock(mutex)
libc.pthread_mutex_lock(mutex)
"""
    )
    assert out == "True\n"


def test_the_descriptor_of_before_still_gets_all_and_is_back_afterwards() -> None:
    out = _run(
        """
read, write = os.pipe()
os.set_blocking(write, False)
signal.set_wakeup_fd(write)
signal_wakeups.subscribe(receive)
signal.raise_signal(signal.SIGUSR1)
print(get(), os.read(read, 10))
signal_wakeups.unsubscribe(receive)
print(signal.set_wakeup_fd(-1) == write)
"""
    )
    assert out == "10 b'\\n'\nTrue\n"


def test_one_that_was_set_meanwhile_stays() -> None:
    out = _run(
        """
signal_wakeups.subscribe(receive)
read, write = os.pipe()
os.set_blocking(write, False)
signal.set_wakeup_fd(write)
signal_wakeups.unsubscribe(receive)
print(signal.set_wakeup_fd(-1) == write)
"""
    )
    assert out == "True\n"


def test_each_subscriber_gets_all_until_it_unsubscribes() -> None:
    out = _run(
        """
others = queue.Queue()
signal_wakeups.subscribe(receive)
signal_wakeups.subscribe(receive)
signal_wakeups.subscribe(others.put)
signal.raise_signal(signal.SIGUSR1)
print(get(), others.get(timeout=20))
signal_wakeups.unsubscribe(others.put)
signal.raise_signal(signal.SIGUSR2)
print(get(), others.empty(), received.empty())
"""
    )
    assert out == "10 b'\\n'\n12 True True\n"


def test_what_is_read_stays_visible_to_other_processes_until_it_is_handled() -> None:
    out = _run(
        """
import socket
def peek():
    end = socket.socket(fileno=wakeups.handling)
    try:
        return end.recv(10, socket.MSG_PEEK)
    except BlockingIOError:
        return b""
    finally:
        end.detach()
def fail(data):
    received.put(peek())
    raise ValueError
wakeups = signal_wakeups.subscribe(fail)
signal.raise_signal(signal.SIGUSR1)
print(get())
deadline = time.monotonic() + 20
while peek():
    assert time.monotonic() < deadline, "it is still visible"
    time.sleep(0.001)
"""
    )
    assert out == "b'\\n'\n"


def test_a_subscriber_that_raises_costs_the_others_nothing() -> None:
    out = _run(
        """
def fail(data): raise ValueError
signal_wakeups.subscribe(fail)
signal_wakeups.subscribe(receive)
signal.raise_signal(signal.SIGUSR1)
print(get())
"""
    )
    assert out == "10\n"


def test_a_forked_child_has_the_previous_descriptor() -> None:
    out = _run(
        """
read, write = os.pipe()
os.set_blocking(write, False)
signal.set_wakeup_fd(write)
signal_wakeups.subscribe(receive)
pid = os.fork()
if not pid:
    signal.raise_signal(signal.SIGUSR1)
    is_back = signal.set_wakeup_fd(-1) == write
    signal_wakeups.subscribe(receive)
    signal.raise_signal(signal.SIGUSR2)
    os._exit(0 if is_back and get() == signal.SIGUSR2 else 1)
print(os.waitpid(pid, 0)[1], received.empty())
"""
    )
    assert out == "0 True\n"


def test_a_child_that_another_thread_forks_does_not_report_its_signals_to_the_parent() -> None:
    out = _run(
        """
wakeups = signal_wakeups.subscribe(receive)
def fork():
    signal_wakeups.in_main_thread(wakeups.install)  # It waits until the main thread executes Python.
    pid = os.fork()
    if not pid:
        signal.raise_signal(signal.SIGUSR1)  # The child's main thread is this one: it makes the call that waits.
        for _ in range(1000):
            pass
        signal.raise_signal(signal.SIGUSR1)
        os._exit(signal.set_wakeup_fd(-1) != -1)
    print(os.waitpid(pid, 0)[1])
    os.close(write)
read, write = os.pipe()
libc = ctypes.CDLL(None)
buffer = ctypes.create_string_buffer(1)
threading.Thread(target=fork).start()
libc.read(read, buffer, 1)  # In native code, without the GIL, until the pipe is closed.
signal.raise_signal(signal.SIGUSR2)
print(get(), received.empty())
"""
    )
    assert out == "0\n12 True\n"


@pytest.mark.parametrize("blocks", ["while not done: time.sleep(0.001)", "while not done: pass"])
def test_what_is_for_the_main_thread_is_called_there(blocks: str) -> None:
    out = _run(
        f"""
done = []
def work():
    signal_wakeups.in_main_thread(lambda: done.append(threading.current_thread() is threading.main_thread()))
threading.Thread(target=work).start()
{blocks}
print(done)
"""
    )
    assert out == "[True]\n"


def test_off_the_main_thread_it_starts_once_that_executes_python() -> None:
    out = _run(
        """
thread = threading.Thread(target=lambda: signal_wakeups.subscribe(receive))
thread.start()
thread.join()
signal.raise_signal(signal.SIGUSR1)
print(get())
"""
    )
    assert out == "10\n"


def test_a_descriptor_that_the_program_closes_is_not_written_to() -> None:
    out = _run(
        """
wakeups = signal_wakeups.subscribe(receive)
os.closerange(3, 1024)
signal_wakeups.unsubscribe(receive)
print(signal.set_wakeup_fd(-1))
"""
    )
    assert out == "-1\n"


def test_a_number_that_was_reused_is_not_written_to(tmp_path: Path) -> None:
    file = tmp_path / "checkpoint"
    out = _run(
        f"""
import socket
before = signal_wakeups.subscribe(receive)
theirs, read = socket.socketpair()
theirs.setblocking(False)
ours = signal.set_wakeup_fd(theirs.fileno())  # As trio does for a while, which restores what it found.
before.install()
signal.set_wakeup_fd(ours)
number = theirs.fileno()
theirs.close()
assert os.open({str(file)!r}, os.O_RDWR | os.O_CREAT) == number
signal.raise_signal(signal.SIGUSR1)
print(get(), os.fstat(number).st_size)
signal_wakeups.unsubscribe(receive)
print(signal.set_wakeup_fd(-1))
"""
    )
    assert out == "10 0\n-1\n"


def test_a_writer_that_the_program_closes_ends_the_thread() -> None:
    out = _run(
        """
wakeups = signal_wakeups.subscribe(receive)
os.close(wakeups.writer)
wait_for_end_of_thread()
print("ended")
"""
    )
    assert out == "ended\n"


def test_after_the_program_has_closed_it_signals_write_to_no_file_of_the_program(tmp_path: Path) -> None:
    file = tmp_path / "checkpoint"
    out = _run(
        f"""
wakeups = signal_wakeups.subscribe(receive)
number = wakeups.writer
while wakeups.thread_ident is None:
    time.sleep(0.001)
os.closerange(3, 1024)
wait_for_end_of_thread()
for _ in range(1000):
    pass  # The main thread executes what the thread has left for it.
signal.raise_signal(signal.SIGUSR1)  # The interpreter must not complain of a closed descriptor.
os.dup2(os.open({str(file)!r}, os.O_RDWR | os.O_CREAT), number)
signal.raise_signal(signal.SIGUSR1)
print(os.fstat(number).st_size, received.empty())
"""
    )
    assert out == "0 True\n"


@pytest.mark.parametrize("subscribes", ["subscribe()", "thread = threading.Thread(target=subscribe); thread.start()"])
def test_after_the_program_has_closed_it_there_is_another_for_new_subscribers(subscribes: str) -> None:
    out = _run(
        f"""
def subscribe():
    signal_wakeups.subscribe(receive)
before = signal_wakeups.subscribe(print)
os.closerange(3, 1024)
{subscribes}
deadline = time.monotonic() + 20
while (after := signal_wakeups._shared) is before or not after.install():
    assert time.monotonic() < deadline, "it is still the closed one"
    time.sleep(0.001)
signal.raise_signal(signal.SIGUSR1)
print(get())
signal_wakeups.unsubscribe(receive)
print(signal.set_wakeup_fd(-1))
"""
    )
    assert out == "10\n-1\n"


@pytest.mark.parametrize(
    ("handler", "expected"),
    [("signal.default_int_handler", "KeyboardInterrupt()"), ("lambda *_: sys.exit(143)", "SystemExit(143)")],
)
def test_an_exit_that_interrupts_what_is_called_in_the_main_thread_is_raised_there(handler: str, expected: str) -> None:
    out = _run(
        f"""
signal.signal(signal.SIGINT, {handler})
called = []
def function():
    os.kill(os.getpid(), signal.SIGINT)
    while True:
        pass
def ask():
    signal_wakeups.in_main_thread(function)
    signal_wakeups.in_main_thread(lambda: called.append(1))
deadline = time.monotonic() + 20
try:
    threading.Thread(target=ask, daemon=True).start()
    while time.monotonic() < deadline:
        time.sleep(0.001)
except BaseException as error:
    print(repr(error))
while not called:
    time.sleep(0.001)
"""
    )
    assert out == f"{expected}\n"
