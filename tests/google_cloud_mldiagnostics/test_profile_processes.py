"""Real processes of one job, under jax.distributed: one session, a file each, one report to the control plane."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from ml_diagnostics_testing.cloud_logging import CloudLoggingServer
from ml_diagnostics_testing.cloud_storage import CloudStorageServer

from ..loopback.control_plane import ControlPlaneServer
from ..waiting import free_port
from .profiled_runs import reported_sessions, xplanes

pytest.importorskip("jax")

JOB = """
import json, os, sys, time
import jax
from google_cloud_mldiagnostics._run_state.active_run import ActiveRun, set_active_run
from google_cloud_mldiagnostics.mlrun_types import MLRun
from google_cloud_mldiagnostics._profiling import sessions
from google_cloud_mldiagnostics._profiling.captures import finish_profiles
from google_cloud_mldiagnostics import xprof
from google_cloud_mldiagnostics._recording.run_log import RunLog
from ml_diagnostics_common.environment import diagnostics_directory

class Registration:
    sessions = []
    def put_session(self, session_id, session):
        self.sessions.append([session_id, session])

sessions._TIMEOUT_SECONDS = 60.0  # The other process may be kept from the CPU for some seconds.
index, port = int(sys.argv[1]), sys.argv[2]
log = RunLog("run-1", location="us-central1", project="", labels={"process_index": str(index)}, is_shipped=False)
folder = diagnostics_directory() / "runs" / "run-1"
# The state after machinelearning_run before jax.distributed.initialize: the index is not known yet.
set_active_run(ActiveRun(MLRun(name="run-1"), log, folder, "host-a", 0, 1, os.getpid(), True, Registration()))
jax.distributed.initialize(f"127.0.0.1:{port}", 2, index)
client = jax._src.distributed.global_state.client

def together(name):
    client.wait_at_barrier(name, 60_000)

def train():
    jax.numpy.ones(8).sum().block_until_ready()
"""


def run_job(source: str, count: int = 2) -> list[Any]:
    """Run a program in several processes; return the last line of each, which is JSON."""
    port = free_port()
    jobs = [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", source, str(index), str(port)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "JAX_PLATFORMS": "cpu"},
        )
        for index in range(count)
    ]
    try:
        answers = [job.communicate(timeout=100) for job in jobs]
    except subprocess.TimeoutExpired:
        for job in jobs:
            job.kill()
            job.communicate()
        raise
    assert [job.returncode for job in jobs] == [0] * count, answers
    return [json.loads(output.splitlines()[-1]) for output, _ in answers]


def test_two_processes_share_a_session_and_a_listed_one_profiles_alone(tmp_path: Path) -> None:
    answers = run_job(
        JOB
        + textwrap.dedent("""
        if index == 0:  # A profile that the other process does not take.
            with xprof(session_id="alone"):
                train()
        with xprof(process_index_list=[1]):
            train()
        together("start")
        with xprof():
            train()
        together("end")
        assert finish_profiles(60)
        while index == 0 and not any(len(session["targetSessions"]) == 2 for _, session in Registration.sessions):
            time.sleep(0.05)
        print(json.dumps(Registration.sessions))
        together("over")
    """)
    )
    profiles = os.path.join(os.environ["ML_DIAGNOSTICS_DIR"], "runs/run-1/profiles/plugins/profile")  # noqa: PTH118
    files = [file.split("/") for file in xplanes(profiles)]
    shared = [session for session, _ in files if [name for name, _ in files].count(session) == 2]
    assert len(files) == 4, files
    assert len(set(shared)) == 1, files
    names = {name for session, name in files if session == shared[0]}
    assert "host-a.xplane.pb" in names
    assert names < {"host-a.xplane.pb", "host-a-0.xplane.pb", "host-a-1.xplane.pb"}

    # Process 0 reports for both, and process 1 only the profile that it took alone.
    last_of_0 = [reported for reported in answers[0] if reported[0] == shared[0]][-1]
    last_of_1 = answers[1][-1]
    assert last_of_0[1]["profilerTargets"] == sorted(name.removesuffix(".xplane.pb") for name in names)
    assert {reported["sessionPhase"] for reported in last_of_0[1]["targetSessions"].values()} == {"SUCCEEDED"}
    assert last_of_1[0] not in (shared[0], "alone")
    assert len([reported for reported in reported_sessions("run-1") if reported == (shared[0], "SUCCEEDED")]) == 2


CLOUD_JOB = """
import json, sys
import jax
from google_cloud_mldiagnostics import machinelearning_run, xprof
from google_cloud_mldiagnostics._profiling import sessions
from google_cloud_mldiagnostics._profiling.captures import finish_profiles

sessions._TIMEOUT_SECONDS = 60.0

index, port = int(sys.argv[1]), sys.argv[2]
jax.distributed.initialize(f"127.0.0.1:{port}", 2, index)
run = machinelearning_run("job", project="test-project", gcs_path="gs://bucket/folder", log_system_metrics=False)
together = jax._src.distributed.global_state.client.wait_at_barrier

together("start", 60_000)
with xprof():
    jax.numpy.ones(8).sum().block_until_ready()
together("end", 60_000)
assert finish_profiles(60)
together("uploaded", 60_000)  # The last report of a session is sent when all processes have uploaded.
print(json.dumps(run.name))
"""


def test_in_a_cloud_two_processes_make_one_session_of_one_run(
    control_plane_server: ControlPlaneServer,
    cloud_logging_server: CloudLoggingServer,
    cloud_storage_server: CloudStorageServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("google.cloud.storage")
    for server in (control_plane_server, cloud_logging_server, cloud_storage_server):
        for name, value in server.environment().items():
            monkeypatch.setenv(name, value)
    monkeypatch.setenv("ML_DIAGNOSTICS_BACKEND", "cloud")
    monkeypatch.setenv("ML_DIAGNOSTICS_RAISE", "0")
    cloud_storage_server.create_bucket("bucket")
    (run_id,) = set(run_job(CLOUD_JOB))
    files = [name.split("/") for name in cloud_storage_server.names("bucket")]
    assert len(files) == 2
    assert {file[1] for file in files} == {run_id}
    (session_id,) = {file[4] for file in files}
    (session,) = control_plane_server.sessions(run_id)
    assert session["name"].endswith(f"/profilerSessions/{session_id}")
    assert session["storageFolderUri"] == f"gs://bucket/folder/{run_id}/plugins/profile/{session_id}"
    phases = {host: reported["sessionPhase"] for host, reported in session["targetSessions"].items()}
    assert phases == {file[5].removesuffix(".xplane.pb"): "SUCCEEDED" for file in files}
