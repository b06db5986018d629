"""`xprofiler register` creates a completed run for profiles that were captured before."""

from __future__ import annotations

import re

import pytest
from ml_diagnostics_testing.cloud_storage import CloudStorageServer
from ml_diagnostics_testing.faults import Reset, Status

from ..loopback.control_plane import ControlPlaneServer
from .conftest import Run
from .xspaces import tpu_host

_ARGUMENTS = (
    *("register", "--log-directory", "gs://bucket/run", "--region", "us-central1", "--ml-run-name", "Älter Run 1"),
    *("--run-set", "old-profiles", "--project-id", "a-project"),
)


@pytest.fixture
def control_plane(
    control_plane_server: ControlPlaneServer,
    cloud_storage_server: CloudStorageServer,
    monkeypatch: pytest.MonkeyPatch,
) -> ControlPlaneServer:
    """A control plane, beside a bucket with a profile."""
    for server in (control_plane_server, cloud_storage_server):
        for name, value in server.environment().items():
            monkeypatch.setenv(name, value)
    cloud_storage_server.create_bucket("bucket")
    cloud_storage_server.write("bucket", "run/tensorboard/plugins/profile/s/h.xplane.pb", tpu_host())
    cloud_storage_server.write("bucket", "empty/readme", b"")
    return control_plane_server


def test_a_completed_run_is_created_and_its_page_is_printed(run: Run, control_plane: ControlPlaneServer) -> None:
    control_plane.operations.polls = 2
    ended = run(*_ARGUMENTS)
    assert ended.code == 0, ended.errors
    (made,) = control_plane.runs()
    parent, _, run_id = made["name"].rpartition("/")
    assert parent == "projects/a-project/locations/us-central1/machineLearningRuns"
    assert re.fullmatch(r"alter-run-1-\d{8}-\d{6}", run_id)
    kept = {name: made[name] for name in ("displayName", "runSet", "runPhase", "state", "artifacts", "tools")}
    assert kept == {
        "displayName": "Älter Run 1",
        "runSet": "old-profiles",
        "runPhase": "COMPLETED",
        "state": "STATE_COMPLETED",
        "artifacts": {"gcsPath": "gs://bucket/run"},
        "tools": [{"xprof": {}}],
    }
    assert ended.output == (
        "view the ML run at https://console.cloud.google.com/cluster-director/diagnostics/details/us-central1/"
        f"{run_id}?project=a-project\n"
    )


def test_the_short_flags_of_the_public_command_are_taken(run: Run, control_plane: ControlPlaneServer) -> None:
    ended = run("register", "-l", "gs://bucket/run", "-r", "us-central1", "-m", "m", "-s", "s", "-p", "a-project", "-v")
    assert ended.code == 0, ended.errors
    assert "POST " in ended.errors


@pytest.mark.parametrize("fault", [Status(503, after_apply=True), Reset(after_apply=True), Status(503), Status(429)])
def test_a_dropped_answer_does_not_create_a_second_run(
    run: Run, control_plane: ControlPlaneServer, fault: Status | Reset
) -> None:
    control_plane.faults.script([fault], on="create")
    ended = run(*_ARGUMENTS)
    assert ended.code == 0, ended.errors
    assert len(control_plane.runs()) == 1


def test_without_a_profile_no_run_is_created(run: Run, control_plane: ControlPlaneServer) -> None:
    ended = run("register", "-l", "gs://bucket/empty", "-r", "us-central1", "-m", "m", "-s", "s", "-p", "a-project")
    assert ended.code == 3
    assert "there is no profile below gs://bucket/empty" in ended.errors
    assert control_plane.runs() == []


def test_a_permanent_refusal_to_create_a_run_is_reported(run: Run, control_plane: ControlPlaneServer) -> None:
    control_plane.is_billed = False
    ended = run(*_ARGUMENTS)
    assert ended.code == 1
    assert "Billing is not enabled" in ended.errors


def test_a_missing_permission_to_create_runs_names_the_role(run: Run, control_plane: ControlPlaneServer) -> None:
    control_plane.is_permitted = False
    ended = run(*_ARGUMENTS)
    assert ended.code == 4
    assert "roles/hypercomputecluster.editor on project a-project" in ended.errors
    control_plane.is_enabled = False
    assert "gcloud services enable hypercomputecluster.googleapis.com --project=a-project" in run(*_ARGUMENTS).errors


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("--region", "us-central1/../x"),
        ("--region", "everywhere"),
        ("--project-id", "a/b"),
        ("--ml-run-name", " "),
        ("--run-set", ""),
        ("--log-directory", "/tmp/logs"),
    ],
)
def test_invalid_arguments_are_refused_before_any_request(
    run: Run, control_plane: ControlPlaneServer, flag: str, value: str
) -> None:
    arguments = list(_ARGUMENTS)
    arguments[arguments.index(flag) + 1] = value
    assert run(*arguments).code == 2
    assert control_plane.requests == []
