"""One request to an API over HTTP, one response, within a time and a size: our clients over HTTP use it.

A server is not trusted: `bounded_adapter` limits its responses. google.auth and requests are imported by the first
session, in the thread that asks for it.
"""

from __future__ import annotations

import contextlib
import email.utils
import enum
import functools
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from ml_diagnostics_common.exceptions import MissingExtraError

if TYPE_CHECKING:
    from ml_diagnostics_common.bounded_adapter import BoundedHttp, HttpRequest

__all__ = [
    "LIST_BYTES",
    "RESPONSE_BYTES",
    "Answer",
    "NoAnswerError",
    "Session",
    "Why",
    "exchange",
    "open_session",
    "shown",
]

RESPONSE_BYTES = 4 << 20
"""The limit of a response's body, after decompression."""

LIST_BYTES = 64 << 20
"""The limit of a page of a list: 1,000 entries of Cloud Logging's 256 KiB are unusual, and come as several pages."""

_SHOWN_BYTES = 300


class Why(enum.Enum):
    """Why there is no answer."""

    TIMEOUT = "not in time"
    UNREACHABLE = "no connection, one that broke, or a response that is too large or cannot be decompressed"
    TOKEN_REFUSED = "the credentials are not accepted"


class NoAnswerError(Exception):
    """A request was not answered; it may have been executed all the same.

    Attributes:
        why: Why not. A token service that could not be reached counts as unreachable.
    """

    def __init__(self, why: Why, message: str) -> None:
        super().__init__(message)
        self.why = why


class Answer(NamedTuple):
    """A server's response, good or bad.

    Attributes:
        status: The HTTP status.
        body: All of it, decompressed.
        retry_after_seconds: The wait that the server asks for.
    """

    status: int
    body: bytes
    retry_after_seconds: float | None


class Session:
    """Connections that are kept, and tokens that are renewed. Made by `open_session`; several threads may use it.

    Attributes:
        credentials: Add the token to each request.
    """

    def __init__(self, credentials: Any, http: BoundedHttp, token_request: Any) -> None:
        self.credentials = credentials
        self._http = http
        self._token_request = token_request

    def send(self, request: HttpRequest, most_bytes: int, moment: float) -> Answer:
        """Make one request; twice where the server does not accept the token, with a new one.

        Args:
            request: Without a token.
            most_bytes: The limit of the response's body after decompression.
            moment: When it is given up, in seconds of `time.monotonic`.
        """
        from ml_diagnostics_common.bounded_adapter import Deadline

        deadline = Deadline(moment)
        token_request = functools.partial(self._token_request, timeout=deadline)
        for is_last in (False, True):
            authorized = dict(request.headers)
            self._authorize(token_request, request.method, request.url, authorized)
            response = self._http.send(request._replace(headers=authorized), deadline)
            with contextlib.closing(response):
                response.raw.most_bytes = most_bytes
                answer = Answer(
                    response.status_code,
                    response.raw.read_all(),
                    _retry_after_seconds(response.headers.get("Retry-After")),
                )
            if answer.status != 401 or is_last:
                break
            self.credentials.refresh(token_request)
        return answer

    def _authorize(self, token_request: Any, method: str, url: str, headers: dict[str, str]) -> None:
        try:
            self.credentials.before_request(token_request, method, url, headers)
        except RuntimeError:
            # google-auth asks for regional access boundaries, which are optional, in a thread of its own. Python 3.12
            # starts none once the program has ended (gh-104690), when the last requests are sent.
            if not self.credentials.valid:
                raise
            self.credentials.apply(headers)

    def close(self) -> None:
        """Close the connections; a later request opens others."""
        self._http.close()


def open_session(credentials: Any, feature: str, *, ca_certs: str | None = None) -> Session:
    """Return a session for an API that these credentials are for.

    Args:
        credentials: A `google.auth.credentials.Credentials`.
        feature: What it is for, for the message where google-auth is missing.
        ca_certs: A file of the authorities to trust; None for those that `requests` trusts.

    Raises:
        MissingExtraError: google-auth or requests is not installed.
    """
    try:
        from google.auth.transport.requests import Request

        from ml_diagnostics_common.bounded_adapter import BoundedHttp, bounded_http
    except ImportError as error:
        raise MissingExtraError(feature, "ml-diagnostics-common", "logging") from error
    # Requests for a token by an adapter of google.auth's own would try four times to connect, each its full time.
    return Session(credentials, BoundedHttp(ca_certs), Request(session=bounded_http(RESPONSE_BYTES)))


def exchange(
    session: Session,
    method: str,
    url: str,
    *,
    headers: Mapping[str, str],
    timeout_seconds: float,
    query: Mapping[str, str] | None = None,
    body: bytes | None = None,
    most_bytes: int = RESPONSE_BYTES,
) -> Answer:
    """Make one request, once.

    Args:
        session: What `open_session` returns.
        method: GET, POST, PATCH, ...
        url: Without its query.
        headers: Of the request.
        timeout_seconds: How long it may take in all: a new token, headers and body included.
        query: The query's parameters.
        body: What to send.
        most_bytes: The limit of the response's body after decompression; beyond it the connection is closed.

    Raises:
        NoAnswerError: There was no whole response in time, or it is too large.
    """
    from ml_diagnostics_common.bounded_adapter import HttpRequest

    moment = time.monotonic() + timeout_seconds
    with _connection_errors(timeout_seconds):
        return session.send(HttpRequest(method, url, headers, query, body), most_bytes, moment)


def shown(body: bytes) -> str:
    """Return the start of a response that is not an API's, for a message."""
    return body[:_SHOWN_BYTES].decode("utf-8", "replace") or "an empty page"


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
        raise NoAnswerError(Why.UNREACHABLE, str(_root(error))) from error
    except google.auth.exceptions.GoogleAuthError as error:
        message = f"no access token: {error.args[0] if error.args else error!r}"
        nobody = isinstance(error, google.auth.exceptions.TransportError) or getattr(error, "retryable", False)
        raise NoAnswerError(Why.UNREACHABLE if nobody else Why.TOKEN_REFUSED, message) from error


def _root(error: BaseException) -> BaseException:
    """Return the error that requests and urllib3 wrapped; their own messages repeat the URL with its query."""
    inner = getattr(error, "reason", None) or next(iter(error.args), None)
    return _root(inner) if isinstance(inner, BaseException) else error


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
    except (TypeError, ValueError, OverflowError):
        return None
