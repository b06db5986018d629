"""Runs in Google Cloud: the API `hypercomputecluster.googleapis.com`, version v1alpha, over REST.

API: https://github.com/googleapis/googleapis/blob/master/google/cloud/hypercomputecluster/v1alpha/machine_learning_runs.proto
Writes return a long-running operation (https://google.aip.dev/151), which is polled until it is done.
"""

from __future__ import annotations

import contextlib
import copy
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar
from urllib.parse import quote

from ml_diagnostics_common.authorized_requests import LIST_BYTES, RESPONSE_BYTES, open_session
from ml_diagnostics_common.backoff import Backoff, EndlessListError, PageTokens
from ml_diagnostics_common.endpoints import endpoint, require_secure
from ml_diagnostics_common.failures import Kind, RemoteError, classify, status_error

from google_cloud_mldiagnostics.control_plane import Change, Resource, resource_id
from google_cloud_mldiagnostics.control_plane._requests import Call, Caller, NotYetError, Requester, request_json
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
_PAGE_SIZE = "1000"  # The API's limit; its default is ten.
_PLAIN: Mapping[Kind, type[ControlPlaneError]] = {}
_MISSING: Mapping[Kind, type[ControlPlaneError]] = {Kind.MISSING: RunNotFoundError}
_MISSING_OR_CHANGED: Mapping[Kind, type[ControlPlaneError]] = {**_MISSING, Kind.CONFLICT: RunChangedError}
_Value = TypeVar("_Value")
_NOT_OURS_TO_WRITE = ("@type", "attempts", "createTime", "endTime", "metrics", "state", "updateTime")
_NOT_YET = "0001-01-01"  # The API's endTime of a run that has not ended.


class GoogleControlPlane(Requester):
    """A `ControlPlane` in one project and region of Google Cloud. Thread-safe.

    Requests are retried if that is safe: reads always; a creation because the id is ours, so that a second one can only
    fail; a change because it has the etag of the run that it changes.

    Args:
        project: The project's id.
        location: The region, such as "us-central1".
        credentials: A `google.auth.credentials.Credentials` with the scope cloud-platform, as `find_cloud` gives.
        environment: "prod", "staging" or "autopush".
        base_url: The API's URL, without `/v1alpha`; None selects CLOUDSDK_API_ENDPOINT_OVERRIDES_HYPERCOMPUTECLUSTER,
            or else Google's.
        principal: The account of the credentials, for messages; None reads it from them.
        request_seconds: The deadline of one request.
        call_seconds: The limit of one call of this object, with all its requests and waits.
        environ: The environment variables.
        clock: Return monotonic seconds.
        sleep: Wait for a number of seconds; None selects waits that `hurry` can interrupt.

    Attributes:
        project: The project's id.
        location: The region.
        call_seconds: May be changed; applies to calls that start afterwards.

    Raises:
        MLRunConfigurationError: The environment does not exist.
        ConfigurationError: `base_url` or the variable that redirects the API has http of another machine, or the
            variable is not a URL.
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
        if base_url:
            require_secure(base_url, "base_url")
        base = (base_url or endpoint("hypercomputecluster", environ) or _HOSTS[environment]).rstrip("/")
        self.project = project
        self.location = location
        self.call_seconds = call_seconds
        self._api = base if base.endswith("/v1alpha") else f"{base}/v1alpha"
        self._runs = f"projects/{quote(project, safe='')}/locations/{quote(location, safe='')}/machineLearningRuns"
        self._caller = Caller(project, location, credentials, principal)
        super().__init__(lambda: open_session(credentials, "Google's control plane"))
        self._request_seconds = request_seconds
        self._clock = clock
        self._sleep = sleep
        self._hurried = threading.Event()
        self._creation: Call | None = None

    def get_run(self, run_id: str) -> Resource:
        """See `ControlPlane.get_run`.

        Raises:
            RunNotFoundError: The run does not exist.
            ControlPlaneError: The request was refused, or not answered.
        """
        with self._explained(f"read the run {run_id}", _MISSING):
            return _as_resource(self._get(self._run_path(run_id), self._start_call()))

    def create_run(self, run_id: str, run: Resource) -> Resource:
        """See `ControlPlane.create_run`.

        If there was no answer, and the retry finds that the run exists, the run is ours if it has what we sent.

        Raises:
            RunExistsError: A run with this id exists.
            ControlPlaneError: The request was refused, or not answered.
        """
        call = self._creation = Call(self._clock, self.call_seconds, self._sleep or self._hurried.wait, is_patient=True)
        retries = call.retries()
        body = {**_writable(run), "name": run_id}
        body.pop("etag", None)
        path = self._run_path(run_id)
        with self._explained(f"create the run {run_id}", {Kind.CONFLICT: RunExistsError}):
            while True:
                try:
                    answer = self._send("POST", self._runs, call, {"machine_learning_run_id": run_id}, body)
                    return _as_resource(self._done(answer, call, path))
                except RemoteError as error:
                    if error.kind is Kind.CONFLICT and retries.failures:
                        kept = _as_resource(self._appeared(path, call, error))
                        if _is_made_of(kept, body):
                            return kept
                    retries.wait_after(error)

    def update_run(self, run_id: str, change: Change) -> Resource:
        """See `ControlPlane.update_run`.

        Raises:
            RunNotFoundError: The run does not exist.
            RunChangedError: Another process changed the run before each of the retries.
            ControlPlaneError: A request was refused, or not answered.
        """
        call = self._start_call()
        retries, conflicts = call.retries(), call.retries_of_conflicts()
        path = self._run_path(run_id)
        with self._explained(f"change the run {run_id}", _MISSING_OR_CHANGED):
            while True:
                kept = self._get(path, call)
                given = _as_resource(kept)
                wanted = change(copy.deepcopy(given))
                if wanted is None or wanted == given:
                    return given
                body = {**_writable(wanted), **_only(kept, "name", "etag", "metrics")}
                try:
                    answer = self._send("PATCH", path, call, {"update_mask": "*"}, body)
                    return _as_resource(self._done(answer, call, path))
                except RemoteError as error:
                    (conflicts if error.kind is Kind.CONFLICT else retries).wait_after(error)

    def list_runs(self, group: str | None = None) -> Iterator[Resource]:
        """See `ControlPlane.list_runs`. Pages are requested as the iterator reaches them.

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
        """See `ControlPlane.put_session`. The entries of other hosts are kept.

        Raises:
            RunNotFoundError: The run does not exist.
            ControlPlaneError: A request was refused, or not answered.
        """
        call = self._start_call()
        retries, conflicts = call.retries(), call.retries_of_conflicts()
        sessions = f"{self._run_path(run_id)}/profilerSessions"
        path = f"{sessions}/{quote(session_id, safe='')}"
        exists: RemoteError | None = None
        with self._explained(f"keep the session {session_id} of the run {run_id}", _MISSING_OR_CHANGED):
            while True:
                try:
                    if exists:
                        body = _merged(self._appeared(path, call, exists), session)
                        answer = self._send("PATCH", path, call, {"update_mask": "target_sessions"}, body)
                    else:
                        answer = self._send("POST", sessions, call, {"profiler_session_id": session_id}, session)
                    self._done(answer, call, path)
                    return
                except RemoteError as error:
                    if error.kind is Kind.CONFLICT and not exists:
                        exists = error
                    else:
                        (conflicts if error.kind is Kind.CONFLICT else retries).wait_after(error)

    def list_sessions(self, run_id: str) -> Iterator[Resource]:
        """See `ControlPlane.list_sessions`.

        Raises:
            RunNotFoundError: The run does not exist.
            ControlPlaneError: A request was refused, or not answered.
        """
        with self._explained(f"list the sessions of the run {run_id}", _MISSING):
            found = list(self._pages(f"{self._run_path(run_id)}/profilerSessions", "profilerSessions", {}))
        yield from map(_as_resource, sorted(found, key=lambda session: str(session.get("createTime", ""))))

    @property
    def address(self) -> str:
        """The URL of the project's runs in this region: the same in every process that uses this control plane."""
        return f"{self._api}/{self._runs}"

    def link(self, run_id: str) -> str:
        """The run's page in Google Cloud's console."""
        return f"{_CONSOLE}/{quote(self.location)}/{quote(run_id)}?project={quote(self.project)}"

    def hurry(self, seconds: float) -> None:
        """Interrupt the waits of calls in progress: a call that is not done then fails as after its deadline.

        A process that is about to exit has a newer change to send, and no time for an operation, or for a delay that
        the service asked for. A run's creation continues: before it is done, there is no run to change. Later calls
        wait as before.

        Args:
            seconds: The time that a creation still has.
        """
        if self._creation is not None:
            self._creation.shorten(seconds)
        hurried, self._hurried = self._hurried, threading.Event()
        hurried.set()

    # --- Requests --------------------------------------------------------------------------------------

    def _run_path(self, run_id: str) -> str:
        return f"{self._runs}/{quote(run_id, safe='')}"

    def _start_call(self) -> Call:
        return Call(self._clock, self.call_seconds, self._sleep or self._hurried.wait)

    def _send(
        self,
        method: str,
        path: str,
        call: Call,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
        most_bytes: int = RESPONSE_BYTES,
    ) -> Resource:
        """Make one request, once."""
        seconds = min(self._request_seconds, call.seconds_left())
        url = f"{self._api}/{path}"
        return request_json(
            self.connected(), method, url, query=query, body=body, timeout_seconds=seconds, most_bytes=most_bytes
        )

    def _get(
        self, path: str, call: Call, query: Mapping[str, str] | None = None, most_bytes: int = RESPONSE_BYTES
    ) -> Resource:
        return call.retries()(lambda: self._send("GET", path, call, query, most_bytes=most_bytes))

    def _pages(self, path: str, field: str, query: Mapping[str, str]) -> Iterator[Resource]:
        asked, tokens = {**query, "pageSize": _PAGE_SIZE}, PageTokens()
        names: set[str] = set()
        while True:
            page = self._get(path, self._start_call(), asked, LIST_BYTES)
            listed = page.get(field)
            found = [one for one in listed if isinstance(one, dict)] if isinstance(listed, list) else []
            yield from found
            known = len(names)
            names.update(str(one.get("name")) for one in found)
            try:
                token = tokens.next(str(page.get("nextPageToken") or ""), has_news=len(names) > known)
            except EndlessListError as error:
                raise RemoteError("UNAVAILABLE", str(error), status=503) from error
            if not token:
                return
            asked = {**asked, "pageToken": token}

    def _done(self, answer: Resource, call: Call, path: str) -> Resource:
        """Wait for an operation, and return its result.

        Args:
            answer: The response to a write.
            call: The call that waits.
            path: The path of the resource that it creates or changes.

        Raises:
            RemoteError: The operation failed.
            NotYetError: It took too long.
        """
        if "/operations/" not in str(answer.get("name", "")):
            return answer  # The resource itself.
        name, delay_seconds = str(answer["name"]), 0.0
        while not answer.get("done"):
            if delay_seconds:
                call.wait(NotYetError(f"{name} is not done yet"), delay_seconds)
            delay_seconds = min(5.0, 2 * delay_seconds or 0.1)
            answer = self._get(quote(name), call)
        failed, response = answer.get("error"), answer.get("response")
        if isinstance(failed, dict):
            raise status_error(failed.get("code"), str(failed.get("message", "")), failed.get("details"))
        return response if isinstance(response, dict) else self._get(path, call)

    def _appeared(self, path: str, call: Call, conflict: RemoteError) -> Resource:
        """Return a resource that exists according to a conflict: while it is being created, it is not visible yet."""
        backoff = Backoff(0.1, 5.0)
        while True:
            try:
                return self._get(path, call)
            except RemoteError as error:
                if error.kind is not Kind.MISSING:
                    raise
            call.wait(NotYetError(f"{conflict.message}, but it is not visible yet"), backoff.failed())

    @contextlib.contextmanager
    def _explained(self, doing: str, kinds: Mapping[Kind, type[ControlPlaneError]] = _PLAIN) -> Iterator[None]:
        """Raise failures as errors that name the principal, the resource and what to do."""
        try:
            yield
        except (RemoteError, NotYetError) as error:
            failure = classify(error)
            raise self._caller.error(failure, doing, kinds.get(failure.kind, ControlPlaneError)) from error


def _as_resource(kept: Resource) -> Resource:
    """Return a resource of the API with its id as the name, and without the endTime of a run that has not ended."""
    resource = {name: value for name, value in kept.items() if name != "@type"}
    resource["name"] = resource_id(kept)
    if str(kept.get("endTime", "")).startswith(_NOT_YET):
        del resource["endTime"]
    return resource


def _writable(run: Resource) -> Resource:
    """Return the fields of a run to send: not those that the service computes, nor those for this machine only."""
    return {name: value for name, value in run.items() if name not in _NOT_OURS_TO_WRITE}


def _only(kept: Resource, *names: str) -> Resource:
    """Return some of the fields, if they exist."""
    return {name: kept[name] for name in names if name in kept}


def _is_made_of(kept: Any, sent: Any) -> bool:
    """Return True if a kept resource has all fields that were sent; empty ones may be missing."""
    if not isinstance(sent, Mapping) or not isinstance(kept, Mapping):
        return bool(kept == sent)
    return all(_is_made_of(kept.get(name), value) for name, value in sent.items() if value or name in kept)


def _merged(kept: Resource, session: Resource) -> Resource:
    """Return a session with the entries of this host and of the others."""
    targets = [*_as(list, kept.get("profilerTargets")), *session.get("profilerTargets", ())]
    sessions = {**_as(dict, kept.get("targetSessions")), **session.get("targetSessions", {})}
    return {
        **session,
        **_only(kept, "name", "etag"),
        **({"profilerTargets": sorted(set(map(str, targets)))} if targets else {}),
        **({"targetSessions": sessions} if sessions else {}),
    }


def _as(kind: type[_Value], value: Any) -> _Value:
    return value if isinstance(value, kind) else kind()


def _quoted(text: str) -> str:
    """Quote a text for a filter (https://google.aip.dev/160): quotes and backslashes are escaped."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
