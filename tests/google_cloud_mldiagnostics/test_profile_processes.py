"""Real processes of one job, under jax.distributed: one session, a file each, one word to the control plane."""

import json
import os
import socket
import subprocess
import sys
import textwrap

import pytest

from .profiled_runs import sessions_told, xplanes

pytest.importorskip("jax")

JOB = """
import json, os, sys, time
import jax
from google_cloud_mldiagnostics.active_run import ActiveRun, set_active_run
from google_cloud_mldiagnostics.mlrun_types import MLRun
from google_cloud_mldiagnostics.profiling.xprof import Xprof as xprof, finish_profiles
from google_cloud_mldiagnostics.run_log import RunLog
from ml_diagnostics_common.environment import diagnostics_directory

class Registration:
    sessions = []
    def put_session(self, session_id, session):
        self.sessions.append([session_id, session])

index, port = int(sys.argv[1]), sys.argv[2]
log = RunLog("run-1", location="us-central1", project="", labels={"process_index": str(index)}, is_shipped=False)
folder = diagnostics_directory() / "runs" / "run-1"
# As machinelearning_run leaves it that is called before jax.distributed.initialize: the index is not known yet.
set_active_run(ActiveRun(MLRun(name="run-1"), log, folder, "host-a", 0, 1, os.getpid(), True, Registration()))
jax.distributed.initialize(f"127.0.0.1:{port}", 2, index)
client = jax._src.distributed.global_state.client

def together(name):
    client.wait_at_barrier(name, 60_000)

def train():
    jax.numpy.ones(8).sum().block_until_ready()
"""


def run_job(program, count=2):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environ = {**os.environ, "JAX_PLATFORMS": "cpu"}
    source = textwrap.dedent(JOB) + textwrap.dedent(program)
    jobs = [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", source, str(index), str(port)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environ,
        )
        for index in range(count)
    ]
    answers = []
    for job in jobs:
        try:
            output, errors = job.communicate(timeout=100)
        except subprocess.TimeoutExpired:
            for other in jobs:
                other.kill()
            raise
        assert job.returncode == 0, errors
        answers.append(json.loads(output.splitlines()[-1]))
    return answers


def test_two_processes_share_a_session_and_a_listed_one_profiles_alone(tmp_path):
    answers = run_job("""
        if index == 0:  # A profile of which the other process knows nothing.
            with xprof(session_id="alone"):
                train()
        with xprof(process_index_list=[1]):
            train()
        together("begin")
        with xprof():
            train()
        together("end")
        assert finish_profiles(60)
        while index == 0 and Registration.sessions[-1][1]["targetSessions"]["host-a"]["sessionPhase"] == "ACTIVE":
            time.sleep(0.05)
        print(json.dumps(Registration.sessions))
        together("over")
    """)
    profiles = os.path.join(os.environ["ML_DIAGNOSTICS_DIR"], "runs/run-1/profiles/plugins/profile")  # noqa: PTH118
    files = [file.split("/") for file in xplanes(profiles)]
    shared = [session for session, _ in files if [name for name, _ in files].count(session) == 2]
    assert len(files) == 4, files
    assert len(set(shared)) == 1, files
    names = {name for session, name in files if session == shared[0]}
    assert "host-a.xplane.pb" in names
    assert names < {"host-a.xplane.pb", "host-a-0.xplane.pb", "host-a-1.xplane.pb"}

    # Process 0 speaks for both, and process 1 only for the one it took alone.
    last_of_0, last_of_1 = (answer[-1] for answer in answers)
    assert last_of_0[0] == shared[0]
    assert last_of_0[1]["profilerTargets"] == sorted(name.removesuffix(".xplane.pb") for name in names)
    assert {told["sessionPhase"] for told in last_of_0[1]["targetSessions"].values()} == {"SUCCEEDED"}
    assert last_of_1[0] not in (shared[0], "alone")
    assert len([told for told in sessions_told("run-1") if told == (shared[0], "SUCCEEDED")]) == 2
