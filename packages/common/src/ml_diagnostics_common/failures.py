"""Why a remote call failed: one vocabulary for HTTP, gRPC, Google's clients and the connections below them.

`classify` turns any error into a `RemoteError`. Its code, a name in google.rpc.Code, determines its kind; the kind
determines whether the same call may succeed later. No client library is imported for this: an error of a library that
is not loaded cannot occur.
"""

from __future__ import annotations

import enum
import errno
import json
import math
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from ml_diagnostics_common.exceptions import CredentialsError, DiagnosticsError, PreconditionFailedError

__all__ = ["Kind", "RemoteError", "access_advice", "classify", "excerpt", "response_error", "status_error"]

_Error = TypeVar("_Error", bound="RemoteError")


class Kind(enum.Enum):
    """The kinds of failures: they determine what a caller can do."""

    REFUSED = "refused"
    """There are no valid credentials, or they lack a permission."""
    MISSING = "missing"
    """The object, or its parent, does not exist."""
    CONFLICT = "conflict"
    """The object exists already, or changed since it was read."""
    BUSY = "busy"
    """A rate limit or quota is exceeded."""
    TIMEOUT = "timeout"
    """There was no answer in time; the call may have been executed."""
    UNREACHABLE = "unreachable"
    """There was no connection, it broke, or the server failed; the call may have been executed."""
    INVALID = "invalid"
    """The call cannot succeed as it is."""


class _Code(NamedTuple):
    name: str
    status: int
    kind: Kind


# In the order of their numbers: https://github.com/googleapis/googleapis/blob/master/google/rpc/code.proto
_CODES = (
    _Code("OK", 200, Kind.INVALID),
    _Code("CANCELLED", 499, Kind.UNREACHABLE),
    _Code("UNKNOWN", 500, Kind.UNREACHABLE),
    _Code("INVALID_ARGUMENT", 400, Kind.INVALID),
    _Code("DEADLINE_EXCEEDED", 504, Kind.TIMEOUT),
    _Code("NOT_FOUND", 404, Kind.MISSING),
    _Code("ALREADY_EXISTS", 409, Kind.CONFLICT),
    _Code("PERMISSION_DENIED", 403, Kind.REFUSED),
    _Code("RESOURCE_EXHAUSTED", 429, Kind.BUSY),
    _Code("FAILED_PRECONDITION", 412, Kind.CONFLICT),
    _Code("ABORTED", 409, Kind.CONFLICT),
    _Code("OUT_OF_RANGE", 400, Kind.INVALID),
    _Code("UNIMPLEMENTED", 501, Kind.INVALID),
    _Code("INTERNAL", 500, Kind.UNREACHABLE),
    _Code("UNAVAILABLE", 503, Kind.UNREACHABLE),
    _Code("DATA_LOSS", 500, Kind.UNREACHABLE),
    _Code("UNAUTHENTICATED", 401, Kind.REFUSED),
)
_KINDS = {code.name: code.kind for code in _CODES}
_NAMES = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    408: "DEADLINE_EXCEEDED",
    409: "ALREADY_EXISTS",
    412: "FAILED_PRECONDITION",
    413: "INVALID_ARGUMENT",
    416: "OUT_OF_RANGE",
    429: "RESOURCE_EXHAUSTED",
    499: "CANCELLED",
    500: "INTERNAL",
    501: "UNIMPLEMENTED",
    504: "DEADLINE_EXCEEDED",
}
# Compute and Cloud Storage send these with status 403, like a missing permission.
# https://cloud.google.com/compute/docs/api/best-practices#error-handling
# https://cloud.google.com/storage/docs/json_api/v1/status-codes
_RATE_LIMITS = frozenset(
    {"rateLimitExceeded", "userRateLimitExceeded", "concurrentLimitExceeded", "RATE_LIMIT_EXCEEDED"}
)
_QUOTAS = frozenset({"quotaExceeded", "dailyLimitExceeded", "limitExceeded", "QUOTA_EXCEEDED"})
_DISABLED = frozenset({"SERVICE_DISABLED", "API_DISABLED", "accessNotConfigured"})
_NETWORK_ERRORS = frozenset(
    {
        errno.EADDRNOTAVAIL,
        errno.EHOSTDOWN,
        errno.EHOSTUNREACH,
        errno.ENETDOWN,
        errno.ENETRESET,
        errno.ENETUNREACH,
        errno.ENOTCONN,
        errno.EPIPE,
    }
)
_EXCERPT_BYTES = 300


class RemoteError(DiagnosticsError):
    """A remote call failed.

    Attributes:
        code: A name in google.rpc.Code, such as UNAVAILABLE.
        message: The server's message, or the connection's.
        status: The HTTP status; 0 if there was no answer, or not over HTTP.
        reason: The reason that Google's APIs add, such as SERVICE_DISABLED; or empty.
        retry_after_seconds: The delay that the server asks for; None if it asks for none.
        details: Further details, as JSON objects.
        is_from_api: True if a response had the form of Google's APIs; otherwise a proxy may have sent it.
    """

    service = ""
    """The server's name, for messages; set by subclasses."""

    def __init__(
        self,
        code: str,
        message: str,
        *,
        status: int = 0,
        reason: str = "",
        retry_after_seconds: float | None = None,
        details: Sequence[Mapping[str, Any]] = (),
        is_from_api: bool = False,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.status = status
        self.reason = reason
        self.retry_after_seconds = retry_after_seconds
        self.details = details
        self.is_from_api = is_from_api

    def __str__(self) -> str:
        if not self.service:
            return self.message
        return f"{self.service} answered {self.code}: {self.message}{f' (HTTP {self.status})' if self.status else ''}"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.code, self.message), vars(self)

    @classmethod
    def of(cls: type[_Error], failure: RemoteError) -> _Error:
        """Return the same failure as an error of this class."""
        error = cls(failure.code, failure.message)
        vars(error).update(vars(failure))
        return error

    @property
    def kind(self) -> Kind:
        """The kind of the failure."""
        # Google's APIs send this code with 400 for a state that only a person changes, such as disabled billing; Cloud
        # Storage sends 412 for an object that changed.
        if self.code == "FAILED_PRECONDITION" and self.status == 400:
            return Kind.INVALID
        return _KINDS.get(self.code, Kind.UNREACHABLE)

    @property
    def is_quota_exhausted(self) -> bool:
        """True if a quota, not a rate, is exceeded: waiting for some seconds does not help."""
        return self.status == 403 and self.reason in _QUOTAS

    @property
    def is_temporary(self) -> bool:
        """True if the same call may succeed later, with nothing changed by a person."""
        return self.kind in (Kind.BUSY, Kind.TIMEOUT, Kind.UNREACHABLE) and not self.is_quota_exhausted

    @property
    def access(self) -> bool:
        """True if a person must grant access: there are no credentials, no permission, or no such project."""
        return self.kind in (Kind.REFUSED, Kind.MISSING)

    @property
    def shown_status(self) -> str:
        """The HTTP status and the API's code, for messages."""
        if not self.status:
            return "no answer" if self.is_temporary else self.code
        return f"HTTP {self.status}, {self.code}" if self.is_from_api else f"HTTP {self.status}"


def response_error(status: int, body: bytes, retry_after: str | None = None) -> RemoteError:
    """Return the error for an HTTP response that is not 2xx.

    Args:
        status: The HTTP status.
        body: The body: an error of Google's APIs as JSON, or anything else.
        retry_after: The header Retry-After.
    """
    seconds = _header_seconds(retry_after)
    described = _json_error(body)
    if described is None:
        return RemoteError(_code_of_status(status), excerpt(body), status=status, retry_after_seconds=seconds)
    details = [*_objects(described.get("details")), *_objects(described.get("errors"))]
    for detail in details:
        if seconds is None and "retryDelay" in detail:
            seconds = _duration_seconds(detail["retryDelay"])
    reason = _reason(details)
    return RemoteError(
        _code(status, described.get("status"), reason),
        str(described["message"]),
        status=status,
        reason=reason,
        retry_after_seconds=seconds,
        details=details,
        is_from_api=True,
    )


def status_error(number: object, message: str, details: object = ()) -> RemoteError:
    """Return the error for a google.rpc.Status, such as that of a failed operation or of one entry of a batch.

    Args:
        number: Its code; any other value stands for UNKNOWN.
        message: Its message.
        details: Its details, as JSON.
    """
    code = _CODES[number if isinstance(number, int) and 0 < number < len(_CODES) else 2]
    listed = _objects(details)
    return RemoteError(code.name, message, status=code.status, reason=_reason(listed), details=listed, is_from_api=True)


def classify(error: BaseException) -> RemoteError:
    """Return the failure that an error stands for.

    Args:
        error: An error of a call: of Google's clients, gRPC, requests, urllib3, a socket or a file. An error of our
            libraries stands for its cause. Any other error is INVALID.
    """
    if isinstance(error, RemoteError):
        return error
    for module, names, failure in _LIBRARIES:
        library = sys.modules.get(module)
        # A module that another thread is importing lacks its classes, so no error of it can exist yet.
        if library and isinstance(error, tuple(getattr(library, name, ()) for name in names)):
            return failure(error)
    if isinstance(error, PreconditionFailedError):
        return RemoteError("FAILED_PRECONDITION", str(error))
    if isinstance(error, CredentialsError):
        return RemoteError("UNAUTHENTICATED", str(error))
    if isinstance(error, OSError):
        return RemoteError(_code_of_os_error(error), str(error))
    if isinstance(error, DiagnosticsError):
        status = getattr(error, "code", 0)
        if isinstance(status, int) and status:  # Errors of control planes have an HTTP status.
            return RemoteError(_code_of_status(status), str(error), status=status)
        if error.__cause__ is not None:
            return classify(error.__cause__)
    if type(error).__name__ == "DataCorruption":  # Its package differs between releases of google-cloud-storage.
        return RemoteError("DATA_LOSS", str(error))
    return RemoteError("INVALID_ARGUMENT", f"{type(error).__name__}: {error}")


def access_advice(failure: RemoteError, *, service: str, project: str, principal: str, role: str) -> str:
    """Return how to get access that was refused.

    Args:
        failure: The failure.
        service: The API, such as compute.googleapis.com.
        project: The project's id.
        principal: The account that made the call.
        role: The role that suffices for it.
    """
    if failure.reason in _DISABLED or "has not been used in project" in failure.message:
        return f"enable the API: 'gcloud services enable {service} --project={project}', and wait some minutes"
    if failure.reason == "ACCESS_TOKEN_SCOPE_INSUFFICIENT":
        return "give the machine's service account the access scope https://www.googleapis.com/auth/cloud-platform"
    return f"grant {principal} the role {role} on project {project}"


def excerpt(body: bytes) -> str:
    """Return the start of a response that is not an API's, for a message."""
    return body[:_EXCERPT_BYTES].decode("utf-8", "replace") or "an empty page"


# --- Codes --------------------------------------------------------------------------------------------


def _code(status: int, name: object, reason: str) -> str:
    if status == 403 and reason in _RATE_LIMITS | _QUOTAS:
        return "RESOURCE_EXHAUSTED"
    return name if isinstance(name, str) and name in _KINDS and name != "OK" else _code_of_status(status)


def _code_of_status(status: int) -> str:
    return _NAMES.get(status) or ("UNAVAILABLE" if status >= 500 else "UNIMPLEMENTED")


def _code_of_os_error(error: OSError) -> str:
    if isinstance(error, TimeoutError):
        return "DEADLINE_EXCEEDED"
    if isinstance(error, FileNotFoundError):
        return "NOT_FOUND"
    if isinstance(error, FileExistsError):
        return "ALREADY_EXISTS"
    if isinstance(error, PermissionError):
        return "PERMISSION_DENIED"
    is_of_network = isinstance(error, ConnectionError) or error.errno in _NETWORK_ERRORS
    return "UNAVAILABLE" if is_of_network else "INVALID_ARGUMENT"


# --- Errors of libraries ------------------------------------------------------------------------------


def _api_error(error: Any) -> RemoteError:
    """Convert an error of google.api_core, for HTTP or gRPC."""
    response = error.response
    status = int(error.code or 0)
    is_grpc = hasattr(response, "trailing_metadata")
    reason = str(getattr(error, "reason", "") or "") or _reason(_objects(error.errors) or _errors_in(response))
    code = _code(status, error.grpc_status_code.name if error.grpc_status_code else None, reason)
    if code == "RESOURCE_EXHAUSTED" and "message larger than max" in (error.message or ""):
        code = "UNAVAILABLE"  # gRPC's own error for a response beyond our limit.
    seconds = _header_seconds(_trailing_retry_after(response) if is_grpc else _header(response, "Retry-After"))
    for detail in error.details or ():
        if hasattr(detail, "retry_delay"):  # google.rpc.RetryInfo
            seconds = detail.retry_delay.seconds + detail.retry_delay.nanos / 1e9
    return RemoteError(
        code,
        str(error.message or ""),
        status=0 if is_grpc else status,
        reason=reason,
        retry_after_seconds=seconds,
        is_from_api=True,
    )


def _errors_in(response: Any) -> list[dict[str, Any]]:
    """Return the errors in the body of a response: of a download, Google's client keeps nothing else."""
    try:
        return _objects((_json_error(response.content) or {}).get("errors"))
    except (AttributeError, TypeError, RuntimeError):  # There is no body, or it was not kept.
        return []


def _grpc_error(error: Any) -> RemoteError:
    return RemoteError(error.code().name, error.details() or "", is_from_api=True)


def _auth_error(error: Any) -> RemoteError:
    """Convert an error of google.auth: the token service may be unreachable, or refuse the credentials."""
    message = f"no access token: {error.args[0] if error.args else error!r}"
    if type(error).__name__ == "TransportError" or getattr(error, "retryable", False):
        return RemoteError("UNAVAILABLE", message)
    return RemoteError("UNAUTHENTICATED", message)


def _malformed(error: BaseException) -> RemoteError:
    return RemoteError("INVALID_ARGUMENT", str(_root(error)))


def _late(error: BaseException) -> RemoteError:
    return RemoteError("DEADLINE_EXCEEDED", str(_root(error)))


def _unreachable(error: BaseException) -> RemoteError:
    return RemoteError("UNAVAILABLE", str(_root(error)))


_LIBRARIES = (
    ("google.api_core.exceptions", ("GoogleAPICallError",), _api_error),
    ("google.api_core.exceptions", ("GoogleAPIError",), _unreachable),
    ("google.auth.exceptions", ("GoogleAuthError",), _auth_error),
    ("requests.exceptions", ("Timeout",), _late),
    ("urllib3.exceptions", ("TimeoutError",), _late),
    ("requests.exceptions", ("InvalidHeader", "InvalidSchema", "InvalidURL", "MissingSchema"), _malformed),
    ("requests.exceptions", ("RequestException",), _unreachable),
    ("urllib3.exceptions", ("LocationValueError",), _malformed),
    ("urllib3.exceptions", ("HTTPError",), _unreachable),
    ("socket", ("gaierror",), _unreachable),
    ("ssl", ("SSLError",), _unreachable),
    ("http.client", ("InvalidURL",), _malformed),
    ("http.client", ("HTTPException",), _unreachable),
    ("grpc", ("Call",), _grpc_error),
    ("grpc", ("FutureTimeoutError",), _late),
)


def _root(error: BaseException) -> BaseException:
    """Return the error that requests and urllib3 wrapped; their own messages repeat the URL with its query."""
    inner = getattr(error, "reason", None) or next(iter(error.args), None)
    return _root(inner) if isinstance(inner, BaseException) else error


# --- What servers send --------------------------------------------------------------------------------


def _json_error(body: bytes) -> dict[str, Any] | None:
    """Return the error in the body of a response; None if it does not have the form of Google's APIs."""
    try:
        decoded = json.loads(body)
    except (ValueError, RecursionError):
        return None
    described = decoded.get("error") if isinstance(decoded, dict) else None
    return described if isinstance(described, dict) and isinstance(described.get("message"), str) else None


def _objects(value: object) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, (list, tuple)) else []


def _reason(details: Iterable[Mapping[str, Any]]) -> str:
    return next((str(detail["reason"]) for detail in details if detail.get("reason")), "")


def _header(response: Any, name: str) -> str | None:
    headers: Any = getattr(response, "headers", None) or {}
    return headers.get(name) if hasattr(headers, "get") else None


def _trailing_retry_after(call: Any) -> str | None:
    """Return the header Retry-After of a gRPC call: proxies put it into the trailing metadata."""
    try:
        return str(dict(call.trailing_metadata() or ())["retry-after"])
    except (AttributeError, KeyError, TypeError, ValueError):
        return None


def _header_seconds(value: str | None) -> float | None:
    """Parse the header Retry-After: a number of seconds, or a date."""
    seconds = _duration_seconds(value)
    if seconds is not None or not value:
        return seconds
    import email.utils  # Few servers send a date, and this loads four modules.

    try:
        return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - time.time())
    except (TypeError, ValueError, OverflowError):
        return None


def _duration_seconds(value: object) -> float | None:
    """Parse a number of seconds, or a google.protobuf.Duration as JSON: "3.5s"."""
    try:
        seconds = float(str(value).removesuffix("s"))
    except ValueError:
        return None
    return max(0.0, seconds) if math.isfinite(seconds) else None
