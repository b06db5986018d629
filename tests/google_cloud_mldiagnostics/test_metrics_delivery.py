"""Recorded values arrive after any end of their process: at once, or by the next process that ships."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from ml_diagnostics_common.cloud_logging import connect
from ml_diagnostics_testing.cloud_logging import CloudLoggingServer
from ml_diagnostics_testing.faults import Hang

from ..waiting import wait_until
from .recorded_runs import active, metrics_of

PROGRAM = """
import os, signal, sys, threading, time
from pathlib import Path
from google_cloud_mldiagnostics._run_state.active_run import ActiveRun, set_active_run
from google_cloud_mldiagnostics.metrics import record
from google_cloud_mldiagnostics.mlrun_types import MLRun
from google_cloud_mldiagnostics._recording.run_log import RunLog

root, count = Path(sys.argv[1]), int(sys.argv[2])
log = RunLog(
    "run", location="here", project="", labels={"pid": "0"}, is_shipped=True, root=root, grace_period_seconds=1.0)
set_active_run(ActiveRun(MLRun("run"), log, root, "h", 0, 1, os.getpid(), False))
for step in range(count):
    record("loss" if step % 2 else "step_time", step / 7, step)
"""

ENDS = {
    "sys.exit(3)": 3,
    "os.kill(os.getpid(), signal.SIGTERM)": -signal.SIGTERM,
    "os.kill(os.getpid(), signal.SIGKILL)": -signal.SIGKILL,
    "os._exit(4)": 4,
    "raise ValueError": 1,
}


def run(root: Path, server: CloudLoggingServer, count: int, end: str) -> subprocess.CompletedProcess[bytes]:
    environ = {
        **os.environ,
        **server.environment(),
        "ML_DIAGNOSTICS_BACKEND": "auto",
    }
    command = [sys.executable, "-c", PROGRAM + end, str(root), str(count)]
    return subprocess.run(command, env=environ, timeout=110, check=False, capture_output=True)


def ship_the_rest(root: Path, server: CloudLoggingServer, count: int) -> None:
    """Send what is left, as the next process of the run does at its start."""
    environ = server.environment()

    def arrived() -> int:
        return sum(record.entries or 0 for record in server.requests_for("write")) - server.duplicates

    with active(root, run_id="next", is_shipped=True, connect=lambda: connect(environ=environ)):
        wait_until(lambda: arrived() >= count, 100)


def assert_arrived(server: CloudLoggingServer, count: int) -> None:
    steps: Counter[tuple[str, int]] = Counter()
    for entry in server.entries():
        payload = entry["jsonPayload"]
        assert payload["values"] == [payload["step_index"] / 7]
        steps[entry["resource"]["labels"]["namespace"], payload["step_index"]] += 1
    assert steps == Counter(("loss" if step % 2 else "step_time", step) for step in range(count))


@pytest.mark.parametrize("end", ENDS)
def test_all_of_a_last_second_arrives(tmp_path: Path, cloud_logging_server: CloudLoggingServer, end: str) -> None:
    done = run(tmp_path, cloud_logging_server, 3000, end)
    assert done.returncode == ENDS[end], done.stderr.decode()
    ship_the_rest(tmp_path, cloud_logging_server, 3000)
    assert_arrived(cloud_logging_server, 3000)


@pytest.mark.slow
@pytest.mark.parametrize("end", list(ENDS)[:3])
def test_a_hundred_thousand_of_a_last_second_arrive(
    tmp_path: Path, cloud_logging_server: CloudLoggingServer, end: str
) -> None:
    done = run(tmp_path, cloud_logging_server, 100_000, end)
    assert done.returncode == ENDS[end], done.stderr.decode()
    assert len(metrics_of(tmp_path, "run")) == 100_000
    ship_the_rest(tmp_path, cloud_logging_server, 100_000)
    assert_arrived(cloud_logging_server, 100_000)


@pytest.mark.timing
def test_a_hanging_cloud_delays_neither_the_steps_nor_the_exit(
    tmp_path: Path, cloud_logging_server: CloudLoggingServer
) -> None:
    cloud_logging_server.faults.always(Hang(), on="write")
    timed = """
def seconds():
    started_at = time.perf_counter()
    for step in range(1000):
        record("loss", 0.5, step)
    return time.perf_counter() - started_at
before = min(seconds() for _ in range(20))
log.flush(0.2)  # The request has started, and hangs.
print(before, min(seconds() for _ in range(20)))
"""
    done = run(tmp_path, cloud_logging_server, 10, timed)
    before, during = map(float, done.stdout.split())
    assert done.returncode == 0, done.stderr.decode()
    assert during < 5 * before
    assert len(cloud_logging_server.requests_for("write")) == 1  # The process ended before that request timed out.
    assert len(metrics_of(tmp_path, "run")) == 40_010


def test_a_signal_handler_may_record(tmp_path: Path, cloud_logging_server: CloudLoggingServer) -> None:
    handled = """
def handler(*_):
    record("preempted", 1.0, 7)
    sys.exit(0)
signal.signal(signal.SIGTERM, handler)
threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGTERM)).start()
step = count
while True:
    record("busy", float(step))
    step += 1
"""
    done = run(tmp_path, cloud_logging_server, 10, handled)
    assert done.returncode == 0, done.stderr.decode()
    assert ("preempted", {"values": [1.0], "step_index": 7, "unit": "1"}) in metrics_of(tmp_path, "run")


def test_a_forked_child_records_to_the_same_run(tmp_path: Path, cloud_logging_server: CloudLoggingServer) -> None:
    forks = """
import warnings; warnings.simplefilter("ignore")
for number in range(20):
    child = os.fork()
    if child == 0:
        for step in range(100): record(f"child-{number}", float(step), step)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
"""
    done = run(tmp_path, cloud_logging_server, 0, forks)
    assert done.returncode == 0, done.stderr.decode()
    counts = Counter(name for name, _ in metrics_of(tmp_path, "run"))
    assert counts == {f"child-{number}": 100 for number in range(20)}


def test_importing_and_recording_load_nothing_heavy(tmp_path: Path) -> None:
    program = f"{PROGRAM.replace('is_shipped=True', 'is_shipped=False')}\nprint(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path), "10"], timeout=60, check=True, capture_output=True, text=True
    )
    loaded = set(done.stdout.split())
    assert not loaded & {"jax", "numpy", "grpc", "requests", "psutil", "google.cloud.logging", "google.auth", "torch"}
