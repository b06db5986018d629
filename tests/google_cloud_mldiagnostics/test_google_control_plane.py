"""Google's control plane, called through the real google.auth and requests, stores what it receives."""

from __future__ import annotations

import json
import subprocess
import sys
import threading

import pytest
from google.auth.credentials import AnonymousCredentials
from google_cloud_mldiagnostics.control_plane import Resource
from google_cloud_mldiagnostics.control_plane.google import GoogleControlPlane
from google_cloud_mldiagnostics.exceptions import (
    ControlPlaneError,
    MLRunConfigurationError,
    RunChangedError,
    RunExistsError,
    RunNotFoundError,
)
from ml_diagnostics_common.exceptions import ConfigurationError
from ml_diagnostics_testing.faults import Delay, Reset, Status

from ..loopback.control_plane import ControlPlaneServer
from .asked_control_planes import RUN, Time, asked, in_phase

# --- What is kept -------------------------------------------------------------------------------------


def test_a_run_is_created_read_and_changed(google: GoogleControlPlane, server: ControlPlaneServer) -> None:
    created = google.create_run("train-1", RUN)
    assert created["name"] == "train-1"
    assert created["configs"]["userConfigs"] == {"epochs": "100"}
    assert google.get_run("train-1") == created
    assert "endTime" not in created

    ended = google.update_run("train-1", in_phase("COMPLETED"))
    assert ended["runPhase"] == "COMPLETED"
    assert ended["endTime"] >= ended["createTime"]
    assert server.run("train-1")["state"] == "STATE_COMPLETED"
    with pytest.raises(RunNotFoundError):
        google.get_run("train-2")
    with pytest.raises(RunNotFoundError):
        google.update_run("train-2", in_phase("FAILED"))


def test_requests_are_those_of_the_public_package_corrected(
    google: GoogleControlPlane, server: ControlPlaneServer
) -> None:
    google.create_run("train-1", RUN)
    google.update_run("train-1", in_phase("FAILED"))
    create, get, update = server.requests
    assert create.path == (
        "/v1alpha/projects/test-project/locations/us-central1/machineLearningRuns?machine_learning_run_id=train-1"
    )
    assert create.body == RUN
    assert get.operation == "get"
    assert update.path.endswith("/machineLearningRuns/train-1?update_mask=%2A")
    assert update.body["name"].startswith("projects/test-project/locations/")
    assert update.body["etag"]
    assert not {"createTime", "updateTime", "endTime", "state", "@type"} & update.body.keys()


def test_local_fields_are_not_sent(google: GoogleControlPlane, server: ControlPlaneServer) -> None:
    local = {"attempts": [{"number": 1}], "metrics": {"loss": {"mean": 1.0}}}
    google.create_run("train-1", {**RUN, **local})
    google.update_run("train-1", lambda run: {**run, "displayName": "again", **local})
    sent = [record.body for record in server.requests if record.body]
    assert len(sent) == 2
    assert not any({"attempts", "metrics"} & body.keys() for body in sent)


def test_averages_that_the_service_keeps_are_not_overwritten(
    google: GoogleControlPlane, server: ControlPlaneServer
) -> None:
    server.put_run("train-1", RUN)
    server.change_run("train-1", metrics={"avgMfu": 0.5})
    google.update_run("train-1", lambda run: {**run, "runPhase": "FAILED", "metrics": {"loss": 1}})
    assert server.requests_for("update")[0].body["metrics"] == {"avgMfu": 0.5}


def test_a_change_that_changes_nothing_is_not_sent(google: GoogleControlPlane, server: ControlPlaneServer) -> None:
    google.create_run("train-1", RUN)
    for nothing in (lambda run: None, lambda run: run, in_phase("ACTIVE")):
        assert google.update_run("train-1", nothing)["runPhase"] == "ACTIVE"
    assert not server.requests_for("update")


def test_a_change_may_be_made_in_place_and_cannot_set_the_etag(
    google: GoogleControlPlane, server: ControlPlaneServer
) -> None:
    etag = google.create_run("train-1", {**RUN, "etag": "of-the-folder"})["etag"]

    def change(run: Resource) -> Resource:
        run["runPhase"] = "FAILED"
        run["etag"] = "of-the-folder"
        return run

    assert google.update_run("train-1", change)["runPhase"] == "FAILED"
    assert "etag" not in server.requests_for("create")[0].body
    assert server.requests_for("update")[0].body["etag"] == etag


def test_an_existing_run_is_distinguished_from_a_new_one(
    google: GoogleControlPlane, server: ControlPlaneServer
) -> None:
    server.put_run("train-1", RUN)
    with pytest.raises(RunExistsError) as raised:
        google.create_run("train-1", RUN)
    assert raised.value.code == 409
    assert asked(server) == ["create"]


def test_an_error_of_the_change_is_the_callers(google: GoogleControlPlane, server: ControlPlaneServer) -> None:
    server.put_run("train-1", RUN)
    with pytest.raises(ZeroDivisionError):
        google.update_run("train-1", lambda run: 1 / 0)  # type: ignore[arg-type, return-value]


# --- Others write too ---------------------------------------------------------------------------------


def test_a_concurrent_change_is_kept(google: GoogleControlPlane, server: ControlPlaneServer) -> None:
    server.put_run("train-1", RUN)
    seen: list[str] = []

    def change(run: Resource) -> Resource:
        seen.append(run["displayName"])
        if len(seen) == 1:
            server.change_run("train-1", displayName="by the console")
        return {**run, "runPhase": "FAILED"}

    google.update_run("train-1", change)
    assert seen == ["train", "by the console"]
    assert server.run("train-1")["displayName"] == "by the console"
    assert server.run("train-1")["runPhase"] == "FAILED"


@pytest.mark.parametrize("status", [409, 412])
def test_a_change_is_repeated_on_the_current_state_after_a_conflict(
    google: GoogleControlPlane, server: ControlPlaneServer, status: int
) -> None:
    server.put_run("train-1", RUN)
    server.faults.script([Status(status), Status(status)], on="update")
    assert google.update_run("train-1", in_phase("FAILED"))["runPhase"] == "FAILED"
    assert asked(server) == ["get", "update"] * 3


def test_endless_conflicts_raise(google: GoogleControlPlane, server: ControlPlaneServer) -> None:
    server.put_run("train-1", RUN)
    server.faults.always(Status(409), on="update")
    with pytest.raises(RunChangedError) as raised:
        google.update_run("train-1", in_phase("FAILED"))
    assert raised.value.is_temporary


def test_changes_of_many_threads_all_arrive(google: GoogleControlPlane, server: ControlPlaneServer) -> None:
    server.put_run("train-1", {**RUN, "labels": {}})

    def label(name: str) -> None:
        google.update_run("train-1", lambda run: {**run, "labels": {**run.get("labels", {}), name: "x"}})

    threads = [threading.Thread(target=label, args=(f"host-{index}",)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(server.run("train-1")["labels"]) == ["host-0", "host-1", "host-2", "host-3"]


# --- Operations ---------------------------------------------------------------------------------------


def test_an_operation_is_polled_at_once_and_then_with_growing_delays(
    google: GoogleControlPlane, server: ControlPlaneServer, time: Time
) -> None:
    server.operations.polls = 9
    assert google.create_run("train-1", RUN)["runPhase"] == "ACTIVE"
    assert time.slept == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0])
    assert len(server.requests_for("poll")) == 9


def test_an_operation_done_at_its_second_poll_costs_a_tenth_of_a_second(
    google: GoogleControlPlane, server: ControlPlaneServer, time: Time
) -> None:
    server.operations.polls = 2
    google.create_run("train-1", RUN)
    assert time.slept == pytest.approx([0.1])


def test_a_change_is_done_when_its_operation_is(google: GoogleControlPlane, server: ControlPlaneServer) -> None:
    google.create_run("train-1", RUN)
    server.operations.polls = 3
    google.update_run("train-1", in_phase("FAILED"))
    assert asked(server)[-5:] == ["get", "update", "poll", "poll", "poll"]


def test_an_operation_that_never_ends_is_given_up(
    google: GoogleControlPlane, server: ControlPlaneServer, time: Time
) -> None:
    server.operations.polls = 10**6
    started = time.now
    with pytest.raises(ControlPlaneError, match="not done yet") as raised:
        google.create_run("train-1", RUN)
    assert raised.value.is_temporary
    assert time.now - started <= google.call_seconds


def test_the_error_of_an_operation_is_raised(google: GoogleControlPlane, server: ControlPlaneServer) -> None:
    server.fail_operations(3, "the bucket is in another region")
    with pytest.raises(ControlPlaneError, match="the bucket is in another region") as raised:
        google.create_run("train-1", RUN)
    assert not raised.value.is_temporary
    assert asked(server) == ["create"]
    google.create_run("train-1", RUN)
    server.fail_operations(7, "no more")
    with pytest.raises(ControlPlaneError, match=r"roles/hypercomputecluster\.editor"):
        google.update_run("train-1", in_phase("FAILED"))


def test_an_operation_that_finds_an_existing_run_raises_a_conflict(
    google: GoogleControlPlane, server: ControlPlaneServer
) -> None:
    details = [{"@type": "type.googleapis.com/google.rpc.ResourceInfo", "resourceName": "x"}]
    server.fail_operations(6, "exists", details=details)
    with pytest.raises(RunExistsError):
        google.create_run("train-1", RUN)


def test_an_operation_that_fails_temporarily_is_repeated(
    google: GoogleControlPlane, server: ControlPlaneServer
) -> None:
    server.fail_operations(14, "try later")
    google.create_run("train-1", RUN)
    server.fail_operations(10, "another request was faster")
    google.update_run("train-1", in_phase("FAILED"))
    assert server.run("train-1")["runPhase"] == "FAILED"


def test_errors_while_an_operation_is_polled_are_retried(
    google: GoogleControlPlane, server: ControlPlaneServer
) -> None:
    server.operations.polls = 2
    server.faults.script([Status(503), Reset()], on="poll")
    assert google.create_run("train-1", RUN)["name"] == "train-1"


# --- Where and how ------------------------------------------------------------------------------------


def test_the_environment_redirects_every_request(server: ControlPlaneServer, time: Time) -> None:
    google = GoogleControlPlane("test-project", "us-central1", AnonymousCredentials(), environ=server.environment())
    assert google.create_run("train-1", RUN)["name"] == "train-1"
    google.close()
    assert len(server.requests) == 1


def test_no_token_is_sent_to_another_machine_without_tls() -> None:
    environ = {"CLOUDSDK_API_ENDPOINT_OVERRIDES_HYPERCOMPUTECLUSTER": "http://10.0.0.1:80/"}
    with pytest.raises(ConfigurationError, match=r"CLOUDSDK_API_ENDPOINT_OVERRIDES_HYPERCOMPUTECLUSTER.*https"):
        GoogleControlPlane("p", "us-central1", AnonymousCredentials(), environ=environ)


@pytest.mark.parametrize(
    ("environment", "url"),
    [
        ("prod", "https://hypercomputecluster.googleapis.com/v1alpha"),
        ("staging", "https://staging-hypercomputecluster.sandbox.googleapis.com/v1alpha"),
        ("autopush", "https://autopush-hypercomputecluster.sandbox.googleapis.com/v1alpha"),
    ],
)
def test_each_environment_has_its_host(environment: str, url: str) -> None:
    assert GoogleControlPlane("p", "us-central1", None, environment=environment, environ={})._api == url


def test_an_unknown_environment_is_refused() -> None:
    with pytest.raises(MLRunConfigurationError, match="prod, staging, autopush"):
        GoogleControlPlane("p", "us-central1", None, environment="env")


def test_the_link_leads_to_the_console(google: GoogleControlPlane) -> None:
    assert google.link("train-1") == (
        "https://console.cloud.google.com/cluster-director/diagnostics/details/us-central1/train-1?project=test-project"
    )


def test_a_closed_control_plane_can_be_used_again(google: GoogleControlPlane, server: ControlPlaneServer) -> None:
    server.put_run("train-1", RUN)
    google.get_run("train-1")
    google.close()
    google.close()
    assert google.get_run("train-1")["name"] == "train-1"


def test_a_slow_answer_is_an_answer(google: GoogleControlPlane, server: ControlPlaneServer) -> None:
    server.put_run("train-1", RUN)
    server.faults.script([Delay(0.2)], on="get")
    assert google.get_run("train-1")["name"] == "train-1"
    assert len(server.requests) == 1


def test_nothing_heavy_is_imported_before_the_first_request() -> None:
    script = (
        "import json, sys\n"
        "from google_cloud_mldiagnostics.control_plane.google import GoogleControlPlane\n"
        "from google_cloud_mldiagnostics.control_plane.self_hosted import SelfHostedControlPlane\n"
        "GoogleControlPlane('p', 'us-central1', None)\n"
        "SelfHostedControlPlane('http://127.0.0.1:1', workload_id='w')\n"
        "print(json.dumps(list(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert not {"google.auth", "requests", "urllib3", "grpc", "jax"} & set(json.loads(done.stdout))
