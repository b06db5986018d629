"""One request to a Google API, one answer, within a time: what our clients over HTTP stand on.

google.auth and requests are imported by the first session, in the thread that asks for it.
"""

from __future__ import annotations

import contextlib
import email.utils
import enum
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from ml_diagnostics_common.exceptions import MissingExtraError

if TYPE_CHECKING:
    from google.auth.transport.requests import AuthorizedSession

__all__ = ["Answer", "NoAnswerError", "Why", "exchange", "open_session", "shown"]

_CONNECT_SECONDS = 5.0
_SHOWN_BYTES = 300


class Why(enum.Enum):
    """Why there is no answer."""

    TIMEOUT = "not in time"
    UNREACHABLE = "nobody there, or a connection that broke"
    TOKEN_REFUSED = "the credentials are not accepted"


class NoAnswerError(Exception):
    """A request was not answered; whether it was done, nobody knows.

    Attributes:
        why: Why not. A token that nobody could be asked for counts as unreachable.
    """

    def __init__(self, why: Why, message: str) -> None:
        super().__init__(message)
        self.why = why


class Answer(NamedTuple):
    """What a server has answered, good or bad.

    Attributes:
        status: The HTTP status.
        body: All of it.
        retry_after_seconds: The wait that the server asks for.
    """

    status: int
    body: bytes
    retry_after_seconds: float | None


def open_session(credentials: Any, feature: str) -> AuthorizedSession:
    """Returns a session of google.auth: connections that are kept, and tokens that are renewed within its times.

    Args:
        credentials: A `google.auth.credentials.Credentials`.
        feature: What it is for, for the message where google-auth is missing.

    Raises:
        MissingExtraError: google-auth or requests is not installed.
    """
    try:
        from google.auth.transport.requests import AuthorizedSession, Request
    except ImportError as error:
        raise MissingExtraError(feature, "ml-diagnostics-common", "logging") from error
    # Its own way to ask for a token would try four times to connect, and so wait four times as long as we allow.
    return AuthorizedSession(credentials, auth_request=Request())


def exchange(
    session: Any,
    method: str,
    url: str,
    *,
    headers: Mapping[str, str],
    timeout_seconds: float,
    query: Mapping[str, str] | None = None,
    body: bytes | None = None,
) -> Answer:
    """Makes one request, once.

    Args:
        session: What `open_session` returns.
        method: GET, POST, PATCH, ...
        url: Without its query.
        headers: Of the request.
        timeout_seconds: How long it may take in all, a new token included. The answer is read in pieces, so that a
            server that drips cannot hold us longer.
        query: The query's parameters.
        body: What to send.

    Raises:
        NoAnswerError: There was no whole answer in time.
    """
    deadline = time.monotonic() + timeout_seconds
    with _connection_errors(timeout_seconds):
        response = session.request(
            method,
            url,
            params=query,
            data=body,
            headers=headers,
            timeout=(min(_CONNECT_SECONDS, timeout_seconds), timeout_seconds),
            max_allowed_time=timeout_seconds,
            stream=True,
            allow_redirects=False,  # No API sends anybody elsewhere; who does is a login page.
            hooks={"response": _finish_before_refresh},
        )
        with contextlib.closing(response):
            answer = bytearray()
            for piece in _pieces(response):
                answer += piece
                if time.monotonic() > deadline:
                    raise NoAnswerError(Why.TIMEOUT, f"no whole answer in {timeout_seconds:g} s")
    wait = _retry_after_seconds(response.headers.get("Retry-After"))
    return Answer(response.status_code, bytes(answer), wait)


def shown(body: bytes) -> str:
    """The beginning of an answer that is not what an API says, for a message."""
    return body[:_SHOWN_BYTES].decode("utf-8", "replace") or "an empty page"


def _finish_before_refresh(response: Any, *_: object, **__: object) -> None:
    """Reads a 401 to its end: google.auth drops it when it asks again with a new token, connection and all."""
    if response.status_code == 401:
        _ = response.content


def _pieces(response: Any) -> Iterator[bytes]:
    """The body as it comes in: each piece is there after one read from the socket, which has a timeout."""
    read1 = getattr(response.raw, "read1", None)  # Since urllib3 2; before, a piece may take as long as it drips.
    if read1 is None or response.status_code == 401:
        yield from response.iter_content(1 << 18)
        return
    while piece := read1(1 << 18, decode_content=True):
        yield piece


@contextlib.contextmanager
def _connection_errors(timeout_seconds: float) -> Iterator[None]:
    import google.auth.exceptions
    import requests
    import urllib3.exceptions

    try:
        yield
    except (requests.exceptions.Timeout, urllib3.exceptions.TimeoutError) as error:
        raise NoAnswerError(Why.TIMEOUT, f"no answer in {timeout_seconds:g} s") from error
    except (requests.exceptions.RequestException, urllib3.exceptions.HTTPError) as error:
        raise NoAnswerError(Why.UNREACHABLE, str(error)) from error
    except google.auth.exceptions.GoogleAuthError as error:
        message = f"no access token: {error.args[0] if error.args else error!r}"
        nobody = isinstance(error, google.auth.exceptions.TransportError) or getattr(error, "retryable", False)
        raise NoAnswerError(Why.UNREACHABLE if nobody else Why.TOKEN_REFUSED, message) from error


def _retry_after_seconds(value: str | None) -> float | None:
    """The header Retry-After: a number of seconds, or a date."""
    if not value:
        return None
    try:
        return max(0.0, float(value))
    except ValueError:
        pass
    try:
        return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - time.time())
    except (TypeError, ValueError):
        return None
