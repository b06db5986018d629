"""Runs at a self-hosted control plane on a cluster: runs are reported to it, and cannot be read.

It needs no Google Cloud and no credentials. The interface has two requests: one registers a run, one ends it.
Everything else about a run is in its folder and its journal.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import uuid
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote

from ml_diagnostics_common.authorized_requests import Session, open_session
from ml_diagnostics_common.failures import Kind, RemoteError

from google_cloud_mldiagnostics.control_plane import Change, Resource
from google_cloud_mldiagnostics.control_plane._requests import Requester, request_json
from google_cloud_mldiagnostics.exceptions import ControlPlaneError, RunExistsError, RunNotFoundError

__all__ = ["SelfHostedControlPlane", "logical_id"]

_RUNS = "v1/machineLearningRuns"
_REGISTERED = (
    "display_name",
    "creator",
    "cluster_id",
    "workload.workload_id",
    "workload.display_name",
    "logical_id",
)
_STATES: Mapping[str, str] = {"COMPLETED": "STATE_SUCCEEDED", "FAILED": "STATE_FAILED"}


def logical_id(namespace: str, workload_id: str, cluster_id: str) -> str:
    """Return the id under which such a control plane keeps a workload's run: the same for all its processes.

    Args:
        namespace: The workload's namespace.
        workload_id: The workload.
        cluster_id: The cluster that it is in.
    """
    digest = hashlib.sha256(f"{namespace}/{workload_id}/{cluster_id}".encode()).digest()
    return str(uuid.UUID(bytes=digest[:16], version=4))


class SelfHostedControlPlane(Requester):
    """A `ControlPlane` that knows only the runs that this object has reported. Thread-safe.

    Args:
        base_url: The URL before the path /v1/machineLearningRuns; http may be of any machine, since no token is sent.
        workload_id: The workload of these runs.
        namespace: The workload's namespace.
        cluster_id: The cluster that it is in; empty requests it from the agent.
        agent_url: The URL of the cluster's agent, which knows the cluster's id.
        request_seconds: The deadline of one request.

    Attributes:
        call_seconds: May be changed; applies to requests that start afterwards.
    """

    def __init__(
        self,
        base_url: str,
        *,
        workload_id: str,
        namespace: str = "default",
        cluster_id: str = "",
        agent_url: str = "",
        request_seconds: float = 5.0,
    ) -> None:
        self._base_url = base_url.rstrip("/")
        self._workload_id = workload_id
        self._namespace = namespace
        self._cluster_id = cluster_id
        self._agent_url = agent_url.rstrip("/")
        self.call_seconds = request_seconds
        self._runs: dict[str, Resource] = {}
        self._names: dict[str, str] = {}
        super().__init__(_open_without_credentials)

    def get_run(self, run_id: str) -> Resource:
        """See `ControlPlane.get_run`.

        Raises:
            RunNotFoundError: This object has not created it.
        """
        kept = self._runs.get(run_id)
        if kept is None:
            raise RunNotFoundError(f"this process has not reported the run {run_id} to {self._base_url}", code=404)
        return copy.deepcopy(kept)

    def create_run(self, run_id: str, run: Resource) -> Resource:
        """See `ControlPlane.create_run`. Registering a run twice, also after a restart, has no further effect.

        Raises:
            RunExistsError: This object has created it.
            ControlPlaneError: The request was refused, or not answered.
        """
        if run_id in self._runs:
            raise RunExistsError(f"this process has already reported the run {run_id} to {self._base_url}", code=409)
        kept = {**copy.deepcopy(run), "name": run_id}
        self._register(kept)
        self._runs[run_id] = kept
        return copy.deepcopy(kept)

    def join_run(self, run_id: str) -> None:
        """Assume that another process registers the run, so that this one can end it; send nothing."""
        self._runs.setdefault(run_id, {"name": run_id, "runPhase": "ACTIVE"})

    def update_run(self, run_id: str, change: Change) -> Resource:
        """See `ControlPlane.update_run`.

        Raises:
            RunNotFoundError: This object has not created it.
            ControlPlaneError: The request was refused, or not answered.
        """
        before = self.get_run(run_id)
        wanted = change(copy.deepcopy(before))
        if wanted is None or wanted == before:
            return before
        phase = str(wanted.get("runPhase", ""))
        if phase == str(before.get("runPhase", "")):
            if _registered(wanted) != _registered(before):
                self._register(wanted)
        elif phase in _STATES:
            self._end(run_id, _STATES[phase])
        else:
            self._register(wanted)
        self._runs[run_id] = copy.deepcopy(wanted)
        return wanted

    def list_runs(self, group: str | None = None) -> Iterator[Resource]:
        """See `ControlPlane.list_runs`: those that this object has created."""
        for run in reversed(list(self._runs.values())):
            if group is None or run.get("runSet") == group:
                yield copy.deepcopy(run)

    def put_session(self, run_id: str, session_id: str, session: Resource) -> None:
        """See `ControlPlane.put_session`: does nothing, since there is no request for it."""

    def list_sessions(self, run_id: str) -> Iterator[Resource]:
        """See `ControlPlane.list_sessions`: none."""
        return iter(())

    def link(self, run_id: str) -> str:
        """Return the control plane's URL: its page of a run is not known."""
        return self._base_url

    def hurry(self, seconds: float) -> None:
        """See `DistantControlPlane.hurry`: a call waits only for its responses."""

    # --- Requests --------------------------------------------------------------------------------------

    def _register(self, run: Resource) -> None:
        with self._explained(f"register the run {run['name']}"):
            cluster_id = self._known_cluster()
            name, folder = _registered(run)
            body = {
                "logicalId": logical_id(self._namespace, self._workload_id, cluster_id),
                "displayName": name,
                "creator": "CREATOR_MANUAL",
                "clusterId": cluster_id,
                "workload": {"workloadId": self._workload_id, "displayName": name},
                **({"baseBlobPath": folder} if folder else {}),
            }
            mask = ",".join((*_REGISTERED, *(("base_blob_path",) if folder else ())))
            query = {"update_mask": mask, "allow_missing": "true"}
            answer = self._ask("PATCH", f"{self._base_url}/{_RUNS}", query, body)
            if answer.get("name"):
                self._names[run["name"]] = str(answer["name"])

    def _end(self, run_id: str, state: str) -> None:
        with self._explained(f"end the run {run_id}"):
            # The response to the registration names the resource, but another process may have sent it.
            name = self._names.get(run_id) or logical_id(self._namespace, self._workload_id, self._known_cluster())
            url = f"{self._base_url}/{_RUNS}/{quote(name.rpartition('/')[2])}"
            body = {"name": name, "workload": {"state": state}}
            self._ask("PATCH", url, {"update_mask": "workload.state", "allow_missing": "false"}, body)

    def _known_cluster(self) -> str:
        if not self._cluster_id and self._agent_url:
            answer = self._ask("GET", f"{self._agent_url}/v1/agent-info")
            self._cluster_id = str(answer.get("cluster_id") or "")
        return self._cluster_id

    def _ask(
        self, method: str, url: str, query: Mapping[str, str] | None = None, body: Mapping[str, Any] | None = None
    ) -> Resource:
        return request_json(self.connected(), method, url, query=query, body=body, timeout_seconds=self.call_seconds)

    @contextlib.contextmanager
    def _explained(self, doing: str) -> Iterator[None]:
        try:
            yield
        except RemoteError as error:
            raise (RunNotFoundError if error.kind is Kind.MISSING else ControlPlaneError)(
                f"the control plane at {self._base_url} could not {doing}: {error.message} ({error.shown_status}); "
                "check base_url (or DIAGON_BASE_URL) and DIAGON_AGENT_URL",
                code=error.status,
                is_temporary=error.is_temporary,
            ) from error


def _open_without_credentials() -> Session:
    from google.auth.credentials import AnonymousCredentials

    return open_session(AnonymousCredentials(), "a self-hosted control plane")


def _registered(run: Resource) -> tuple[str, str]:
    """Return what a registration contains of a run: its displayed name, and the folder of its files."""
    name = str(run.get("displayName") or run.get("name", ""))
    return name, str(run.get("artifacts", {}).get("gcsPath") or "")
