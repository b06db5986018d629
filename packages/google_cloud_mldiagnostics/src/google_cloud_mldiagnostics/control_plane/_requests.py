"""Requests to control planes: JSON requests and responses, the time limit of a call, and errors of Google's API."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ml_diagnostics_common.authorized_requests import RESPONSE_BYTES, Session
from ml_diagnostics_common.backoff import Backoff, Retries
from ml_diagnostics_common.credentials import principal_of
from ml_diagnostics_common.exceptions import DiagnosticsError
from ml_diagnostics_common.failures import Kind, RemoteError, access_advice, excerpt

from google_cloud_mldiagnostics._version import __version__
from google_cloud_mldiagnostics.exceptions import ControlPlaneError, RunChangedError

__all__ = ["Call", "Caller", "NotYetError", "Requester", "request_json"]

_MOST_TRIES = 3  # Of a request that fails for a temporary reason.
_MOST_CONFLICTS = 8
_HURRIED_SECONDS = 0.1
_SERVICE = "hypercomputecluster.googleapis.com"
_ROLE = "roles/hypercomputecluster.editor (or roles/clusterdirector.editor)"  # Not all projects have the first.
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
    """Make one request, without retries; the arguments are those of `Session.send`, with a JSON object as the body.

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


class Requester:
    """The connections of a control plane; the first request opens them. Thread-safe.

    Args:
        open_connections: Return a new session.
    """

    def __init__(self, open_connections: Callable[[], Session]) -> None:
        self._open_connections = open_connections
        self._session: Session | None = None
        self._session_lock = threading.Lock()

    def connected(self) -> Session:
        """Return the session, after opening it if there is none."""
        with self._session_lock:
            self._session = self._session or self._open_connections()
            return self._session

    def close(self) -> None:
        """Close the connections; a later call opens others."""
        with self._session_lock:
            session, self._session = self._session, None
        if session is not None:
            session.close()


class NotYetError(DiagnosticsError):
    """An operation takes longer than a call may. It is not retried, since starting it again would not help."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.__cause__ = RemoteError("DEADLINE_EXCEEDED", message, status=504)


class Call:
    """One call of a control plane: the time that is left for it, and the waits in it.

    Args:
        clock: Return monotonic seconds.
        seconds: The limit of its duration.
        sleep: Wait for a number of seconds; return True if the wait was cut short.
        is_patient: True to continue, with short waits, after a wait was cut short.
    """

    def __init__(
        self, clock: Callable[[], float], seconds: float, sleep: Callable[[float], object], *, is_patient: bool = False
    ) -> None:
        self._clock = clock
        self._deadline = clock() + seconds
        self._sleep = sleep
        self._is_patient = is_patient

    def seconds_left(self) -> float:
        """Return the time that is left; negative after the deadline."""
        return self._deadline - self._clock()

    def shorten(self, seconds: float) -> None:
        """Set the deadline to that time from now, unless it is earlier; from any thread."""
        self._deadline = min(self._deadline, self._clock() + seconds)

    def retries(self) -> Retries:
        """Return the retries of one request after temporary failures."""
        backoff = Backoff(0.5, 5.0)
        return Retries(backoff, seconds_left=self.seconds_left, most_tries=_MOST_TRIES, sleep=self._wait)

    def retries_of_conflicts(self) -> Retries:
        """Return the retries of one change that conflicts with changes of other processes."""
        return Retries(
            Backoff(0.1, 2.0),
            seconds_left=self.seconds_left,
            most_tries=_MOST_CONFLICTS + 1,
            retry_if=lambda failure: failure.kind is Kind.CONFLICT,
            sleep=self._wait,
        )

    def wait(self, error: Exception, seconds: float) -> None:
        """Wait before polling again; raise the error if there is no time for it."""
        if seconds >= self.seconds_left() or self._wait(seconds):
            raise error

    def _wait(self, seconds: float) -> bool:
        """Wait; return True to give up."""
        if not self._sleep(seconds):
            return False
        if not self._is_patient or self.seconds_left() <= _HURRIED_SECONDS:
            return True
        time.sleep(_HURRIED_SECONDS)
        return False


@dataclass(frozen=True)
class Caller:
    """The account that calls Google's control plane, in a project and region.

    Attributes:
        project: The project's id.
        location: The region.
        credentials: A `google.auth.credentials.Credentials`.
        known_principal: The account's name; None if only the credentials may know it.
    """

    project: str
    location: str
    credentials: Any
    known_principal: str | None = None

    @property
    def principal(self) -> str:
        """The account's name; the name of a machine's account is known after the first request."""
        return self.known_principal or principal_of(self.credentials) or "the account of these credentials"

    def error(
        self, failure: RemoteError, doing: str, error_class: type[ControlPlaneError] = ControlPlaneError
    ) -> ControlPlaneError:
        """Return the error to raise for a request that failed.

        Args:
            failure: The failure.
            doing: The purpose of the request: "create the run train-1".
            error_class: The error's class.
        """
        message = (
            f"Google's control plane could not {doing} in project {self.project}, region {self.location}, "
            f"for {self.principal}: {failure.message.rstrip('. ')} ({failure.shown_status})"
        )
        advice = self._advice(failure)
        return error_class(
            f"{message}; {advice}" if advice else message,
            code=401 if failure.code == "UNAUTHENTICATED" else failure.status,
            is_temporary=failure.is_temporary or error_class is RunChangedError,
        )

    def _advice(self, failure: RemoteError) -> str:
        if failure.code == "UNAUTHENTICATED":
            return "renew the credentials: 'gcloud auth application-default login', or another key"
        if failure.status == 0:
            return f"check that this machine can reach {_SERVICE}"
        if failure.kind is Kind.BUSY:
            return f"the project's quota for {_SERVICE} is exhausted for now"
        if failure.kind is not Kind.REFUSED:
            return ""
        advice = access_advice(failure, service=_SERVICE, project=self.project, principal=self.principal, role=_ROLE)
        return f"{advice}; check that this is the right project"
