"""Control planes store runs: a folder on this machine, Google's API, or a self-hosted server. All use one format.

The clients of those over a network are imported when a connection is made, in the thread that makes it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, Protocol, TypeAlias

from ml_diagnostics_common.process_hooks import import_clients

__all__ = [
    "Change",
    "Connection",
    "ControlPlane",
    "DistantControlPlane",
    "Resource",
    "find_google",
    "find_self_hosted",
    "resource_id",
]

Resource: TypeAlias = dict[str, Any]
"""A run, or a profiler session, as JSON of `hypercomputecluster.googleapis.com`."""

Change: TypeAlias = Callable[[Resource], "Resource | None"]
"""Return the changed run, given a copy of the run, which it may change; None to leave the run as it is.

It is called again if another process changed the run first.
"""


def resource_id(resource: Mapping[str, Any]) -> str:
    """Return the id in the name of a run or a session, which is all of it or the last part."""
    return str(resource.get("name", "")).rpartition("/")[2]


class ControlPlane(Protocol):
    """A store of runs and their profiler sessions. Every call ends in bounded time, and raises ControlPlaneError."""

    def get_run(self, run_id: str) -> Resource:
        """Return the run; raise RunNotFoundError."""
        ...

    def create_run(self, run_id: str, run: Resource) -> Resource:
        """Create the run, and return it as it is stored; raise RunExistsError."""
        ...

    def update_run(self, run_id: str, change: Change) -> Resource:
        """Change the current run, and return it as it is stored then; raise RunNotFoundError."""
        ...

    def list_runs(self, group: str | None = None) -> Iterator[Resource]:
        """Yield all runs, or those of a group, the newest first."""
        ...

    def put_session(self, run_id: str, session_id: str, session: Resource) -> None:
        """Create a profiler session of the run, or change it."""
        ...

    def list_sessions(self, run_id: str) -> Iterator[Resource]:
        """Yield the run's profiler sessions, the oldest first."""
        ...

    def link(self, run_id: str) -> str:
        """Return the URL or folder where users find the run."""
        ...


class DistantControlPlane(ControlPlane, Protocol):
    """A control plane over a network.

    Attributes:
        call_seconds: The limit of a call, with all its requests and waits; applies to calls that start afterwards.
    """

    call_seconds: float

    def hurry(self, seconds: float) -> None:
        """Interrupt the waits of calls in progress, which then fail; let the creation of a run take `seconds`."""
        ...

    def close(self) -> None:
        """Close the connections; a later call opens others."""
        ...


class Connection(NamedTuple):
    """A control plane in addition to the folder on this machine.

    Attributes:
        plane: The control plane.
        project: The project of Google Cloud; empty for a self-hosted one.
        address: Its URL with project and location; empty if only the process that registered a run can end it there.
    """

    plane: DistantControlPlane
    project: str
    address: str = ""


def find_google(project: str | None, location: str, environment: str) -> Callable[[], Connection]:
    """Return a function that connects to Google's control plane; it raises CredentialsError without a cloud.

    Args:
        project: The project's id; None for the one that is found.
        location: The region.
        environment: prod, staging or autopush.
    """

    def connect() -> Connection:
        import_clients("google_cloud_mldiagnostics.control_plane.google")
        from ml_diagnostics_common.credentials import find_cloud

        from google_cloud_mldiagnostics.control_plane.google import GoogleControlPlane

        cloud = find_cloud(project)
        plane = GoogleControlPlane(
            cloud.project, location, cloud.credentials, environment=environment, principal=cloud.principal
        )
        return Connection(plane, cloud.project, plane.address)

    return connect


def find_self_hosted(
    base_url: str, *, workload_id: str, cluster_id: str, joined_run: str | None, environ: Mapping[str, str] = os.environ
) -> Callable[[], Connection]:
    """Return a function that connects to a control plane on the user's own cluster.

    Args:
        base_url: The URL of the control plane.
        workload_id: The id of the workload, unless the environment has one.
        cluster_id: The id of the cluster; may be empty.
        joined_run: The id of a run that another process registers; None if this process registers its run.
        environ: The environment variables.
    """
    workload_id = environ.get("DIAGON_WORKLOAD_ID") or environ.get("WORKLOAD_ID") or workload_id

    def connect() -> Connection:
        import_clients("google_cloud_mldiagnostics.control_plane.self_hosted")
        from google_cloud_mldiagnostics.control_plane.self_hosted import SelfHostedControlPlane

        plane = SelfHostedControlPlane(
            base_url,
            workload_id=workload_id,
            namespace=environ.get("POD_NAMESPACE") or "default",
            cluster_id=cluster_id,
            agent_url=environ.get("DIAGON_AGENT_URL", ""),
        )
        if joined_run is not None:
            plane.join_run(joined_run)
        return Connection(plane, "")

    return connect
