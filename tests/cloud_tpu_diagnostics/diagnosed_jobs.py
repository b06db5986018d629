"""Jobs with a block of `diagnose`, in processes of their own, and their output."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..waiting import LONG_SECONDS, Child, wait_until

HEADER = "INFO: Not a crash. cloud-tpu-diagnostics emits a stack trace snapshot every"

WITHOUT_FORK_WARNING = ("-W", "ignore:This process:DeprecationWarning")
"""Python 3.12 and later warn of a fork beside threads, as a block has them."""

_WAIT_FOR_A_MUTEX = "0x80"
"""FUTEX_WAIT | FUTEX_PRIVATE_FLAG of linux/futex.h; a wait for the GIL has a timeout, which is another operation."""

_HEAD = """
import ctypes, faulthandler, logging, os, pathlib, signal, sys, threading, time
from cloud_tpu_diagnostics import diagnostic
from cloud_tpu_diagnostics._collect import trace_file
from cloud_tpu_diagnostics.configuration import debug_configuration, diagnostic_configuration, stack_trace_configuration

trace_file.FOLDER = pathlib.Path(sys.argv[1])

def config(interval=600, cloud=False):
    traces = stack_trace_configuration.StackTraceConfig(
        collect_stack_trace=True, stack_trace_to_cloud=cloud, stack_trace_interval_seconds=interval)
    return diagnostic_configuration.DiagnosticConfig(debug_configuration.DebugConfig(traces))

def without_companion():
    sys.modules["cloud_tpu_diagnostics._collect.companion"] = None

def wait_for_helper():
    from cloud_tpu_diagnostics._collect import blocks
    while not (helper := blocks._current._helper) or not helper.sidecar or helper.thread_ident:
        time.sleep(0.01)

def wait_for_reader_of_progress():
    # A companion that starts late would see few steps only, and take them for the compilation.
    from cloud_tpu_diagnostics._collect import blocks
    companion = blocks._current._companion
    while not (pid := companion._process.pid) or companion._progress_path not in opened_by(pid):
        time.sleep(0.01)

def opened_by(pid):
    return [os.path.realpath(f"/proc/{pid}/fd/{name}") for name in os.listdir(f"/proc/{pid}/fd")]

def lock_twice(library):
    mutex = ctypes.create_string_buffer(64)
    library.pthread_mutex_lock(mutex)
    print("stuck", flush=True)
    library.pthread_mutex_lock(mutex)

def raise_signal(number):
    signal.raise_signal(number)

def output(*words):
    print(*words, flush=True)
"""


class Job(Child):
    """A program that has a `config`, and a folder instead of /tmp/debugging."""

    def __init__(self, program: str, folder: Path, *arguments: str, prefix: Sequence[str] = (), **popen: Any) -> None:
        self.folder = folder
        command = [*prefix, sys.executable, *WITHOUT_FORK_WARNING, "-c", _HEAD + program, str(folder), *arguments]
        super().__init__(command, **popen)
        self._written = ""

    def wait_for_stderr(self, words: str, count: int = 1, *, after: str = "") -> None:
        """Wait until it has written some words so many times to stderr, a pipe; `end` returns them as well."""
        assert self.process.stderr is not None
        while self._written[self._written.find(after) :].count(words) < count or after not in self._written:
            piece = os.read(self.process.stderr.fileno(), 65536)
            assert piece, f"it ended: {self._written}"
            self._written += piece.decode()

    def wait_for_dumps(self, count: int = 1, *, after: str = "") -> None:
        """Wait until so many whole dumps are on stderr: the main thread is the last of each, and waits in a call."""
        self.wait_for_stderr("in <module>\n", count, after=after)

    def end(self, timeout_seconds: float = LONG_SECONDS) -> tuple[int, str, str]:
        """Wait for its end; return its exit code, the rest of what it printed, and all of its standard error."""
        code, out, err = super().end(timeout_seconds)
        return code, out, self._written + err if self._written else err

    def wait_until_stuck(self) -> None:
        """Wait until the main thread of a program that calls `lock_twice` waits in C, which it never leaves.

        A signal of the moment before is answered by Python, or read by a thread that then waits for the GIL for ever.
        """
        assert self.line() == "stuck"
        call = Path(f"/proc/{self.process.pid}/syscall")  # Its number, then arguments: the address, and the operation.
        with contextlib.suppress(PermissionError):  # A hardened kernel hides it: then the moment is left to luck.
            wait_until(lambda: call.read_text().split()[2:3] == [_WAIT_FOR_A_MUTEX], running=self.process)

    def files(self) -> list[Path]:
        """Return its trace files."""
        return sorted(self.folder.glob("stack_trace_*"))

    def trace(self) -> str:
        """Return the text of its one trace file."""
        (file,) = self.files()
        return file.read_text()


def run(program: str, folder: Path, *arguments: str, **popen: Any) -> tuple[int, str, str]:
    """Run a program to its end; return its exit code, stdout and stderr."""
    return Job(program, folder, *arguments, **popen).end()
