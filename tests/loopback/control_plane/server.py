"""The loopback control plane: its REST API, and its interface for tests."""

import re
import time
import urllib.parse
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ml_diagnostics_testing.http_server import ApiError, LoopbackServer, Request, Response, json_response

from .operations import Operations
from .resources import Resource
from .store import RunStore, timestamp

_SERVICE = "hypercomputecluster.googleapis.com"
_TYPES = "type.googleapis.com/google.cloud.hypercomputecluster.v1alpha"
_RUN_ID = re.compile(r"[a-z0-9]([a-z0-9-]{0,198}[a-z0-9])?")
_REGION = re.compile(r"[a-z]+(-[a-z]+)*-[a-z]+[0-9]+")
_PATH = re.compile(
    r"/v1alpha/(?P<parent>projects/[^/]+/locations/(?P<location>[^/]+))/"
    r"(?:(?P<operation>operations/[^/]+)"
    r"|machineLearningRuns(?:/(?P<run>[^/]+)(?P<sessions>/profilerSessions(?:/(?P<session>[^/]+))?)?)?)"
)


class ControlPlaneServer(LoopbackServer):
    """Serve the machine learning runs of `hypercomputecluster.googleapis.com`, version v1alpha, on 127.0.0.1.

    Runs and their profiler sessions can be created, changed, listed and deleted. As in the real service, unknown fields
    are rejected, a change needs the current etag and the mask `*`, and the answer to a write is a long-running
    operation.

    It runs from construction until `close`, and is a context manager. The operations of its `faults` and `requests`
    are "get", "create", "update", "delete" and "list"; for sessions "session" (create or change), "get_session" and
    "list_sessions"; and "poll" for long-running operations. `body` in `requests` holds the JSON of a request.

    Args:
        project: The project for `environment` and for the methods of this object. Requests may name any project.
        location: The region for the methods of this object.
        clock: Returns the time in seconds since the epoch.

    Attributes:
        operations: The long-running operations; their `polls` and `seconds` are settable.
        is_enabled: True if the API is enabled in the project; otherwise requests get 403 with SERVICE_DISABLED.
        is_billed: True if the project has a billing account; otherwise writes get 400 with FAILED_PRECONDITION.
        is_permitted: True if the caller has the permission; otherwise requests get 403 with IAM_PERMISSION_DENIED.
        accepted_tokens: The valid access tokens, for example the `tokens` of an `OAuthServer`; other requests get
            401. None accepts requests without a token.
    """

    def __init__(
        self,
        project: str = "test-project",
        location: str = "us-central1",
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.project = project
        self.location = location
        self.is_enabled = True
        self.is_billed = True
        self.is_permitted = True
        self.accepted_tokens: set[str] | None = None
        self._store = RunStore()
        self.operations = Operations()
        super().__init__(clock=clock)

    def fail_operations(
        self, code: int, message: str = "a scripted fault", *, details: Iterable[Mapping[str, Any]] = (), times: int = 1
    ) -> None:
        """Accept the next writes, but end their operations with an error and write nothing.

        Args:
            code: A number of google.rpc.Code, such as 8 for RESOURCE_EXHAUSTED.
            message: The error message for the client.
            details: `google.rpc` details as JSON objects, each with its "@type".
            times: The number of operations.
        """
        self.operations.fail_next({"code": code, "message": message, "details": list(details)}, times)

    def environment(self) -> dict[str, str]:
        """Return the variables that redirect gcloud and the ML diagnostics libraries to this server."""
        return {
            "CLOUDSDK_API_ENDPOINT_OVERRIDES_HYPERCOMPUTECLUSTER": f"{self.url}/",
            "CLOUDSDK_AUTH_DISABLE_CREDENTIALS": "1",
            "CLOUDSDK_CORE_PROJECT": self.project,
            "GOOGLE_CLOUD_PROJECT": self.project,
        }

    def runs(self) -> list[Resource]:
        """Return the runs of all projects in the form of REST's JSON, oldest first."""
        return self._store.runs()

    def run(self, run_id: str) -> Resource:
        """Return a run.

        Raises:
            KeyError: The run does not exist.
        """
        return next((run for run in self.runs() if run["name"] == self._name(run_id)), None) or _no(run_id)

    def put_run(self, run_id: str, run: Mapping[str, Any]) -> Resource:
        """Create a run directly, like another program would; return it."""
        self._store.create(self._name(run_id), dict(run), self.clock())
        return self._store.reveal(self._name(run_id))

    def change_run(self, run_id: str, **fields: Any) -> Resource:
        """Change a run directly, like another program would, with a new etag; return it."""
        return self._store.write(self._name(run_id), {**self.run(run_id), **fields}, self.clock())

    def sessions(self, run_id: str) -> list[Resource]:
        """Return a run's profiler sessions, oldest first."""
        return self._store.sessions(self._name(run_id))

    def clear(self) -> None:
        """Delete all runs, sessions and operations."""
        self._store.clear()
        self.operations.clear()

    def operation(self, method: str, path: str) -> str:
        """Return the operation of a request."""
        found = _PATH.fullmatch(urllib.parse.unquote(path))
        return _operation(method, found) if found else "other"

    def handle(self, request: Request) -> Response:
        """Answer one request."""
        found = _PATH.fullmatch(urllib.parse.unquote(request.path))
        operation = _operation(request.method, found) if found else "other"
        if found is None or operation == "other":
            raise ApiError(404, f"the loopback control plane has no {request.method} {request.path}")
        request.record.body = request.json()
        self._admit(request, operation, found)
        self.operations.settle_due()
        if operation == "poll":
            return json_response(self.operations.poll(f"{found['parent']}/{found['operation']}"))
        if found["sessions"]:
            return json_response(self._do_session(operation, request, found))
        return json_response(self._do_run(operation, request, found))

    def _admit(self, request: Request, operation: str, found: re.Match[str]) -> None:
        """Reject requests without a valid token, an enabled API, permission or a valid region."""
        token = (request.headers.get("Authorization") or "").removeprefix("Bearer ")
        if self.accepted_tokens is not None and token not in self.accepted_tokens:
            raise ApiError(401, "Request had invalid authentication credentials. Expected OAuth 2 access token.")
        project = found["parent"].split("/")[1]
        if not self.is_enabled:
            message = f"Cluster Director API has not been used in project {project} before or it is disabled."
            raise ApiError(403, message, details=[_error_info("SERVICE_DISABLED", service=_SERVICE)])
        if not self.is_permitted:
            permission = f"hypercomputecluster.{_PERMISSIONS[operation]}"
            message = f"Permission '{permission}' denied on resource '{found['parent']}' (or it may not exist)."
            raise ApiError(403, message, details=[_error_info("IAM_PERMISSION_DENIED", permission=permission)])
        if not self.is_billed and request.method != "GET":
            raise ApiError(400, f"Billing is not enabled for project {project}.", name="FAILED_PRECONDITION")
        if not _REGION.fullmatch(found["location"]) and (found["location"], operation) != ("-", "list"):
            raise ApiError(403, f"Permission denied on 'locations/{found['location']}' (or it may not exist).")

    def _do_run(self, operation: str, request: Request, found: re.Match[str]) -> Resource:
        parent, query, now = found["parent"], request.query, request.time
        if operation == "list":
            page, token = self._store.page(parent, query)
            request.record.entries = len(page)
            return {"machineLearningRuns": page, **({"nextPageToken": token} if token else {})}
        if operation == "create":
            return self._create(parent, query.get("machine_learning_run_id", ""), request)
        name = f"{parent}/machineLearningRuns/{found['run']}"
        if operation == "get":
            return self._store.get(name)
        if operation == "delete":
            return self._delete(parent, name, query.get("etag", ""), now)
        mask = query.get("update_mask") or query.get("updateMask") or "*"
        body = request.json()
        return self._start(parent, name, "update", now, lambda: _run(self._store.update(name, body, mask, now)))

    def _create(self, parent: str, run_id: str, request: Request) -> Resource:
        if not _RUN_ID.fullmatch(run_id):
            raise ApiError(
                400, f"expected a machine_learning_run_id of lower-case letters, digits and -, got {run_id!r}"
            )
        name, body, now = f"{parent}/machineLearningRuns/{run_id}", request.json(), request.time

        def do() -> Resource:
            self._store.create(name, body, now)
            return {}

        return self._start(parent, name, "create", now, do, lambda: _run(self._store.reveal(name)))

    def _delete(self, parent: str, name: str, etag: str, now: float) -> Resource:
        def do() -> Resource:
            self._store.delete(name, etag)
            return {"@type": "type.googleapis.com/google.protobuf.Empty"}

        return self._start(parent, name, "delete", now, do)

    def _do_session(self, operation: str, request: Request, found: re.Match[str]) -> Resource:
        parent, query, now = found["parent"], request.query, request.time
        run = f"{parent}/machineLearningRuns/{found['run']}"
        if operation == "list_sessions":
            page, token = self._store.session_page(run, query)
            request.record.entries = len(page)
            return {"profilerSessions": page, **({"nextPageToken": token} if token else {})}
        if operation == "get_session":
            return self._store.session(run, found["session"])
        body, mask = request.json(), query.get("update_mask") or query.get("updateMask") or "*"
        session_id = found["session"] or query.get("profiler_session_id", "")
        if not session_id:
            raise ApiError(400, "profiler_session_id must be given")

        def do() -> Resource:
            if request.method == "POST":
                return _session(self._store.create_session(run, session_id, body, now))
            return _session(self._store.update_session(run, session_id, body, mask, now))

        verb = "create" if request.method == "POST" else "update"
        return self._start(parent, f"{run}/profilerSessions/{session_id}", verb, now, do)

    def _start(
        self,
        parent: str,
        target: str,
        verb: str,
        now: float,
        do: Callable[[], Resource],
        finish: Callable[[], Resource] | None = None,
    ) -> Resource:
        return self.operations.start(parent, target, verb, timestamp(now), do, finish)

    def _name(self, run_id: str) -> str:
        return f"projects/{self.project}/locations/{self.location}/machineLearningRuns/{run_id}"


_RUN_OPERATIONS: Mapping[tuple[str, bool], str] = {
    ("GET", False): "list",
    ("POST", False): "create",
    ("GET", True): "get",
    ("PATCH", True): "update",
    ("DELETE", True): "delete",
}
_SESSION_OPERATIONS: Mapping[tuple[str, bool], str] = {
    ("GET", False): "list_sessions",
    ("POST", False): "session",
    ("GET", True): "get_session",
    ("PATCH", True): "session",
}
_PERMISSIONS: Mapping[str, str] = {
    "list": "machineLearningRuns.list",
    "create": "machineLearningRuns.create",
    "get": "machineLearningRuns.get",
    "update": "machineLearningRuns.update",
    "delete": "machineLearningRuns.delete",
    "list_sessions": "profilerSessions.list",
    "session": "profilerSessions.create",
    "get_session": "profilerSessions.get",
    "poll": "operations.get",
}


def _operation(method: str, found: re.Match[str]) -> str:
    if found["operation"]:
        return "poll" if method == "GET" else "other"
    if found["sessions"]:
        return _SESSION_OPERATIONS.get((method, found["session"] is not None), "other")
    return _RUN_OPERATIONS.get((method, found["run"] is not None), "other")


def _run(resource: Resource) -> Resource:
    return {"@type": f"{_TYPES}.MachineLearningRun", **resource}


def _session(resource: Resource) -> Resource:
    return {"@type": f"{_TYPES}.ProfilerSession", **resource}


def _error_info(reason: str, **metadata: str) -> Resource:
    kind = "type.googleapis.com/google.rpc.ErrorInfo"
    return {"@type": kind, "reason": reason, "domain": "googleapis.com", "metadata": metadata}


def _no(run_id: str) -> Resource:
    raise KeyError(f"there is no run {run_id!r}")
