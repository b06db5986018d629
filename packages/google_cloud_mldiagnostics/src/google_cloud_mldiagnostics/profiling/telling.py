"""What is told of a profile: an entry of the run's log by each process, and one session of the control plane."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from ml_diagnostics_common.entry import format_timestamp
from ml_diagnostics_common.guard import guarded_as
from ml_diagnostics_common.profiler_service import TracerLevels

from google_cloud_mldiagnostics import entries
from google_cloud_mldiagnostics.active_run import ActiveRun
from google_cloud_mldiagnostics.control_plane import Resource

__all__ = ["ACTIVE", "FAILED", "SUCCEEDED", "Session", "session_resource"]

ACTIVE: Final = "ACTIVE"
SUCCEEDED: Final = "SUCCEEDED"
FAILED: Final = "FAILED"
_NOT_ENDED: Final = "0001-01-01T00:00:00Z"


@dataclass
class Session:
    """One profile, as this process knows it.

    Attributes:
        active: The run.
        session_id: The session.
        kind: programmatic or on_demand.
        folder: Where its files are.
        name: What this process's file is called.
        process_index: Of this process.
        expected_hosts: How many files there will be.
        speaks: Whether this process tells the control plane: one does for all.
        started: When it began, in UTC.
        duration_seconds: How long it ran.
        size_bytes: Of this process's file.
        planes: The names of its planes.
    """

    active: ActiveRun
    session_id: str
    kind: str
    folder: str
    name: str
    process_index: int
    expected_hosts: int
    speaks: bool
    started: datetime.datetime
    duration_seconds: float | None = None
    size_bytes: int | None = None
    planes: Sequence[str] = field(default_factory=tuple)

    def tell(self, phase: str, problem: str = "") -> None:
        """Writes what happened to the run's log; never waits."""
        payload = entries.session_entry(
            self.session_id,
            phase,
            kind=self.kind,
            folder=self.folder,
            host=self.name,
            process_index=self.process_index,
            duration_seconds=self.duration_seconds,
            size_bytes=self.size_bytes,
            planes=list(self.planes) or None,
            problem=problem,
        )
        self.active.log.write(entries.SESSION, payload)

    @guarded_as("tell the control plane of a profile")
    def tell_control_plane(self, hosts: Sequence[str], phase: str) -> None:
        """Hands the session, as all hosts make it, to the thread that tells the control plane."""
        registration = self.active.registration
        if self.speaks and registration is not None:
            registration.put_session(self.session_id, session_resource(self, hosts, phase))


def session_resource(session: Session, hosts: Sequence[str], phase: str) -> Resource:
    """Returns a profilerSession as the control plane has it; docs/reference/wire-format.md shows the request."""
    times: dict[str, Any] = {"startTime": _timestamp(session.started), "sessionPhase": phase, "endTime": _NOT_ENDED}
    resource: Resource = {
        "profilerTargets": list(hosts),
        "storageFolderUri": session.folder,
        "dashboardUri": "",
        "kind": "KIND_SNAPSHOT" if session.kind == "on_demand" else "KIND_PROGRAMMATIC",
    }
    if session.kind != "on_demand":  # Of those, who asked knows the levels.
        resource |= TracerLevels().as_resource()
    if phase != ACTIVE:
        times["endTime"] = _timestamp(session.started + datetime.timedelta(seconds=session.duration_seconds or 0.0))
    if session.duration_seconds is not None:
        resource["duration"] = f"{session.duration_seconds:.3f}s"
    resource["targetSessions"] = {host: dict(times) for host in hosts}
    return resource


def _timestamp(moment: datetime.datetime) -> str:
    return format_timestamp(round(moment.timestamp() * 1e6) * 1000)
