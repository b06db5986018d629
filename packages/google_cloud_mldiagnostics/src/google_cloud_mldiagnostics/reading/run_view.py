"""What a run did and does: a control plane's resource and the entries of its processes in, what is shown out. Pure.

The resource alone does not tell how a run is: a process that is killed can change nothing in it. So the last word of
each process counts too, and what the companion of `cloud_tpu_diagnostics` told of its end, and how long it is silent.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from ml_diagnostics_common.entry import format_timestamp
from ml_diagnostics_common.program_end import UNSEEN_EXIT
from ml_diagnostics_common.raised_exception import RaisedException, raised_from_json

from google_cloud_mldiagnostics.attempts import WITHOUT_A_WORD
from google_cloud_mldiagnostics.control_plane import Resource
from google_cloud_mldiagnostics.reading.run_history import (
    ProcessKey,
    RunHistory,
    earliest,
    natural_number,
    time_ns,
)
from google_cloud_mldiagnostics.reading.session_view import SessionView, view_sessions

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
"""A process that is well sends a heartbeat each 60 s: three are missing."""
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
        capture_folder: Where it looks for profiles that others take of it, a folder each.
        capture_name: What its file in there is called.
        step: The last one that it recorded a metric of; None where that is not known.
        traceback: The exception that ended it, and those that it is linked to.
        is_gone: True if it does not run any more and recorded nothing of its end.
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
    capture_folder: str = ""
    capture_name: str = ""
    step: int | None = None
    traceback: tuple[RaisedException, ...] = ()
    is_gone: bool = False

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


def phase_of(resource: Mapping[str, Any], key: str = "runPhase") -> State:
    """Returns the phase that a control plane has of a run; or, under another key, of something else."""
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
    """Returns the run as it is shown.

    Args:
        resource: The run as a control plane has it.
        history: What its entries tell.
        sessions: Its profiler sessions as a control plane has them.
        now_ns: The time, in ns since 1970.
        is_gone: Tells of a process in `attempts` of the resource whether it is known to run no more.
    """
    attempts = _Judge(history, now_ns, is_gone).attempts(resource)
    last = attempts[-1] if attempts else None
    state, reason = phase_of(resource), _reason_of(resource)
    if last is not None and last.state is not State.UNKNOWN:
        is_behind = last.number > (natural_number(_texts(resource.get("labels")).get("attempt")) or last.number)
        goes_on = state in (State.ACTIVE, State.UNKNOWN)
        if goes_on or is_behind or (state is State.COMPLETED and last.state is State.FAILED):
            state, reason = last.state, last.reason
        elif state is last.state:
            reason = reason or last.reason
    signs_ns = [process.last_sign_ns for attempt in attempts for process in attempt.processes]
    ended_ns = time_ns(resource.get("endTime")) or (last.ended_ns if last is not None else None)
    return RunView(
        run_id=str(resource.get("name", "")).rpartition("/")[2],
        display_name=str(resource.get("displayName", "")),
        group=str(resource.get("runSet", "")),
        state=state,
        reason=reason,
        started_ns=earliest([time_ns(resource.get("createTime")), *(attempt.started_ns for attempt in attempts)]),
        ended_ns=ended_ns if state.has_ended else None,
        last_sign_ns=max(signs_ns, default=None),
        gcs_path=_texts(resource.get("artifacts")).get("gcsPath", ""),
        orchestrator=str(resource.get("orchestrator", "")),
        labels=_texts(resource.get("labels")),
        configs=_configs(resource),
        attempts=attempts,
        sessions=view_sessions(history, sessions, has_ended=lambda who: _has_ended(who, attempts, state)),
        notes=_notes(state, last, now_ns),
    )


class _Judge:
    """Tells how each process and attempt is."""

    def __init__(self, history: RunHistory, now_ns: int, is_gone: Callable[[Mapping[str, Any]], bool]) -> None:
        self._history = history
        self._now_ns = now_ns
        self._is_gone = is_gone

    def attempts(self, resource: Resource) -> list[AttemptView]:
        """Those that the resource counts, and those that only processes tell of."""
        kept: dict[int, Mapping[str, Any]] = {}
        kept_processes: dict[ProcessKey, Mapping[str, Any]] = {}
        for attempt in _mappings(resource.get("attempts")):
            attempt_number = natural_number(attempt.get("number")) or len(kept) + 1
            kept[attempt_number] = attempt
            for process in _mappings(attempt.get("processes")):
                host, pid = str(process.get("hostname", "")), natural_number(process.get("pid")) or 0
                kept_processes[ProcessKey(host, pid, attempt_number)] = process
        by_attempt: dict[int, list[ProcessView]] = {}
        for key in {**kept_processes, **self._history.processes}:
            by_attempt.setdefault(key.attempt, []).append(self._process(key, kept_processes.get(key, {})))
        last = max([*kept, *by_attempt, natural_number(_texts(resource.get("labels")).get("attempt")) or 0])
        return [
            _attempt(attempt_number, kept.get(attempt_number, {}), by_attempt.get(attempt_number, []), last)
            for attempt_number in sorted({*kept, *by_attempt})
        ]

    def _process(self, key: ProcessKey, kept: Mapping[str, Any]) -> ProcessView:
        record = self._history.processes.get(key)
        told = {**kept, **(record.told if record is not None else {})}
        started_ns = earliest([time_ns(kept.get("startTime")), record.first_ns if record is not None else None]) or 0
        state, reason = phase_of(told, "phase"), str(told.get("reason", ""))
        if not state.has_ended and phase_of(kept, "phase").has_ended:
            state, reason = phase_of(kept, "phase"), str(kept.get("reason", ""))
        # Of one that ended without a word, the folder has when the next attempt found that out.
        ended_ns = None if kept.get("reason") == WITHOUT_A_WORD else time_ns(kept.get("endTime"))
        view = ProcessView(
            attempt=key.attempt,
            host=key.host,
            process_index=natural_number(told.get("process_index")),
            process_count=natural_number(told.get("process_count")) or 0,
            pid=key.pid,
            state=state,
            reason=reason,
            started_ns=started_ns,
            last_sign_ns=max(started_ns, self._history.last_sign_ns(key), ended_ns or 0),
            address=str(told.get("address", "")),
            profiler_port=natural_number(told.get("profiler_port")),
            capture_folder=str(told.get("capture_folder", "")),
            capture_name=str(told.get("capture_name", "")),
            step=self._history.last_step(key),
            traceback=_traceback(told.get("traceback")),
        )
        if not state.has_ended:
            self._judge(key, view, kept)
        elif reason == UNSEEN_EXIT:
            self._believe_companion(key, view)
        return view

    def _believe_companion(self, key: ProcessKey, view: ProcessView) -> bool:
        """Has its companion tell how a process has ended; False if that says nothing."""
        ending = self._history.ending(key, view.started_ns)
        if ending is None:
            return False
        is_clean = ending.payload.get("how") == "clean"
        view.state = State.COMPLETED if is_clean else State.FAILED
        view.reason = "" if is_clean else str(ending.payload.get("message") or ending.payload.get("how") or "")
        view.last_sign_ns = max(view.last_sign_ns, ending.timestamp_ns)
        return True

    def _judge(self, key: ProcessKey, view: ProcessView, kept: Mapping[str, Any]) -> None:
        """Tells of a process that did not say that it ended whether it goes on."""
        if self._believe_companion(key, view):
            return
        if kept and self._is_gone(kept):
            gone = f"no events since {_clock(view.last_sign_ns)} (process gone)"
            view.state, view.is_gone = State.FAILED, True
            view.reason = f"{view.reason}; {gone}" if view.reason else gone
        elif key in self._history.processes and self._now_ns - view.last_sign_ns > SILENT_SECONDS * _SECOND_NS:
            view.state = State.STALE
            view.reason = f"nothing was heard of it for {_ago(self._now_ns - view.last_sign_ns)}"


def _attempt(
    attempt_number: int, kept: Mapping[str, Any], processes: Sequence[ProcessView], last_attempt: int
) -> AttemptView:
    processes = sorted(processes, key=lambda process: (process.process_index is None, process.process_index or 0))
    state, reason = _state_of(processes)
    kept_state, kept_reason = phase_of(kept, "phase"), str(kept.get("reason", ""))
    if kept_state is State.FAILED or (kept_state is State.COMPLETED and state is not State.FAILED):
        state, reason = kept_state, kept_reason or (reason if state is kept_state else "")
    elif state is State.UNKNOWN:
        state = kept_state
    if attempt_number < last_attempt and not state.has_ended:
        state, reason = State.FAILED, WITHOUT_A_WORD
    started_ns = earliest([time_ns(kept.get("startTime")), *(process.started_ns for process in processes)])
    ended_ns = time_ns(kept.get("endTime"))
    is_silent = any(process.is_gone or process.reason == WITHOUT_A_WORD for process in processes)
    if state.has_ended and (ended_ns is None or is_silent):
        ended_ns = max((process.last_sign_ns for process in processes), default=None)
    return AttemptView(attempt_number, state, reason, started_ns, ended_ns, processes)


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


def _has_ended(who: tuple[str, int] | None, attempts: Sequence[AttemptView], state: State) -> bool:
    """Whether a process, by host and pid, is over; of one that nobody knows, whether its run is."""
    states = [
        process.state for attempt in attempts for process in attempt.processes if (process.host, process.pid) == who
    ]
    return all(each.has_ended for each in states or [state])


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


def _configs(resource: Resource) -> dict[str, dict[str, str]]:
    configs = resource.get("configs")
    known = configs if isinstance(configs, Mapping) else {}
    return {section: _texts(known.get(f"{section}Configs")) for section in ("user", "software", "hardware")}


def _reason_of(resource: Resource) -> str:
    details = resource.get("errorDetails")
    if isinstance(details, Mapping):
        return str(details.get("message") or details)
    return str(details or "")


def _traceback(encoded: object) -> tuple[RaisedException, ...]:
    """Return the exceptions of an entry; items of another form are left out."""
    raised = [raised_from_json(item) for item in encoded] if isinstance(encoded, list) else []
    return tuple(exception for exception in raised if exception is not None)


def _texts(mapping: object) -> dict[str, str]:
    return {str(key): str(value) for key, value in mapping.items()} if isinstance(mapping, Mapping) else {}


def _mappings(items: object) -> list[Mapping[str, Any]]:
    return [item for item in items if isinstance(item, Mapping)] if isinstance(items, (list, tuple)) else []


def _clock(moment_ns: int) -> str:
    """Return a moment to the second, as goodput's report has it: 2026-11-21 05:36:43Z."""
    return f"{format_timestamp(moment_ns)[:19].replace('T', ' ')}Z"


def _ago(duration_ns: int) -> str:
    seconds = duration_ns / _SECOND_NS
    if seconds < 120:
        return f"{seconds:.0f} s"
    minutes = seconds / 60
    return f"{minutes:.0f} min" if minutes < 120 else f"{minutes / 60:.1f} h"
