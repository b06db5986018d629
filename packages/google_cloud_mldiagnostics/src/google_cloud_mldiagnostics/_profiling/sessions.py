"""Profiler sessions: their ids, their state in the run's log and at the control planes, and checks of their files."""

from __future__ import annotations

import datetime
import re
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from ml_diagnostics_common.agreement import agree
from ml_diagnostics_common.backoff import Backoff
from ml_diagnostics_common.entry import format_timestamp
from ml_diagnostics_common.exceptions import DiagnosticsError
from ml_diagnostics_common.guard import guarded_as, job_logger
from ml_diagnostics_common.profiler_service import TracerLevels
from ml_diagnostics_common.storage import storage_for
from ml_diagnostics_common.xplane import Xplane

from google_cloud_mldiagnostics import _entries as entries
from google_cloud_mldiagnostics._profiling.locations import SUFFIX, sessions_folder
from google_cloud_mldiagnostics._run_state.active_run import ActiveRun
from google_cloud_mldiagnostics.control_plane import Resource

__all__ = [
    "ACTIVE",
    "FAILED",
    "SUCCEEDED",
    "HostsCheck",
    "Session",
    "SessionIds",
    "checked_session_id",
    "hosts_of",
    "problem_of",
    "session_resource",
    "sessions_in",
    "time_id",
]

logger = job_logger("google_cloud_mldiagnostics.profiling")

_JOINED_WITHIN_SECONDS: Final = 120.0
_FORMAT: Final = "%Y_%m_%d_%H_%M_%S_%f"
_LONGEST_ID: Final = 120
_TIMEOUT_SECONDS: Final = 3.0
_MOST_STALE: Final = 200
_HOSTS_SECONDS: Final = 120.0
_HURRIED_PAUSE_SECONDS: Final = 0.2


class SessionIds:
    """Name the profiles of a run, in the order in which this process takes them.

    All processes count profiles equally, since they run the same program. A process that takes an additional profile is
    ahead of the others by one, so a session that another process started more than two minutes ago is skipped.

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
            given: The name from the user; a second session of that name gets a number, so that no file is overwritten.
            now: The time, in UTC.
        """
        if given is not None:
            self._given[given] += 1
            times = self._given[given]
            return given if times == 1 else f"{given}-{times}"
        proposal = time_id(now)
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


def time_id(moment: datetime.datetime) -> str:
    """Return the id of a session without a given name: a time in UTC, to the millisecond."""
    return moment.strftime(_FORMAT)[:-3]


def checked_session_id(session_id: str | None) -> str | None:
    """Return the user's session id as a folder's name; None if no character remains."""
    if session_id is None:
        return None
    return re.sub(r"[^\w.-]+", "_", str(session_id)).lstrip(".")[:_LONGEST_ID] or None


def _age_seconds(session_id: str, now: datetime.datetime) -> float:
    try:
        started = datetime.datetime.strptime(session_id, _FORMAT).replace(tzinfo=datetime.timezone.utc)
    except ValueError:
        return 0.0  # From another release of this library.
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
        expected_hosts: The number of files that the session will have.
        speaks: True if this process reports to the control plane, as one process does for all.
        started: The start, in UTC.
        duration_seconds: The duration of the profile.
        size_bytes: The size of this process's file.
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

    def report_failed(self, problem: str) -> None:
        """Record and report that this process has no profile."""
        self.record(FAILED, problem)
        self.report([self.name], FAILED)


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


def problem_of(xplane: Xplane, *, has_accelerator: bool) -> str:
    """Return the problem of a profile; empty if there is none.

    Args:
        xplane: The profile.
        has_accelerator: True if the process has a TPU or a GPU, which the profile must show.
    """
    if not xplane.size_bytes:
        return "its file is empty"
    if not xplane.is_whole:
        return "its file is cut off, or not a profile"
    if not xplane.planes:
        return "it has no events; profile something that takes longer"
    if has_accelerator and not xplane.device_planes:
        return "it shows no device: nothing ran on one meanwhile, or another profiler holds it"
    return ""


def hosts_of(folder: str) -> list[str]:
    """Return the hosts with a file in a session's folder that is not empty.

    Raises:
        StorageError: The folder cannot be read.
    """
    store = storage_for(folder)
    found = [path for path in store.list_prefix(f"{folder}/") if path.endswith(SUFFIX)]
    full = [path for path in found if store.read_with_generation(path, first_bytes=1)[0]]
    return sorted(path.rpartition("/")[2].removesuffix(SUFFIX) for path in full)


def sessions_in(logdir: str, *, deadline_seconds: float) -> dict[str, list[str]]:
    """Return the hosts with a file in each session of a logdir, by the session's id.

    Args:
        logdir: The folder above `plugins/profile`.
        deadline_seconds: The deadline of a listing in Cloud Storage.

    Raises:
        StorageError: The folder cannot be read.
        ConfigurationError: The path is not valid.
    """
    folder = f"{sessions_folder(logdir)}/"
    found: dict[str, list[str]] = {}
    for path in storage_for(folder, deadline_seconds=deadline_seconds).list_prefix(folder):
        session_id, _, file = path.removeprefix(folder).partition("/")
        if file.endswith(SUFFIX) and "/" not in file:
            found.setdefault(session_id, []).append(file.removesuffix(SUFFIX))
    return found


class HostsCheck:
    """Wait, in the thread of deliveries, until every host's file is in the session's folder, and report that.

    Args:
        session: The session, of the process that reports for all.
        wait_seconds: The time that the other hosts have after this process.
        monotonic: The clock.

    Attributes:
        is_over: True after the report.
    """

    def __init__(
        self,
        session: Session,
        wait_seconds: float = _HOSTS_SECONDS,
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.is_over = False
        self._session = session
        self._monotonic = monotonic
        self._deadline = monotonic() + (wait_seconds if session.expected_hosts > 1 else 0.0)
        self._is_hurried = False
        self._backoff = Backoff(1.0, 10.0)

    def hurry(self, wait_seconds: float) -> None:
        """Limit the wait, as the process ends; then the hosts that have arrived are reported."""
        self._is_hurried = True
        self._deadline = min(self._deadline, self._monotonic() + wait_seconds)

    def __call__(self) -> float | None:
        """Check once: a job of deliveries."""
        if self.is_over:
            return None
        hosts, problem = self._find_hosts()
        if len(hosts) < self._session.expected_hosts and self._monotonic() < self._deadline:
            return _HURRIED_PAUSE_SECONDS if self._is_hurried else self._backoff.failed()
        self.is_over = True
        self._report(hosts, problem)
        return None

    def _find_hosts(self) -> tuple[list[str], str]:
        try:
            return hosts_of(self._session.folder), ""
        except DiagnosticsError as error:
            return [], f": {error}"

    def _report(self, hosts: Sequence[str], problem: str) -> None:
        session = self._session
        if len(hosts) >= session.expected_hosts:
            if session.expected_hosts > 1:
                logger.info("Profile %s: all %d hosts are in %s.", session.session_id, len(hosts), session.folder)
        elif not self._is_hurried:  # Else they had less time than they may take.
            missing = f"{len(hosts)} of {session.expected_hosts} hosts are there{problem}"
            logger.warning(
                "Profile %s in %s: %s (%s). See in the logs of the others why; hosts that share no folder need "
                "gcs_path='gs://...'.",
                session.session_id,
                session.folder,
                missing,
                ", ".join(hosts) or "none",
            )
            session.record(SUCCEEDED if session.name in hosts else FAILED, missing)
        session.report(hosts or [session.name], SUCCEEDED)
