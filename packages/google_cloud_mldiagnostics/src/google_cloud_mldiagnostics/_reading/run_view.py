"""Build the view of a run from a control plane's resource and the entries of its processes, by pure functions.

The resource alone does not show the state of a run, since a killed process cannot change it. So the last entry of each
process counts, too, as do the end that the companion of `cloud_tpu_diagnostics` recorded and the time without events.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from ml_diagnostics_common.entry import format_timestamp
from ml_diagnostics_common.payload import printable
from ml_diagnostics_common.program_end import UNSEEN_EXIT
from ml_diagnostics_common.raised_exception import RaisedException, raised_from_json
from ml_diagnostics_common.story import Confidence, story_of
from ml_diagnostics_common.texts import format_ago, format_duration

from google_cloud_mldiagnostics._reading.process_ends import end_of, first_cause
from google_cloud_mldiagnostics._reading.process_view import ProcessView, State
from google_cloud_mldiagnostics._reading.run_history import (
    ProcessKey,
    RunHistory,
    earliest,
    mappings,
    natural_number,
    texts,
    time_ns,
)
from google_cloud_mldiagnostics._reading.session_view import SessionView, view_sessions
from google_cloud_mldiagnostics._run_state.attempts import END_NOT_RECORDED, is_end_missing
from google_cloud_mldiagnostics.control_plane import Resource, resource_id

__all__ = [
    "SILENT_SECONDS",
    "AttemptView",
    "ProcessView",
    "RunView",
    "State",
    "phase_of",
    "view_run",
]

SILENT_SECONDS: Final = 180.0
"""A process sends a heartbeat every 60 s: three are missing."""
_SECOND_NS: Final = 1_000_000_000


@dataclass
class AttemptView:
    """One attempt of the run, from a start to the next.

    Attributes:
        number: The number of the attempt, from 1.
        state: The state of the attempt.
        reason: The exit reason, with the process that recorded it.
        started_ns: The start, in ns since 1970; None if it is not known.
        ended_ns: The end; None if the attempt has not ended, or the end is not known.
        processes: The processes by index.
        is_explained: True if the reason is that of the process that failed first, though others failed too.
    """

    number: int
    state: State
    reason: str
    started_ns: int | None
    ended_ns: int | None
    processes: list[ProcessView] = field(default_factory=list)
    is_explained: bool = False


@dataclass
class RunView:
    """A run as it is shown.

    Attributes:
        run_id: The run's id.
        display_name: The name that the user gave.
        group: The run's group.
        state: The state of the run.
        reason: The exit reason, or the reason of a stale run.
        started_ns: The start of the first attempt, in ns since 1970.
        ended_ns: The end; None while the run is active.
        last_event_ns: The time of the last event of any process.
        gcs_path: The folder for profiles, if one was given.
        orchestrator: The system that started the run.
        labels: The labels of the resource.
        configs: The configs as text, by section (user, software, hardware).
        attempts: The attempts in their order.
        sessions: The profiles in the order of time.
        notes: Sentences for the user.
    """

    run_id: str
    display_name: str
    group: str
    state: State
    reason: str
    started_ns: int | None
    ended_ns: int | None
    last_event_ns: int | None
    gcs_path: str
    orchestrator: str
    labels: dict[str, str]
    configs: dict[str, dict[str, str]]
    attempts: list[AttemptView]
    sessions: list[SessionView]
    notes: list[str]

    @property
    def processes(self) -> list[ProcessView]:
        """The processes of the last attempt."""
        return self.attempts[-1].processes if self.attempts else []


def phase_of(resource: Mapping[str, Any], key: str = "runPhase") -> State:
    """Return the phase of a run in a control plane; or, with another key, of another resource."""
    try:
        return State(str(resource.get(key, "")))
    except ValueError:
        return State.UNKNOWN


def view_run(
    resource: Resource,
    history: RunHistory,
    sessions: Iterable[Resource] = (),
    *,
    now_ns: int,
    is_gone: Callable[[Mapping[str, Any]], bool] = lambda process: False,
) -> RunView:
    """Return the run as it is shown.

    Args:
        resource: The run in a control plane.
        history: The run's entries.
        sessions: The run's profiler sessions in a control plane.
        now_ns: The time, in ns since 1970.
        is_gone: Return True if a process in `attempts` of the resource is known to be gone.
    """
    attempts = _Judge(history, now_ns, is_gone).attempts(resource)
    last = attempts[-1] if attempts else None
    state, reason = phase_of(resource), _reason_of(resource)
    if last is not None and last.state is not State.UNKNOWN:
        is_behind = last.number > (natural_number(texts(resource.get("labels")).get("attempt")) or last.number)
        is_open = state in (State.ACTIVE, State.UNKNOWN)
        if is_open or is_behind or (state is State.COMPLETED and last.state is State.FAILED):
            state, reason = last.state, last.reason
        elif state is last.state:
            is_known_better = last.is_explained or is_end_missing(reason)
            reason = last.reason or reason if is_known_better else reason or last.reason
    events_ns = [process.last_event_ns for attempt in attempts for process in attempt.processes]
    ended_ns = time_ns(resource.get("endTime")) or (last.ended_ns if last is not None else None)
    return RunView(
        run_id=resource_id(resource),
        display_name=str(resource.get("displayName", "")),
        group=str(resource.get("runSet", "")),
        state=state,
        reason=reason,
        started_ns=earliest([time_ns(resource.get("createTime")), *(attempt.started_ns for attempt in attempts)]),
        ended_ns=ended_ns if state.has_ended else None,
        last_event_ns=max(events_ns, default=None),
        gcs_path=texts(resource.get("artifacts")).get("gcsPath", ""),
        orchestrator=str(resource.get("orchestrator", "")),
        labels=texts(resource.get("labels")),
        configs=_configs(resource),
        attempts=attempts,
        sessions=view_sessions(history, sessions, has_ended=lambda process: _has_ended(process, attempts, state)),
        notes=_notes(state, last, now_ns),
    )


class _Judge:
    """Decides on the state of each process and attempt."""

    def __init__(self, history: RunHistory, now_ns: int, is_gone: Callable[[Mapping[str, Any]], bool]) -> None:
        self._history = history
        self._now_ns = now_ns
        self._is_gone = is_gone

    def attempts(self, resource: Resource) -> list[AttemptView]:
        """Return the attempts in the resource, and those that only processes recorded."""
        kept: dict[int, Mapping[str, Any]] = {}
        kept_processes: dict[ProcessKey, Mapping[str, Any]] = {}
        for attempt in mappings(resource.get("attempts")):
            attempt_number = natural_number(attempt.get("number")) or len(kept) + 1
            kept[attempt_number] = attempt
            for process in mappings(attempt.get("processes")):
                host, pid = str(process.get("hostname", "")), natural_number(process.get("pid")) or 0
                kept_processes[ProcessKey(host, pid, attempt_number)] = process
        by_attempt: dict[int, list[ProcessView]] = {}
        for key in {**kept_processes, **self._history.processes}:
            by_attempt.setdefault(key.attempt, []).append(self._process(key, kept_processes.get(key, {})))
        last = max([*kept, *by_attempt, natural_number(texts(resource.get("labels")).get("attempt")) or 0])
        return [
            _attempt(attempt_number, kept.get(attempt_number, {}), by_attempt.get(attempt_number, []), last)
            for attempt_number in sorted({*kept, *by_attempt})
        ]

    def _process(self, key: ProcessKey, kept: Mapping[str, Any]) -> ProcessView:
        record = self._history.processes.get(key)
        fields = {**kept, **(record.fields if record is not None else {})}
        started_ns = earliest([time_ns(kept.get("startTime")), record.first_ns if record is not None else None]) or 0
        state, reason = phase_of(fields, "phase"), str(fields.get("reason", ""))
        if not state.has_ended and phase_of(kept, "phase").has_ended:
            state, reason = phase_of(kept, "phase"), str(kept.get("reason", ""))
        # If a process has no recorded end, the folder has the time at which the next attempt detected that.
        ended_ns = None if is_end_missing(kept.get("reason")) else time_ns(kept.get("endTime"))
        view = ProcessView(
            attempt=key.attempt,
            host=key.host,
            process_index=natural_number(fields.get("process_index")),
            process_count=natural_number(fields.get("process_count")) or 0,
            pid=key.pid,
            state=state,
            reason=reason,
            started_ns=started_ns,
            last_event_ns=max(started_ns, self._history.last_event_ns(key), ended_ns or 0),
            address=str(fields.get("address", "")),
            profiler_port=natural_number(fields.get("profiler_port")),
            capture_folder=str(fields.get("capture_folder", "")),
            capture_name=str(fields.get("capture_name", "")),
            step=self._history.last_step(key),
            traceback=_traceback(fields.get("traceback")),
            file_systems=tuple(map(_file_system, mappings(fields.get("file_systems")))),
        )
        view.has_own_end = state.has_ended and not is_end_missing(reason)  # Else the next attempt recorded it.
        if not state.has_ended:
            self._judge(key, view, kept)
        elif reason == UNSEEN_EXIT or is_end_missing(reason):
            self._use_companion(key, view)
        view.end = end_of(view, self._history.ending(key, view.started_ns))
        return view

    def _use_companion(self, key: ProcessKey, view: ProcessView) -> bool:
        """Use the end that its companion recorded; return False if there is none."""
        ending = self._history.ending(key, view.started_ns)
        if ending is None:
            return False
        is_clean = ending.payload.get("how") == "clean"
        view.state = State.COMPLETED if is_clean else State.FAILED
        view.reason = "" if is_clean else str(ending.payload.get("message") or ending.payload.get("how") or "")
        view.last_event_ns = max(view.last_event_ns, ending.timestamp_ns)
        return True

    def _judge(self, key: ProcessKey, view: ProcessView, kept: Mapping[str, Any]) -> None:
        """Decide whether a process without a recorded end still runs."""
        if self._use_companion(key, view):
            return
        if kept and self._is_gone(kept):
            last_event = format_timestamp(view.last_event_ns)[:19].replace("T", " ")  # As in goodput's report.
            gone = f"no events since {last_event}Z (process gone)"
            view.state, view.is_gone = State.FAILED, True
            view.reason = f"{view.reason}; {gone}" if view.reason else gone
        elif key in self._history.processes and self._now_ns - view.last_event_ns > SILENT_SECONDS * _SECOND_NS:
            view.state = State.STALE
            seconds = (self._now_ns - view.last_event_ns) // _SECOND_NS
            view.reason = f"no event of it for {format_duration(seconds)}"


def _attempt(
    attempt_number: int, kept: Mapping[str, Any], processes: Sequence[ProcessView], last_attempt: int
) -> AttemptView:
    processes = sorted(processes, key=lambda process: (process.process_index is None, process.process_index or 0))
    state, reason = _state_of(processes)
    story = story_of([process.end for process in processes])
    for index, (process, role) in enumerate(zip(processes, story.roles, strict=True)):
        process.role, process.is_first_cause = role, index in story.first
    has_failed_together = state is State.FAILED and len(processes) > 1
    if has_failed_together:
        reason = first_cause(processes, story) or reason
    is_explained = has_failed_together and story.confidence in (Confidence.PROVEN, Confidence.LIKELY)
    kept_state, kept_reason = phase_of(kept, "phase"), str(kept.get("reason", ""))
    if kept_state is State.FAILED or (kept_state is State.COMPLETED and state is not State.FAILED):
        found = reason if state is kept_state else ""
        is_known_better = is_explained or is_end_missing(kept_reason)
        state, reason = kept_state, found or kept_reason if is_known_better else kept_reason or found
    elif state is State.UNKNOWN:
        state = kept_state
    if attempt_number < last_attempt and not state.has_ended:
        state, reason = State.FAILED, END_NOT_RECORDED
    started_ns = earliest([time_ns(kept.get("startTime")), *(process.started_ns for process in processes)])
    ended_ns = time_ns(kept.get("endTime"))
    is_silent = any(process.is_gone or is_end_missing(process.reason) for process in processes)
    if state.has_ended and (ended_ns is None or is_silent):
        ended_ns = max((process.last_event_ns for process in processes), default=None)
    return AttemptView(attempt_number, state, reason, started_ns, ended_ns, processes, is_explained)


def _state_of(processes: Sequence[ProcessView]) -> tuple[State, str]:
    """Return the state of an attempt: failed if a process failed, done if process 0 is, active while one is."""
    failed = [process for process in processes if process.state is State.FAILED]
    if failed:
        first = min(failed, key=lambda process: process.last_event_ns)  # Others fail because of it.
        return State.FAILED, first.reason if len(processes) == 1 else f"{first.name}: {first.reason}"
    if not processes:
        return State.UNKNOWN, ""
    if processes[0].state is State.COMPLETED:
        return State.COMPLETED, ""
    if any(process.state is State.ACTIVE for process in processes):
        return State.ACTIVE, ""
    silent = max(processes, key=lambda process: process.last_event_ns)
    return silent.state, silent.reason if len(processes) == 1 else silent.reason.replace("of it", "of any process")


def _has_ended(key: tuple[str, int] | None, attempts: Sequence[AttemptView], state: State) -> bool:
    """Return True if a process, by host and pid, has ended; of an unknown one, if its run has."""
    states = [
        process.state for attempt in attempts for process in attempt.processes if (process.host, process.pid) == key
    ]
    return all(each.has_ended for each in states or [state])


def _notes(state: State, last: AttemptView | None, now_ns: int) -> list[str]:
    """Return what the state alone does not show."""
    processes = last.processes if last is not None else []
    notes = []
    if state is State.ACTIVE and not processes:
        notes.append("No process has recorded an event: it is not known whether the run is still running.")
    if state is State.ACTIVE:
        notes += [
            f"{process.name}: last event {format_ago(process.last_event_ns, now_ns)}; other processes still run."
            for process in processes
            if process.state is State.STALE
        ]
    expected = max((process.process_count for process in processes), default=0)
    if len(processes) < expected:
        notes.append(f"{expected - len(processes)} of {expected} processes have recorded nothing.")
    return notes


def _configs(resource: Resource) -> dict[str, dict[str, str]]:
    configs = resource.get("configs")
    known = configs if isinstance(configs, Mapping) else {}
    return {section: texts(known.get(f"{section}Configs")) for section in ("user", "software", "hardware")}


def _reason_of(resource: Resource) -> str:
    details = resource.get("errorDetails")
    if isinstance(details, Mapping):
        return str(details.get("message") or details)
    return str(details or "")


def _traceback(encoded: object) -> tuple[RaisedException, ...]:
    """Return the exceptions of an entry; items of another form are left out."""
    raised = [raised_from_json(item) for item in encoded] if isinstance(encoded, list) else []
    return tuple(exception for exception in raised if exception is not None)


def _file_system(encoded: Mapping[str, Any]) -> dict[str, Any]:
    """Return a file system of an entry; what is of another form is left out."""
    numbers = {name: natural_number(encoded.get(name)) for name in ("free_bytes", "total_bytes", "free_inodes")}
    known = {name: number for name, number in numbers.items() if number is not None}
    return {"path": printable(str(encoded.get("path", ""))), **known}
