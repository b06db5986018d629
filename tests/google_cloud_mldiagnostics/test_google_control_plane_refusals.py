"""Refusals of Google's control plane state what to fix, and malformed answers are errors of ours."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from google.oauth2 import service_account
from google_cloud_mldiagnostics.control_plane.google import GoogleControlPlane
from google_cloud_mldiagnostics.exceptions import ControlPlaneError
from hypothesis import given, settings
from hypothesis import strategies as st
from ml_diagnostics_common.exceptions import ConfigurationError
from ml_diagnostics_testing.faults import Delay, Hang, Reset
from ml_diagnostics_testing.http_server import LoopbackServer, Request, Response, json_response
from ml_diagnostics_testing.oauth import OAuthServer

from ..loopback.control_plane import ControlPlaneServer
from .asked_control_planes import ACCOUNT, RUN, Time, asked, connected, in_phase, patient_after, session

# --- Refusals -----------------------------------------------------------------------------------------


def test_a_missing_role_is_named_with_its_account_and_project(
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


def test_a_permanent_refusal_of_a_write_is_not_a_conflict(
    google: GoogleControlPlane, server: ControlPlaneServer, time: Time
) -> None:
    server.put_run("train-1", RUN)
    server.is_billed = False
    for call, requests in (
        (lambda: google.create_run("train-2", RUN), ["create"]),
        (lambda: google.update_run("train-1", in_phase("FAILED")), ["get", "update"]),
        (lambda: google.put_session("train-1", "s", session("host-0")), ["session"]),
    ):
        server.requests.clear()
        with pytest.raises(ControlPlaneError, match="Billing is not enabled") as raised:
            call()
        assert type(raised.value) is ControlPlaneError
        assert (raised.value.code, raised.value.is_temporary) == (400, False)
        assert asked(server) == requests
    assert not time.slept


@pytest.mark.parametrize("page", [b"<html>Log in</html>", b"[]", b'"done"', b"\xff\xfe", b"[" * 100_000])
def test_the_page_of_a_proxy_is_not_an_answer(time: Time, page: bytes) -> None:
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


def test_any_answer_is_returned_or_raises_our_error(time: Time) -> None:
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
def test_a_refusal_in_any_form_is_reported(time: Time, body: bytes) -> None:
    class Proxy(LoopbackServer):
        def handle(self, request: Request) -> Response:
            return Response(403, body)

    with Proxy() as proxy:
        google = connected(proxy, time)
        with pytest.raises(ControlPlaneError, match=f"test-project.*{ACCOUNT}.*HTTP 403"):
            google.get_run("train-1")
        google.close()


def test_redirects_are_not_followed(server: ControlPlaneServer, time: Time) -> None:
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


def test_values_that_json_cannot_hold_are_refused_before_sending(
    google: GoogleControlPlane, server: ControlPlaneServer
) -> None:
    for value in (float("nan"), object(), {1, 2}):
        with pytest.raises(ControlPlaneError, match="JSON does not take it"):
            google.create_run("train-1", {**RUN, "labels": value})
    assert not server.requests


# --- Credentials --------------------------------------------------------------------------------------


@pytest.mark.parametrize("url", ["http://10.0.0.1:8080", "HTTP://plane.example.com"])
def test_no_token_is_sent_in_clear_text_to_another_machine(oauth_server: OAuthServer, url: str) -> None:
    with pytest.raises(ConfigurationError, match=r"base_url is .*https"):
        GoogleControlPlane("test-project", "us-central1", account(oauth_server), base_url=url)


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
    patient_after(google, time, 2)
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
    assert time.slept  # Each was in time, but not both: the request was retried.
    google.close()
