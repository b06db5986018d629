"""Long-running operations: the answers to writes, which clients poll until they are done.

Format: https://google.aip.dev/151
"""

import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ml_diagnostics_testing.http_server import ApiError

from .resources import Resource

_METADATA = "type.googleapis.com/google.cloud.hypercomputecluster.v1alpha.OperationMetadata"


@dataclass
class _Operation:
    name: str
    metadata: Resource
    polls_left: int
    ready_at: float
    outcome: Resource
    finish: Callable[[], Resource] | None
    is_done: bool = False

    def json(self) -> Resource:
        shown = {"name": self.name, "metadata": self.metadata, "done": self.is_done}
        return {**shown, **self.outcome} if self.is_done else shown


class Operations:
    """The operations of one server.

    Attributes:
        polls: How many polls it takes until an operation is done; 0 means that the first answer is done. A new run
            reserves its id at once, and becomes visible when its creation is done. Changes are visible at once.
        seconds: The minimum duration of an operation.
    """

    def __init__(self) -> None:
        self.polls = 0
        self.seconds = 0.0
        self._errors: deque[Resource] = deque()
        self._operations: dict[str, _Operation] = {}
        self._lock = threading.RLock()

    def fail_next(self, error: Mapping[str, Any], times: int) -> None:
        """Make the next operations end with a `google.rpc.Status`."""
        self._errors.extend(dict(error) for _ in range(times))

    def start(
        self,
        parent: str,
        target: str,
        verb: str,
        now: str,
        do: Callable[[], Resource],
        finish: Callable[[], Resource] | None = None,
    ) -> Resource:
        """Start an operation, and return its current state.

        Args:
            parent: `projects/P/locations/L`.
            target: The full name of the resource that it creates, changes or deletes.
            verb: create, update or delete.
            now: The time, in RFC 3339.
            do: Called at once, unless the operation is to fail. Writes, and returns the `response`.
            finish: Called when the operation is done; returns a `response` that replaces that of `do`.

        Raises:
            ApiError: `do` raised it.
        """
        with self._lock:
            failed = self._errors.popleft() if self._errors else None
            outcome = {"error": failed} if failed else {"response": do()}
            operation = _Operation(
                name=f"{parent}/operations/operation-{uuid.uuid4()}",
                metadata={
                    "@type": _METADATA,
                    "createTime": now,
                    "target": target,
                    "verb": verb,
                    "requestedCancellation": False,
                    "apiVersion": "v1alpha",
                },
                polls_left=self.polls,
                ready_at=time.monotonic() + self.seconds,
                outcome=outcome,
                finish=None if failed else finish,
            )
            self._operations[operation.name] = operation
            self._finish_if_due(operation)
            return operation.json()

    def poll(self, name: str) -> Resource:
        """Count a poll, and return an operation's current state.

        Raises:
            ApiError: The operation does not exist.
        """
        with self._lock:
            operation = self._operations.get(name)
            if operation is None:
                raise ApiError(404, f"Operation '{name}' was not found")
            operation.polls_left = max(0, operation.polls_left - 1)
            self._finish_if_due(operation)
            return operation.json()

    def settle_due(self) -> None:
        """Finish the operations that are due, without a poll."""
        with self._lock:
            for operation in self._operations.values():
                self._finish_if_due(operation)

    def clear(self) -> None:
        """Delete all operations."""
        with self._lock:
            self._operations.clear()
            self._errors.clear()

    def _finish_if_due(self, operation: _Operation) -> None:
        if operation.is_done or operation.polls_left or time.monotonic() < operation.ready_at:
            return
        operation.is_done = True
        if operation.finish is not None:
            operation.outcome = {"response": operation.finish()}
