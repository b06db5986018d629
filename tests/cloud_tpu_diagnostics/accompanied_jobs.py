"""Jobs with a companion, in processes of their own, and what the companion wrote of them."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cloud_tpu_diagnostics.entries import JOB_ENDED, LOG_ID
from ml_diagnostics_common.reader import JournalReader

from .diagnosed_jobs import WITHOUT_FORK_WARNING

LONG_SECONDS = 30.0
"""Longer than anything takes that a test waits for."""

_HEAD = """
import ctypes, faulthandler, os, signal, sys, threading, time
from cloud_tpu_diagnostics.companion.companion_process import CompanionProcess, CompanionSettings

path = sys.argv[1]
trace = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
faulthandler.enable(trace)
faulthandler.register(signal.SIGUSR1, trace)
faulthandler.register(signal.SIGRTMAX, trace, all_threads=False)
messages = []

def begin(**settings):
    settings = {"trace_path": path, "is_shipped": True, "dump_signal": int(signal.SIGUSR1),
                "main_thread_signal": int(signal.SIGRTMAX), **settings}
    companion = CompanionProcess(
        CompanionSettings(job_pid=os.getpid(), interval_seconds=600, **settings), messages.append)
    while companion.pid is None:
        time.sleep(0.005)
    return companion

def say(*words):
    print(*words, flush=True)
"""


class Job:
    """Runs a program that has `begin`."""

    def __init__(self, program: str, trace: Path, **popen: Any) -> None:
        self.process = subprocess.Popen(
            [sys.executable, *WITHOUT_FORK_WARNING, "-c", _HEAD + program, str(trace)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            **popen,
        )

    def line(self) -> str:
        """What it prints next."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.process.communicate()[1]
        return line.strip()

    def go_on(self) -> None:
        """Ends its `input()`."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def end(self) -> tuple[int, str, str]:
        """Waits for its end: exit code, the rest of what it printed, stderr."""
        out, err = self.process.communicate(timeout=LONG_SECONDS)
        return self.process.returncode, out, err


def payloads() -> list[dict[str, Any]]:
    """All that companions wrote to the journal, oldest first."""
    root = Path(os.environ["ML_DIAGNOSTICS_DIR"])
    return [entry.payload for batch in JournalReader(LOG_ID, root=root).read_new() for entry in batch]


def of_kind(kind: str) -> list[dict[str, Any]]:
    return [payload for payload in payloads() if payload["kind"] == kind]


def ending() -> dict[str, Any]:
    """How the one job ended, as soon as it is told."""
    wait_until(lambda: bool(of_kind(JOB_ENDED)))
    (found,) = of_kind(JOB_ENDED)
    return found


def wait_until(is_so: Callable[[], object]) -> None:
    deadline = time.monotonic() + LONG_SECONDS
    while not is_so():
        assert time.monotonic() < deadline, "it did not come true"
        time.sleep(0.02)


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that waits to be reaped does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False
