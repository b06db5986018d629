"""A self-hosted control plane on loopback: it registers runs and stores their outcome."""

import time
import urllib.parse
from collections.abc import Callable
from typing import Any

from ml_diagnostics_testing.http_server import ApiError, LoopbackServer, Request, Response, json_response

_RUNS = "/v1/machineLearningRuns"
_STATES = ("STATE_ACTIVE", "STATE_SUCCEEDED", "STATE_FAILED")


class SelfHostedServer(LoopbackServer):
    """Serve the API of a self-hosted control plane, and of its agent, on 127.0.0.1.

    It runs from construction until `close`, and is a context manager. The operations of its `faults` and `requests`
    are "agent", "register" and "update". `body` in `requests` holds the JSON of a request.

    Args:
        cluster_id: The cluster id that the agent returns.
        clock: Returns the time in seconds since the epoch.

    Attributes:
        runs: Every registered run, by its logical id.
    """

    def __init__(self, cluster_id: str = "cluster-1", *, clock: Callable[[], float] = time.time) -> None:
        self.cluster_id = cluster_id
        self.runs: dict[str, dict[str, Any]] = {}
        super().__init__(clock=clock)

    def environment(self) -> dict[str, str]:
        """Return the variables that name this server as the control plane and as its agent."""
        return {"DIAGON_BASE_URL": self.url, "DIAGON_AGENT_URL": self.url}

    def operation(self, method: str, path: str) -> str:
        """Return the operation of a request."""
        path = urllib.parse.unquote(path)
        if (method, path) == ("GET", "/v1/agent-info"):
            return "agent"
        if method != "PATCH" or not path.startswith(_RUNS):
            return "other"
        return "register" if path == _RUNS else "update"

    def handle(self, request: Request) -> Response:
        """Answer one request."""
        operation = self.operation(request.method, request.path)
        if operation == "agent":
            return json_response({"cluster_id": self.cluster_id})
        if operation == "other":
            raise ApiError(404, f"the loopback control plane has no {request.method} {request.path}")
        body = request.record.body = request.json()
        is_new = operation == "register"
        run_id = body.get("logicalId", "") if is_new else urllib.parse.unquote(request.path).rpartition("/")[2]
        if not run_id or not request.query.get("update_mask"):
            raise ApiError(400, "a logicalId and an update_mask are required")
        if run_id not in self.runs and request.query.get("allow_missing") != "true":
            raise ApiError(404, f"there is no run {run_id!r}")
        state = body.get("workload", {}).get("state", "STATE_ACTIVE")
        if state not in _STATES:
            raise ApiError(400, f"expected a workload.state of {', '.join(_STATES)}, got {state!r}")
        kept = self.runs.get(run_id, {})
        workload = {**kept.get("workload", {}), **body.get("workload", {}), "state": state}
        self.runs[run_id] = {**kept, **body, "name": f"machineLearningRuns/{run_id}", "workload": workload}
        return json_response(self.runs[run_id])
