"""The profiles of a run as they are shown: from the entries of its processes and from a control plane. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from ml_diagnostics_common.files import in_bucket

from google_cloud_mldiagnostics._reading.run_history import (
    RunHistory,
    SessionRecord,
    earliest,
    natural_number,
    number,
    time_ns,
)
from google_cloud_mldiagnostics.control_plane import Resource, resource_id

__all__ = ["HostProfile", "SessionView", "view_sessions"]

_ACTIVE, _FAILED, _SUCCEEDED = "ACTIVE", "FAILED", "SUCCEEDED"
_ENDED_FIRST: Final = (
    "its process ended before the profile was uploaded; `mldiagnostics sync` on its machine uploads it"
)


class HostProfile(NamedTuple):
    """The part of a profile of one process; it may fail on one host and exist on the others.

    Attributes:
        host: The host's name.
        process_index: The index of the process in the run; None if it is not known.
        phase: ACTIVE, SUCCEEDED or FAILED.
        size_bytes: The size of the xplane.
        planes: The names of the xplane's planes.
        problem: The failure.
    """

    host: str
    process_index: int | None
    phase: str
    size_bytes: int | None = None
    planes: tuple[str, ...] = ()
    problem: str = ""


@dataclass
class SessionView:
    """One profile, on all hosts.

    Attributes:
        session_id: The session's id.
        kind: programmatic or on_demand; empty if it is not known.
        folder: The folder of its files.
        started_ns: The time of the first entry on it, in ns since 1970.
        duration_seconds: The longest duration of a host.
        hosts: The part of each host.
    """

    session_id: str
    kind: str = ""
    folder: str = ""
    started_ns: int | None = None
    duration_seconds: float | None = None
    hosts: list[HostProfile] = field(default_factory=list)

    @property
    def phase(self) -> str:
        """FAILED if a host failed, ACTIVE while one records, else SUCCEEDED."""
        phases = {host.phase for host in self.hosts}
        return next((phase for phase in ("FAILED", "ACTIVE", "SUCCEEDED") if phase in phases), "UNKNOWN")


def view_sessions(
    history: RunHistory, resources: Iterable[Resource], *, has_ended: Callable[[tuple[str, int] | None], bool]
) -> list[SessionView]:
    """Return the profiles that processes recorded, and those that only the control plane has.

    Args:
        history: The run's entries.
        resources: The run's profiler sessions in a control plane.
        has_ended: Return True if a process, by host and pid, has ended; for None, if all have.
    """
    views = {session_id: _recorded(session_id, record, has_ended) for session_id, record in history.sessions.items()}
    for resource in resources:
        kept = _kept(resource, is_over=has_ended(None))
        view = views.setdefault(kept.session_id, kept)
        if view is not kept:
            view.kind = view.kind or kept.kind
            if not view.folder or in_bucket(kept.folder):  # It may have been uploaded since.
                view.folder = kept.folder or view.folder
            view.started_ns = earliest([view.started_ns, kept.started_ns])
            view.duration_seconds = view.duration_seconds or kept.duration_seconds
            uploaded = {host.host for host in kept.hosts if host.phase == _SUCCEEDED}  # By `mldiagnostics sync`.
            view.hosts = [_uploaded(host) if host.host in uploaded else host for host in view.hosts]
            known = {host.host for host in view.hosts}
            view.hosts += [host for host in kept.hosts if host.host not in known]
    return sorted(views.values(), key=lambda session: (session.started_ns or 0, session.session_id))


def _recorded(
    session_id: str, record: SessionRecord, has_ended: Callable[[tuple[str, int] | None], bool]
) -> SessionView:
    """Return a profile by the entries of its processes."""
    view = SessionView(session_id, started_ns=record.first_ns)
    for (host, index), payload in record.hosts.items():
        view.kind = str(payload.get("kind", "")) or view.kind
        view.folder = str(payload.get("folder", "")) or view.folder
        seconds = number(payload.get("duration_seconds"))
        if seconds is not None:
            view.duration_seconds = max(seconds, view.duration_seconds or 0.0)
        phase, problem = str(payload.get("phase", "")), str(payload.get("problem", ""))
        size, planes = natural_number(payload.get("size_bytes")), payload.get("planes")
        if phase == _ACTIVE and has_ended(record.writers[host, index]):
            phase, problem = _FAILED, _ENDED_FIRST
        names = tuple(map(str, planes)) if isinstance(planes, (list, tuple)) else ()
        view.hosts.append(HostProfile(host, index, phase, size, names, problem))
    view.hosts.sort(key=lambda host: (host.process_index is None, host.process_index, host.host))
    return view


def _kept(resource: Resource, *, is_over: bool) -> SessionView:
    """Return a profiler session of the API."""
    sessions = resource.get("targetSessions")
    sessions = sessions if isinstance(sessions, Mapping) else {}
    targets = {str(host): one for host, one in sessions.items() if isinstance(one, Mapping)}
    kind = str(resource.get("kind", "")).removeprefix("KIND_").lower()
    started_ns = [time_ns(target.get("startTime")) for target in targets.values()]
    return SessionView(
        session_id=resource_id(resource),
        kind={"snapshot": "on_demand"}.get(kind, kind),
        folder=str(resource.get("storageFolderUri", "")),
        started_ns=earliest([*started_ns, time_ns(resource.get("createTime"))]),
        duration_seconds=number(str(resource.get("duration", "")).removesuffix("s")),
        hosts=[_host_kept(host, str(one.get("sessionPhase", "")), is_over=is_over) for host, one in targets.items()],
    )


def _uploaded(host: HostProfile) -> HostProfile:
    return host._replace(phase=_SUCCEEDED, problem="") if host.problem == _ENDED_FIRST else host


def _host_kept(host: str, phase: str, *, is_over: bool) -> HostProfile:
    ended_first = phase == _ACTIVE and is_over
    return HostProfile(host, None, _FAILED if ended_first else phase, problem=_ENDED_FIRST if ended_first else "")
