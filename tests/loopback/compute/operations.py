"""Compute's operations: the answers to changes, which clients poll until they are done.

Format: https://cloud.google.com/compute/docs/reference/rest/v1/zoneOperations
"""

from __future__ import annotations

import itertools
import math
import re
import threading
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ml_diagnostics_testing.http_server import ApiError

from ..control_plane.store import timestamp

Resource = dict[str, Any]

_UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")


@dataclass(frozen=True)
class Change:
    """The effect of an operation.

    Attributes:
        kind: insert, delete, setLabels, ...
        scope: "zones/us-central1-a" or "global".
        target: The changed resource, relative to the project's URL: "zones/us-central1-a/instances/a"; empty for the
            project itself.
        start: Called at once; returns the target's id. An `ApiError` that it raises is the answer.
        finish: Called when the operation succeeds.
        fail: Called when the operation fails.
    """

    kind: str
    scope: str
    target: str
    start: Callable[[], str]
    finish: Callable[[], None] = lambda: None
    fail: Callable[[], None] = lambda: None


@dataclass
class _Operation:
    resource: Resource
    change: Change
    error: Resource | None
    timer: threading.Timer | None = None


@dataclass
class _Failure:
    kind: str | None
    error: Resource
    times: int


@dataclass
class Operations:
    """The operations of one server.

    Attributes:
        project_url: The URL of the project: `http://.../compute/v1/projects/P`.
        clock: Returns the time in seconds since the epoch.
        seconds: The duration of an operation; infinity means that it never ends.
        wait_seconds: The maximum duration of a `wait`; initially that of the real service.
    """

    project_url: str
    clock: Callable[[], float]
    seconds: float = 0.0
    wait_seconds: float = 120.0
    _operations: dict[tuple[str, str], _Operation] = field(default_factory=dict)
    _by_request: dict[tuple[str, str, str], _Operation] = field(default_factory=dict)
    _failures: list[_Failure] = field(default_factory=list)
    _numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1_000_000_000_000_000_001))
    _changed: threading.Condition = field(default_factory=lambda: threading.Condition(threading.RLock()))
    _is_closed: bool = False

    def fail_next(self, error: Resource, kind: str | None, times: int) -> None:
        """Make the next operations, of one kind or of any, end with an error."""
        with self._changed:
            self._failures.append(_Failure(kind, error, times))

    def start(self, change: Change, request_id: str = "") -> Resource:
        """Start an operation, and return its current state. A repeated request id returns the same operation.

        Raises:
            ApiError: The request id is not a UUID, or `change.start` raised it.
        """
        if request_id and (not _UUID.fullmatch(request_id) or set(request_id) <= set("0-")):
            message = f"Invalid value for field 'requestId': '{request_id}'. Must be a valid non-zero UUID."
            raise ApiError(400, message, reason="invalid")
        key = (change.kind, change.target, request_id)
        with self._changed:
            if request_id and key in self._by_request:
                return self._by_request[key].resource
            operation = _Operation(self._resource(change, change.start(), request_id), change, self._failure(change))
            self._operations[change.scope, operation.resource["name"]] = operation
            if request_id:
                self._by_request[key] = operation
            if self.seconds <= 0:
                self._end(operation)
            elif math.isfinite(self.seconds):
                operation.timer = threading.Timer(self.seconds, self._end, [operation])
                operation.timer.daemon = True
                operation.timer.start()
            return operation.resource

    def get(self, scope: str, name: str) -> Resource:
        """Return the current state of an operation.

        Raises:
            ApiError: The operation does not exist.
        """
        with self._changed:
            return self._find(scope, name).resource

    def wait(self, scope: str, name: str) -> Resource:
        """Wait until an operation is done or `wait_seconds` are over; return its state.

        Raises:
            ApiError: The operation does not exist.
        """
        with self._changed:
            operation = self._find(scope, name)
            self._changed.wait_for(lambda: self._is_closed or operation.resource["status"] == "DONE", self.wait_seconds)
            return operation.resource

    def all(self, scope: str) -> list[Resource]:
        """Return the operations of one scope, oldest first."""
        with self._changed:
            return [found.resource for (where, _), found in self._operations.items() if where == scope]

    def close(self) -> None:
        """End every wait; unfinished operations stay unfinished."""
        with self._changed:
            self._is_closed = True
            timers = [operation.timer for operation in self._operations.values() if operation.timer]
            self._changed.notify_all()
        for timer in timers:
            timer.cancel()
            timer.join()

    def _find(self, scope: str, name: str) -> _Operation:
        found = self._operations.get((scope, name))
        if found is None:
            project = self.project_url.rpartition("/projects/")[2]
            message = f"The resource 'projects/{project}/{scope}/operations/{name}' was not found"
            raise ApiError(404, message, reason="notFound")
        return found

    def _failure(self, change: Change) -> Resource | None:
        for failure in self._failures:
            if failure.times > 0 and failure.kind in (None, change.kind):
                failure.times -= 1
                return failure.error
        return None

    def _resource(self, change: Change, target_id: str, request_id: str) -> Resource:
        name, now = f"operation-{uuid.uuid4()}", timestamp(self.clock())
        resource = {
            "kind": "compute#operation",
            "id": str(next(self._numbers)),
            "name": name,
            "operationType": change.kind,
            "targetLink": f"{self.project_url}/{change.target}".rstrip("/"),
            "targetId": target_id,
            "status": "RUNNING",
            "user": "tester@test-project.iam.gserviceaccount.com",
            "progress": 0,
            "insertTime": now,
            "startTime": now,
            "selfLink": f"{self.project_url}/{change.scope}/operations/{name}",
        }
        if request_id:
            resource["clientOperationId"] = request_id
        if change.scope.startswith("zones/"):
            resource["zone"] = f"{self.project_url}/{change.scope}"
        return resource

    def _end(self, operation: _Operation) -> None:
        with self._changed:
            if self._is_closed:
                return
            if operation.error:
                operation.change.fail()
            else:
                operation.change.finish()
            ended = {"status": "DONE", "progress": 100, "endTime": timestamp(self.clock())}
            operation.resource = {**operation.resource, **ended, **(operation.error or {})}
            self._changed.notify_all()
