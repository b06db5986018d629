"""Thousands of jobs that live two seconds at most: each run ends as its process did, or `sync` completes it.

The jobs are forked from one process that has loaded the clients, so that the machine is busy with their ends rather
than with their imports; each then ends by itself, with all hooks of the interpreter.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from google_cloud_mldiagnostics.cli import main

from ..loopback.control_plane import ControlPlaneServer

JOBS = """
import json, os, random, sys, time
import google.cloud.logging_v2, google.auth.transport.requests  # What each job would load by itself.
from google_cloud_mldiagnostics import machinelearning_run

count, at_once, folder = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
dice, alive, codes = random.Random(12), {}, {}

def reap():
    pid, status = os.wait()
    codes[alive.pop(pid)] = os.waitstatus_to_exitcode(status)

for number in range(count):
    if len(alive) >= at_once:
        reap()
    seconds = dice.choice([0.0, 0.0, dice.random() / 2, 2 * dice.random()])
    ending = dice.choice(["return", "exit", "raise"])
    pid = os.fork()
    if not pid:
        break
    alive[pid] = f"job{number}"
else:
    while alive:
        reap()
    with open(f"{folder}/codes.json", "w") as file:
        json.dump(codes, file)
    os._exit(0)

os.dup2(os.open(f"{folder}/job{number}.txt", os.O_WRONLY | os.O_CREAT), 2)
os.environ["RUN_WORKLOAD_ID"] = "w"
machinelearning_run(f"job{number}", log_system_metrics=False)
time.sleep(seconds)
if ending == "exit":
    sys.exit(0)
if ending == "raise":
    raise ValueError("nan")
"""


def live_and_die(server: ControlPlaneServer, folder: Path, count: int, at_once: int) -> dict[str, str]:
    """Run the jobs; return the phase that each should have."""
    environment = {**os.environ, "ML_DIAGNOSTICS_RAISE": "0"}
    process = subprocess.Popen([sys.executable, "-c", JOBS, str(count), str(at_once), str(folder)], env=environment)
    dice = random.Random(12)
    while process.poll() is None:
        server.operations.polls = dice.randint(0, 5)
        time.sleep(0.02)
    assert process.returncode == 0
    codes = json.loads((folder / "codes.json").read_text())
    assert len(codes) == count
    return {f"{job}-w": "FAILED" if code else "COMPLETED" for job, code in codes.items()}


def phases(server: ControlPlaneServer) -> dict[str, Any]:
    return {run["name"].rpartition("/")[2]: run["runPhase"] for run in server.runs()}


@pytest.mark.timing
@pytest.mark.skipif(not hasattr(os, "fork"), reason="the jobs are forked")
@pytest.mark.parametrize(
    ("count", "at_once"), [(24, 8), pytest.param(2000, 24, marks=pytest.mark.slow)], ids=["quick", "slow"]
)
def test_every_run_has_the_outcome_of_its_process_or_a_warning_that_sync_completes_it(
    cloud_of_a_run: ControlPlaneServer, tmp_path: Path, count: int, at_once: int
) -> None:
    server = cloud_of_a_run
    expected = live_and_die(server, tmp_path, count, at_once)
    kept = phases(server)
    behind = {run for run, phase in expected.items() if kept.get(run) != phase}
    silent = [run for run in behind if f"mldiagnostics sync {run}" not in (tmp_path / f"{run[:-2]}.txt").read_text()]
    assert not silent, {run: (expected[run], kept.get(run)) for run in silent}
    assert len(behind) <= 0.2 * count, behind  # 7 % on two cores with a load of 40.
    server.operations.polls = 0
    for run in behind:
        assert main(["sync", run]) == 0
    assert phases(server) == expected
