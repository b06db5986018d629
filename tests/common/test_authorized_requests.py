"""One request, one answer: what is told where there is none, and what a server asks for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import google.auth.exceptions
import pytest
from google.auth.credentials import AnonymousCredentials, Credentials
from ml_diagnostics_common.authorized_requests import NoAnswerError, Why, exchange, open_session, shown
from ml_diagnostics_testing.faults import Hang, Reset
from ml_diagnostics_testing.http_server import LoopbackServer, Request, Response


class Echo(LoopbackServer):
    """Answers with what it was sent, and with the headers that it was told."""

    headers: dict[str, str] = {}  # noqa: RUF012 - of one server

    authorization: str | None = None
    """Of the last request."""

    def handle(self, request: Request) -> Response:
        self.authorization = request.headers["Authorization"]
        return Response(429, request.body, headers=self.headers)


@pytest.fixture
def server() -> Iterator[Echo]:
    with Echo() as echo:
        yield echo


def ask(server: Echo, credentials: Any = None, timeout_seconds: float = 10.0) -> Any:
    session = open_session(credentials or AnonymousCredentials(), "a test")
    try:
        return exchange(session, "POST", server.url, headers={}, timeout_seconds=timeout_seconds, body=b"sent")
    finally:
        session.close()


def test_an_answer_is_an_answer_whatever_its_status(server: Echo) -> None:
    assert ask(server) == (429, b"sent", None)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("1.5", 1.5), ("-3", 0.0), ("Fri, 31 Dec 1999 23:59:59 GMT", 0.0), ("not a date", None), ("", None)],
)
def test_a_wait_that_is_asked_for_is_told(server: Echo, text: str, seconds: float | None) -> None:
    server.headers = {"Retry-After": text}
    assert ask(server).retry_after_seconds == seconds


def test_why_there_is_no_answer_is_told(server: Echo) -> None:
    server.faults.script([Hang(), Reset()])
    with pytest.raises(NoAnswerError, match=r"0\.3 s") as late:
        ask(server, timeout_seconds=0.3)
    assert late.value.why is Why.TIMEOUT
    with pytest.raises(NoAnswerError) as broken:
        ask(server)
    assert broken.value.why is Why.UNREACHABLE


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (google.auth.exceptions.TransportError("no route"), Why.UNREACHABLE),
        (google.auth.exceptions.RefreshError("try again", retryable=True), Why.UNREACHABLE),
        (google.auth.exceptions.RefreshError("invalid_grant"), Why.TOKEN_REFUSED),
    ],
)
def test_a_token_that_cannot_be_had_is_told_from_one_that_is_refused(
    server: Echo, error: google.auth.exceptions.GoogleAuthError, why: Why
) -> None:
    class WithoutToken(Credentials):
        def refresh(self, request: Any) -> None:
            raise error

    with pytest.raises(NoAnswerError, match="no access token: ") as caught:
        ask(server, WithoutToken())  # type: ignore[no-untyped-call]
    assert caught.value.why is why
    assert server.requests == []


@pytest.mark.parametrize("is_valid", [True, False])
def test_a_request_is_sent_where_credentials_cannot_start_a_thread(server: Echo, *, is_valid: bool) -> None:
    """As those of google-auth on Python 3.12 when the program has ended."""

    class WithThread(Credentials):
        def refresh(self, request: Any) -> None:
            if is_valid:
                self.token = "abc"

        def _after_refresh(self, request: Any, method: str, url: str, headers: Any) -> None:
            raise RuntimeError("can't create new thread at interpreter shutdown")

    if is_valid:
        assert ask(server, WithThread()).status == 429  # type: ignore[no-untyped-call]
        assert server.authorization == "Bearer abc"
    else:
        with pytest.raises(RuntimeError):
            ask(server, WithThread())  # type: ignore[no-untyped-call]
        assert server.requests == []


def test_what_is_no_answer_of_an_api_is_shown_in_short() -> None:
    assert shown(b"<html>\xff") == "<html>\ufffd"
    assert shown(b"") == "an empty page"
    assert len(shown(b"x" * 10_000)) == 300
