"""What is told of a profile: an entry of the run's log by each process, and one session of the control plane."""

from __future__ import annotations

import datetime
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from ml_diagnostics_common.backoff import Backoff
from ml_diagnostics_common.exceptions import DiagnosticsError
from ml_diagnostics_common.guard import guarded_as
from ml_diagnostics_common.storage import storage_for

from google_cloud_mldiagnostics import entries
from google_cloud_mldiagnostics.active_run import ActiveRun
from google_cloud_mldiagnostics.control_plane import Resource

__all__ = [
    "ACTIVE",
    "FAILED",
    "SUCCEEDED",
    "HostsCheck",
    "Session",
    "hosts_of",
    "session_resource",
    "told_folders_of_this_process",
]

logger = logging.getLogger("google_cloud_mldiagnostics.profiling")

ACTIVE: Final = "ACTIVE"
SUCCEEDED: Final = "SUCCEEDED"
FAILED: Final = "FAILED"
_SUFFIX = ".xplane.pb"
_NOT_ENDED = "0001-01-01T00:00:00Z"
_WAIT_SECONDS = 120.0
_LAST_WAIT_SECONDS = 5.0
_LAST_PAUSE_SECONDS = 0.2

told_folders_of_this_process: set[str] = set()
"""The folders of the sessions that this process has told of; a profile is rare, and a path short."""


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
        told_folders_of_this_process.add(self.folder)
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
        registration = getattr(self.active, "registration", None)
        if self.speaks and registration is not None:
            registration.put_session(self.session_id, session_resource(self, hosts, phase))


def session_resource(session: Session, hosts: Sequence[str], phase: str) -> Resource:
    """Returns a profilerSession of the control plane; the contract's section 2.1 has the form."""
    times: dict[str, Any] = {"startTime": _timestamp(session.started), "sessionPhase": phase, "endTime": _NOT_ENDED}
    resource: Resource = {
        "profilerTargets": list(hosts),
        "storageFolderUri": session.folder,
        "dashboardUri": "",
        "kind": "KIND_SNAPSHOT" if session.kind == "on_demand" else "KIND_PROGRAMMATIC",
        "hostTracerLevel": "HOST_TRACER_LEVEL_INFO",
        "deviceTracerLevel": "DEVICE_TRACER_LEVEL_ENABLED",
    }
    if phase != ACTIVE:
        times["endTime"] = _timestamp(session.started + datetime.timedelta(seconds=session.duration_seconds or 0.0))
    if session.duration_seconds is not None:
        resource["duration"] = f"{session.duration_seconds:.3f}s"
    resource["targetSessions"] = {host: dict(times) for host in hosts}
    return resource


def hosts_of(folder: str) -> list[str]:
    """Returns the hosts whose files, not empty, are in a session's folder.

    Raises:
        StorageError: The folder cannot be read.
    """
    store = storage_for(folder)
    found = [path for path in store.list_prefix(f"{folder}/") if path.endswith(_SUFFIX)]
    full = [path for path in found if store.read_with_generation(path, first_bytes=1)[0]]
    return sorted(path.rpartition("/")[2].removesuffix(_SUFFIX) for path in full)


class HostsCheck:
    """Waits, in the thread of deliveries, until every host's file is in the session's folder, and tells it.

    Args:
        session: The session, of the process that speaks for all.
        wait_seconds: How long others may take after this process.

    Attributes:
        is_over: Whether it has told what there is to tell.
    """

    def __init__(self, session: Session, wait_seconds: float = _WAIT_SECONDS) -> None:
        self.is_over = False
        self._session = session
        self._left_seconds = wait_seconds if session.expected_hosts > 1 else 0.0
        self._backoff = Backoff(1.0, 10.0)

    def __call__(self) -> float | None:
        """Looks once."""
        pause = self._look()
        self.is_over = pause is None
        return pause

    def at_the_end(self) -> float | None:
        """Looks once, in the last seconds of the process: then those hosts are told that are there."""
        if self.is_over:
            return None
        self._left_seconds = min(self._left_seconds, _LAST_WAIT_SECONDS) - _LAST_PAUSE_SECONDS
        try:
            hosts = hosts_of(self._session.folder)
        except DiagnosticsError:
            hosts = []
        if len(hosts) < self._session.expected_hosts and self._left_seconds > 0:
            return _LAST_PAUSE_SECONDS
        self.is_over = True
        self._session.tell_control_plane(hosts or [self._session.name], SUCCEEDED)
        return None

    def _look(self) -> float | None:
        if self.is_over:
            return None
        session, problem = self._session, ""
        try:
            hosts = hosts_of(session.folder)
        except DiagnosticsError as error:
            hosts, problem = [], f": {error}"
        if len(hosts) >= session.expected_hosts:
            session.tell_control_plane(hosts, SUCCEEDED)
            if session.expected_hosts > 1:
                logger.info("Profile %s: all %d hosts are in %s.", session.session_id, len(hosts), session.folder)
            return None
        if self._left_seconds > 0:
            pause = self._backoff.failed()
            self._left_seconds -= pause
            return pause
        missing = f"{len(hosts)} of {session.expected_hosts} hosts are there{problem}"
        logger.warning(
            "Profile %s in %s: %s (%s). See in the logs of the others why; hosts that share no folder need "
            "gcs_path='gs://...'.",
            session.session_id,
            session.folder,
            missing,
            ", ".join(hosts) or "none",
        )
        session.tell(SUCCEEDED if session.name in hosts else FAILED, missing)
        session.tell_control_plane(hosts, SUCCEEDED)
        return None


def _timestamp(moment: datetime.datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
