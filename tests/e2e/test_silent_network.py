"""A trainer that uses several of the libraries ends by itself, and soon, while no server answers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TypeAlias

import pytest
from ml_diagnostics_common.reader import JournalReader
from ml_diagnostics_testing.cloud_logging import CloudLoggingServer
from ml_diagnostics_testing.faults import Hang

from ..loopback.control_plane import ControlPlaneServer
from ..waiting import AtOnce

_TRAINER = """
import os, signal, sys, time
from google_cloud_mldiagnostics import machinelearning_run, metrics
from ml_goodput_measurement.goodput import GoodputRecorder

signal.signal(signal.SIGINT, signal.default_int_handler)
recorder = GoodputRecorder("attacked", "goodput_attacked", True)
recorder.record_job_start_time()
machinelearning_run("attacked", log_system_metrics=False)
for step in range(100):
    recorder.record_step_start_time(step)
    metrics.record("loss", float(step), step=step)
    time.sleep(0.01)
print("last line", flush=True)
"""
_ENDS = {
    "": 0,
    "sys.exit(3)": 3,
    "raise ValueError('theirs')": 1,
    "os.kill(os.getpid(), signal.SIGTERM); time.sleep(60)": -signal.SIGTERM,
    "os.kill(os.getpid(), signal.SIGINT); time.sleep(60)": -signal.SIGINT,
}
_Ended: TypeAlias = tuple[Path, int, float]


@pytest.fixture(scope="module")
def ends(tmp_path_factory: pytest.TempPathFactory) -> AtOnce[str, _Ended]:
    """Return the records of a trainer, its exit status, and the seconds between its last line and its end."""

    def end(last: str) -> _Ended:
        records = tmp_path_factory.mktemp("ml-diagnostics")
        variables = {"ML_DIAGNOSTICS_DIR": str(records), "ML_DIAGNOSTICS_BACKEND": "cloud", "ML_DIAGNOSTICS_RAISE": "0"}
        with CloudLoggingServer() as cloud_logging, ControlPlaneServer() as control_plane:
            for server in (cloud_logging, control_plane):
                server.faults.always(Hang())
                variables |= server.environment()
            trainer = subprocess.Popen(
                [sys.executable, "-c", _TRAINER + last],
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={**os.environ, **variables},
                cwd=records,
            )
            assert trainer.stdout is not None
            with trainer.stdout as lines:
                assert lines.readline() == b"last line\n"
            started = time.monotonic()
            return records, trainer.wait(timeout=60), time.monotonic() - started

    return AtOnce(end, _ENDS)


@pytest.mark.timing
@pytest.mark.parametrize(("last", "status"), _ENDS.items(), ids=["return", "exit", "exception", "SIGTERM", "SIGINT"])
def test_the_libraries_share_the_time_for_which_they_hold_up_the_end(
    last: str, status: int, ends: AtOnce[str, _Ended]
) -> None:
    """Each waits five seconds at most; one after the other they took more than ten."""
    records, found, seconds = ends.result(last)
    assert found == status
    assert seconds < 8
    reader = JournalReader("goodput_attacked", root=records)
    steps = [
        entry.payload["step_count"] for batch in reader.read_new() for entry in batch if "step_count" in entry.payload
    ]
    assert steps == list(range(100))
