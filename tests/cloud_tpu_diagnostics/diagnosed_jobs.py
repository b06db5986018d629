"""Jobs with a block of `diagnose`, in processes of their own, and what they left behind."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

LONG_SECONDS = 30.0
"""Longer than anything takes that a test waits for, and much shorter than the interval of 600 s."""

HEADER = "INFO: Not a crash. cloud-tpu-diagnostics emits a stack trace snapshot every"

WITHOUT_FORK_WARNING = ("-W", "ignore:This process:DeprecationWarning")
"""Python 3.12 and later warn of a fork beside threads, as a block has them."""

_HEAD = """
import ctypes, faulthandler, logging, os, pathlib, signal, sys, threading, time
from cloud_tpu_diagnostics import diagnostic, trace_file
from cloud_tpu_diagnostics.configuration import debug_configuration, diagnostic_configuration, stack_trace_configuration

trace_file.FOLDER = pathlib.Path(sys.argv[1])

def config(interval=600, cloud=False):
    traces = stack_trace_configuration.StackTraceConfig(
        collect_stack_trace=True, stack_trace_to_cloud=cloud, stack_trace_interval_seconds=interval)
    return diagnostic_configuration.DiagnosticConfig(debug_configuration.DebugConfig(traces))

def without_companion():
    sys.modules["cloud_tpu_diagnostics.companion.companion_process"] = None

def wait_for_helper():
    from cloud_tpu_diagnostics import blocks
    while not (helper := blocks._current._helper) or not helper._control or helper.thread_ident:
        time.sleep(0.01)

def lock_twice(library):
    mutex = ctypes.create_string_buffer(64)
    library.pthread_mutex_lock(mutex)
    print("stuck", flush=True)
    library.pthread_mutex_lock(mutex)

def raise_signal(number):
    signal.raise_signal(number)

def say(*words):
    print(*words, flush=True)
"""


class Job:
    """Runs a program that has a `config`, and a folder instead of /tmp/debugging."""

    def __init__(
        self, program: str, folder: Path, *arguments: str, prefix: Sequence[str] = (), **popen: object
    ) -> None:
        self.folder = folder
        self._stderr = ""
        self.process = subprocess.Popen(
            [*prefix, sys.executable, *WITHOUT_FORK_WARNING, "-c", _HEAD + program, str(folder), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            **popen,  # type: ignore[call-overload]
        )

    def line(self) -> str:
        """What it prints next."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def go_on(self) -> None:
        """Ends its `input()`."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def end(self) -> tuple[int, str, str]:
        """Waits for its end: exit code, what it printed, stderr."""
        try:
            out, err = self.process.communicate(timeout=LONG_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
        return self.process.returncode, out, err

    def kill(self) -> str:
        """Kills it; returns what it wrote to stderr."""
        self.process.kill()
        return self.end()[2]

    def files(self) -> list[Path]:
        """The files that it left."""
        return sorted(self.folder.glob("stack_trace_*"))

    def trace(self) -> str:
        """What is in its one file."""
        (file,) = self.files()
        return file.read_text()


def run(program: str, folder: Path, *arguments: str, **popen: object) -> tuple[int, str, str]:
    """Runs a program to its end: exit code, what it printed, stderr."""
    return Job(program, folder, *arguments, **popen).end()
