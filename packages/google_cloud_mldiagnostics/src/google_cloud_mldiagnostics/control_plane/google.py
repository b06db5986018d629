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
from typing import Any
from urllib.parse import quote

from ml_diagnostics_common.authorized_requests import LIST_BYTES, RESPONSE_BYTES, Session, open_session
from ml_diagnostics_common.backoff import Backoff
from ml_diagnostics_common.environment import endpoint
from ml_diagnostics_common.paging import EndlessListError, PageTokens

from google_cloud_mldiagnostics.control_plane import Change, Resource
from google_cloud_mldiagnostics.control_plane.google_resources import (
    as_resource,
    is_made_of,
    merged,
    only,
    quoted,
    writable,
)
from google_cloud_mldiagnostics.control_plane.refusals import Asker, refusal
from google_cloud_mldiagnostics.control_plane.rest import CODES, RequestError, ask
from google_cloud_mldiagnostics.exceptions import (
    ControlPlaneError,
    MLRunConfigurationError,
    RunChangedError,
    RunExistsError,
    RunNotFoundError,
)

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
_HURRIED_SECONDS = 0.1
_PLAIN: Mapping[int, type[ControlPlaneError]] = {}
_MISSING_OR_CHANGED: Mapping[int, type[ControlPlaneError]] = {
    404: RunNotFoundError,
    409: RunChangedError,
    412: RunChangedError,
}


class _NotYetError(RequestError):
    """Something takes longer than a call may; to begin it again is no help."""

    def __init__(self, message: str) -> None:
        super().__init__(504, message, code="DEADLINE_EXCEEDED")


class _Call:
    """One call of a control plane: how long it may still take, and the waits in it.

    Args:
        clock: Monotonic seconds.
        seconds: How long it may take.
        sleep: Waits a number of seconds; returns whether the wait was cut short.
        is_patient: Whether it goes on, with short waits, where a wait was cut short.
    """

    def __init__(
        self, clock: Callable[[], float], seconds: float, sleep: Callable[[float], object], *, is_patient: bool = False
    ) -> None:
        self._clock = clock
        self._deadline = clock() + seconds
        self._sleep = sleep
        self._is_patient = is_patient

    @property
    def seconds_left(self) -> float:
        return self._deadline - self._clock()

    def shorten(self, seconds: float) -> None:
        """Have it end within that time from now, from any thread."""
        self._deadline = min(self._deadline, self._clock() + seconds)

    def pause(self, error: RequestError, seconds: float) -> None:
        """Wait before something is tried again; raise the error if there is no time for it."""
        if seconds >= self.seconds_left:
            raise error
        if self._sleep(seconds):
            if not self._is_patient or self.seconds_left <= _HURRIED_SECONDS:
                raise error
            time.sleep(_HURRIED_SECONDS)


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
        sleep: Waits a number of seconds; None can be cut short by `hurry`.

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
        sleep: Callable[[float], object] | None = None,
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
        self._session: Session | None = None
        self._session_lock = threading.Lock()
        self._hurried = threading.Event()
        self._creation: _Call | None = None

    def get_run(self, run_id: str) -> Resource:
        """See `ControlPlane.get_run`.

        Raises:
            RunNotFoundError: There is none of that id.
            ControlPlaneError: The request was refused, or not answered.
        """
        with self._explained(f"read the run {run_id}", {404: RunNotFoundError}):
            return as_resource(self._get(self._run_path(run_id), self._begin()))

    def create_run(self, run_id: str, run: Resource) -> Resource:
        """See `ControlPlane.create_run`.

        Where an answer was lost and the next says that the run exists, it is ours if it is what we sent.

        Raises:
            RunExistsError: There is one of that id.
            ControlPlaneError: The request was refused, or not answered.
        """
        backoff = Backoff(0.5, 5.0)
        call = self._creation = _Call(
            self._clock, self.call_seconds, self._sleep or self._hurried.wait, is_patient=True
        )
        body = {**writable(run), "name": run_id}
        body.pop("etag", None)
        path = self._run_path(run_id)
        with self._explained(f"create the run {run_id}", {409: RunExistsError}):
            while True:
                try:
                    answer = self._ask("POST", self._runs, call, {"machine_learning_run_id": run_id}, body)
                    return as_resource(self._done(answer, call, path))
                except RequestError as error:
                    if error.status == 409 and backoff.failures:
                        kept = as_resource(self._appeared(path, call, error))
                        if is_made_of(kept, body):
                            return kept
                    self._wait(error, backoff, call)

    def update_run(self, run_id: str, change: Change) -> Resource:
        """See `ControlPlane.update_run`.

        Raises:
            RunNotFoundError: There is none of that id.
            RunChangedError: Others kept changing it first.
            ControlPlaneError: A request was refused, or not answered.
        """
        call, backoff, conflicts = self._begin(), Backoff(0.5, 5.0), Backoff(0.1, 2.0)
        path = self._run_path(run_id)
        with self._explained(f"change the run {run_id}", _MISSING_OR_CHANGED):
            while True:
                kept = self._get(path, call)
                given = as_resource(kept)
                wanted = change(copy.deepcopy(given))
                if wanted is None or wanted == given:
                    return given
                body = {**writable(wanted), **only(kept, "name", "etag", "metrics")}
                try:
                    answer = self._ask("PATCH", path, call, {"update_mask": "*"}, body)
                    return as_resource(self._done(answer, call, path))
                except RequestError as error:
                    if error.status in (409, 412) and conflicts.failures < _MOST_CONFLICTS:
                        call.pause(error, conflicts.failed())
                    else:
                        self._wait(error, backoff, call)

    def list_runs(self, group: str | None = None) -> Iterator[Resource]:
        """See `ControlPlane.list_runs`. Pages are asked for as the iterator gets to them.

        Raises:
            ControlPlaneError: A request was refused, or not answered.
        """
        query = {"orderBy": "create_time desc"}
        if group is not None:
            query["filter"] = f"run_set = {quoted(group)}"
        with self._explained("list the runs"):
            for run in self._pages(self._runs, "machineLearningRuns", query):
                if group is None or run.get("runSet") == group:
                    yield as_resource(run)

    def put_session(self, run_id: str, session_id: str, session: Resource) -> None:
        """See `ControlPlane.put_session`. What other hosts have told of the session is kept.

        Raises:
            RunNotFoundError: There is no run of that id.
            ControlPlaneError: A request was refused, or not answered.
        """
        call, backoff, conflicts = self._begin(), Backoff(0.5, 5.0), Backoff(0.1, 2.0)
        sessions = f"{self._run_path(run_id)}/profilerSessions"
        path = f"{sessions}/{quote(session_id, safe='')}"
        exists: RequestError | None = None
        with self._explained(f"keep the session {session_id} of the run {run_id}", _MISSING_OR_CHANGED):
            while True:
                try:
                    if exists:
                        body = merged(self._appeared(path, call, exists), session)
                        answer = self._ask("PATCH", path, call, {"update_mask": "target_sessions"}, body)
                    else:
                        answer = self._ask("POST", sessions, call, {"profiler_session_id": session_id}, session)
                    self._done(answer, call, path)
                    return
                except RequestError as error:
                    if error.status == 409 and not exists:
                        exists = error
                    elif error.status in (409, 412) and conflicts.failures < _MOST_CONFLICTS:
                        call.pause(error, conflicts.failed())
                    else:
                        self._wait(error, backoff, call)

    def list_sessions(self, run_id: str) -> Iterator[Resource]:
        """See `ControlPlane.list_sessions`.

        Raises:
            RunNotFoundError: There is no run of that id.
            ControlPlaneError: A request was refused, or not answered.
        """
        with self._explained(f"list the sessions of the run {run_id}", {404: RunNotFoundError}):
            found = list(self._pages(f"{self._run_path(run_id)}/profilerSessions", "profilerSessions", {}))
        yield from map(as_resource, sorted(found, key=lambda session: str(session.get("createTime", ""))))

    @property
    def address(self) -> str:
        """The URL of the project's runs in this region: the same in every process that uses this control plane."""
        return f"{self._api}/{self._runs}"

    def link(self, run_id: str) -> str:
        """The run's page in Google Cloud's console."""
        return f"{_CONSOLE}/{quote(self.location)}/{quote(run_id)}?project={quote(self.project)}"

    def hurry(self, seconds: float) -> None:
        """End the waits of calls under way: what is not done by then fails as what takes too long does.

        A process that is about to end has a newer change to send, and no time for an operation, or for a wait that the
        service has asked for. A run's creation goes on: before it is done, the service knows no run to change. Later
        calls wait as before.

        Args:
            seconds: How long a creation may still take.
        """
        if self._creation is not None:
            self._creation.shorten(seconds)
        hurried, self._hurried = self._hurried, threading.Event()
        hurried.set()

    def close(self) -> None:
        """Closes the connections; a later call opens others."""
        with self._session_lock:
            session, self._session = self._session, None
        if session is not None:
            session.close()

    # --- Requests --------------------------------------------------------------------------------------

    def _run_path(self, run_id: str) -> str:
        return f"{self._runs}/{quote(run_id, safe='')}"

    def _begin(self) -> _Call:
        return _Call(self._clock, self.call_seconds, self._sleep or self._hurried.wait)

    def _ask(
        self,
        method: str,
        path: str,
        call: _Call,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
        most_bytes: int = RESPONSE_BYTES,
    ) -> Resource:
        """Make one request, once."""
        with self._session_lock:
            if self._session is None:
                self._session = open_session(self._asker.credentials, "Google's control plane")
            session = self._session
        seconds = min(self._request_seconds, call.seconds_left)
        url = f"{self._api}/{path}"
        return ask(session, method, url, query=query, body=body, timeout_seconds=seconds, most_bytes=most_bytes)

    def _get(
        self, path: str, call: _Call, query: Mapping[str, str] | None = None, most_bytes: int = RESPONSE_BYTES
    ) -> Resource:
        backoff = Backoff(0.5, 5.0)
        while True:
            try:
                return self._ask("GET", path, call, query, most_bytes=most_bytes)
            except RequestError as error:
                self._wait(error, backoff, call)

    def _pages(self, path: str, field: str, query: Mapping[str, str]) -> Iterator[Resource]:
        asked, tokens = {**query, "pageSize": _PAGE_SIZE}, PageTokens()
        names: set[str] = set()
        while True:
            page = self._get(path, self._begin(), asked, LIST_BYTES)
            listed = page.get(field)
            found = [one for one in listed if isinstance(one, dict)] if isinstance(listed, list) else []
            yield from found
            known = len(names)
            names.update(str(one.get("name")) for one in found)
            try:
                token = tokens.next(str(page.get("nextPageToken") or ""), has_news=len(names) > known)
            except EndlessListError as error:
                raise RequestError(503, str(error), code="UNAVAILABLE") from error
            if not token:
                return
            asked = {**asked, "pageToken": token}

    def _done(self, answer: Resource, call: _Call, path: str) -> Resource:
        """What an operation has made, when it is done.

        Args:
            answer: What the write was answered with.
            call: How long to wait for it.
            path: Of what it makes.

        Raises:
            RequestError: The operation failed, or took too long.
        """
        if "/operations/" not in str(answer.get("name", "")):
            return answer  # The thing itself.
        name, delay_seconds = str(answer["name"]), 0.0
        while not answer.get("done"):
            if delay_seconds:
                call.pause(_NotYetError(f"{name} is not done yet"), delay_seconds)
            delay_seconds = min(5.0, 2 * delay_seconds or 0.1)
            answer = self._get(quote(name), call)
        failed, response = answer.get("error"), answer.get("response")
        if isinstance(failed, dict):
            number = failed.get("code")
            code, status = CODES.get(number if isinstance(number, int) else 2, CODES[2])
            raise RequestError(status, str(failed.get("message", "")), code=code, details=failed.get("details"))
        return response if isinstance(response, dict) else self._get(path, call)

    def _appeared(self, path: str, call: _Call, conflict: RequestError) -> Resource:
        """What is said to exist: while it is being created, it cannot be seen yet."""
        backoff = Backoff(0.1, 5.0)
        while True:
            try:
                return self._get(path, call)
            except RequestError as error:
                if error.status != 404:
                    raise
            not_yet = _NotYetError(f"{conflict.message}, but it cannot be seen yet")
            call.pause(not_yet, backoff.failed())

    def _wait(self, error: RequestError, backoff: Backoff, call: _Call) -> None:
        """Waits before another try; raises the error where there shall be none."""
        if not error.is_temporary or isinstance(error, _NotYetError) or backoff.failures + 1 >= _MOST_TRIES:
            raise error
        call.pause(error, backoff.failed(error.retry_after_seconds))

    @contextlib.contextmanager
    def _explained(self, doing: str, kinds: Mapping[int, type[ControlPlaneError]] = _PLAIN) -> Iterator[None]:
        """What a call raises: who was refused what, and what to do about it."""
        try:
            yield
        except RequestError as error:
            raise refusal(self._asker, doing, error, kinds.get(error.status, ControlPlaneError)) from error
