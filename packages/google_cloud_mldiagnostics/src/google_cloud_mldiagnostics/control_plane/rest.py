"""One JSON request and its JSON response: the basis of every control plane over HTTP."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ml_diagnostics_common.authorized_requests import RESPONSE_BYTES, Session
from ml_diagnostics_common.failures import RemoteError, excerpt

from google_cloud_mldiagnostics._version import __version__

__all__ = ["request_json"]

_HEADERS: Mapping[str, str] = {
    "Accept": "application/json",
    "Content-Type": "application/json",
    "User-Agent": f"google-cloud-mldiagnostics/{__version__}",
}


def request_json(
    session: Session,
    method: str,
    url: str,
    *,
    timeout_seconds: float,
    query: Mapping[str, str] | None = None,
    body: Mapping[str, Any] | None = None,
    most_bytes: int = RESPONSE_BYTES,
) -> dict[str, Any]:
    """Make one request, once; arguments as of `Session.send`, with a JSON object as the body.

    Raises:
        RemoteError: The request failed, or the response is not a JSON object.
    """
    try:
        encoded = None if body is None else json.dumps(body, allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise RemoteError("INVALID_ARGUMENT", f"JSON does not take it: {error}", status=400) from error
    answer = session.send(
        method,
        url,
        headers=_HEADERS,
        timeout_seconds=max(0.001, timeout_seconds),
        query=query,
        body=encoded,
        most_bytes=most_bytes,
    )
    try:
        found = json.loads(answer.body) if answer.body.strip() else {}
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        # A proxy's page may have status 200, too: the request may not be executed.
        raise RemoteError("UNAVAILABLE", f"no answer of the control plane: {excerpt(answer.body)}")
    return found
