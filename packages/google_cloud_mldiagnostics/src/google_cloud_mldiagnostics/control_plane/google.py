"""Runs in Google Cloud: the API `hypercomputecluster.googleapis.com`, version v1alpha, over REST.

API: https://github.com/googleapis/googleapis/blob/master/google/cloud/hypercomputecluster/v1alpha/machine_learning_runs.proto
Writes answer with a long-running operation (https://google.aip.dev/151), which is asked until it is done.
"""

from __future__ import annotations

import contextlib
import copy
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from ml_diagnostics_common.backoff import Backoff
from ml_diagnostics_common.environment import endpoint

from google_cloud_mldiagnostics.control_plane import Change, Resource
from google_cloud_mldiagnostics.control_plane.refusals import Asker, refusal
from google_cloud_mldiagnostics.control_plane.rest import CODES, RequestError, ask, open_session
from google_cloud_mldiagnostics.exceptions import (
    MLRunConfigurationError,
    RunChangedError,
    RunExistsError,
    RunNotFoundError,
)

if TYPE_CHECKING:
    from google.auth.transport.requests import AuthorizedSession

__all__ = ["GoogleControlPlane"]

_HOSTS: Mapping[str, str] = {
    "prod": "https://hypercomputecluster.googleapis.com",
    "staging": "https://staging-hypercomputecluster.sandbox.googleapis.com",
    "autopush": "https://autopush-hypercomputecluster.sandbox.googleapis.com",
}
_CONSOLE = "https://console.cloud.google.com/cluster-director/diagnostics/details"
_PAGE_SIZE = "1000"  # The most that the API gives; its own choice is ten.
_MOST_TRIES = 3  # Of a request that fails for a reason that may pass.
_MOST_CONFLICTS = 8
_NOT_OURS_TO_WRITE = ("@type", "attempts", "createTime", "endTime", "metrics", "state", "updateTime")
_NOT_YET = "0001-01-01"  # The API's endTime of a run that has not ended.


class _NotYetError(RequestError):
    """Something takes longer than a call may; to begin it again is no help."""

    def __init__(self, message: str) -> None:
        super().__init__(504, message, code="DEADLINE_EXCEEDED")


class GoogleControlPlane:
    """A `ControlPlane` in one project and region of Google Cloud. May be used from several threads.

    Requests are tried again where that is safe: reads always; a creation because the id is ours, so that a second
    one can only fail; a change because it carries the etag of what it was made from.

    Args:
        project: The project's id.
        location: The region, such as "us-central1".
        credentials: A `google.auth.credentials.Credentials` with the scope cloud-platform, as `find_cloud` gives.
        environment: "prod", "staging" or "autopush".
        base_url: Where the API is, without `/v1alpha`; None is Google's, unless
            CLOUDSDK_API_ENDPOINT_OVERRIDES_HYPERCOMPUTECLUSTER says otherwise.
        principal: Whom the credentials stand for, for messages; None asks them.
        request_seconds: The deadline of one request.
        call_seconds: The deadline of one call of this object, with all its requests and waits.
        environ: The environment variables.
        clock: Monotonic seconds.
        sleep: Waits a number of seconds.

    Attributes:
        project: The project's id.
        location: The region.
        call_seconds: May be changed; holds for calls that begin afterwards.

    Raises:
        MLRunConfigurationError: There is no such environment.
        ConfigurationError: The variable that redirects the API holds no URL.
    """

    def __init__(
        self,
        project: str,
        location: str,
        credentials: Any,
        *,
        environment: str = "prod",
        base_url: str | None = None,
        principal: str | None = None,
        request_seconds: float = 10.0,
        call_seconds: float = 60.0,
        environ: Mapping[str, str] = os.environ,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        if environment not in _HOSTS:
            raise MLRunConfigurationError(f"environment is {environment!r}; give one of {', '.join(_HOSTS)}")
        base = (base_url or endpoint("hypercomputecluster", environ) or _HOSTS[environment]).rstrip("/")
        self.project = project
        self.location = location
        self.call_seconds = call_seconds
        self._api = base if base.endswith("/v1alpha") else f"{base}/v1alpha"
        self._runs = f"projects/{quote(project, safe='')}/locations/{quote(location, safe='')}/machineLearningRuns"
        self._asker = Asker(project, location, credentials, principal)
        self._request_seconds = request_seconds
        self._clock = clock
        self._sleep = sleep
        self._session: AuthorizedSession | None = None
        self._session_lock = threading.Lock()

    def get_run(self, run_id: str) -> Resource:
        """See `ControlPlane.get_run`.

        Raises:
            RunNotFoundError: There is none of that id.
            ControlPlaneError: The request was refused, or not answered.
        """
        with self._explained(f"read the run {run_id}", missing=RunNotFoundError):
            return _as_resource(self._get(self._run_path(run_id), self._deadline()))

    def create_run(self, run_id: str, run: Resource) -> Resource:
        """See `ControlPlane.create_run`.

        Where an answer was lost and the next says that the run exists, it is ours if it is what we sent.

        Raises:
            RunExistsError: There is one of that id.
            ControlPlaneError: The request was refused, or not answered.
        """
        deadline, backoff = self._deadline(), Backoff(0.5, 5.0)
        body = {**_writable(run), "name": run_id}
        body.pop("etag", None)
        path, doing = self._run_path(run_id), f"create the run {run_id}"
        with self._explained(doing):
            while True:
                try:
                    answer = self._ask("POST", self._runs, deadline, {"machine_learning_run_id": run_id}, body)
                    return _as_resource(self._done(answer, deadline, path))
                except RequestError as error:
                    if error.status == 409:
                        if backoff.failures:
                            kept = _as_resource(self._appeared(path, deadline, error))
                            if _is_made_of(kept, body):
                                return kept
                        raise refusal(self._asker, doing, error, RunExistsError) from error
                    self._wait(error, backoff, deadline)

    def update_run(self, run_id: str, change: Change) -> Resource:
        """See `ControlPlane.update_run`.

        Raises:
            RunNotFoundError: There is none of that id.
            RunChangedError: Others kept changing it first.
            ControlPlaneError: A request was refused, or not answered.
        """
        deadline, backoff, conflicts = self._deadline(), Backoff(0.5, 5.0), Backoff(0.1, 2.0)
        path, doing = self._run_path(run_id), f"change the run {run_id}"
        with self._explained(doing, missing=RunNotFoundError):
            while True:
                kept = self._get(path, deadline)
                given = _as_resource(kept)
                wanted = change(copy.deepcopy(given))
                if wanted is None or wanted == given:
                    return given
                body = {**_writable(wanted), **_only(kept, "name", "etag", "metrics")}
                try:
                    answer = self._ask("PATCH", path, deadline, {"update_mask": "*"}, body)
                    return _as_resource(self._done(answer, deadline, path))
                except RequestError as error:
                    if error.status not in (409, 412):
                        self._wait(error, backoff, deadline)
                    elif conflicts.failures == _MOST_CONFLICTS:
                        raise refusal(self._asker, doing, error, RunChangedError) from error
                    else:
                        self._pause(error, conflicts.failed(), deadline)

    def list_runs(self, group: str | None = None) -> Iterator[Resource]:
        """See `ControlPlane.list_runs`. Pages are asked for as the iterator gets to them.

        Raises:
            ControlPlaneError: A request was refused, or not answered.
        """
        query = {"orderBy": "create_time desc"}
        if group is not None:
            query["filter"] = f"run_set = {_quoted(group)}"
        with self._explained("list the runs"):
            for run in self._pages(self._runs, "machineLearningRuns", query):
                if group is None or run.get("runSet") == group:
                    yield _as_resource(run)

    def put_session(self, run_id: str, session_id: str, session: Resource) -> None:
        """See `ControlPlane.put_session`. What other hosts have told of the session is kept.

        Raises:
            RunNotFoundError: There is no run of that id.
            ControlPlaneError: A request was refused, or not answered.
        """
        deadline, backoff, conflicts = self._deadline(), Backoff(0.5, 5.0), Backoff(0.1, 2.0)
        sessions = f"{self._run_path(run_id)}/profilerSessions"
        path = f"{sessions}/{quote(session_id, safe='')}"
        exists: RequestError | None = None
        with self._explained(f"keep the session {session_id} of the run {run_id}", missing=RunNotFoundError):
            while True:
                try:
                    if exists:
                        body = _merged(self._appeared(path, deadline, exists), session)
                        answer = self._ask("PATCH", path, deadline, {"update_mask": "target_sessions"}, body)
                    else:
                        answer = self._ask("POST", sessions, deadline, {"profiler_session_id": session_id}, session)
                    self._done(answer, deadline, path)
                    return
                except RequestError as error:
                    if error.status == 409 and not exists:
                        exists = error
                    elif error.status in (409, 412) and conflicts.failures < _MOST_CONFLICTS:
                        self._pause(error, conflicts.failed(), deadline)
                    else:
                        self._wait(error, backoff, deadline)

    def list_sessions(self, run_id: str) -> Iterator[Resource]:
        """See `ControlPlane.list_sessions`.

        Raises:
            RunNotFoundError: There is no run of that id.
            ControlPlaneError: A request was refused, or not answered.
        """
        with self._explained(f"list the sessions of the run {run_id}", missing=RunNotFoundError):
            found = list(self._pages(f"{self._run_path(run_id)}/profilerSessions", "profilerSessions", {}))
        yield from map(_as_resource, sorted(found, key=lambda session: str(session.get("createTime", ""))))

    def link(self, run_id: str) -> str:
        """The run's page in Google Cloud's console."""
        return f"{_CONSOLE}/{quote(self.location)}/{quote(run_id)}?project={quote(self.project)}"

    def close(self) -> None:
        """Closes the connections; a later call opens others."""
        with self._session_lock:
            session, self._session = self._session, None
        if session is not None:
            session.close()

    # --- Requests --------------------------------------------------------------------------------------

    def _run_path(self, run_id: str) -> str:
        return f"{self._runs}/{quote(run_id, safe='')}"

    def _deadline(self) -> float:
        return self._clock() + self.call_seconds

    def _ask(
        self,
        method: str,
        path: str,
        deadline: float,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
    ) -> Resource:
        """One request, made once."""
        with self._session_lock:
            if self._session is None:
                self._session = open_session(self._asker.credentials)
            session = self._session
        seconds = min(self._request_seconds, deadline - self._clock())
        return ask(session, method, f"{self._api}/{path}", query=query, body=body, timeout_seconds=seconds)

    def _get(self, path: str, deadline: float, query: Mapping[str, str] | None = None) -> Resource:
        backoff = Backoff(0.5, 5.0)
        while True:
            try:
                return self._ask("GET", path, deadline, query)
            except RequestError as error:
                self._wait(error, backoff, deadline)

    def _pages(self, path: str, field: str, query: Mapping[str, str]) -> Iterator[Resource]:
        token = ""
        while True:
            page = self._get(
                path, self._deadline(), {**query, "pageSize": _PAGE_SIZE, **({"pageToken": token} if token else {})}
            )
            yield from page.get(field) or ()
            token = page.get("nextPageToken") or ""
            if not token:
                return

    def _done(self, answer: Resource, deadline: float, path: str) -> Resource:
        """What an operation has made, when it is done.

        Args:
            answer: What the write was answered with.
            deadline: Until when to wait for it.
            path: Of what it makes.

        Raises:
            RequestError: The operation failed, or took too long.
        """
        if "/operations/" not in str(answer.get("name", "")):
            return answer  # The thing itself.
        name, delay_seconds = str(answer["name"]), 0.0
        while not answer.get("done"):
            if delay_seconds:
                self._pause(_NotYetError(f"{name} is not done yet"), delay_seconds, deadline)
            delay_seconds = min(5.0, 2 * delay_seconds or 0.1)
            answer = self._get(quote(name), deadline)
        failed = answer.get("error")
        if failed:
            code, status = CODES.get(failed.get("code"), CODES[2])
            raise RequestError(status, str(failed.get("message", "")), code=code, details=failed.get("details"))
        return answer.get("response") or self._get(path, deadline)

    def _appeared(self, path: str, deadline: float, conflict: RequestError) -> Resource:
        """What is said to exist: while it is being created, it cannot be seen yet."""
        backoff = Backoff(0.1, 5.0)
        while True:
            try:
                return self._get(path, deadline)
            except RequestError as error:
                if error.status != 404:
                    raise
            not_yet = _NotYetError(f"{conflict.message}, but it cannot be seen yet")
            self._pause(not_yet, backoff.failed(), deadline)

    def _wait(self, error: RequestError, backoff: Backoff, deadline: float) -> None:
        """Waits before another try; raises the error where there shall be none."""
        if not error.is_temporary or isinstance(error, _NotYetError) or backoff.failures + 1 >= _MOST_TRIES:
            raise error
        self._pause(error, backoff.failed(error.retry_after_seconds), deadline)

    def _pause(self, error: RequestError, seconds: float, deadline: float) -> None:
        if self._clock() + seconds >= deadline:
            raise error
        self._sleep(seconds)

    @contextlib.contextmanager
    def _explained(self, doing: str, *, missing: type[RunNotFoundError] | None = None) -> Iterator[None]:
        """What a call raises: who was refused what, and what to do about it."""
        try:
            yield
        except RequestError as error:
            kind = missing if error.status == 404 else None
            raise refusal(self._asker, doing, error, kind) from error


# --- Runs as the API has them, and as our callers do -------------------------------------------------


def _as_resource(kept: Resource) -> Resource:
    """What the API keeps, with the id for its name and without the time at which it has not ended."""
    resource = {name: value for name, value in kept.items() if name != "@type"}
    resource["name"] = str(kept.get("name", "")).rpartition("/")[2]
    if str(kept.get("endTime", "")).startswith(_NOT_YET):
        del resource["endTime"]
    return resource


def _writable(run: Resource) -> Resource:
    return {name: value for name, value in run.items() if name not in _NOT_OURS_TO_WRITE}


def _only(kept: Resource, *names: str) -> Resource:
    return {name: kept[name] for name in names if name in kept}


def _is_made_of(kept: Any, sent: Any) -> bool:
    """Whether what is kept has all that was sent; what is empty may be left out."""
    if not isinstance(sent, Mapping):
        return bool(kept == sent)
    return all(_is_made_of(kept.get(name), value) for name, value in sent.items() if value or name in kept)


def _merged(kept: Resource, session: Resource) -> Resource:
    """A session with what this host and others have told of it."""
    targets = dict.fromkeys([*kept.get("profilerTargets", ()), *session.get("profilerTargets", ())])
    told = {**kept.get("targetSessions", {}), **session.get("targetSessions", {})}
    return {
        **session,
        **_only(kept, "name", "etag"),
        **({"profilerTargets": list(targets)} if targets else {}),
        **({"targetSessions": told} if told else {}),
    }


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
