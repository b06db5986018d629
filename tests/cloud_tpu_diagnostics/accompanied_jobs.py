"""Jobs with a companion, in processes of their own, and the companion's entries."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from cloud_tpu_diagnostics.entries import JOB_ENDED, LOG_ID
from ml_diagnostics_common.reader import JournalReader

from ..waiting import AtOnce, Child, wait_until
from .diagnosed_jobs import WITHOUT_FORK_WARNING

_HEAD = """
import ctypes, faulthandler, os, signal, sys, threading, time
from cloud_tpu_diagnostics._companion import CompanionSettings
from cloud_tpu_diagnostics._collect.companion import CompanionProcess

path = sys.argv[1]
trace = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
faulthandler.enable(trace)
faulthandler.register(signal.SIGUSR1, trace)
faulthandler.register(signal.SIGRTMAX, trace, all_threads=False)
messages = []

def start(**settings):
    settings = {"trace_path": path, "is_shipped": True, "dump_signal": int(signal.SIGUSR1),
                "main_thread_signal": int(signal.SIGRTMAX), **settings}
    companion = CompanionProcess(
        CompanionSettings(interval_seconds=600, **settings), messages.append)
    while companion.pid is None:
        time.sleep(0.005)
    return companion

def report(*words):
    print(*words, flush=True)
"""


class Job(Child):
    """A program with a function `start`, which starts a companion."""

    def __init__(self, program: str, trace: Path, **popen: Any) -> None:
        super().__init__([sys.executable, *WITHOUT_FORK_WARNING, "-c", _HEAD + program, str(trace)], **popen)


class Outcome(NamedTuple):
    """The end of a job: its ML_DIAGNOSTICS_DIR; its exit code, stdout and stderr."""

    records: Path
    ended: tuple[int, str, str]


def at_once(programs: Iterable[str], folders: pytest.TempPathFactory) -> AtOnce[str, Outcome]:
    """Run jobs at once, each with records of its own."""

    def outcome(program: str) -> Outcome:
        records = folders.mktemp("ml-diagnostics")
        job = Job(program, folders.mktemp("job") / "trace", env={**os.environ, "ML_DIAGNOSTICS_DIR": str(records)})
        return Outcome(records, job.end(100))

    return AtOnce(outcome, programs)


def output_bytes_in_memory(pid: int) -> int:
    """Return the memory that the output of a job takes in `run`; 0 once that has ended."""
    found = 0
    with contextlib.suppress(OSError):
        for file in Path(f"/proc/{pid}/fd").iterdir():
            if "ml-diagnostics-console" in str(file.readlink()):
                found += file.stat().st_blocks * 512
    return found


def payloads() -> list[dict[str, Any]]:
    """Return the payloads of all entries that companions wrote to the journal, oldest first."""
    root = Path(os.environ["ML_DIAGNOSTICS_DIR"])
    return [entry.payload for batch in JournalReader(LOG_ID, root=root).read_new() for entry in batch]


def of_kind(kind: str) -> list[dict[str, Any]]:
    return [payload for payload in payloads() if payload["kind"] == kind]


def ending() -> dict[str, Any]:
    """Return the exit reason of the job, as soon as it is recorded."""
    wait_until(lambda: bool(of_kind(JOB_ENDED)))
    (found,) = of_kind(JOB_ENDED)
    return found
