"""The command `mldiagnostics` and Google Cloud: runs are brought there once, and are shown there as here."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from google_cloud_mldiagnostics import _entries as entries
from google_cloud_mldiagnostics import machinelearning_run, metrics
from google_cloud_mldiagnostics._reading import run_source
from google_cloud_mldiagnostics._recording.run_log import namespace_fields
from google_cloud_mldiagnostics.cli import main
from google_cloud_mldiagnostics.control_plane.local import LocalControlPlane
from google_cloud_mldiagnostics.core.global_manager import active_run
from google_cloud_mldiagnostics.mlrun_types import MLRun
from ml_diagnostics_common import storage
from ml_diagnostics_common.environment import diagnostics_directory
from ml_diagnostics_testing.cloud_logging import CloudLoggingServer
from ml_diagnostics_testing.cloud_storage import CloudStorageServer
from ml_diagnostics_testing.faults import Status

from ..damaged_cloud_logging import DamagedCloudLogging
from ..loopback.control_plane import ControlPlaneServer
from ..waiting import wait_until
from .kept_entries import kept_entries

Captured = pytest.CaptureFixture[str]
PROJECT = ("--project", "test-project")


class Cloud(NamedTuple):
    """The services of Google Cloud that the command needs."""

    runs: ControlPlaneServer
    log: CloudLoggingServer
    bucket: CloudStorageServer

    def values(self, run_id: str, metric: str = "loss") -> list[float]:
        """Return the values of a metric in Cloud Logging."""
        filter_ = f'resource.labels.node_id="{run_id}" AND resource.labels.namespace="{metric}"'
        return [value for entry in self.log.entries(filter_) for value in entry["jsonPayload"]["values"]]


@pytest.fixture
def cloud(
    control_plane_server: ControlPlaneServer,
    cloud_logging_server: CloudLoggingServer,
    cloud_storage_server: CloudStorageServer,
    monkeypatch: pytest.MonkeyPatch,
) -> Cloud:
    servers = Cloud(control_plane_server, cloud_logging_server, cloud_storage_server)
    for server in servers:
        for name, value in server.environment().items():
            monkeypatch.setenv(name, value)
    return servers


def recorded(steps: int = 5, **options: Any) -> MLRun:
    """Record a local run that stays active."""
    run = machinelearning_run(name="trained", run_group="sweep", configs={"layers": 2}, **options)
    for step in range(steps):
        metrics.record("loss", 5.0 - step, step=step)
    return run


def shown(capsys: Captured, *arguments: str, code: int = 0) -> str:
    """Run a command; return its standard output."""
    capsys.readouterr()
    found = main(arguments)
    captured = capsys.readouterr()
    assert found == code, captured.err
    return captured.out


def insert_ids(run_id: str) -> list[str]:
    """Return the insert ids of the run's entries in the journal."""
    return sorted(entry.insert_id for entry in kept_entries(run_id=run_id))


def test_sync_creates_the_run_in_the_cloud_with_all_its_entries(cloud: Cloud, capsys: Captured) -> None:
    run = recorded()
    run.finish()
    page = shown(capsys, "sync", run.name)
    kept = cloud.runs.run(run.name)
    assert (kept["runPhase"], kept["runSet"], kept["displayName"]) == ("COMPLETED", "sweep", "trained")
    assert kept["configs"]["userConfigs"] == {"layers": "2"}
    assert cloud.values(run.name) == [5.0, 4.0, 3.0, 2.0, 1.0]
    there = cloud.log.entries(f'resource.labels.node_id="{run.name}"')
    assert sorted(entry["insertId"] for entry in there) == insert_ids(run.name)
    assert {entry["resource"]["labels"]["project_id"] for entry in there} == {"test-project"}
    assert f"run       created in the project test-project (us-central1)\nentries   {len(there)} entries sent\n" in page
    assert f"/{run.name}?project=test-project" in page


def test_a_run_is_created_in_the_project_and_region_of_its_job(cloud: Cloud, capsys: Captured) -> None:
    run = recorded(project="their-project", region="europe-west4")
    run.finish()
    assert "created in the project their-project (europe-west4)" in shown(capsys, "sync", run.name)
    assert [kept["name"] for kept in cloud.runs.runs()] == [
        f"projects/their-project/locations/europe-west4/machineLearningRuns/{run.name}"
    ]
    assert "created in the project test-project (europe-west4)" in shown(capsys, "sync", run.name, *PROJECT)


def test_twice_is_once(cloud: Cloud, capsys: Captured) -> None:
    run = recorded()
    run.finish()
    shown(capsys, "sync", run.name)
    kept, count = cloud.runs.run(run.name), len(cloud.log.entries())
    assert "entries   0 entries sent" in shown(capsys, "sync", run.name)
    assert (len(cloud.log.entries()), cloud.log.duplicates) == (count, 0)
    assert cloud.runs.run(run.name) == kept


def test_an_active_run_can_be_synced_and_synced_again(cloud: Cloud, capsys: Captured) -> None:
    run = recorded()
    shown(capsys, "sync", run.name)
    assert cloud.runs.run(run.name)["runPhase"] == "ACTIVE"
    metrics.record("loss", 0.5, step=5)
    run.configs.update({"layers": 3})
    run.finish("FAILED")
    shown(capsys, "sync", run.name)
    kept = cloud.runs.run(run.name)
    assert (kept["runPhase"], kept["configs"]["userConfigs"]) == ("FAILED", {"layers": "3"})
    assert cloud.values(run.name) == [5.0, 4.0, 3.0, 2.0, 1.0, 0.5]
    assert cloud.log.duplicates == 0


def test_entries_that_the_run_has_shipped_are_not_sent_again(
    cloud: Cloud, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ML_DIAGNOSTICS_BACKEND", "cloud")
    run = recorded(project="test-project")
    run.finish()
    before = cloud.values(run.name)
    assert before == [5.0, 4.0, 3.0, 2.0, 1.0]
    assert "updated" in shown(capsys, "sync", run.name)
    assert (cloud.values(run.name), cloud.log.duplicates) == (before, 0)


def test_quiet_silences_the_number_of_entries_read(
    cloud: Cloud, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = recorded()
    run.finish()
    shown(capsys, "sync", run.name)
    eager = functools.partial(run_source.CloudSource, progress_seconds=0.0)
    monkeypatch.setattr(run_source, "CloudSource", eager)
    assert main(["show", run.name, *PROJECT]) == 0
    assert " entries read\n" in capsys.readouterr().err
    assert main(["show", run.name, *PROJECT, "--quiet"]) == 0
    assert capsys.readouterr().err == ""


def test_only_the_run_is_brought(cloud: Cloud, capsys: Captured) -> None:
    other = recorded()
    other.finish()
    run = recorded()
    run.finish()
    shown(capsys, "sync", run.name)
    assert [kept["name"].rpartition("/")[2] for kept in cloud.runs.runs()] == [run.name]
    assert {entry["resource"]["labels"]["node_id"] for entry in cloud.log.entries()} == {run.name}


def test_a_killed_run_is_failed_in_the_cloud_by_sync(cloud: Cloud, capsys: Captured) -> None:
    code = (
        "import os\nfrom google_cloud_mldiagnostics import machinelearning_run, metrics\n"
        "run = machinelearning_run(name='killed')\nprint(run.name, flush=True)\nos.kill(os.getpid(), 9)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    run_id = done.stdout.split()[0]
    shown(capsys, "sync", run_id)
    assert cloud.runs.run(run_id)["runPhase"] == "FAILED"


@pytest.mark.parametrize(("phase", "attempt"), [("FAILED", "1"), ("FAILED", "2"), ("ACTIVE", "2")])
def test_a_failure_and_a_later_attempt_in_the_control_plane_are_not_overwritten(
    phase: str, attempt: str, cloud: Cloud, capsys: Captured
) -> None:
    run = recorded()
    run.finish()
    labels = {"attempt": attempt, "mine": "yes"}
    cloud.runs.put_run(run.name, {"displayName": "trained", "runPhase": phase, "labels": labels})
    shown(capsys, "sync", run.name)
    kept = cloud.runs.run(run.name)
    assert (kept["runPhase"], kept["labels"]["attempt"], kept["labels"]["mine"]) == (phase, attempt, "yes")
    assert kept["configs"]["userConfigs"] == {"layers": "2"}


def profile(run_id: str, session: str, folder: str = "profiles") -> Path:
    """Store a profile in the folder of a run and in its local control plane."""
    folder_of_run = diagnostics_directory() / "runs" / run_id / folder
    file = folder_of_run / "plugins" / "profile" / session / "host-0.xplane.pb"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"xplane")
    resource = {"kind": "KIND_SNAPSHOT", "storageFolderUri": str(file.parent), "targetSessions": {"host-0": {}}}
    LocalControlPlane(diagnostics_directory()).put_session(run_id, session, resource)
    return file


def test_sync_uploads_profiles_and_reports_them(cloud: Cloud, capsys: Captured) -> None:
    run = recorded()
    run.finish()
    profile(run.name, "s1")
    arguments = ("sync", run.name, "--gcs-path", "gs://test-bucket/traces")
    assert "1 file sent (6 B), 0 sent before; 1 session\n" in shown(capsys, *arguments)
    name = f"traces/{run.name}/plugins/profile/s1/host-0.xplane.pb"
    assert cloud.bucket.names("test-bucket") == [name]
    assert cloud.bucket.read("test-bucket", name) == b"xplane"
    (session,) = cloud.runs.sessions(run.name)
    assert session["storageFolderUri"] == f"gs://test-bucket/traces/{run.name}/plugins/profile/s1"
    assert cloud.runs.run(run.name)["artifacts"]["gcsPath"] == "gs://test-bucket/traces"
    generation = cloud.bucket.stored("test-bucket", name).generation
    assert "0 files sent (0 B), 1 sent before" in shown(capsys, *arguments)
    assert cloud.bucket.stored("test-bucket", name).generation == generation


def test_profiles_that_only_wait_here_are_moved(cloud: Cloud, capsys: Captured) -> None:
    run = recorded(gcs_path="gs://test-bucket")
    run.finish()
    file = profile(run.name, "s1", "staged")
    shown(capsys, "sync", run.name)
    assert cloud.bucket.names("test-bucket") == [f"{run.name}/plugins/profile/s1/host-0.xplane.pb"]
    assert not file.exists()
    (known,) = json.loads(shown(capsys, "show", run.name, "--format", "json"))["profiles"]
    assert known["folder"] == f"gs://test-bucket/{run.name}/plugins/profile/s1"


def test_profiles_without_a_bucket_stay_local_with_a_message(cloud: Cloud, capsys: Captured) -> None:
    run = recorded()
    run.finish()
    file = profile(run.name, "s1")
    assert "profiles  1 file not sent: give their path with --gcs-path" in shown(capsys, "sync", run.name)
    assert file.exists()
    assert cloud.runs.sessions(run.name) == []


def test_a_refusal_is_one_error_with_the_action_to_take(cloud: Cloud, capsys: Captured) -> None:
    run = recorded()
    run.finish()
    cloud.runs.is_permitted = False
    assert main(["sync", run.name]) == 4
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "roles/" in captured.err
    assert len(captured.err.splitlines()) == 1


def test_a_server_that_is_down_costs_time_and_one_that_stays_down_a_second_command(
    cloud: Cloud, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = recorded(steps=1200)
    run.finish()
    cloud.log.faults.script([None, Status(503), Status(401)], on="write")
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    assert main(["sync", run.name]) == 4
    capsys.readouterr()
    assert 0 < len(cloud.values(run.name)) < 1200
    shown(capsys, "sync", run.name)
    assert len(cloud.values(run.name)) == 1200


def test_entries_that_cloud_logging_refuses_are_counted_and_the_rest_arrives(cloud: Cloud, capsys: Captured) -> None:
    run = recorded()
    now = active_run()
    assert now is not None
    deep = "[" * 120 + "]" * 120  # Deeper than Cloud Logging accepts.
    now.log.write_text(str(time.time_ns()), f'{{"values":[1],"deep":{deep}}}' + namespace_fields("deep"))
    run.finish()
    page = shown(capsys, "sync", run.name, code=1)
    assert ", 1 refused: " in page
    assert cloud.values(run.name) == [5.0, 4.0, 3.0, 2.0, 1.0]
    assert cloud.values(run.name, "deep") == []


@pytest.fixture
def another_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that switches to another machine: only data in the cloud is known after it."""

    def move() -> None:
        monkeypatch.setenv("ML_DIAGNOSTICS_DIR", str(tmp_path / "elsewhere"))

    return move


def test_a_run_is_shown_on_another_machine_as_on_its_own(cloud: Cloud, capsys: Captured, another_machine: Any) -> None:
    run = recorded()
    run.finish()
    shown(capsys, "sync", run.name)
    here = json.loads(shown(capsys, "show", run.name, "--format", "json"))
    values_here = shown(capsys, "metrics", run.name, "--format", "csv")
    another_machine()
    there = json.loads(shown(capsys, "show", run.name, "--format", "json", *PROJECT))
    assert shown(capsys, "metrics", run.name, "--format", "csv", *PROJECT) == values_here
    losses = shown(capsys, "metrics", run.name, "loss", "--format", "csv", *PROJECT).splitlines()
    assert losses == values_here.splitlines()[:6]
    same = ("run", "display_name", "group", "state", "configs", "metrics", "notes")
    assert {name: there[name] for name in same} == {name: here[name] for name in same}
    # The other machine has only the entries of the process.
    assert [process["pid"] for process in there["attempts"][0]["processes"]] == [
        process["pid"] for process in here["attempts"][0]["processes"]
    ]
    lines = shown(capsys, "runs", *PROJECT).splitlines()
    assert [line.split()[:2] for line in lines[2:]] == [[run.name, "COMPLETED"]]


def test_a_run_that_was_synced_days_later_is_shown(cloud: Cloud, capsys: Captured, another_machine: Any) -> None:
    run = recorded(steps=0)
    week_ago = time.time() - 7 * 86_400
    for step in range(5):
        metrics.record("loss", 5.0 - step, step=step, timestamp=week_ago + step)
    run.finish()
    shown(capsys, "sync", run.name)
    another_machine()
    for command in (["show", run.name], ["metrics", run.name], ["metrics", run.name, "loss"]):
        page = json.loads(shown(capsys, *command, "--format", "json", *PROJECT))
        (loss,) = [metric for metric in page["metrics"] if metric["metric"] == "loss"]
        assert (loss["count"], loss["last"]) == (5, 1)


def test_unsent_entries_are_shown_too_and_sent_ones_once(cloud: Cloud, capsys: Captured) -> None:
    run = recorded()
    shown(capsys, "sync", run.name)
    metrics.record("loss", 0.5, step=5)
    run.finish()
    for names in ([], ["loss"]):
        (loss,) = [
            metric
            for metric in json.loads(shown(capsys, "metrics", run.name, *names, "--format", "json", *PROJECT))[
                "metrics"
            ]
            if metric["metric"] == "loss"
        ]
        assert [point["value"] for point in loss["points"]] == [5, 4, 3, 2, 1, 0.5]


def test_a_killed_run_is_stale_on_other_machines_until_its_end_is_recorded(
    cloud: Cloud, capsys: Captured, another_machine: Any
) -> None:
    cloud.runs.put_run("lost-1", {"displayName": "lost", "runPhase": "ACTIVE", "runSet": "g"})
    resource = {"type": entries.RESOURCE_TYPE, "labels": {"node_id": "lost-1", "namespace": entries.PROCESS}}
    payload = entries.process_entry("ACTIVE", attempt=1, host="host-0", process_index=0, process_count=1, pid=7)
    entry = {"resource": resource, "jsonPayload": payload, "labels": {"host": "host-0", "pid": "7"}}
    ago = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() - 300))
    cloud.log.write([{**entry, "timestamp": ago}], log_id=entries.LOG_ID)
    another_machine()
    assert "STALE" in shown(capsys, "runs", *PROJECT).splitlines()[2]
    ending = {"verb": "stacktraceanalyzer", "kind": "job_ended", "how": "out_of_memory", "message": "out of memory"}
    cloud.log.write(
        [{"jsonPayload": ending, "labels": {"host": "host-0", "pid": "7"}}], log_id="tpu.googleapis.com/runtime_monitor"
    )
    assert shown(capsys, "show", "lost-1", *PROJECT).splitlines()[:2] == ["lost-1: FAILED", "  out of memory"]


def test_a_long_run_is_shown_by_its_newest_values(cloud: Cloud, capsys: Captured, another_machine: Any) -> None:
    run = recorded(steps=10_100)
    run.finish()
    shown(capsys, "sync", run.name)
    another_machine()
    assert main(["show", run.name, "--format", "json", *PROJECT]) == 0
    captured = capsys.readouterr()
    page = json.loads(captured.out)
    assert page["state"] == "COMPLETED"
    loss = next(metric for metric in page["metrics"] if metric["metric"] == "loss")
    assert (loss["last_step"], loss["count"] <= 10_000) == (10_099, True)
    assert captured.err.count("only the newest 10,000 values") == 1


def heartbeats(cloud: Cloud, run_id: str, count: int, **fields: Any) -> None:
    """Write an entry of a process for each second until now; the first one has more fields."""
    cloud.runs.put_run(run_id, {"displayName": run_id, "runPhase": "ACTIVE"})
    resource = {"type": entries.RESOURCE_TYPE, "labels": {"node_id": run_id, "namespace": entries.PROCESS}}
    payload = entries.process_entry("ACTIVE", attempt=1, host="host-0", process_index=0, process_count=1, pid=7)
    first = time.time() - count
    cloud.log.write(
        [
            {
                "resource": resource,
                "jsonPayload": payload | (fields if number == 0 else {}),
                "labels": {"host": "host-0", "pid": "7"},
                "timestamp": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(first + number)),
            }
            for number in range(count)
        ],
        log_id=entries.LOG_ID,
    )


def test_the_first_and_the_last_entries_of_a_long_log_are_read(
    cloud: Cloud, capsys: Captured, another_machine: Any
) -> None:
    heartbeats(cloud, "talks-1", 15_000, address="10.0.0.7", profiler_port=9999)
    another_machine()
    page = json.loads(shown(capsys, "show", "talks-1", "--format", "json", *PROJECT))
    (process,) = page["attempts"][0]["processes"]
    assert (page["state"], process["address"], process["profiler_port"]) == ("ACTIVE", "10.0.0.7", 9999)
    assert len([request for request in cloud.log.requests if request.operation == "list"]) < 15  # It has 15 pages.


def test_many_runs_cost_few_requests(cloud: Cloud, capsys: Captured, another_machine: Any) -> None:
    for number in range(12):
        heartbeats(cloud, f"run-{number:02}", 2)
    cloud.runs.put_run("silent", {"displayName": "of the public package", "runPhase": "ACTIVE"})
    another_machine()
    states = [run["state"] for run in json.loads(shown(capsys, "runs", "--format", "json", *PROJECT))]
    assert states == ["ACTIVE"] * 13
    assert len([request for request in cloud.log.requests if request.operation == "list"]) == 1


JOB = """
import pathlib, sys
import jax, jax.numpy as jnp
from google_cloud_mldiagnostics import machinelearning_run
run = machinelearning_run(name="profiled", on_demand_xprof=True, gcs_path="gs://test-bucket/traces")
step = jax.jit(lambda x: jnp.tanh(x @ x))
x = jnp.eye(64)
print(run.name, flush=True)
while not pathlib.Path(sys.argv[1]).exists():
    x = step(x).block_until_ready()
"""


def test_a_job_elsewhere_is_profiled_and_brings_its_profile_to_the_bucket(
    cloud: Cloud, capsys: Captured, another_machine: Any, tmp_path: Path
) -> None:
    flag = tmp_path / "end"
    environ = {**os.environ, "JAX_PLATFORMS": "cpu", "ML_DIAGNOSTICS_BACKEND": "cloud"}
    another_machine()
    with subprocess.Popen(
        [sys.executable, "-c", JOB, str(flag)], stdout=subprocess.PIPE, text=True, env=environ
    ) as job:
        try:
            assert job.stdout is not None
            run_id = job.stdout.readline().strip()
            arguments = ["profile", run_id, "--duration", "200", "--session", "s1", *PROJECT]
            wait_until(lambda: main(arguments) == 0, 60)
            folder = f"gs://test-bucket/traces/{run_id}/plugins/profile/s1"
            assert f"in    {folder}, uploaded by the job" in capsys.readouterr().out
            wait_until(lambda: cloud.bucket.names("test-bucket"), 60)
            flag.touch()
            assert job.wait(60) == 0
        finally:
            job.kill()
    (name,) = cloud.bucket.names("test-bucket")
    assert name.startswith(f"traces/{run_id}/plugins/profile/s1/")
    assert name.endswith(".xplane.pb")
    (session,) = cloud.runs.sessions(run_id)
    assert (session["kind"], session["storageFolderUri"]) == ("KIND_SNAPSHOT", folder)
    page = json.loads(shown(capsys, "show", run_id, "--format", "json", *PROJECT))
    assert page["state"] == "COMPLETED"
    assert [(one["session"], one["folder"], one["state"]) for one in page["profiles"]] == [("s1", folder, "SUCCEEDED")]


def test_a_profile_that_another_program_wrote_to_the_bucket_is_shown(cloud: Cloud, capsys: Captured) -> None:
    cloud.bucket.create_bucket("bucket")
    run = recorded(gcs_path="gs://bucket/runs")
    run.finish()
    shown(capsys, "sync", run.name)
    folder = f"gs://bucket/runs/{run.name}/plugins/profile/profile-5f20e048"
    for pod in ("train-0", "train-1"):
        storage.write(f"{folder}/{pod}.xplane.pb", b"trace")
    (found,) = json.loads(shown(capsys, "show", run.name, *PROJECT, "--format", "json"))["profiles"]
    assert (found["session"], found["kind"], found["folder"]) == ("profile-5f20e048", "on_demand", folder)
    assert [host["host"] for host in found["hosts"]] == ["train-0", "train-1"]
    assert "profile-5f20e048" in shown(capsys, "show", run.name, *PROJECT)


def test_a_folder_of_profiles_that_cannot_be_read_is_a_note_and_the_run_is_shown(
    cloud: Cloud, capsys: Captured
) -> None:
    run = recorded(gcs_path="gs://missing-bucket/runs")
    run.finish()
    shown(capsys, "sync", run.name)
    assert main(["show", run.name, *PROJECT]) == 0
    captured = capsys.readouterr()
    assert "profiles that other programs took are not shown: cannot list gs://missing-bucket" in captured.err
    assert "trained" in captured.out


def test_where_cloud_logging_fails_the_run_is_shown_without_it(cloud: Cloud, capsys: Captured) -> None:
    cloud.runs.put_run("run-1", {"displayName": "one", "runPhase": "COMPLETED"})
    cloud.log.faults.always(Status(403))
    assert main(["show", "run-1", *PROJECT]) == 0
    captured = capsys.readouterr()
    assert captured.out.startswith("run-1: COMPLETED\n")
    assert captured.err.count("Cloud Logging could not be read to the end") == 1


@pytest.mark.parametrize("command", [["show"], ["metrics"], ["metrics", "loss"]])
def test_entries_of_cloud_logging_that_cannot_be_read_are_counted_in_one_note(
    command: list[str], cloud: Cloud, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = recorded()
    run.finish()
    shown(capsys, "sync", run.name)
    with DamagedCloudLogging() as damaged:
        damaged.write(cloud.log.entries())
        for name, value in damaged.environment().items():
            monkeypatch.setenv(name, value)
        capsys.readouterr()
        assert main([command[0], run.name, *command[1:], *PROJECT]) == 0
    found = capsys.readouterr()
    assert found.err.count("could not be read") == 1, found.err
    assert "loss" in found.out
