"""Control planes, which keep runs: a folder on this machine, Google's API, and others. All have one format."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol, TypeAlias

__all__ = ["Change", "Connection", "ControlPlane", "DistantControlPlane", "Resource"]

Resource: TypeAlias = dict[str, Any]
"""A run, or a profiler session, as JSON of `hypercomputecluster.googleapis.com`."""

Change: TypeAlias = Callable[[Resource], "Resource | None"]
"""Return the changed run, given a copy of the run, which it may change; None to leave the run as it is.

It is called again if another process changed the run first.
"""


class ControlPlane(Protocol):
    """A store of runs and their profiler sessions. Every call ends in bounded time, and raises ControlPlaneError."""

    def get_run(self, run_id: str) -> Resource:
        """Return the run; raise RunNotFoundError."""
        ...

    def create_run(self, run_id: str, run: Resource) -> Resource:
        """Create the run, and return it as it is kept; raise RunExistsError."""
        ...

    def update_run(self, run_id: str, change: Change) -> Resource:
        """Change the current run, and return it as it is kept then; raise RunNotFoundError."""
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
        """Interrupt the waits of calls in progress, which then fail; let the creation of a run take so long."""
        ...

    def close(self) -> None:
        """Close the connections; a later call opens others."""
        ...


class Connection(NamedTuple):
    """A control plane beside the folder of this machine.

    Attributes:
        plane: The control plane.
        project: The project of Google Cloud; empty for a self-hosted one.
        address: Its URL with project and location; empty if only the process that registered a run can end it there.
    """

    plane: DistantControlPlane
    project: str
    address: str = ""
