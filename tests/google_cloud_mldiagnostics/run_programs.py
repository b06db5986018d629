"""Programs that begin a run in a process of their own, and what is left of it when they have ended."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from ml_diagnostics_common.entry import LogEntry
from ml_diagnostics_common.reader import JournalReader

BEGIN = """
import atexit, os, signal, sys, threading, time
from google_cloud_mldiagnostics import machinelearning_run, metrics

def begin(name="train", **arguments):
    return machinelearning_run(name, log_system_metrics=False, **arguments)

def ready():
    print("ready", flush=True)

"""

WAIT = """
ready()
while True:
    time.sleep(0.01)
"""


class Ended(NamedTuple):
    code: int
    output: str
    errors: str


def start(program: str, prefix: Sequence[str] = (), **environment: str) -> subprocess.Popen:
    """Starts a program; `begin()` in it begins a run."""
    return subprocess.Popen(
        [*prefix, sys.executable, "-c", BEGIN + textwrap.dedent(program)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "ML_DIAGNOSTICS_RAISE": "0", **environment},
    )


def end(process: subprocess.Popen, timeout_seconds: float = 30.0, say: str | None = None) -> Ended:
    """Waits until a program has ended; first, says something to it."""
    try:
        output, errors = process.communicate(say, timeout=timeout_seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise
    return Ended(process.returncode, output, errors)


def run(program: str, prefix: Sequence[str] = (), **environment: str) -> Ended:
    return end(start(program, prefix, **environment))


def run_until_ready(program: str, signal_number: int, **environment: str) -> Ended:
    """Runs a program until it says `ready()`, which it does at its end at the latest, and sends it a signal."""
    process = start(textwrap.dedent(program) + WAIT, **environment)
    await_line(process, "ready")
    process.send_signal(signal_number)
    return end(process)


def await_line(process: subprocess.Popen, text: str) -> None:
    """Reads what the program says until it says that."""
    for line in process.stdout:
        if line.strip() == text:
            return
    raise AssertionError(f"it ended without {text}: {process.stderr.read()}")


def runs_folder() -> Path:
    return Path(os.environ["ML_DIAGNOSTICS_DIR"]) / "runs"


def kept_runs() -> list[dict]:
    """Every run of this test's folder, the oldest first."""
    found = [json.loads(path.read_text()) for path in runs_folder().glob("*/run.json")]
    return sorted(found, key=lambda run: run["createTime"])


def kept_run() -> dict:
    (only,) = kept_runs()
    return only


def entries(namespace: str) -> list[LogEntry]:
    """What the journal has under a namespace, in its order."""
    reader = JournalReader("ml_diagnostics_metric", root=Path(os.environ["ML_DIAGNOSTICS_DIR"]))
    return [entry for batch in reader.read_new() for entry in batch if entry.resource_label("namespace") == namespace]


def phases() -> list[str]:
    """What the processes said of themselves, in order."""
    return [entry.payload["phase"] for entry in entries("mlrun_process")]


def eventually(condition, timeout_seconds: float = 20.0):
    """Waits for something that another thread or process does, and returns it."""
    deadline = time.monotonic() + timeout_seconds
    while True:
        with contextlib.suppress(FileNotFoundError, KeyError, IndexError):
            found = condition()
            if found:
                return found
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.01)


SIGTERM = signal.SIGTERM
SIGKILL = signal.SIGKILL
SIGINT = signal.SIGINT
