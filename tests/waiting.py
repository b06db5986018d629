"""Wait for other threads and processes; ports, pipes and programs for tests that start them."""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Generic, TypeVar

LONG_SECONDS = 30.0
"""Longer than anything takes that a test waits for, also on a busy machine."""

_FIRST_PORT, _LAST_PORT, _PORTS_OF_A_PROCESS = 12_000, 32_000, 200
"""Below those that Linux gives to programs that ask for any port, so that none of them takes a port before its test."""

_ports = itertools.count()

T = TypeVar("T")
K = TypeVar("K")


def wait_until(
    condition: Callable[[], T | None],
    timeout_seconds: float = LONG_SECONDS,
    *,
    running: subprocess.Popen[Any] | None = None,
) -> T:
    """Wait until a condition is true, and return its value.

    Args:
        condition: A function; a FileNotFoundError or LookupError counts as false.
        timeout_seconds: When the test fails.
        running: A process; the test fails at once when it has ended.
    """
    deadline = time.monotonic() + timeout_seconds
    while True:
        with contextlib.suppress(FileNotFoundError, LookupError):
            if found := condition():
                return found
        assert running is None or running.poll() is None, f"the process ended with {running.returncode}"
        assert time.monotonic() < deadline, f"the condition is still false after {timeout_seconds} s"
        time.sleep(0.01)


def is_alive(pid: int) -> bool:
    """Return True if a process runs; one that waits to be reaped does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):  # It may end while its state is read.
        return False


def free_port() -> int:
    """Return a port of this machine on which no program listens, and that no other test gets in the next minutes."""
    size = _LAST_PORT - _FIRST_PORT
    while True:
        port = _FIRST_PORT + (os.getpid() * _PORTS_OF_A_PROCESS + next(_ports)) % size
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            return port


@contextlib.contextmanager
def bound_port(*, listening: bool = False) -> Iterator[int]:
    """Bind a port. Connections are refused, or accepted and never answered if it is listening."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        if listening:
            bound.listen()
        yield bound.getsockname()[1]


@contextlib.contextmanager
def pipe_without_reader() -> Iterator[int]:
    """Open a pipe without a reader, as that of `| true` will have: a write to it is an error."""
    reading, writing = os.pipe()
    os.close(reading)
    try:
        yield writing
    finally:
        os.close(writing)


def fill_pipe(descriptor: int) -> None:
    """Write to a pipe until it is full, so that the next write to it blocks."""
    os.set_blocking(descriptor, False)
    for size in (4096, 1):
        with contextlib.suppress(BlockingIOError):
            while True:
                os.write(descriptor, b"x" * size)
    os.set_blocking(descriptor, True)


def run_program(
    program: str, *arguments: object, env: Mapping[str, str] | None = None, timeout_seconds: float = 100.0
) -> str:
    """Run a Python program, which must succeed, and return its standard output."""
    command = [sys.executable, "-W", "ignore", "-c", program, *map(str, arguments)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=timeout_seconds, check=False)
    assert done.returncode == 0, done.stderr
    assert "Exception ignored" not in done.stderr
    return done.stdout


class AtOnce(Generic[K, T]):
    """Calls of a function that mostly waits, for tests that each check one of them.

    The first test that asks for a result makes all calls, each in a thread of its own, so they have the environment of
    a test. A result is given once: a test that is run once more has a call of its own.
    """

    def __init__(self, function: Callable[[K], T], arguments: Iterable[K]) -> None:
        self._function, self._arguments = function, list(arguments)
        self._calls: dict[K, Future[T]] = {}
        self._is_called = False

    def result(self, argument: K) -> T:
        """Return the result of the call with that argument, or raise what it has raised."""
        if not self._is_called:
            self._is_called = True
            with ThreadPoolExecutor(len(self._arguments)) as pool:
                self._calls = {each: pool.submit(self._function, each) for each in self._arguments}
        call = self._calls.pop(argument, None)
        return self._function(argument) if call is None else call.result()


_children: list[Child] = []


def end_children() -> None:
    """Kill the `Child`ren that a test left running because it failed, and close their pipes."""
    while _children:
        process = _children.pop().process
        process.kill()
        with contextlib.suppress(OSError), process:
            pass


class Child:
    """A program that talks to the test by lines: it prints them, and `go_on` answers its `input()`."""

    def __init__(self, command: Sequence[str | Path], **popen: Any) -> None:
        streams = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        self.process = subprocess.Popen(command, **{**streams, "text": True, **popen})
        _children.append(self)

    def line(self) -> str:
        """Wait for the next line that it prints."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.process.communicate()[1]
        return line.strip()

    def go_on(self) -> None:
        """Answer its `input()`."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def end(self, timeout_seconds: float = LONG_SECONDS) -> tuple[int, str, str]:
        """Wait for its end; return its exit code, the rest of what it printed, and its standard error."""
        try:
            out, err = self.process.communicate(timeout=timeout_seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
        return self.process.returncode, out, err

    def kill(self) -> str:
        """Kill it; return what it wrote to standard error."""
        self.process.kill()
        return self.end()[2]
