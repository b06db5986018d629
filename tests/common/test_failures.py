"""Every error of a remote call has one kind, whatever library it is from."""

from __future__ import annotations

import copy
import errno
import http.client
import json
import pickle
import socket
import ssl
import subprocess
import sys
import types
from typing import Any

import google.api_core.exceptions as api
import google.auth.exceptions as auth
import grpc  # type: ignore[import-untyped]
import pytest
import requests
import urllib3
from hypothesis import given
from hypothesis import strategies as st
from ml_diagnostics_common.cloud_logging import TransportError
from ml_diagnostics_common.exceptions import (
    ConfigurationError,
    CredentialsError,
    ObjectNotFoundError,
    PreconditionFailedError,
    StorageError,
)
from ml_diagnostics_common.failures import Kind, RemoteError, classify, response_error, status_error

TEMPORARY = {Kind.BUSY, Kind.TIMEOUT, Kind.UNREACHABLE}


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (api.BadRequest("no"), Kind.INVALID),
        (api.Unauthorized("no"), Kind.REFUSED),
        (api.Forbidden("no"), Kind.REFUSED),
        (api.NotFound("no"), Kind.MISSING),
        (api.Conflict("no"), Kind.CONFLICT),
        (api.Aborted("no"), Kind.CONFLICT),
        (api.PreconditionFailed("no"), Kind.CONFLICT),
        (api.TooManyRequests("no"), Kind.BUSY),
        (api.ResourceExhausted("no"), Kind.BUSY),
        (api.ResourceExhausted("Received message larger than max (5 vs. 4)"), Kind.UNREACHABLE),
        (api.InternalServerError("no"), Kind.UNREACHABLE),
        (api.BadGateway("no"), Kind.UNREACHABLE),
        (api.ServiceUnavailable("no"), Kind.UNREACHABLE),
        (api.GatewayTimeout("no"), Kind.TIMEOUT),
        (api.DeadlineExceeded("no"), Kind.TIMEOUT),
        (api.RetryError("no", None), Kind.UNREACHABLE),
        (auth.RefreshError("invalid_grant"), Kind.REFUSED),
        (auth.RefreshError("later", retryable=True), Kind.UNREACHABLE),
        (auth.TransportError("no route"), Kind.UNREACHABLE),
        (requests.ReadTimeout("late"), Kind.TIMEOUT),
        (requests.ConnectionError("no"), Kind.UNREACHABLE),
        (requests.exceptions.JSONDecodeError("cut off", "{", 1), Kind.UNREACHABLE),
        (requests.exceptions.MissingSchema("no scheme"), Kind.INVALID),
        (requests.exceptions.InvalidSchema("no adapter"), Kind.INVALID),
        (requests.exceptions.InvalidURL("no host"), Kind.INVALID),
        (requests.exceptions.InvalidHeader("line break"), Kind.INVALID),
        (requests.exceptions.InvalidProxyURL("no host"), Kind.INVALID),
        (urllib3.exceptions.LocationParseError("no host"), Kind.INVALID),
        (urllib3.exceptions.ReadTimeoutError(None, "/", "late"), Kind.TIMEOUT),  # type: ignore[arg-type]
        (urllib3.exceptions.ProtocolError("broken"), Kind.UNREACHABLE),
        (http.client.InvalidURL("port"), Kind.INVALID),
        (http.client.IncompleteRead(b""), Kind.UNREACHABLE),
        (ssl.SSLError("no"), Kind.UNREACHABLE),
        (socket.gaierror(socket.EAI_NONAME, "no such host"), Kind.UNREACHABLE),
        (ConnectionResetError(), Kind.UNREACHABLE),
        (OSError(errno.EHOSTUNREACH, "no route"), Kind.UNREACHABLE),
        (OSError(errno.EHOSTDOWN, "host is down"), Kind.UNREACHABLE),
        (OSError(errno.ENETRESET, "reset"), Kind.UNREACHABLE),
        (OSError(errno.EADDRNOTAVAIL, "no address"), Kind.UNREACHABLE),
        (TimeoutError(), Kind.TIMEOUT),
        (grpc.FutureTimeoutError(), Kind.TIMEOUT),
        (FileNotFoundError(), Kind.MISSING),
        (FileExistsError(), Kind.CONFLICT),
        (PermissionError(), Kind.REFUSED),
        (OSError(errno.ENOSPC, "disk full"), Kind.INVALID),
        (CredentialsError("none"), Kind.REFUSED),
        (ObjectNotFoundError("none"), Kind.MISSING),
        (PreconditionFailedError("changed"), Kind.CONFLICT),
        (ConfigurationError("no"), Kind.INVALID),
        (KeyError("bug"), Kind.INVALID),
    ],
    ids=lambda value: value.value if isinstance(value, Kind) else repr(value)[:40],
)
def test_every_library_has_the_same_kinds(error: Exception, kind: Kind) -> None:
    failure = classify(error)
    assert failure.kind is kind
    assert failure.is_temporary == (kind in TEMPORARY)


def test_an_error_of_ours_stands_for_its_cause() -> None:
    error = StorageError("cannot read it")
    error.__cause__ = api.Forbidden("no")
    assert classify(error).kind is Kind.REFUSED


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        *((status, Kind.INVALID) for status in (302, 400, 405, 413, 501)),
        *((status, Kind.REFUSED) for status in (401, 403)),
        *((status, Kind.CONFLICT) for status in (409, 412)),
        *((status, Kind.TIMEOUT) for status in (408, 504)),
        *((status, Kind.UNREACHABLE) for status in (500, 502, 503)),
        (404, Kind.MISSING),
        (429, Kind.BUSY),
    ],
)
def test_a_response_has_the_kind_of_its_status(status: int, kind: Kind) -> None:
    failure = response_error(status, b"<html>no")
    assert (failure.kind, failure.message, failure.is_from_api) == (kind, "<html>no", False)


def test_the_code_of_an_api_is_more_precise_than_the_status() -> None:
    failure = response_error(409, b'{"error": {"message": "no", "status": "ABORTED"}}', "3")
    assert (failure.code, failure.message, failure.retry_after_seconds) == ("ABORTED", "no", 3.0)
    assert failure.shown_status == "HTTP 409, ABORTED"


@pytest.mark.parametrize(("status", "kind"), [(400, Kind.INVALID), (412, Kind.CONFLICT)])
def test_a_failed_precondition_is_a_conflict_only_with_its_own_status(status: int, kind: Kind) -> None:
    failure = response_error(status, b'{"error": {"message": "no", "status": "FAILED_PRECONDITION"}}')
    assert (failure.code, failure.kind, failure.is_temporary) == ("FAILED_PRECONDITION", kind, False)


def test_the_delay_may_be_in_the_details() -> None:
    body = b'{"error": {"message": "no", "details": [{"reason": "X"}, {"retryDelay": "3.5s"}]}}'
    failure = response_error(429, body)
    assert (failure.retry_after_seconds, failure.reason) == (3.5, "X")


@pytest.mark.parametrize(
    ("reason", "kind", "is_temporary"),
    [
        ("rateLimitExceeded", Kind.BUSY, True),
        ("concurrentLimitExceeded", Kind.BUSY, True),
        ("quotaExceeded", Kind.BUSY, False),
        ("forbidden", Kind.REFUSED, False),
    ],
)
def test_a_limit_differs_from_a_missing_permission(reason: str, kind: Kind, is_temporary: bool) -> None:
    body = f'{{"error": {{"message": "no", "errors": [{{"reason": "{reason}"}}]}}}}'.encode()
    failure = response_error(403, body)
    assert (failure.kind, failure.is_temporary) == (kind, is_temporary)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["error", "message", "status", "details", "errors", "reason", "retryDelay"]),
            inner,
            max_size=4,
        )
    ),
)


@given(body=st.binary(max_size=20) | JSON.map(lambda value: json.dumps(value).encode()))
def test_a_body_may_be_anything(body: bytes) -> None:
    assert response_error(503, body).status == 503


@pytest.mark.parametrize("number", [None, -1, 0, 17, 10**9, "3", True, 3.0])
def test_an_unknown_code_is_unknown(number: Any) -> None:
    assert status_error(number, "no").code in ("UNKNOWN", "CANCELLED")  # True is 1.


def test_a_copy_keeps_everything() -> None:
    failure = TransportError.of(response_error(429, b"slow down", "7"))
    for copied in (copy.copy(failure), pickle.loads(pickle.dumps(failure))):
        assert vars(copied) == vars(failure)
        assert str(copied) == "Cloud Logging answered RESOURCE_EXHAUSTED: slow down (HTTP 429)"


def test_classification_loads_no_client() -> None:
    program = (
        "import sys, ml_diagnostics_common.failures as failures\n"
        "failures.classify(OSError()), failures.classify(ValueError())\n"
        "assert not {'google', 'grpc', 'requests', 'urllib3', 'ssl', 'http.client'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.parametrize("module", ["google.api_core.exceptions", "grpc", "requests.exceptions"])
def test_a_library_that_another_thread_is_importing_is_skipped(monkeypatch: pytest.MonkeyPatch, module: str) -> None:
    monkeypatch.setitem(sys.modules, module, types.ModuleType(module))
    assert classify(ConnectionResetError()).kind is Kind.UNREACHABLE


def test_a_failure_is_its_own_classification() -> None:
    failure = RemoteError("UNAVAILABLE", "no")
    assert classify(failure) is failure
