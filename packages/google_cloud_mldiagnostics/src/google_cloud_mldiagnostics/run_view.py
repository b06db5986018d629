"""What a run did and does: a control plane's resource and the entries of its processes in, what is shown out. Pure.

The resource alone does not tell how a run is: a process that is killed can change nothing in it. So the last word of
each process counts too, and what the companion of `cloud_tpu_diagnostics` told of its end, and how long it is silent.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from ml_diagnostics_common.entry import LogEntry, parse_timestamp

from google_cloud_mldiagnostics.control_plane import Resource
from google_cloud_mldiagnostics.entries import PROCESS, SESSION

__all__ = [
    "SILENT_SECONDS",
    "AttemptView",
    "HostProfile",
    "ProcessView",
    "RunHistory",
    "RunView",
    "SessionView",
    "State",
    "phase_of",
]

SILENT_SECONDS: Final = 180.0
"""A process that is well sends a heartbeat each 60 s: three are missing."""
_COMPANION_LOG: Final = "tpu.googleapis.com/runtime_monitor"
_SECOND_NS: Final = 1_000_000_000


class State(str, enum.Enum):
    """How a run, an attempt or a process is."""

    ACTIVE = "ACTIVE"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    STALE = "STALE"
    """Nothing says that it has ended, and nothing was heard of it for three minutes."""
    UNKNOWN = "UNKNOWN"

    @property
    def has_ended(self) -> bool:
        """Whether it is known to have ended."""
        return self in (State.COMPLETED, State.FAILED)


class HostProfile(NamedTuple):
    """What one process has of a profile; a profile may fail on one host and be there on the others.

    Attributes:
        host: Its host's name.
        process_index: Among all of the run; None where it is not known.
        phase: ACTIVE, SUCCEEDED or FAILED.
        size_bytes: Of its xplane.
        planes: The names of the xplane's planes.
        problem: What failed.
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
        session_id: Its id.
        kind: programmatic or on_demand; empty where it is not known.
        folder: Where its files are.
        started_ns: When it was first heard of, in ns since 1970.
        duration_seconds: Of the longest of its hosts.
        hosts: What each of them has.
    """

    session_id: str
    kind: str = ""
    folder: str = ""
    started_ns: int | None = None
    duration_seconds: float | None = None
    hosts: list[HostProfile] = field(default_factory=list)

    @property
    def phase(self) -> str:
        """FAILED if a host failed, ACTIVE while one is at it, else SUCCEEDED."""
        phases = {host.phase for host in self.hosts}
        return next((phase for phase in ("FAILED", "ACTIVE", "SUCCEEDED") if phase in phases), "UNKNOWN")


@dataclass
class ProcessView:
    """One process of one attempt.

    Attributes:
        attempt: Of the run, from 1.
        host: Its host's name.
        process_index: Among all of the run.
        process_count: How many the run has, as it says.
        pid: On its host.
        state: How it is.
        reason: Why it has ended.
        started_ns: When it was first heard of, in ns since 1970.
        last_sign_ns: When it was last heard of.
        address: Where other hosts reach it; empty where it does not say.
        profiler_port: Of its profiler's server; None where there is none.
    """

    attempt: int
    host: str
    process_index: int | None
    process_count: int
    pid: int
    state: State
    reason: str
    started_ns: int
    last_sign_ns: int
    address: str = ""
    profiler_port: int | None = None

    @property
    def name(self) -> str:
        """For people: host-3 (process 3)."""
        return self.host if self.process_index is None else f"{self.host} (process {self.process_index})"


@dataclass
class AttemptView:
    """One life of the run, from a start to the next.

    Attributes:
        number: From 1.
        state: How it is.
        reason: Why it has ended, with the process that says so.
        started_ns: When it began, in ns since 1970; None where it is not known.
        ended_ns: When it ended; None where it has not, or it is not known.
        processes: Its processes by index.
    """

    number: int
    state: State
    reason: str
    started_ns: int | None
    ended_ns: int | None
    processes: list[ProcessView] = field(default_factory=list)


@dataclass
class RunView:
    """A run as it is shown.

    Attributes:
        run_id: Its id.
        display_name: The name that the user gave.
        group: What it belongs to.
        state: How it is.
        reason: Why it has ended, or why it is taken for stale.
        started_ns: When its first attempt began, in ns since 1970.
        ended_ns: When it ended; None while it goes on.
        last_sign_ns: When any process was last heard of.
        gcs_path: Where its profiles go, if it was said.
        orchestrator: Who started it.
        labels: The resource's.
        configs: By section (user, software, hardware), as text.
        attempts: In their order.
        sessions: Its profiles in the order of time.
        notes: What a reader should know.
    """

    run_id: str
    display_name: str
    group: str
    state: State
    reason: str
    started_ns: int | None
    ended_ns: int | None
    last_sign_ns: int | None
    gcs_path: str
    orchestrator: str
    labels: dict[str, str]
    configs: dict[str, dict[str, str]]
    attempts: list[AttemptView]
    sessions: list[SessionView]
    notes: list[str]

    @property
    def processes(self) -> list[ProcessView]:
        """Those of the last attempt."""
        return self.attempts[-1].processes if self.attempts else []


def phase_of(resource: Resource) -> State:
    """Returns the phase that a control plane has of a run."""
    try:
        return State(str(resource.get("runPhase", "")))
    except ValueError:
        return State.UNKNOWN


class RunHistory:
    """What the entries of a run tell of its processes and profiles, in any order, each once."""

    def __init__(self) -> None:
        """Knows nothing yet."""
        self._processes: dict[tuple[str, int], list[_ProcessRecord]] = {}  # by host and pid
        self._signs_ns: dict[tuple[str, int], int] = {}
        self._endings: dict[tuple[str, int], tuple[int, Mapping[str, Any]]] = {}
        self._sessions: dict[str, dict[tuple[str, int | None], tuple[int, Mapping[str, Any]]]] = {}
        self._sessions_started_ns: dict[str, int] = {}

    def add(self, entries: Iterable[LogEntry]) -> None:
        """Takes note of entries of the run, and of those of the companion of its processes."""
        signs = self._signs_ns
        for entry in entries:
            if entry.context.log_id == _COMPANION_LOG:
                self._add_ending(entry)
                continue
            labels = entry.context.labels
            who = (labels.get("host", ""), _natural(labels.get("pid")) or 0)
            if signs.get(who, 0) < entry.timestamp_ns:
                signs[who] = entry.timestamp_ns
            namespace = namespace_of(entry)
            if namespace == PROCESS:
                self._add_process(entry)
            elif namespace == SESSION:
                self._add_session(entry)

    def _add_process(self, entry: LogEntry) -> None:
        payload = entry.payload
        host, pid = str(payload.get("hostname", "")), _natural(payload.get("pid")) or 0
        attempt = _natural(payload.get("attempt")) or 1
        records = self._processes.setdefault((host, pid), [])
        for record in records:
            if record.attempt == attempt:
                record.add(entry)
                return
        records.append(_ProcessRecord(attempt, entry))

    def _add_session(self, entry: LogEntry) -> None:
        payload, time_ns = entry.payload, entry.timestamp_ns
        session_id = str(payload.get("session_id", ""))
        key = (str(payload.get("hostname", "")), _natural(payload.get("process_index")))
        hosts = self._sessions.setdefault(session_id, {})
        if key not in hosts or hosts[key][0] <= time_ns:
            hosts[key] = (time_ns, payload)
        known_ns = self._sessions_started_ns.get(session_id, time_ns)
        self._sessions_started_ns[session_id] = min(known_ns, time_ns)

    def _add_ending(self, entry: LogEntry) -> None:
        labels, payload = entry.context.labels, entry.payload
        if payload.get("kind") == "job_ended" and not payload.get("goes_on"):
            who = (labels.get("host", ""), _natural(labels.get("pid")) or 0)
            if who not in self._endings or self._endings[who][0] < entry.timestamp_ns:
                self._endings[who] = (entry.timestamp_ns, payload)

    def view(
        self,
        resource: Resource,
        sessions: Iterable[Resource] = (),
        *,
        now_ns: int,
        is_gone: Callable[[str], bool] = lambda writer: False,
    ) -> RunView:
        """Returns the run as it is shown.

        Args:
            resource: The run as a control plane has it.
            sessions: Its profiler sessions as a control plane has them.
            now_ns: The time, in ns since 1970.
            is_gone: Tells of a writer of the journal whether its process is known to have ended.
        """
        phase = phase_of(resource)
        attempts = self._attempts(resource, now_ns, is_gone)
        last = attempts[-1] if attempts else None
        state, reason = phase, _reason_of(resource)
        if phase in (State.ACTIVE, State.UNKNOWN) and last is not None and last.state is not State.UNKNOWN:
            state, reason = last.state, last.reason
        elif phase is State.COMPLETED and last is not None and last.state is State.FAILED and last.processes:
            state, reason = last.state, last.reason  # A worker failed after process 0 had told of the end.
        elif not reason and last is not None and last.state is phase:
            reason = last.reason
        signs = [process.last_sign_ns for attempt in attempts for process in attempt.processes]
        ended_ns = _time_ns(resource.get("endTime")) or (last.ended_ns if last is not None else None)
        return RunView(
            run_id=str(resource.get("name", "")).rpartition("/")[2],
            display_name=str(resource.get("displayName", "")),
            group=str(resource.get("runSet", "")),
            state=state,
            reason=reason,
            started_ns=_earliest([_time_ns(resource.get("createTime")), *(attempt.started_ns for attempt in attempts)]),
            ended_ns=ended_ns if state.has_ended else None,
            last_sign_ns=max(signs, default=None),
            gcs_path=str((resource.get("artifacts") or {}).get("gcsPath", "")),
            orchestrator=str(resource.get("orchestrator", "")),
            labels=_texts(resource.get("labels")),
            configs=_configs(resource),
            attempts=attempts,
            sessions=self._session_views(sessions),
            notes=_notes(state, last, now_ns),
        )

    # --- Attempts -------------------------------------------------------------------------------------

    def _attempts(self, resource: Resource, now_ns: int, is_gone: Callable[[str], bool]) -> list[AttemptView]:
        """Those that the resource counts, and those that only processes tell of."""
        told: dict[int, Mapping[str, Any]] = {}
        for attempt in resource.get("attempts") or ():
            told[_natural(attempt.get("number")) or len(told) + 1] = attempt
        processes: dict[int, list[ProcessView]] = {}
        for (host, pid), records in self._processes.items():
            for record in records:
                view = self._process(host, pid, record, now_ns, is_gone)
                processes.setdefault(record.attempt, []).append(view)
        last = max([*told, *processes, _natural(_texts(resource.get("labels")).get("attempt")) or 0])
        return [
            _attempt(number, told.get(number, {}), processes.get(number, []), is_last=number == last)
            for number in sorted({*told, *processes})
        ]

    def _process(
        self, host: str, pid: int, record: _ProcessRecord, now_ns: int, is_gone: Callable[[str], bool]
    ) -> ProcessView:
        payload = record.last
        view = ProcessView(
            attempt=record.attempt,
            host=host,
            process_index=_natural(payload.get("process_index")),
            process_count=_natural(payload.get("process_count")) or 0,
            pid=pid,
            state=phase_of({"runPhase": payload.get("phase")}),
            reason=str(payload.get("reason", "")),
            started_ns=record.first_ns,
            last_sign_ns=max(record.last_ns, self._sign_ns(host, pid, record)),
            address=str(payload.get("address", "")),
            profiler_port=_natural(payload.get("profiler_port")),
        )
        if not view.state.has_ended:
            self._judge(view, record.writer, now_ns, is_gone)
        return view

    def _sign_ns(self, host: str, pid: int, record: _ProcessRecord) -> int:
        """The last that was heard of a process; where one process made several attempts, of the last of them."""
        records = self._processes[host, pid]
        is_last = record.attempt == max(other.attempt for other in records)
        return self._signs_ns.get((host, pid), 0) if is_last else 0

    def _judge(self, view: ProcessView, writer: str | None, now_ns: int, is_gone: Callable[[str], bool]) -> None:
        """Tells of a process that did not say that it ended whether it goes on."""
        ended_ns, ending = self._endings.get((view.host, view.pid), (0, {}))
        if ended_ns >= view.started_ns:
            is_clean = ending.get("how") == "clean"
            view.state = State.COMPLETED if is_clean else State.FAILED
            view.reason = "" if is_clean else str(ending.get("message") or ending.get("how") or "")
            view.last_sign_ns = max(view.last_sign_ns, ended_ns)
        elif writer is not None and is_gone(writer):
            view.state = State.FAILED
            view.reason = "ended without a word: it was killed, or called os._exit"
        elif now_ns - view.last_sign_ns > SILENT_SECONDS * _SECOND_NS:
            view.state = State.STALE
            view.reason = f"nothing was heard of it for {_ago(now_ns - view.last_sign_ns)}"

    # --- Profiles -------------------------------------------------------------------------------------

    def _session_views(self, resources: Iterable[Resource]) -> list[SessionView]:
        """What processes tell of their profiles, and the control plane of those of which none does."""
        views = {session_id: self._session(session_id) for session_id in self._sessions}
        for resource in resources:
            session_id = str(resource.get("name", "")).rpartition("/")[2]
            known = views.setdefault(session_id, SessionView(session_id))
            told = _session_of(session_id, resource)
            known.kind = known.kind or told.kind
            known.folder = known.folder or told.folder
            known.started_ns = _earliest([known.started_ns, told.started_ns])
            known.duration_seconds = known.duration_seconds or told.duration_seconds
            names = {host.host for host in known.hosts}
            known.hosts += [host for host in told.hosts if host.host not in names]
        return sorted(views.values(), key=lambda session: (session.started_ns or 0, session.session_id))

    def _session(self, session_id: str) -> SessionView:
        view = SessionView(session_id, started_ns=self._sessions_started_ns[session_id])
        for _, payload in self._sessions[session_id].values():
            view.kind = str(payload.get("kind", "")) or view.kind
            view.folder = str(payload.get("folder", "")) or view.folder
            seconds = _number(payload.get("duration_seconds"))
            if seconds is not None:
                view.duration_seconds = max(seconds, view.duration_seconds or 0.0)
            view.hosts.append(
                HostProfile(
                    host=str(payload.get("hostname", "")),
                    process_index=_natural(payload.get("process_index")),
                    phase=str(payload.get("phase", "")),
                    size_bytes=_natural(payload.get("size_bytes")),
                    planes=tuple(str(plane) for plane in _items(payload.get("planes"))),
                    problem=str(payload.get("problem", "")),
                )
            )
        view.hosts.sort(key=lambda host: (host.process_index is None, host.process_index, host.host))
        return view


class _ProcessRecord:
    """What one process told of itself in one attempt; its last word counts, and FAILED is never taken back."""

    def __init__(self, attempt: int, entry: LogEntry) -> None:
        self.attempt = attempt
        self.first_ns = self.last_ns = entry.timestamp_ns
        self.last: dict[str, Any] = dict(entry.payload)
        self.writer = entry.context.writer

    def add(self, entry: LogEntry) -> None:
        is_later = entry.timestamp_ns >= self.last_ns
        self.first_ns, self.last_ns = min(self.first_ns, entry.timestamp_ns), max(self.last_ns, entry.timestamp_ns)
        # An entry tells what has changed: the address of the first one still holds.
        self.last = {**self.last, **entry.payload} if is_later else {**entry.payload, **self.last}


def namespace_of(entry: LogEntry) -> str:
    """Returns what an entry is of: a metric's name, or one of the module `entries`."""
    return str((entry.context.resource.get("labels") or {}).get("namespace", ""))


def _attempt(number: int, told: Mapping[str, Any], processes: Sequence[ProcessView], *, is_last: bool) -> AttemptView:
    processes = sorted(processes, key=lambda process: (process.process_index is None, process.process_index or 0))
    state, reason = _state_of(processes)
    told_state, told_reason = phase_of({"runPhase": told.get("phase")}), str(told.get("reason", ""))
    if told_state.has_ended and state is not State.FAILED:
        state, reason = told_state, told_reason
    elif state in (State.UNKNOWN, told_state):
        state, reason = told_state, told_reason or reason
    if not is_last and not state.has_ended:
        state, reason = State.FAILED, reason or "ended without a word; another attempt followed"
    started_ns = _earliest([_time_ns(told.get("startTime")), *(process.started_ns for process in processes)])
    ended_ns = _time_ns(told.get("endTime"))
    if ended_ns is None and state.has_ended:
        ended_ns = max((process.last_sign_ns for process in processes), default=None)
    return AttemptView(number, state, reason, started_ns, ended_ns, processes)


def _state_of(processes: Sequence[ProcessView]) -> tuple[State, str]:
    """How an attempt is by its processes: failed if one failed, done if process 0 is, active while one is."""
    failed = [process for process in processes if process.state is State.FAILED]
    if failed:
        first = min(failed, key=lambda process: process.last_sign_ns)  # Others fail because of it.
        return State.FAILED, first.reason if len(processes) == 1 else f"{first.name}: {first.reason}"
    if not processes:
        return State.UNKNOWN, ""
    if processes[0].state is State.COMPLETED:
        return State.COMPLETED, ""
    if any(process.state is State.ACTIVE for process in processes):
        return State.ACTIVE, ""
    silent = max(processes, key=lambda process: process.last_sign_ns)
    return silent.state, silent.reason if len(processes) == 1 else silent.reason.replace("of it", "of any process")


def _notes(state: State, last: AttemptView | None, now_ns: int) -> list[str]:
    """Says what the state alone does not."""
    processes = last.processes if last is not None else []
    notes = []
    if state is State.ACTIVE and not processes:
        notes.append("No process has told of itself, so that it is not known whether the run still goes on.")
    if state is State.ACTIVE:
        notes += [
            f"{process.name} was last heard of {_ago(now_ns - process.last_sign_ns)} ago; others go on."
            for process in processes
            if process.state is State.STALE
        ]
    expected = max((process.process_count for process in processes), default=0)
    if len(processes) < expected:
        notes.append(f"{expected - len(processes)} of {expected} processes have told nothing of themselves.")
    return notes


def _session_of(session_id: str, resource: Resource) -> SessionView:
    """A profiler session as the API has it."""
    targets = resource.get("targetSessions") or {}
    kind = str(resource.get("kind", "")).removeprefix("KIND_").lower()
    seconds = _number(str(resource.get("duration", "")).removesuffix("s"))
    started = [_time_ns(target.get("startTime")) for target in targets.values()]
    hosts = [
        HostProfile(str(host), None, str(target.get("sessionPhase", "")), problem=str(target.get("errorDetails", "")))
        for host, target in sorted(targets.items())
    ]
    return SessionView(
        session_id,
        kind={"snapshot": "on_demand"}.get(kind, kind),
        folder=str(resource.get("storageFolderUri", "")),
        started_ns=_earliest([*started, _time_ns(resource.get("createTime"))]),
        duration_seconds=seconds or None,
        hosts=hosts,
    )


def _configs(resource: Resource) -> dict[str, dict[str, str]]:
    configs = resource.get("configs") or {}
    return {section: _texts(configs.get(f"{section}Configs")) for section in ("user", "software", "hardware")}


def _reason_of(resource: Resource) -> str:
    details = resource.get("errorDetails")
    if isinstance(details, Mapping):
        return str(details.get("message") or details)
    return str(details or "")


def _time_ns(text: object) -> int | None:
    """A time of the API; None where there is none: it has year 1 for what has not been."""
    try:
        time_ns = parse_timestamp(str(text)) if text else 0
    except ValueError:
        return None
    return time_ns if time_ns > 0 else None


def _earliest(times_ns: Iterable[int | None]) -> int | None:
    return min((time_ns for time_ns in times_ns if time_ns is not None), default=None)


def _natural(value: object) -> int | None:
    """A whole number, as JSON, Cloud Logging (which has floats only) or a label has it."""
    number = _number(value)
    return int(number) if number is not None and 0 <= number < 2**62 and number == int(number) else None


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _texts(mapping: object) -> dict[str, str]:
    return {str(key): str(value) for key, value in mapping.items()} if isinstance(mapping, Mapping) else {}


def _items(value: object) -> Sequence[Any]:
    return value if isinstance(value, (list, tuple)) else ()


def _ago(duration_ns: int) -> str:
    seconds = duration_ns / _SECOND_NS
    if seconds < 120:
        return f"{seconds:.0f} s"
    minutes = seconds / 60
    return f"{minutes:.0f} min" if minutes < 120 else f"{minutes / 60:.1f} h"
