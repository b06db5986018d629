"""One JSON request, one answer, within a time: what every control plane over HTTP stands on."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ml_diagnostics_common.authorized_requests import (
    RESPONSE_BYTES,
    Answer,
    NoAnswerError,
    Session,
    Why,
    exchange,
    shown,
)

from google_cloud_mldiagnostics._version import __version__

__all__ = ["CODES", "RequestError", "ask"]

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


def ask(
    session: Session,
    method: str,
    url: str,
    *,
    timeout_seconds: float,
    query: Mapping[str, str] | None = None,
    body: Mapping[str, Any] | None = None,
    most_bytes: int = RESPONSE_BYTES,
) -> dict[str, Any]:
    """Makes one request, once.

    Args:
        session: What `authorized_requests.open_session` returns.
        method: GET, POST, PATCH, ...
        url: Without its query.
        timeout_seconds: How long it may take in all, a new token, headers and body included.
        query: The query's parameters.
        body: The JSON to send.
        most_bytes: The limit of the answer's body.

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
    try:
        answer = exchange(
            session,
            method,
            url,
            headers=_HEADERS,
            timeout_seconds=timeout_seconds,
            query=query,
            body=encoded,
            most_bytes=most_bytes,
        )
    except NoAnswerError as error:
        if error.why is Why.TOKEN_REFUSED:
            raise RequestError(401, str(error), code="UNAUTHENTICATED") from error
        raise RequestError(0, str(error)) from error
    if not 200 <= answer.status < 300:
        raise _refusal(answer)
    return _object(answer.body)


def _object(body: bytes) -> dict[str, Any]:
    """The answer's JSON; a proxy's page says 200 too, and then nobody told us that anything was done."""
    try:
        found = json.loads(body) if body.strip() else {}
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise RequestError(0, f"no answer of the control plane: {shown(body)}")
    return found


def _refusal(answer: Answer) -> RequestError:
    """An answer that is not 2xx; its body may be Google's error in JSON, or a proxy's page in anything."""
    try:
        described = json.loads(answer.body)["error"]
        message, code, details = str(described["message"]), described.get("status"), described.get("details")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        message, code, details = shown(answer.body), "", None
    return RequestError(
        answer.status,
        message,
        code=code if isinstance(code, str) else "",
        details=details,
        retry_after_seconds=answer.retry_after_seconds,
    )
