"""Errors for failed requests, with the account, the missing permission, and what to do."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from ml_diagnostics_common.command.errors import CommandError, NotFoundError, NotPermittedError, TimedOutError
from ml_diagnostics_common.failures import Kind, RemoteError, access_advice

__all__ = ["as_xprofiler_error", "operation_error"]

_ROLES: Final[Mapping[str, str]] = {
    "hypercomputecluster": "roles/hypercomputecluster.editor",
    "tpu": "roles/tpu.viewer",
}
_SERVICES: Final[Mapping[str, str]] = {"/v1alpha/": "hypercomputecluster", "/v2/": "tpu"}
"""Services by the version in the path of a request; otherwise it is Compute."""
_UNKNOWN_ZONE: Final = re.compile(r"Invalid value for field 'zone'.*Unknown zone")  # Compute: 400 or 404.


def as_xprofiler_error(
    error: RemoteError | ValueError, doing: str, uri: str, project: str, principal: str, role: str
) -> CommandError:
    """Return the error to raise for a request that failed.

    Args:
        error: The exception that the request raised; a ValueError for a response that is not an API's.
        doing: The purpose of the request: "list the VMs".
        uri: The URL of the request.
        project: The project's id.
        principal: The account that sent it.
        role: The role on Compute that suffices for the command.
    """
    what = f"could not {doing} in project {project}"
    if not isinstance(error, RemoteError):
        return CommandError(f"{what}: the answer is not from Google ({error}); check for a proxy in between")
    kind = error.kind
    if error.status == 0:
        if kind is Kind.TIMEOUT:
            return TimedOutError(f"{what}: there was no answer in time; check the network, and try again")
        if kind is Kind.REFUSED:
            return NotPermittedError(f"{what}: {error.message}; log in again: 'gcloud auth login'")
        return CommandError(f"{what}: {error.message}; check the network, and try again")
    what = f"{what} as {principal}: {error.message.rstrip('. ')} (HTTP {error.status})"
    if error.status == 401:
        return NotPermittedError(f"{what}; log in again: 'gcloud auth login'")
    if error.is_quota_exhausted:
        return CommandError(
            f"{what}; request more quota: https://console.cloud.google.com/iam-admin/quotas?project={project}"
        )
    if kind is Kind.BUSY:
        return CommandError(f"{what}; the request quota is exhausted: try again in a minute")
    if kind is Kind.REFUSED:
        service = next((name for version, name in _SERVICES.items() if version in uri), "compute")
        advice = access_advice(
            error,
            service=f"{service}.googleapis.com",
            project=project,
            principal=principal,
            role=_ROLES.get(service, role),
        )
        return NotPermittedError(f"{what}; {advice}")
    if kind is Kind.MISSING or _UNKNOWN_ZONE.search(error.message):
        return NotFoundError(what)
    if kind is Kind.TIMEOUT:
        return TimedOutError(f"{what}; try again")
    return CommandError(f"{what}{'; try again' if error.is_temporary else ''}")


def operation_error(operation: Mapping[str, Any], doing: str) -> CommandError | None:
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
        return CommandError(f"{what}; the zone has no free machine of this type: try another zone, or later")
    if code.startswith(("QUOTA_EXCEEDED", "QUOTA_LIMIT_EXCEEDED")):
        return CommandError(f"{what}; request more quota, or delete unused resources")
    if code == "RESOURCE_NOT_FOUND":
        return NotFoundError(what)
    if code in ("PERMISSIONS_ERROR", "FORBIDDEN"):
        return NotPermittedError(what)
    return CommandError(what)
