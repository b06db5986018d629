"""Start runs in processes of their own, and read the state that they leave."""

from __future__ import annotations

import inspect
import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from google_cloud_mldiagnostics import machinelearning_run
from google_cloud_mldiagnostics._entries import PROCESS
from google_cloud_mldiagnostics._run.arguments import RunArguments
from google_cloud_mldiagnostics._run.lifecycle import Pauses
from google_cloud_mldiagnostics._run.start import RunStart
from google_cloud_mldiagnostics.mlrun_types import MLRun
from ml_diagnostics_common.environment import configured_backend, diagnostics_directory

from .kept_entries import kept_entries


def start_run(name: str = "train", *, pauses: Pauses | None = None, **arguments: Any) -> MLRun:
    """Start a run like `machinelearning_run`, with other waits if some are given; programs have this function too."""
    arguments = {"name": name, "log_system_metrics": False, **arguments}
    if pauses is None:
        return machinelearning_run(**arguments)
    call = inspect.signature(machinelearning_run).bind(**arguments)
    call.apply_defaults()
    return RunStart(RunArguments.checked(**call.arguments), configured_backend(), pauses=pauses).start()


PREAMBLE = f"""
from __future__ import annotations

import atexit, inspect, os, signal, sys, threading, time
from google_cloud_mldiagnostics import machinelearning_run, metrics
from google_cloud_mldiagnostics._run import lifecycle
from google_cloud_mldiagnostics._run.arguments import RunArguments
from google_cloud_mldiagnostics._run.lifecycle import Pauses
from google_cloud_mldiagnostics._run.start import RunStart
from ml_diagnostics_common.environment import configured_backend

lifecycle._LAST_COLLECT_SECONDS = 30.0  # The usual second may pass before the thread has the CPU.
signal.signal(signal.SIGINT, signal.default_int_handler)  # A shell has its background jobs ignore it.

{inspect.getsource(start_run)}
def ready():
    print("ready", flush=True)

"""

PATIENT = "pauses=Pauses(end_seconds=60.0)"
"""For runs with an end that must arrive: on a busy machine five seconds may not be enough to load the clients."""

WAIT = """
ready()
while True:
    time.sleep(0.01)
"""


class Ended(NamedTuple):
    code: int
    output: str
    errors: str


def start(program: str, prefix: Sequence[str] = (), **environment: str) -> subprocess.Popen[str]:
    """Start a program; `start_run()` in it starts a run."""
    return subprocess.Popen(
        [*prefix, sys.executable, "-c", PREAMBLE + textwrap.dedent(program)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "ML_DIAGNOSTICS_RAISE": "0", **environment},
    )


def end(process: subprocess.Popen[str], timeout_seconds: float = 100.0, input_text: str | None = None) -> Ended:
    """Wait until a program has ended, after sending it a text to read."""
    try:
        output, errors = process.communicate(input_text, timeout=timeout_seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise
    return Ended(process.returncode, output, errors)


def run(program: str, prefix: Sequence[str] = (), **environment: str) -> Ended:
    return end(start(program, prefix, **environment))


def run_until_ready(program: str, signal_number: int, **environment: str) -> Ended:
    """Run a program until it calls `ready()`, at its end at the latest, and send it a signal."""
    process = start(textwrap.dedent(program) + WAIT, **environment)
    await_line(process, "ready")
    process.send_signal(signal_number)
    return end(process)


def await_line(process: subprocess.Popen[str], text: str) -> None:
    """Read the program's output up to this line."""
    for line in process.stdout:
        if line.strip() == text:
            return
    raise AssertionError(f"it ended without {text}: {process.stderr.read()}")


def runs_folder() -> Path:
    return diagnostics_directory() / "runs"


def kept_runs() -> list[dict[str, Any]]:
    """Return every run of this test's folder, the oldest first."""
    found = [json.loads(path.read_text()) for path in runs_folder().glob("*/run.json")]
    return sorted(found, key=lambda run: run["createTime"])


def kept_run() -> dict[str, Any]:
    (only,) = kept_runs()
    return only


def phases() -> list[str]:
    """Return the phases that the processes recorded, in order."""
    return [entry.payload["phase"] for entry in kept_entries(PROCESS)]


SIGTERM = signal.SIGTERM
SIGKILL = signal.SIGKILL
SIGINT = signal.SIGINT
