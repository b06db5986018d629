"""One request, one answer: the error if there is none, and the delay that a server asks for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import google.auth.exceptions
import pytest
from google.auth.credentials import AnonymousCredentials, Credentials
from ml_diagnostics_common.authorized_requests import open_session
from ml_diagnostics_common.failures import Kind, RemoteError
from ml_diagnostics_testing.faults import Hang, Reset
from ml_diagnostics_testing.http_server import LoopbackServer, Request, Response


class Echo(LoopbackServer):
    """Answers with the body that it received, and with prepared headers."""

    status = 429

    headers: dict[str, str] = {}  # noqa: RUF012 - of one server

    authorization: str | None = None
    """The header of the last request."""

    def handle(self, request: Request) -> Response:
        self.authorization = request.headers["Authorization"]
        return Response(self.status, request.body, headers=self.headers)


@pytest.fixture
def server() -> Iterator[Echo]:
    with Echo() as echo:
        yield echo


def send(server: Echo, credentials: Any = None, timeout_seconds: float = 10.0) -> Any:
    session = open_session(credentials or AnonymousCredentials(), "a test")
    try:
        return session.send("POST", server.url, headers={}, timeout_seconds=timeout_seconds, body=b"sent")
    finally:
        session.close()


@pytest.mark.parametrize("status", [200, 201, 204])
def test_a_status_of_2xx_is_an_answer(server: Echo, status: int) -> None:
    server.status = status
    assert send(server) == (status, b"" if status == 204 else b"sent")


def test_any_other_status_is_an_error(server: Echo) -> None:
    with pytest.raises(RemoteError, match="sent") as raised:
        send(server)
    failure = raised.value
    assert (failure.status, failure.kind, failure.retry_after_seconds) == (429, Kind.BUSY, None)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("1.5", 1.5), ("-3", 0.0), ("Fri, 31 Dec 1999 23:59:59 GMT", 0.0), ("not a date", None), ("", None)],
)
def test_the_delay_that_the_server_asks_for_is_reported(server: Echo, text: str, seconds: float | None) -> None:
    server.headers = {"Retry-After": text}
    with pytest.raises(RemoteError) as raised:
        send(server)
    assert raised.value.retry_after_seconds == seconds


def test_a_timeout_differs_from_a_broken_connection(server: Echo) -> None:
    server.faults.script([Hang(), Reset()])
    with pytest.raises(RemoteError, match=r"0\.3 s") as late:
        send(server, timeout_seconds=0.3)
    assert (late.value.status, late.value.kind) == (0, Kind.TIMEOUT)
    with pytest.raises(RemoteError) as broken:
        send(server)
    assert (broken.value.status, broken.value.kind) == (0, Kind.UNREACHABLE)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (google.auth.exceptions.TransportError("no route"), Kind.UNREACHABLE),
        (google.auth.exceptions.RefreshError("try again", retryable=True), Kind.UNREACHABLE),
        (google.auth.exceptions.RefreshError("invalid_grant"), Kind.REFUSED),
    ],
)
def test_an_unreachable_token_service_differs_from_a_refused_login(
    server: Echo, error: google.auth.exceptions.GoogleAuthError, kind: Kind
) -> None:
    class WithoutToken(Credentials):
        def refresh(self, request: Any) -> None:
            raise error

    with pytest.raises(RemoteError, match="no access token: ") as caught:
        send(server, WithoutToken())  # type: ignore[no-untyped-call]
    assert caught.value.kind is kind
    assert server.requests == []


@pytest.mark.parametrize("is_valid", [True, False])
def test_a_request_is_sent_where_credentials_cannot_start_a_thread(server: Echo, *, is_valid: bool) -> None:
    """Like google-auth on Python 3.12 when the program has ended."""

    class WithThread(Credentials):
        def refresh(self, request: Any) -> None:
            if is_valid:
                self.token = "abc"

        def _after_refresh(self, request: Any, method: str, url: str, headers: Any) -> None:
            raise RuntimeError("can't create new thread at interpreter shutdown")

    server.status = 200
    if is_valid:
        assert send(server, WithThread()).status == 200  # type: ignore[no-untyped-call]
        assert server.authorization == "Bearer abc"
    else:
        with pytest.raises(RuntimeError):
            send(server, WithThread())  # type: ignore[no-untyped-call]
        assert server.requests == []
