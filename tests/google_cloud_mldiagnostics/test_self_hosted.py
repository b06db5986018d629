"""A self-hosted control plane receives runs, without Google Cloud and without credentials."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest
from google_cloud_mldiagnostics.control_plane import Change
from google_cloud_mldiagnostics.control_plane.self_hosted import SelfHostedControlPlane, logical_id
from google_cloud_mldiagnostics.exceptions import ControlPlaneError, RunExistsError, RunNotFoundError
from ml_diagnostics_testing.faults import Hang, Status

from ..loopback.control_plane import SelfHostedServer

RUN = {"displayName": "Train", "runSet": "sweep", "artifacts": {"gcsPath": "gs://b/f"}, "runPhase": "ACTIVE"}


@pytest.fixture
def server() -> Iterator[SelfHostedServer]:
    with SelfHostedServer("cluster-7") as server:
        yield server


@pytest.fixture
def control_plane(server: SelfHostedServer) -> Iterator[SelfHostedControlPlane]:
    control_plane = SelfHostedControlPlane(server.url, workload_id="job-1", namespace="ml", agent_url=server.url)
    yield control_plane
    control_plane.close()


def in_phase(phase: str) -> Change:
    return lambda run: {**run, "runPhase": phase}


def test_a_run_and_its_end_are_registered(control_plane: SelfHostedControlPlane, server: SelfHostedServer) -> None:
    control_plane.create_run("train-1", RUN)
    (kept,) = server.runs.values()
    assert kept["displayName"] == "Train"
    assert kept["clusterId"] == "cluster-7"
    assert kept["baseBlobPath"] == "gs://b/f"
    assert kept["workload"] == {"workloadId": "job-1", "displayName": "Train", "state": "STATE_ACTIVE"}
    control_plane.update_run("train-1", in_phase("COMPLETED"))
    (kept,) = server.runs.values()
    assert kept["workload"]["state"] == "STATE_SUCCEEDED"
    assert control_plane.get_run("train-1")["runPhase"] == "COMPLETED"


def test_requests_are_those_of_the_public_package(
    control_plane: SelfHostedControlPlane, server: SelfHostedServer
) -> None:
    control_plane.create_run("train-1", RUN)
    control_plane.update_run("train-1", in_phase("FAILED"))
    agent, register, end = server.requests
    kept = logical_id("ml", "job-1", "cluster-7")
    assert agent.path == "/v1/agent-info"
    assert register.path.startswith("/v1/machineLearningRuns?update_mask=display_name%2Ccreator%2Ccluster_id")
    assert "base_blob_path&allow_missing=true" in register.path
    assert register.body["logicalId"] == kept
    assert register.body["creator"] == "CREATOR_MANUAL"
    assert end.path == f"/v1/machineLearningRuns/{kept}?update_mask=workload.state&allow_missing=false"
    # The resource as the server has named it in its answer.
    assert end.body == {"name": f"machineLearningRuns/{kept}", "workload": {"state": "STATE_FAILED"}}


def test_a_workload_has_one_id_on_all_its_hosts() -> None:
    kept = logical_id("ml", "job-1", "cluster-7")
    assert kept == logical_id("ml", "job-1", "cluster-7")
    assert kept != logical_id("ml", "job-2", "cluster-7")
    assert uuid.UUID(kept).version == 4
    assert kept == "ca1f642b-ef5d-4e67-88bf-be9d61481af6"


def test_a_run_that_is_registered_again_after_a_restart_is_one_run(
    control_plane: SelfHostedControlPlane, server: SelfHostedServer
) -> None:
    control_plane.create_run("train-1", RUN)
    restarted = SelfHostedControlPlane(server.url, workload_id="job-1", namespace="ml", cluster_id="cluster-7")
    restarted.create_run("train-1", RUN)
    restarted.close()
    assert len(server.runs) == 1


def test_only_fields_that_the_control_plane_keeps_are_sent(
    control_plane: SelfHostedControlPlane, server: SelfHostedServer
) -> None:
    control_plane.create_run("train-1", RUN)
    before = len(server.requests)
    control_plane.update_run("train-1", lambda run: {**run, "configs": {"userConfigs": {"a": "1"}}})
    control_plane.update_run("train-1", lambda run: None)
    assert len(server.requests) == before
    control_plane.update_run("train-1", lambda run: {**run, "displayName": "Renamed"})
    (kept,) = server.runs.values()
    assert kept["displayName"] == "Renamed"
    assert control_plane.get_run("train-1")["configs"] == {"userConfigs": {"a": "1"}}


def test_only_runs_of_this_process_are_known(control_plane: SelfHostedControlPlane) -> None:
    with pytest.raises(RunNotFoundError):
        control_plane.get_run("train-1")
    with pytest.raises(RunNotFoundError):
        control_plane.update_run("train-1", in_phase("FAILED"))
    control_plane.create_run("train-1", RUN)
    with pytest.raises(RunExistsError):
        control_plane.create_run("train-1", RUN)
    assert [run["name"] for run in control_plane.list_runs()] == ["train-1"]
    assert list(control_plane.list_runs("another")) == []
    control_plane.put_session("train-1", "s", {})
    assert list(control_plane.list_sessions("train-1")) == []


def test_a_failure_names_the_address_and_what_to_check(
    control_plane: SelfHostedControlPlane, server: SelfHostedServer
) -> None:
    server.faults.script([Status(500)], on="register")
    with pytest.raises(ControlPlaneError, match=f"{server.url} could not register.*DIAGON_BASE_URL") as raised:
        control_plane.create_run("train-1", RUN)
    assert raised.value.is_temporary
    server.faults.script([Hang()], on="register")
    control_plane.call_seconds, usual = 0.5, control_plane.call_seconds
    with pytest.raises(ControlPlaneError, match="no answer"):
        control_plane.create_run("train-1", RUN)
    control_plane.call_seconds = usual
    control_plane.create_run("train-1", RUN)
    server.runs.clear()
    with pytest.raises(RunNotFoundError):
        control_plane.update_run("train-1", in_phase("COMPLETED"))
    assert control_plane.get_run("train-1")["runPhase"] == "ACTIVE"


def test_no_credentials_are_sent(control_plane: SelfHostedControlPlane, server: SelfHostedServer) -> None:
    headers = []
    handle = server.handle
    server.handle = lambda request: (headers.append(request.headers), handle(request))[1]
    control_plane.create_run("train-1", RUN)
    assert headers
    assert not any("Authorization" in sent for sent in headers)
    assert control_plane.link("train-1") == server.url
