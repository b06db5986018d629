"""Profiler sessions: their ids, and their state in the run's log and at the control planes."""

from __future__ import annotations

import datetime
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from ml_diagnostics_common.entry import format_timestamp
from ml_diagnostics_common.guard import guarded_as
from ml_diagnostics_common.profiler_service import TracerLevels

from google_cloud_mldiagnostics import _entries as entries
from google_cloud_mldiagnostics._agreement import agree
from google_cloud_mldiagnostics._run_state.active_run import ActiveRun
from google_cloud_mldiagnostics.control_plane import Resource

__all__ = ["ACTIVE", "FAILED", "SUCCEEDED", "Session", "SessionIds", "checked_session_id", "session_resource"]

_JOINED_WITHIN_SECONDS: Final = 120.0
_FORMAT: Final = "%Y_%m_%d_%H_%M_%S_%f"
_LONGEST_ID: Final = 120
_TIMEOUT_SECONDS: Final = 3.0
_MOST_STALE: Final = 200


class SessionIds:
    """Name the profiles of a run, in the order in which this process takes them.

    All processes count alike, as they run the same program. One that takes a profile which the others do not is ahead
    of them by one; so a session that another process started more than two minutes ago is skipped.

    Args:
        run_id: The run.
    """

    def __init__(self, run_id: str) -> None:
        self._key = f"xprof/{run_id}"
        self._count = 0
        self._given: Counter[str] = Counter()
        self._taken: set[str] = set()

    def next(self, given: str | None, now: datetime.datetime) -> str:
        """Return the next profile's id; asks the coordinator of `jax.distributed` once, if there is one.

        Args:
            given: The name that the user wants; the second of one name gets a number, so that nothing is overwritten.
            now: In UTC.
        """
        if given is not None:
            self._given[given] += 1
            times = self._given[given]
            return given if times == 1 else f"{given}-{times}"
        proposal = now.strftime(_FORMAT)[:-3]  # Milliseconds.
        for _ in range(_MOST_STALE):
            self._count += 1
            agreed = agree(f"{self._key}/{self._count}", proposal, timeout_seconds=_TIMEOUT_SECONDS)
            if agreed not in self._taken and _age_seconds(agreed, now) < _JOINED_WITHIN_SECONDS:
                break
        else:
            agreed = proposal
        self._taken.add(agreed)
        return agreed

    def skip(self, given: str | None) -> None:
        """Count a profile that other processes take and this one does not."""
        if given is not None:
            self._given[given] += 1
        else:
            self._count += 1


def checked_session_id(session_id: str | None) -> str | None:
    """Return the user's session id as a folder's name; None if no character remains."""
    if session_id is None:
        return None
    return re.sub(r"[^\w.-]+", "_", str(session_id)).lstrip(".")[:_LONGEST_ID] or None


def _age_seconds(session_id: str, now: datetime.datetime) -> float:
    try:
        started = datetime.datetime.strptime(session_id, _FORMAT).replace(tzinfo=datetime.timezone.utc)
    except ValueError:
        return 0.0  # Of another release of ours.
    return abs((now - started).total_seconds())


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
        folder: The folder of its files.
        name: The name of this process's file.
        process_index: The index of this process.
        expected_hosts: How many files there will be.
        speaks: True if this process reports to the control plane: one does for all.
        started: When it started, in UTC.
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

    def record(self, phase: str, problem: str = "") -> None:
        """Write the phase to the run's log; never wait."""
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

    @guarded_as("report a profile to the control plane")
    def report(self, hosts: Sequence[str], phase: str) -> None:
        """Hand the session of all hosts to the thread that reports it to the control plane."""
        registration = self.active.registration
        if self.speaks and registration is not None:
            registration.put_session(self.session_id, session_resource(self, hosts, phase))


def session_resource(session: Session, hosts: Sequence[str], phase: str) -> Resource:
    """Return a profilerSession as the control plane has it; docs/reference/wire-format.md shows the request."""
    times: dict[str, Any] = {"startTime": _timestamp(session.started), "sessionPhase": phase, "endTime": _NOT_ENDED}
    resource: Resource = {
        "profilerTargets": list(hosts),
        "storageFolderUri": session.folder,
        "dashboardUri": "",
        "kind": "KIND_SNAPSHOT" if session.kind == "on_demand" else "KIND_PROGRAMMATIC",
    }
    if session.kind != "on_demand":  # Only the caller of a profile on demand knows the levels.
        resource |= TracerLevels().as_resource()
    if phase != ACTIVE:
        times["endTime"] = _timestamp(session.started + datetime.timedelta(seconds=session.duration_seconds or 0.0))
    if session.duration_seconds is not None:
        resource["duration"] = f"{session.duration_seconds:.3f}s"
    resource["targetSessions"] = {host: dict(times) for host in hosts}
    return resource


def _timestamp(moment: datetime.datetime) -> str:
    return format_timestamp(round(moment.timestamp() * 1e6) * 1000)
