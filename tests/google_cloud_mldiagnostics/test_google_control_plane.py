"""Google's control plane, asked through the real google.auth and requests, keeps its promises whatever it does."""

from __future__ import annotations

import contextlib
import json
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import urllib3.response
from google.auth.credentials import AnonymousCredentials, Credentials
from google.oauth2 import service_account
from google_cloud_mldiagnostics.control_plane import Change, Resource
from google_cloud_mldiagnostics.control_plane.google import GoogleControlPlane
from google_cloud_mldiagnostics.exceptions import (
    ControlPlaneError,
    MLRunConfigurationError,
    RunChangedError,
    RunExistsError,
    RunNotFoundError,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from ml_diagnostics_testing.control_plane import ControlPlaneServer
from ml_diagnostics_testing.faults import Delay, Fault, Hang, Reset, Status, Truncate
from ml_diagnostics_testing.http_server import LoopbackServer, Request, Response, json_response
from ml_diagnostics_testing.oauth import OAuthServer

RUN = {
    "name": "train-1",
    "displayName": "train",
    "runSet": "sweep",
    "configs": {"userConfigs": {"epochs": "100"}, "softwareConfigs": {}},
    "labels": {"created_by": "diagon_sdk", "attempt": "1"},
    "runPhase": "ACTIVE",
    "tools": [{"xprof": {}}],
}
ACCOUNT = "trainer@test-project.iam.gserviceaccount.com"


class Time:
    """Seconds that pass only when somebody sleeps."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.slept: list[float] = []

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def server(control_plane_server: ControlPlaneServer) -> ControlPlaneServer:
    return control_plane_server


@pytest.fixture
def google(server: ControlPlaneServer, time: Time) -> Iterator[GoogleControlPlane]:
    control_plane = connected(server, time)
    yield control_plane
    control_plane.close()


def connected(server: Any, time: Time, credentials: Credentials | None = None, **options: Any) -> GoogleControlPlane:
    return GoogleControlPlane(
        "test-project",
        "us-central1",
        credentials or AnonymousCredentials(),
        base_url=server.url,
        clock=time.clock,
        sleep=time.sleep,
        **{"principal": ACCOUNT, **options},
    )


def asked(server: ControlPlaneServer) -> list[str]:
    return [record.operation for record in server.requests]


def patience(fault: Fault) -> dict[str, Any]:
    """The deadline of a request: short where there is no answer to wait for."""
    return {"request_seconds": 0.4 if isinstance(fault, Hang) else 10.0}


def in_phase(phase: str) -> Change:
    return lambda run: {**run, "runPhase": phase}


# --- What is kept ----------------------------------------------------------------------------------------


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


def test_what_is_only_for_this_machine_stays_here(google: GoogleControlPlane, server: ControlPlaneServer) -> None:
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


def test_a_change_may_be_made_in_place_and_forge_no_etag(
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


def test_an_existing_run_is_told_from_a_new_one(google: GoogleControlPlane, server: ControlPlaneServer) -> None:
    server.put_run("train-1", RUN)
    with pytest.raises(RunExistsError) as raised:
        google.create_run("train-1", RUN)
    assert raised.value.code == 409
    assert asked(server) == ["create"]


def test_an_error_of_the_change_is_the_callers(google: GoogleControlPlane, server: ControlPlaneServer) -> None:
    server.put_run("train-1", RUN)
    with pytest.raises(ZeroDivisionError):
        google.update_run("train-1", lambda run: 1 / 0)


# --- Others write too ------------------------------------------------------------------------------------


def test_a_change_of_somebody_else_is_not_lost(google: GoogleControlPlane, server: ControlPlaneServer) -> None:
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
def test_a_conflict_is_met_with_the_state_as_it_is_by_then(
    google: GoogleControlPlane, server: ControlPlaneServer, status: int
) -> None:
    server.put_run("train-1", RUN)
    server.faults.script([Status(status), Status(status)], on="update")
    assert google.update_run("train-1", in_phase("FAILED"))["runPhase"] == "FAILED"
    assert asked(server) == ["get", "update"] * 3


def test_endless_conflicts_end(google: GoogleControlPlane, server: ControlPlaneServer) -> None:
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


# --- Operations ------------------------------------------------------------------------------------------


def test_an_operation_is_asked_for_at_once_then_ever_less_often(
    google: GoogleControlPlane, server: ControlPlaneServer, time: Time
) -> None:
    server.operation_polls = 9
    assert google.create_run("train-1", RUN)["runPhase"] == "ACTIVE"
    assert time.slept == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0])
    assert len(server.requests_for("poll")) == 9


def test_an_operation_done_at_its_second_poll_costs_a_tenth_of_a_second(
    google: GoogleControlPlane, server: ControlPlaneServer, time: Time
) -> None:
    server.operation_polls = 2
    google.create_run("train-1", RUN)
    assert time.slept == pytest.approx([0.1])


def test_a_change_is_done_when_its_operation_is(google: GoogleControlPlane, server: ControlPlaneServer) -> None:
    google.create_run("train-1", RUN)
    server.operation_polls = 3
    google.update_run("train-1", in_phase("FAILED"))
    assert asked(server)[-5:] == ["get", "update", "poll", "poll", "poll"]


def test_an_operation_that_never_ends_is_given_up(
    google: GoogleControlPlane, server: ControlPlaneServer, time: Time
) -> None:
    server.operation_polls = 10**6
    began = time.now
    with pytest.raises(ControlPlaneError, match="not done yet") as raised:
        google.create_run("train-1", RUN)
    assert raised.value.is_temporary
    assert time.now - began <= google.call_seconds


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


def test_an_operation_that_finds_the_run_there_says_so(google: GoogleControlPlane, server: ControlPlaneServer) -> None:
    details = [{"@type": "type.googleapis.com/google.rpc.ResourceInfo", "resourceName": "x"}]
    server.fail_operations(6, "exists", details=details)
    with pytest.raises(RunExistsError):
        google.create_run("train-1", RUN)


def test_an_operation_that_fails_for_now_is_begun_again(google: GoogleControlPlane, server: ControlPlaneServer) -> None:
    server.fail_operations(14, "try later")
    google.create_run("train-1", RUN)
    server.fail_operations(10, "somebody was faster")
    google.update_run("train-1", in_phase("FAILED"))
    assert server.run("train-1")["runPhase"] == "FAILED"


def test_errors_while_an_operation_is_asked_for_are_waited_out(
    google: GoogleControlPlane, server: ControlPlaneServer
) -> None:
    server.operation_polls = 2
    server.faults.script([Status(503), Reset()], on="poll")
    assert google.create_run("train-1", RUN)["name"] == "train-1"


# --- When answers are lost -------------------------------------------------------------------------------

LOST = [Status(503, after_apply=True), Reset(after_apply=True), Hang(after_apply=True), Truncate(5)]
NOT_DONE = [Status(503), Status(429), Status(500), Reset(), Hang()]


@pytest.mark.parametrize("fault", LOST + NOT_DONE, ids=repr)
def test_a_creation_whose_answer_is_lost_is_one_run(server: ControlPlaneServer, time: Time, fault: Fault) -> None:
    google = connected(server, time, **patience(fault))
    server.faults.script([fault], on="create")
    assert google.create_run("train-1", RUN)["name"] == "train-1"
    assert len(server.runs()) == 1
    google.close()


def test_a_creation_whose_answer_is_lost_waits_until_the_run_is_seen(
    google: GoogleControlPlane, server: ControlPlaneServer
) -> None:
    server.operation_polls = 2
    server.faults.script([Reset(after_apply=True)], on="create")
    server.faults.script([Status(404), Status(404)], on="get")
    operations = server._operations

    def finish() -> None:  # As the service does in a while, though nobody asks for the operation.
        for name in list(operations._operations):
            operations.poll(name)

    threading.Timer(0.05, finish).start()
    threading.Timer(0.1, finish).start()
    patient = connected(server, Time(), call_seconds=3600)
    assert patient.create_run("train-1", RUN)["name"] == "train-1"
    patient.close()


def test_a_run_of_somebody_else_is_not_taken_for_ours(google: GoogleControlPlane, server: ControlPlaneServer) -> None:
    server.put_run("train-1", {**RUN, "labels": {**RUN["labels"], "attempt": "7"}})
    server.faults.script([Status(503)], on="create")
    with pytest.raises(RunExistsError):
        google.create_run("train-1", RUN)


@pytest.mark.parametrize("fault", LOST + NOT_DONE, ids=repr)
def test_a_change_whose_answer_is_lost_is_made_once(server: ControlPlaneServer, time: Time, fault: Fault) -> None:
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
    server.faults.script([fault, fault], on="get")
    assert google.get_run("train-1")["name"] == "train-1"
    google.close()


def test_a_black_hole_costs_three_requests_and_no_more(server: ControlPlaneServer, time: Time) -> None:
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


@pytest.mark.skipif(
    not hasattr(urllib3.response.HTTPResponse, "read1"), reason="before urllib3 2 a piece may take as long as it drips"
)
@pytest.mark.parametrize(
    ("length", "piece"), [(b"Transfer-Encoding: chunked", b"1\r\n \r\n"), (b"Content-Length: 100000", b" ")]
)
def test_a_server_that_drips_is_given_up_at_the_deadline(time: Time, length: bytes, piece: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        stop = threading.Event()

        def drip() -> None:
            while not stop.is_set():
                connection, _ = listener.accept()
                with connection:
                    try:
                        connection.sendall(b"HTTP/1.1 200 OK\r\n" + length + b"\r\n\r\n")
                        while not stop.wait(0.02):
                            connection.sendall(piece)
                    except OSError:
                        continue

        thread = threading.Thread(target=drip)
        thread.start()

        class Dripping:
            url = f"http://127.0.0.1:{listener.getsockname()[1]}"

        google = connected(Dripping, time, request_seconds=0.2)
        with pytest.raises(ControlPlaneError, match="no whole answer"):
            google.get_run("train-1")
        stop.set()
        google.close()
        socket.create_connection(listener.getsockname()).close()
        thread.join()


def test_nobody_at_the_address_is_told_as_such(time: Time) -> None:
    with ControlPlaneServer() as gone:
        pass
    google = connected(gone, time)
    with pytest.raises(ControlPlaneError, match=r"hypercomputecluster\.googleapis\.com") as raised:
        google.get_run("train-1")
    assert raised.value.is_temporary
    assert raised.value.code == 0


def test_a_wait_that_the_server_asks_for_is_kept(
    google: GoogleControlPlane, server: ControlPlaneServer, time: Time
) -> None:
    server.put_run("train-1", RUN)
    server.faults.script([Status(429, retry_after=7)], on="get")
    google.get_run("train-1")
    assert sum(time.slept) >= 7
    server.faults.script([Status(429, retry_after=3600)], on="get")
    with pytest.raises(ControlPlaneError, match="quota"):
        google.get_run("train-1")


def test_a_call_is_as_short_as_it_is_told_to_be(
    google: GoogleControlPlane, server: ControlPlaneServer, time: Time
) -> None:
    google.call_seconds = 0.15
    server.operation_polls = 10
    with pytest.raises(ControlPlaneError):
        google.create_run("train-1", RUN)
    assert sum(time.slept) < 0.15
    server.faults.always(Hang())
    with pytest.raises(ControlPlaneError, match=r"no answer in 0\.15 s"):
        google.get_run("train-1")


@pytest.mark.parametrize(
    ("fault", "on"), [(Status(429, retry_after=3600), "update"), (Status(409), "update"), (None, "")]
)
def test_what_waits_is_given_up_for_what_is_more_urgent(
    server: ControlPlaneServer, fault: Fault | None, on: str
) -> None:
    hurried = GoogleControlPlane(
        "test-project", "us-central1", AnonymousCredentials(), base_url=server.url, call_seconds=7200
    )
    server.put_run("train-1", RUN)
    if fault:
        server.faults.always(fault, on="update")
    else:
        server.operation_polls = 10**6
    waited: list[ControlPlaneError] = []

    def change_config() -> None:
        try:
            hurried.update_run("train-1", lambda run: {**run, "displayName": "renamed"})
        except ControlPlaneError as error:
            waited.append(error)

    thread = threading.Thread(target=change_config)
    thread.start()
    while thread.is_alive() and not waited:
        hurried.hurry()
        thread.join(0.05)
    assert waited[0].is_temporary
    server.faults.clear()
    server.operation_polls = 2
    assert hurried.update_run("train-1", in_phase("COMPLETED"))["runPhase"] == "COMPLETED"
    hurried.close()


# --- Refusals --------------------------------------------------------------------------------------------


def test_a_missing_role_is_named_with_who_lacks_it_and_where(
    google: GoogleControlPlane, server: ControlPlaneServer
) -> None:
    server.is_permitted = False
    with pytest.raises(ControlPlaneError) as raised:
        google.create_run("train-1", RUN)
    message = str(raised.value)
    for part in (ACCOUNT, "test-project", "roles/hypercomputecluster.editor", "roles/clusterdirector.editor"):
        assert part in message
    assert (raised.value.code, raised.value.is_temporary) == (403, False)
    assert asked(server) == ["create"]


def test_an_api_that_is_not_enabled_is_named(google: GoogleControlPlane, server: ControlPlaneServer) -> None:
    server.is_enabled = False
    command = "gcloud services enable hypercomputecluster.googleapis.com --project=test-project"
    with pytest.raises(ControlPlaneError, match=re.escape(command)):
        google.get_run("train-1")


@pytest.mark.parametrize("page", [b"<html>Log in</html>", b"[]", b'"done"', b"\xff\xfe", b"[" * 100_000])
def test_a_proxys_page_is_no_answer(time: Time, page: bytes) -> None:
    class Proxy(LoopbackServer):
        def handle(self, request: Request) -> Response:
            return Response(200, page)

    with Proxy() as proxy:
        google = connected(proxy, time)
        with pytest.raises(ControlPlaneError, match="no answer of the control plane") as raised:
            google.create_run("train-1", RUN)
        assert raised.value.is_temporary
        google.close()


NAMES = st.sampled_from(["name", "done", "error", "response", "code", "message", "details", "etag", "endTime"])
NAMES |= st.sampled_from(["machineLearningRuns", "profilerSessions", "profilerTargets", "targetSessions", "labels"])
TEXTS = st.sampled_from(["", "a/operations/b", "0001-01-01T00:00:00Z", "x"])
JUNK = st.recursive(
    st.none() | st.booleans() | st.integers(0, 20) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=12,
)


ANSWERS = st.tuples(st.dictionaries(NAMES, JUNK, max_size=5), st.sampled_from([200, 200, 409, 412, 503]))


def test_whatever_is_answered_a_call_returns_or_raises_our_error(time: Time) -> None:
    class Confused(LoopbackServer):
        left: Iterator[tuple[dict[str, Any], int]] = iter(())

        def handle(self, request: Request) -> Response:
            return json_response(*next(self.left, ({}, 403)))

    with Confused() as confused:
        google = connected(confused, time)
        calls = (
            lambda: google.get_run("train-1"),
            lambda: google.create_run("train-1", RUN),
            lambda: google.update_run("train-1", in_phase("FAILED")),
            lambda: list(google.list_runs()),
            lambda: google.put_session("train-1", "s", session("host-0")),
            lambda: list(google.list_sessions("train-1")),
        )

        @given(call=st.sampled_from(calls), answers=st.lists(ANSWERS, min_size=4, max_size=4))
        @settings(max_examples=100, deadline=None, database=None)
        def ends_well(call: Callable[[], object], answers: list[tuple[dict[str, Any], int]]) -> None:
            confused.left = iter(answers)
            with contextlib.suppress(ControlPlaneError):
                call()

        ends_well()
        google.close()


@pytest.mark.parametrize("body", [b"", b"Forbidden", b'{"error": 7}', b'{"error": {"message": 7, "details": [3]}}'])
def test_a_refusal_in_any_form_is_told(time: Time, body: bytes) -> None:
    class Proxy(LoopbackServer):
        def handle(self, request: Request) -> Response:
            return Response(403, body)

    with Proxy() as proxy:
        google = connected(proxy, time)
        with pytest.raises(ControlPlaneError, match=f"test-project.*{ACCOUNT}.*HTTP 403"):
            google.get_run("train-1")
        google.close()


def test_nobody_is_sent_elsewhere(server: ControlPlaneServer, time: Time) -> None:
    server.put_run("train-1", RUN)

    class Login(LoopbackServer):
        def handle(self, request: Request) -> Response:
            return Response(302, b"", {"Location": f"{server.url}{request.target}"})

    with Login() as login:
        google = connected(login, time)
        with pytest.raises(ControlPlaneError, match="HTTP 302"):
            google.get_run("train-1")
        google.close()
    assert not server.requests


def test_what_json_does_not_take_is_refused_here(google: GoogleControlPlane, server: ControlPlaneServer) -> None:
    for value in (float("nan"), object(), {1, 2}):
        with pytest.raises(ControlPlaneError, match="JSON does not take it"):
            google.create_run("train-1", {**RUN, "labels": value})
    assert not server.requests


# --- Credentials -----------------------------------------------------------------------------------------


def account(oauth_server: OAuthServer) -> service_account.Credentials:
    scopes = ["https://www.googleapis.com/auth/cloud-platform"]
    return service_account.Credentials.from_service_account_info(oauth_server.key(), scopes=scopes)


def test_requests_carry_a_token_and_get_another_when_it_is_refused(
    server: ControlPlaneServer, oauth_server: OAuthServer, time: Time
) -> None:
    server.accepted_tokens = oauth_server.tokens
    google = connected(server, time, account(oauth_server), principal=None)
    google.create_run("train-1", RUN)
    google.get_run("train-1")
    assert len(oauth_server.requests) == 1
    oauth_server.tokens.clear()
    assert google.get_run("train-1")["name"] == "train-1"
    assert oauth_server.scopes == [["https://www.googleapis.com/auth/cloud-platform"]] * 2
    google.close()


def test_a_token_that_is_never_accepted_names_the_account(
    server: ControlPlaneServer, oauth_server: OAuthServer, time: Time
) -> None:
    server.accepted_tokens = set()
    google = connected(server, time, account(oauth_server), principal=None)
    with pytest.raises(ControlPlaneError, match=f"{oauth_server.email}.*renew the credentials") as raised:
        google.get_run("train-1")
    assert raised.value.code == 401
    google.close()


def test_a_key_that_is_refused_is_not_tried_again(
    server: ControlPlaneServer, oauth_server: OAuthServer, time: Time
) -> None:
    credentials = account(oauth_server).with_scopes([])
    google = connected(server, time, credentials)
    with pytest.raises(ControlPlaneError, match=r"no access token.*invalid_scope") as raised:
        google.get_run("train-1")
    assert not raised.value.is_temporary
    assert not server.requests
    google.close()


def test_a_token_service_that_cannot_be_reached_is_a_passing_matter(
    server: ControlPlaneServer, oauth_server: OAuthServer, time: Time
) -> None:
    server.put_run("train-1", RUN)
    google = connected(server, time, account(oauth_server), request_seconds=0.3)
    oauth_server.faults.script([Reset(), Hang()], on="token")
    assert google.get_run("train-1")["name"] == "train-1"
    oauth_server.tokens.clear()
    google.close()


def test_a_request_and_its_token_share_one_deadline(
    server: ControlPlaneServer, oauth_server: OAuthServer, time: Time
) -> None:
    server.put_run("train-1", RUN)
    server.accepted_tokens = oauth_server.tokens
    google = connected(server, time, account(oauth_server), request_seconds=0.5)
    oauth_server.faults.script([Delay(0.35)], on="token")
    server.faults.script([Delay(0.35)], on="get")
    google.get_run("train-1")
    assert time.slept  # In time each, not together: it was tried again.
    google.close()


# --- Listing and sessions --------------------------------------------------------------------------------


def test_runs_are_listed_newest_first_in_pages_of_a_thousand(
    google: GoogleControlPlane, server: ControlPlaneServer
) -> None:
    for index in range(1001):
        server.put_run(f"run-{index:04}", {"runSet": "a"})
    names = [run["name"] for run in google.list_runs()]
    assert names == [f"run-{index:04}" for index in reversed(range(1001))]
    assert [record.entries for record in server.requests] == [1000, 1]


def test_a_page_is_asked_for_when_it_is_needed(google: GoogleControlPlane, server: ControlPlaneServer) -> None:
    for index in range(1001):
        server.put_run(f"run-{index:04}", {})
    assert next(google.list_runs())["name"] == "run-1000"
    assert len(server.requests) == 1


@pytest.mark.parametrize("group", ["sweep", 'a "quoted" \\ group', "実験", "a AND b", ""])
def test_a_group_is_listed_whatever_it_is_called(
    google: GoogleControlPlane, server: ControlPlaneServer, group: str
) -> None:
    server.put_run("mine", {"runSet": group})
    server.put_run("other", {"runSet": "another"})
    assert [run["name"] for run in google.list_runs(group)] == ["mine"]
    assert "filter=run_set" in server.requests[0].path


def test_a_group_is_listed_alone_whatever_the_service_makes_of_the_filter(
    google: GoogleControlPlane, server: ControlPlaneServer
) -> None:
    server.handle = lambda request: json_response(
        {"machineLearningRuns": [{"name": "a", "runSet": "A"}, {"name": "b"}]}
    )
    assert [run["name"] for run in google.list_runs("A")] == ["a"]
    assert list(google.list_runs("a")) == []


def session(host: str, phase: str = "ACTIVE") -> Resource:
    return {
        "profilerTargets": [host],
        "targetSessions": {host: {"startTime": "2026-11-21T05:12:42Z", "sessionPhase": phase}},
        "storageFolderUri": "gs://b/train-1/plugins/profile/s1",
        "kind": "KIND_PROGRAMMATIC",
    }


def test_a_session_is_created_then_changed(google: GoogleControlPlane, server: ControlPlaneServer) -> None:
    server.put_run("train-1", RUN)
    google.put_session("train-1", "s1", session("host-0"))
    google.put_session("train-1", "s1", session("host-0", "SUCCEEDED"))
    (kept,) = google.list_sessions("train-1")
    assert kept["name"] == "s1"
    assert kept["targetSessions"]["host-0"]["sessionPhase"] == "SUCCEEDED"
    assert asked(server)[:4] == ["session", "session", "get_session", "session"]
    assert "update_mask=target_sessions" in server.requests[3].path


def test_every_host_of_a_session_is_heard(google: GoogleControlPlane, server: ControlPlaneServer) -> None:
    server.put_run("train-1", RUN)
    hosts = [f"host-{index}" for index in range(4)]
    threads = [threading.Thread(target=google.put_session, args=("train-1", "s1", session(host))) for host in hosts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (kept,) = server.sessions("train-1")
    assert sorted(kept["targetSessions"]) == hosts


@pytest.mark.parametrize("fault", LOST + NOT_DONE, ids=repr)
def test_a_session_whose_answer_is_lost_is_there_once(server: ControlPlaneServer, time: Time, fault: Fault) -> None:
    google = connected(server, time, **patience(fault))
    server.put_run("train-1", RUN)
    server.faults.script([fault], on="session")
    google.put_session("train-1", "s1", session("host-0", "SUCCEEDED"))
    (kept,) = server.sessions("train-1")
    assert kept["targetSessions"]["host-0"]["sessionPhase"] == "SUCCEEDED"
    google.close()


def test_a_session_that_another_host_is_creating_is_waited_for(
    google: GoogleControlPlane, server: ControlPlaneServer
) -> None:
    server.put_run("train-1", RUN)
    google.put_session("train-1", "s1", session("host-0"))
    server.faults.script([Status(404), Status(404)], on="get_session")
    google.put_session("train-1", "s1", session("host-1"))
    (kept,) = server.sessions("train-1")
    assert sorted(kept["targetSessions"]) == ["host-0", "host-1"]


@pytest.mark.parametrize("kept", [{}, {"profilerTargets": None, "targetSessions": 7}, {"profilerTargets": [{}]}])
def test_what_the_service_keeps_of_a_session_need_not_make_sense(
    google: GoogleControlPlane, server: ControlPlaneServer, kept: Resource
) -> None:
    answers = iter([({}, 409), (kept, 200), ({}, 200)])
    server.handle = lambda request: json_response(*next(answers))
    google.put_session("train-1", "s1", session("host-0"))
    assert next(answers, None) is None


def test_sessions_are_listed_oldest_first(google: GoogleControlPlane, server: ControlPlaneServer) -> None:
    server.put_run("train-1", RUN)
    for name in ("c", "a", "b"):
        google.put_session("train-1", name, session("host-0"))
    assert [kept["name"] for kept in google.list_sessions("train-1")] == ["c", "a", "b"]


def test_a_session_without_its_run_is_refused(google: GoogleControlPlane) -> None:
    with pytest.raises(RunNotFoundError):
        google.put_session("train-1", "s1", session("host-0"))
    with pytest.raises(RunNotFoundError):
        list(google.list_sessions("train-1"))


# --- Where and how ---------------------------------------------------------------------------------------


def test_the_environment_redirects_every_request(server: ControlPlaneServer, time: Time) -> None:
    google = GoogleControlPlane("test-project", "us-central1", AnonymousCredentials(), environ=server.environment())
    assert google.create_run("train-1", RUN)["name"] == "train-1"
    google.close()
    assert len(server.requests) == 1


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


def test_it_works_again_after_it_was_closed(google: GoogleControlPlane, server: ControlPlaneServer) -> None:
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
