"""Errors for failed requests, with the account, the missing permission, and what to do."""

from __future__ import annotations

import http.client
import json
import re
from collections.abc import Mapping
from typing import Any, Final

from ml_diagnostics_common.exceptions import DiagnosticsError

from xprofiler.exceptions import NotFoundError, NotPermittedError, TimedOutError, XprofilerError

__all__ = ["as_xprofiler_error", "is_temporary", "operation_error", "retry_after_seconds"]

_TEMPORARY: Final = frozenset({408, 429, 500, 502, 503, 504})
_ROLES: Final[Mapping[str, str]] = {
    "compute": "roles/compute.instanceAdmin.v1",
    "hypercomputecluster": "roles/hypercomputecluster.editor",
    "tpu": "roles/tpu.viewer",
}
_SERVICES: Final[Mapping[str, str]] = {"/v1alpha/": "hypercomputecluster", "/v2/": "tpu"}
"""Services by the version in the path of a request; otherwise it is Compute."""
# Compute sends these with status 403, like a missing permission.
# https://cloud.google.com/compute/docs/api/best-practices#error-handling
_RATE_LIMITS: Final = frozenset(
    {"rateLimitExceeded", "userRateLimitExceeded", "concurrentLimitExceeded", "RATE_LIMIT_EXCEEDED"}
)
_UNKNOWN_ZONE: Final = re.compile(r"Invalid value for field 'zone'.*Unknown zone")  # Compute: 400 or 404.
_QUOTAS: Final = frozenset({"quotaExceeded", "dailyLimitExceeded", "limitExceeded", "QUOTA_EXCEEDED"})


def is_temporary(error: Exception) -> bool:
    """Return whether the same request may succeed later. A timeout is final, since it was long enough."""
    status = _status(error)
    if status:
        return status in _TEMPORARY or (status == 403 and _message_and_reason(error)[1] in _RATE_LIMITS)
    return isinstance(error, OSError | http.client.HTTPException) and not isinstance(error, TimeoutError)


def retry_after_seconds(error: Exception) -> float | None:
    """Return the delay that the server asks for."""
    asked = getattr(error, "resp", {}).get("retry-after", "")
    return float(asked) if asked.isdecimal() else None


def as_xprofiler_error(
    error: Exception, doing: str, project: str, principal: str, role: str = _ROLES["compute"]
) -> DiagnosticsError:
    """Return the error to raise for a request that failed.

    Args:
        error: The error of google-api-python-client, google-auth or the connection.
        doing: The purpose of the request: "list the VMs".
        project: The project's id.
        principal: The account that sent it.
        role: The role on Compute that suffices for the command.
    """
    if isinstance(error, DiagnosticsError):
        return error
    what = f"could not {doing} in project {project}"
    status, message, reason = _status(error), *_message_and_reason(error)
    if status == 0:
        return _no_answer(error, what)
    what = f"{what} as {principal}: {message.rstrip('. ')} (HTTP {status})"
    if status == 401:
        return NotPermittedError(f"{what}; log in again: 'gcloud auth login'")
    if status == 429 or (status == 403 and reason in _RATE_LIMITS):
        return XprofilerError(f"{what}; the request quota is exhausted: try again in a minute")
    if status == 403 and reason in _QUOTAS:
        return XprofilerError(
            f"{what}; request more quota: https://console.cloud.google.com/iam-admin/quotas?project={project}"
        )
    if status == 403:
        return NotPermittedError(f"{what}; {_advice(error, message, reason, project, principal, role)}")
    if status == 404 or (status == 400 and _UNKNOWN_ZONE.search(message)):
        return NotFoundError(what)
    if status in (408, 504):
        return TimedOutError(f"{what}; try again")
    return XprofilerError(f"{what}{'; try again' if status >= 500 else ''}")


def operation_error(operation: Mapping[str, Any], doing: str) -> XprofilerError | None:
    """Return the error of a failed operation of Compute; None if it succeeded.

    Args:
        operation: The operation, which is done.
        doing: Its purpose: "create the VM xprof-1".
    """
    errors = operation.get("error", {}).get("errors", [])
    if not errors:
        return None
    code = str(errors[0].get("code", ""))
    message = "; ".join(str(one.get("message") or one.get("code")).rstrip(". ") for one in errors)
    what = f"could not {doing}: {message} ({code})"
    if code.startswith("ZONE_RESOURCE_POOL_EXHAUSTED"):
        return XprofilerError(f"{what}; the zone has no free machine of this type: try another zone, or later")
    if code.startswith(("QUOTA_EXCEEDED", "QUOTA_LIMIT_EXCEEDED")):
        return XprofilerError(f"{what}; request more quota, or delete unused resources")
    if code == "RESOURCE_NOT_FOUND":
        return NotFoundError(what)
    if code in ("PERMISSIONS_ERROR", "FORBIDDEN"):
        return NotPermittedError(what)
    return XprofilerError(what)


def _status(error: Exception) -> int:
    """Return the HTTP status; 0 if there was no answer."""
    status = getattr(getattr(error, "resp", None), "status", 0)
    return int(status or 0)


def _message_and_reason(error: Exception) -> tuple[str, str]:
    """Return the server's message, and its reason, such as SERVICE_DISABLED."""
    try:
        described = json.loads(getattr(error, "content", b""))["error"]
        message = str(described["message"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return str(getattr(error, "reason", "") or error), ""
    lists = [described.get("details"), described.get("errors")]
    details = [detail for found in lists if isinstance(found, list) for detail in found]
    reasons = [str(detail["reason"]) for detail in details if isinstance(detail, dict) and detail.get("reason")]
    return message, reasons[0] if reasons else ""


def _no_answer(error: Exception, what: str) -> XprofilerError:
    import google.auth.exceptions

    detail = error.args[0] if error.args and not isinstance(error, OSError) else error
    if isinstance(error, google.auth.exceptions.GoogleAuthError) and not _is_transport_failure(error):
        return NotPermittedError(f"{what}: no access token: {detail}; log in again: 'gcloud auth login'")
    if isinstance(error, TimeoutError):
        return TimedOutError(f"{what}: there was no answer in time; check the network, and try again")
    if isinstance(error, ValueError):
        return XprofilerError(f"{what}: the answer is not from Google ({detail}); check for a proxy in between")
    return XprofilerError(f"{what}: {str(detail) or type(error).__name__}; check the network, and try again")


def _is_transport_failure(error: Exception) -> bool:
    """Return whether fetching a token failed for another reason than the login."""
    import google.auth.exceptions

    return isinstance(error, google.auth.exceptions.TransportError) or bool(getattr(error, "retryable", False))


def _advice(error: Exception, message: str, reason: str, project: str, principal: str, role: str) -> str:
    uri = str(getattr(error, "uri", ""))
    service = next((name for version, name in _SERVICES.items() if version in uri), "compute")
    if reason in ("SERVICE_DISABLED", "accessNotConfigured") or "has not been used in project" in message:
        return (
            f"enable the API: 'gcloud services enable {service}.googleapis.com --project={project}', and wait a minute"
        )
    if reason == "ACCESS_TOKEN_SCOPE_INSUFFICIENT":
        return "give the machine's service account the scope https://www.googleapis.com/auth/cloud-platform"
    return f"grant {principal} the role {role if service == 'compute' else _ROLES[service]} on project {project}"
