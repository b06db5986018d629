"""One JSON request, one answer, within a time: what every control plane over HTTP stands on.

google.auth and requests are imported by the first session, in the thread that asks for it.
"""

from __future__ import annotations

import contextlib
import email.utils
import json
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ml_diagnostics_common.exceptions import MissingExtraError

from google_cloud_mldiagnostics._version import __version__

if TYPE_CHECKING:
    from google.auth.transport.requests import AuthorizedSession

__all__ = ["CODES", "RequestError", "ask", "open_session"]

_CONNECT_SECONDS = 5.0
_TEMPORARY = frozenset({0, 408, 429, 500, 502, 503, 504})
_HEADERS: Mapping[str, str] = {
    "Accept": "application/json",
    "Content-Type": "application/json",
    "User-Agent": f"google-cloud-mldiagnostics/{__version__}",
}

CODES: Mapping[int, tuple[str, int]] = {
    1: ("CANCELLED", 499),
    2: ("UNKNOWN", 500),
    3: ("INVALID_ARGUMENT", 400),
    4: ("DEADLINE_EXCEEDED", 504),
    5: ("NOT_FOUND", 404),
    6: ("ALREADY_EXISTS", 409),
    7: ("PERMISSION_DENIED", 403),
    8: ("RESOURCE_EXHAUSTED", 429),
    9: ("FAILED_PRECONDITION", 412),
    10: ("ABORTED", 409),
    11: ("OUT_OF_RANGE", 400),
    12: ("UNIMPLEMENTED", 501),
    13: ("INTERNAL", 500),
    14: ("UNAVAILABLE", 503),
    15: ("DATA_LOSS", 500),
    16: ("UNAUTHENTICATED", 401),
}
"""The codes of google.rpc.Code: each one's name, and the HTTP status that says the same here."""


class RequestError(Exception):
    """A request was refused, or nobody answered it.

    Attributes:
        status: The HTTP status; 0 when no answer came.
        code: The name of the error in google.rpc.Code, or empty.
        message: In the server's words, if it had any.
        details: Objects with an "@type" each, as Google's APIs have them.
        retry_after_seconds: The wait that the server asked for.
        is_temporary: Whether the same request may succeed later. It may have been done even so.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str = "",
        details: Any = (),
        retry_after_seconds: float | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.details = [detail for detail in details if isinstance(detail, dict)] if isinstance(details, list) else []
        self.retry_after_seconds = retry_after_seconds
        self.is_temporary = status in _TEMPORARY

    @property
    def reason(self) -> str:
        """What `google.rpc.ErrorInfo` gives as the reason, such as SERVICE_DISABLED; or empty."""
        return next((str(detail["reason"]) for detail in self.details if detail.get("reason")), "")


def open_session(credentials: Any) -> AuthorizedSession:
    """Returns a session of google.auth: connections that are kept, and tokens that are renewed within its times.

    Args:
        credentials: A `google.auth.credentials.Credentials`.

    Raises:
        MissingExtraError: google-auth or requests is not installed.
    """
    try:
        from google.auth.transport.requests import AuthorizedSession, Request
    except ImportError as error:
        raise MissingExtraError("Google's control plane", "ml-diagnostics-common", "logging") from error
    # Its own way to ask for a token would try four times to connect, and so wait four times as long as we allow.
    return AuthorizedSession(credentials, auth_request=Request())


def ask(
    session: Any,
    method: str,
    url: str,
    *,
    timeout_seconds: float,
    query: Mapping[str, str] | None = None,
    body: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Makes one request, once.

    Args:
        session: What `open_session` returns.
        method: GET, POST, PATCH, ...
        url: Without its query.
        timeout_seconds: How long it may take in all, a new token included. The body is read in pieces, so that a
            server that drips cannot hold us longer.
        query: The query's parameters.
        body: The JSON to send.

    Returns:
        The answer's JSON.

    Raises:
        RequestError: It was refused, or not answered with a JSON object in time.
    """
    try:
        encoded = None if body is None else json.dumps(body, allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise RequestError(400, f"JSON does not take it: {error}", code="INVALID_ARGUMENT") from error
    timeout_seconds = max(0.001, timeout_seconds)
    deadline = time.monotonic() + timeout_seconds
    with _connection_errors(timeout_seconds):
        response = session.request(
            method,
            url,
            params=query,
            data=encoded,
            headers=_HEADERS,
            timeout=(min(_CONNECT_SECONDS, timeout_seconds), timeout_seconds),
            max_allowed_time=timeout_seconds,
            stream=True,
            allow_redirects=False,  # The API sends nobody elsewhere; who does is a login page.
            hooks={"response": _finish_before_refresh},
        )
        with contextlib.closing(response):
            answer = bytearray()
            for piece in _pieces(response):
                answer += piece
                if time.monotonic() > deadline:
                    raise RequestError(0, f"no whole answer in {timeout_seconds:g} s")
    if not 200 <= response.status_code < 300:
        raise _refusal(response.status_code, bytes(answer), response.headers.get("Retry-After"))
    return _object(bytes(answer))


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
    """What goes wrong before there is an answer, as RequestError."""
    import google.auth.exceptions
    import requests
    import urllib3.exceptions

    try:
        yield
    except (requests.exceptions.Timeout, urllib3.exceptions.TimeoutError) as error:
        raise RequestError(0, f"no answer in {timeout_seconds:g} s") from error
    except (requests.exceptions.RequestException, urllib3.exceptions.HTTPError) as error:
        raise RequestError(0, str(error)) from error
    except google.auth.exceptions.GoogleAuthError as error:
        message = f"no access token: {error.args[0] if error.args else error!r}"
        if error.retryable or isinstance(error, google.auth.exceptions.TransportError):
            raise RequestError(0, message) from error
        raise RequestError(401, message, code="UNAUTHENTICATED") from error


def _object(body: bytes) -> dict[str, Any]:
    """The answer's JSON; a proxy's page says 200 too, and then nobody told us that anything was done."""
    try:
        found = json.loads(body) if body.strip() else {}
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise RequestError(0, f"no answer of the control plane: {_shown(body)}")
    return found


def _refusal(status: int, body: bytes, retry_after: str | None) -> RequestError:
    """An answer that is not 2xx; its body may be Google's error in JSON, or a proxy's page in anything."""
    try:
        described = json.loads(body)["error"]
        message, code, details = str(described["message"]), described.get("status"), described.get("details")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        message, code, details = _shown(body), "", None
    return RequestError(
        status,
        message,
        code=code if isinstance(code, str) else "",
        details=details,
        retry_after_seconds=_retry_after_seconds(retry_after),
    )


def _shown(body: bytes) -> str:
    return body[:300].decode("utf-8", "replace") or "an empty page"


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
