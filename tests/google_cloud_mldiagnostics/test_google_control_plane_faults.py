"""Google's control plane keeps its promises if requests or answers fail."""

from __future__ import annotations

import threading

import pytest
from google.auth.credentials import AnonymousCredentials
from google_cloud_mldiagnostics.control_plane.google import GoogleControlPlane
from google_cloud_mldiagnostics.exceptions import (
    ControlPlaneError,
    RunExistsError,
)
from ml_diagnostics_testing.faults import Drip, Fault, Hang, Reset, Status, Truncate

from ..loopback.control_plane import ControlPlaneServer
from .asked_control_planes import LOST, NOT_DONE, RUN, Time, connected, in_phase, patience, patient_after


@pytest.mark.parametrize("fault", LOST + NOT_DONE, ids=repr)
def test_a_creation_without_its_answer_is_one_run(server: ControlPlaneServer, time: Time, fault: Fault) -> None:
    google = connected(server, time, **patience(fault))
    server.faults.script([fault], on="create")
    assert google.create_run("train-1", RUN)["name"] == "train-1"
    assert len(server.runs()) == 1
    google.close()


def test_a_creation_without_its_answer_waits_until_the_run_exists(
    google: GoogleControlPlane, server: ControlPlaneServer
) -> None:
    server.operations.polls = 2
    server.faults.script([Reset(after_apply=True)], on="create")
    server.faults.script([Status(404), Status(404)], on="get")
    operations = server.operations

    def finish() -> None:  # As the service does after a while, even if no client polls the operation.
        for name in list(operations._operations):
            operations.poll(name)

    threading.Timer(0.05, finish).start()
    threading.Timer(0.1, finish).start()
    patient = connected(server, Time(), call_seconds=10**6)
    assert patient.create_run("train-1", RUN)["name"] == "train-1"
    patient.close()


def test_a_run_that_another_process_created_is_a_conflict(
    google: GoogleControlPlane, server: ControlPlaneServer
) -> None:
    server.put_run("train-1", {**RUN, "labels": {**RUN["labels"], "attempt": "7"}})  # type: ignore[dict-item]
    server.faults.script([Status(503)], on="create")
    with pytest.raises(RunExistsError):
        google.create_run("train-1", RUN)


@pytest.mark.parametrize("fault", LOST + NOT_DONE, ids=repr)
def test_a_change_without_its_answer_is_made_once(server: ControlPlaneServer, time: Time, fault: Fault) -> None:
    google = connected(server, time, **patience(fault))
    server.put_run("train-1", RUN)
    server.faults.script([fault], on="update")
    assert google.update_run("train-1", in_phase("FAILED"))["runPhase"] == "FAILED"
    assert len([record for record in server.requests_for("update") if record.status == 200]) <= 1
    google.close()


@pytest.mark.parametrize("fault", [*NOT_DONE, Truncate(5)], ids=repr)
def test_reads_are_tried_again(server: ControlPlaneServer, time: Time, fault: Fault) -> None:
    google = connected(server, time, **patience(fault))
    server.put_run("train-1", RUN)
    patient_after(google, time, 2)
    server.faults.script([fault, fault], on="get")
    assert google.get_run("train-1")["name"] == "train-1"
    google.close()


def test_an_unanswered_call_is_three_requests_at_most(server: ControlPlaneServer, time: Time) -> None:
    google = connected(server, time, request_seconds=0.1)
    server.faults.always(Hang())
    for call in (
        lambda: google.get_run("train-1"),
        lambda: google.create_run("train-1", RUN),
        lambda: google.update_run("train-1", in_phase("FAILED")),
        lambda: list(google.list_runs()),
        lambda: google.put_session("train-1", "s", {}),
        lambda: list(google.list_sessions("train-1")),
    ):
        time.slept.clear()
        with pytest.raises(ControlPlaneError, match="no answer in") as raised:
            call()
        assert raised.value.is_temporary
        assert len(time.slept) == 2
    google.close()


@pytest.mark.parametrize("body_only", [False, True])
def test_a_server_that_drips_is_given_up_at_the_deadline(
    server: ControlPlaneServer, time: Time, body_only: bool
) -> None:
    server.put_run("train-1", RUN)
    server.faults.always(Drip(0.02, body_only=body_only))
    google = connected(server, time, request_seconds=0.2)
    with pytest.raises(ControlPlaneError, match=r"no answer in 0\.2 s"):
        google.get_run("train-1")
    google.close()


def test_a_refused_connection_is_reported_as_unreachable(time: Time) -> None:
    with ControlPlaneServer() as gone:
        pass
    google = connected(gone, time)
    with pytest.raises(ControlPlaneError, match=r"hypercomputecluster\.googleapis\.com") as raised:
        google.get_run("train-1")
    assert raised.value.is_temporary
    assert raised.value.code == 0


def test_a_retry_after_of_the_server_is_honoured(
    google: GoogleControlPlane, server: ControlPlaneServer, time: Time
) -> None:
    server.put_run("train-1", RUN)
    server.faults.script([Status(429, retry_after=7)], on="get")
    google.get_run("train-1")
    assert sum(time.slept) >= 7
    server.faults.script([Status(429, retry_after=3600)], on="get")
    with pytest.raises(ControlPlaneError, match="quota"):
        google.get_run("train-1")


def test_a_call_takes_at_most_its_timeout(google: GoogleControlPlane, server: ControlPlaneServer, time: Time) -> None:
    google.call_seconds = 0.15
    server.operations.polls = 10
    with pytest.raises(ControlPlaneError):
        google.create_run("train-1", RUN)
    assert sum(time.slept) < 0.15
    server.faults.always(Hang())
    with pytest.raises(ControlPlaneError, match=r"no answer in 0\.15 s"):
        google.get_run("train-1")


@pytest.mark.parametrize(
    ("fault", "on"), [(Status(429, retry_after=3600), "update"), (Status(409), "update"), (None, "")]
)
def test_a_waiting_request_is_cancelled_for_a_more_urgent_one(
    server: ControlPlaneServer, fault: Fault | None, on: str
) -> None:
    hurried = GoogleControlPlane(
        "test-project", "us-central1", AnonymousCredentials(), base_url=server.url, call_seconds=7200
    )
    server.put_run("train-1", RUN)
    if fault:
        server.faults.always(fault, on="update")
    else:
        server.operations.polls = 10**6
    waited: list[ControlPlaneError] = []

    def change_config() -> None:
        try:
            hurried.update_run("train-1", lambda run: {**run, "displayName": "renamed"})
        except ControlPlaneError as error:
            waited.append(error)

    thread = threading.Thread(target=change_config)
    thread.start()
    while thread.is_alive() and not waited:
        hurried.hurry(5.0)
        thread.join(0.05)
    assert waited[0].is_temporary
    server.faults.clear()
    server.operations.polls = 2
    assert hurried.update_run("train-1", in_phase("COMPLETED"))["runPhase"] == "COMPLETED"
    hurried.close()
