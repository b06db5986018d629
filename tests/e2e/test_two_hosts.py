"""Two real processes under `jax.distributed`, killed and started again: one run, two attempts, and what each host did.

Once as two hosts in a cloud on loopback, each with a folder of its own; once as two processes of one machine.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from ml_diagnostics_testing.cloud_logging import CloudLoggingServer
from ml_diagnostics_testing.cloud_storage import CloudStorageServer

from ..loopback.control_plane import ControlPlaneServer
from ..waiting import free_port

pytest.importorskip("jax")

pytestmark = pytest.mark.timeout(300)

RUN, STEPS = "pair-try7", 20

JOB = """
import os, sys, time

index, port, first_step, last_step = map(int, sys.argv[1:5])
host, gcs_path = sys.argv[5:7]
if host:  # As if it were a machine of its own.
    real = os.uname()
    os.uname = lambda: os.uname_result((real.sysname, host, real.release, real.version, real.machine))

import jax
from google_cloud_mldiagnostics import machinelearning_run, metrics, xprof
from google_cloud_mldiagnostics._profiling.captures import finish_profiles

jax.distributed.initialize(f"127.0.0.1:{port}", 2, index)
jax.devices()
run = machinelearning_run(
    "pair", run_group="e2e", gcs_path=gcs_path or None, run_workload_id="try7", on_demand_xprof=True
)
for step in range(first_step, last_step):
    metrics.record("loss", jax.numpy.float32(index + 1 / (1 + step)), step, record_on_all_hosts=True)
    metrics.record("learning_rate", 1e-3, step)
jax._src.distributed.global_state.client.wait_at_barrier("trained", 60_000)
with xprof():
    jax.numpy.ones(8).sum().block_until_ready()
if first_step == 0:
    assert finish_profiles(60)  # As the end of a process does, which this one will not have.
print(run.name, flush=True)
if first_step == 0:
    time.sleep(600)  # To be killed.
"""


def run_both(
    first_step: int, folders: tuple[Path, Path], hosts: tuple[str, str], gcs_path: str, environ: Mapping[str, str]
) -> None:
    """Runs one attempt of the job; the first is killed when both processes have done their steps."""
    numbers = [str(free_port()), str(first_step), str(first_step + STEPS)]
    with contextlib.ExitStack() as processes_end:
        processes = []
        for index in (0, 1):
            process = subprocess.Popen(
                [sys.executable, "-W", "ignore", "-c", JOB, str(index), *numbers, hosts[index], gcs_path],
                env={**environ, "ML_DIAGNOSTICS_DIR": str(folders[index]), "JAX_PLATFORMS": "cpu"},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            processes.append(processes_end.enter_context(process))
            processes_end.callback(process.kill)
        if first_step == 0:
            names = [process.stdout.readline() for process in processes if process.stdout is not None]
            for process in processes:
                process.kill()
            assert names == [f"{RUN}\n"] * 2, [process.communicate()[1] for process in processes]
        errors = [process.communicate(timeout=120)[1] for process in processes]
    expected = -signal.SIGKILL if first_step == 0 else 0
    assert [process.returncode for process in processes] == [expected, expected], errors


def ask(environ: Mapping[str, str], *arguments: str) -> Any:
    """Return the output of the command, from JSON."""
    command = [sys.executable, "-m", "google_cloud_mldiagnostics.cli", *arguments, "--format", "json"]
    asked = subprocess.run(command, env=dict(environ), capture_output=True, text=True, timeout=60, check=False)
    assert asked.returncode == 0, asked.stderr
    return json.loads(asked.stdout)


def check_the_run(shown: dict[str, Any], hosts: list[str]) -> None:
    """Both attempts, both processes, and a profile of each attempt on both."""
    assert (shown["run"], shown["state"], shown["group"]) == (RUN, "COMPLETED", "e2e")
    assert [(attempt["number"], attempt["state"]) for attempt in shown["attempts"]] == [(1, "FAILED"), (2, "COMPLETED")]
    for attempt in shown["attempts"]:
        assert [process["process_index"] for process in attempt["processes"]] == [0, 1]
        assert [process["host"] for process in attempt["processes"]] == hosts
        assert all(process["profiler_port"] for process in attempt["processes"])
    assert [(profile["kind"], profile["state"]) for profile in shown["profiles"]] == [("programmatic", "SUCCEEDED")] * 2
    for profile in shown["profiles"]:
        assert [host["process_index"] for host in profile["hosts"]] == [0, 1]
    assert shown["configs"]["hardware"]["num_processes"] == "2"


def check_the_metrics(document: dict[str, Any]) -> None:
    """Each step once, of each process; of what only one records, of that."""
    series = {(one["metric"], one["process_index"]): one for one in document["metrics"]}
    steps = {name: [point["step"] for point in one["points"]] for name, one in series.items()}
    every_step = list(range(2 * STEPS))
    assert steps["loss", "0"] == steps["loss", "1"] == every_step
    assert steps["learning_rate", "0"] == every_step
    assert ("learning_rate", "1") not in steps
    assert [series["loss", index]["last"] for index in "01"] == pytest.approx([1 / 40, 1 + 1 / 40])
    assert ("process_memory", "0") in steps
    assert ("process_memory", "1") in steps


def test_two_hosts_share_a_run_in_the_cloud(
    control_plane_server: ControlPlaneServer,
    cloud_logging_server: CloudLoggingServer,
    cloud_storage_server: CloudStorageServer,
    tmp_path: Path,
) -> None:
    pytest.importorskip("google.cloud.storage")
    environ = dict(os.environ, ML_DIAGNOSTICS_BACKEND="cloud", ML_DIAGNOSTICS_RAISE="0")
    for server in (control_plane_server, cloud_logging_server, cloud_storage_server):
        environ |= server.environment()
    cloud_storage_server.create_bucket("bucket")
    folders, hosts = (tmp_path / "host-a", tmp_path / "host-b"), ("host-a", "host-b")
    for first_step in (0, STEPS):
        run_both(first_step, folders, hosts, "gs://bucket/profiles", environ)

    [kept] = control_plane_server.runs()
    assert kept["name"].endswith(f"/{RUN}")
    assert (kept["runPhase"], kept["labels"]["attempt"]) == ("COMPLETED", "2")
    sessions = control_plane_server.sessions(RUN)
    # Of the attempt that was killed, the last update may be missing there; the entries below have it.
    targets = [session["targetSessions"] for session in sessions]
    assert [set(target) <= set(hosts) for target in targets] == [True, True]
    assert {host: target["sessionPhase"] for host, target in targets[1].items()} == dict.fromkeys(hosts, "SUCCEEDED")
    names = [session["name"].rpartition("/")[2] for session in sessions]
    expected = {f"profiles/{RUN}/plugins/profile/{name}/{host}.xplane.pb" for name in names for host in hosts}
    assert set(cloud_storage_server.names("bucket")) == expected

    sent = [entry["insertId"] for entry in cloud_logging_server.entries()]
    assert len(sent) == len(set(sent))
    elsewhere = dict(environ, ML_DIAGNOSTICS_DIR=str(tmp_path / "elsewhere"))
    project = ["--project", control_plane_server.project]
    check_the_run(ask(elsewhere, "show", RUN, *project), list(hosts))
    check_the_metrics(ask(elsewhere, "metrics", RUN, *project))


def test_two_processes_of_one_machine_share_a_run_without_a_cloud(tmp_path: Path) -> None:
    environ, folder, host = dict(os.environ, ML_DIAGNOSTICS_RAISE="0"), tmp_path / "shared", os.uname().nodename
    for first_step in (0, STEPS):
        run_both(first_step, (folder, folder), ("", ""), "", environ)

    here = dict(environ, ML_DIAGNOSTICS_DIR=str(folder))
    check_the_run(ask(here, "show", RUN), [host, host])
    check_the_metrics(ask(here, "metrics", RUN))
    files = list((folder / "runs" / RUN / "profiles").glob("plugins/profile/*/*.xplane.pb"))
    assert len({file.parent for file in files}) == 2
    assert len(files) == 4
