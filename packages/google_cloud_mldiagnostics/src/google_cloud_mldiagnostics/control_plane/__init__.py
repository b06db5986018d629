"""The keepers of runs: a folder on this machine, and Google's API. Both are given a run as that API has it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol, TypeAlias

__all__ = ["Change", "ControlPlane", "DistantControlPlane", "Keeper", "Resource"]

Resource: TypeAlias = dict[str, Any]
"""A run, or a profiler session, as the JSON of `hypercomputecluster.googleapis.com` has it."""

Change: TypeAlias = Callable[[Resource], "Resource | None"]
"""Given a copy of a run as it is, which it may alter, returns it as it should be; None to leave it.

Called again if somebody else was faster.
"""


class ControlPlane(Protocol):
    """Keeps runs and their profiler sessions. Every call ends in a time; those that fail raise ControlPlaneError."""

    def get_run(self, run_id: str) -> Resource:
        """The run; raises RunNotFoundError."""
        ...

    def create_run(self, run_id: str, run: Resource) -> Resource:
        """Creates the run, and returns it as it is kept; raises RunExistsError."""
        ...

    def update_run(self, run_id: str, change: Change) -> Resource:
        """Changes the run as it is now, and returns it as it is kept then; raises RunNotFoundError."""
        ...

    def list_runs(self, group: str | None = None) -> Iterator[Resource]:
        """All runs, the newest first, or those of a group."""
        ...

    def put_session(self, run_id: str, session_id: str, session: Resource) -> None:
        """Creates a profiler session of the run, or changes what is kept of it."""
        ...

    def list_sessions(self, run_id: str) -> Iterator[Resource]:
        """The run's profiler sessions, the oldest first."""
        ...

    def link(self, run_id: str) -> str:
        """Where a person looks at the run."""
        ...


class DistantControlPlane(ControlPlane, Protocol):
    """One that is asked over a network.

    Attributes:
        call_seconds: How long a call may take, with all its requests and waits; holds for those that begin afterwards.
    """

    call_seconds: float

    def hurry(self, seconds: float) -> None:
        """End the waits of calls under way, which then fail; the creation of a run may take so many seconds more."""
        ...

    def close(self) -> None:
        """Closes the connections; a later call opens others."""
        ...


class Keeper(NamedTuple):
    """Another control plane.

    Attributes:
        plane: It.
        project: Of Google Cloud; empty for another.
        address: Its URL with project and location; empty if only the process that registered a run can end it there.
    """

    plane: DistantControlPlane
    project: str
    address: str = ""
