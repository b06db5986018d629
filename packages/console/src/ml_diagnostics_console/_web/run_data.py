"""One run: as the control plane, its entries and the companions of its processes show it."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from google_cloud_mldiagnostics.reading import (
    SILENT_SECONDS,
    AttemptView,
    ProcessKey,
    ProcessView,
    RunHistory,
    RunView,
    State,
    natural_number,
    view_run,
)

from ml_diagnostics_console._web.columns import RunColumns
from ml_diagnostics_console._web.companions import Companions, Hang
from ml_diagnostics_console._web.writers import JournalWriters

__all__ = ["AttemptSpan", "Project", "Resource", "RunData"]

Resource = dict[str, Any]

_T = TypeVar("_T")
_SECOND: Final = 1e9
_MOST_CACHED: Final = 256
_STATES: Final = {
    State.ACTIVE: "running",
    State.COMPLETED: "completed",
    State.FAILED: "failed",
    State.STALE: "silent",
    State.UNKNOWN: "unknown",
}
_PREEMPTED: Final = ("preempt", "evict", "maintenance", "SIGTERM")


class Project(NamedTuple):
    """A project of Google Cloud, and the region of its runs."""

    name: str
    region: str


class AttemptSpan(NamedTuple):
    """One attempt on the clock of the run.

    Attributes:
        number: The number, from 1.
        started_s: Its start, in seconds since 1970.
        ended_s: Its end; None while it runs, or if the end is not known.
        end: c completed, x failed, p preempted, h hung, r running, u unknown.
        reason: The exit reason.
        view: Its processes and their states.
    """

    number: int
    started_s: float
    ended_s: float | None
    end: str
    reason: str
    view: AttemptView


class RunData:
    """One run, kept up to date by the store. Read it under the store's lock.

    Args:
        run_id: The run's id.
        companions: The entries of the companions of all processes.
        journal: The writers of the logs of the store's diagnostics folder.
        project: The project of Google Cloud that keeps it; None for a run of this machine.

    Attributes:
        id: The run's id.
        journal: The writers of the logs of the store's diagnostics folder.
        project: The project of Google Cloud that keeps it; None for a run of this machine.
        resource: The run in the control plane; empty while it is not there.
        sessions: Its profiler sessions in the control plane.
        history: The states of its processes and profiles.
        columns: The values of its metrics.
        view: The run as it is shown.
        state: running, completed, failed, stuck, silent or unknown.
        reason: Why, in a sentence; empty if there is nothing to report.
        hangs: The hangs that processes of the last attempt have not left, by host.
        attempts: Its attempts in their order.
        started_s: The start, in seconds since 1970.
        ended_s: The end; None while it has none, or it is not known.
        beat_s: The last sign of life of a process; None if there is none.
        now_s: The time of its last update.
        job_names: The names of the jobs with goodput entries that name it.
        primary: The metric that shows best how it is, and the number of metrics among which it was chosen.
        version: Grows with each change.
    """

    def __init__(
        self, run_id: str, companions: Companions, journal: JournalWriters, project: Project | None = None
    ) -> None:
        self.id = run_id
        self.journal, self.project = journal, project
        self.resource: Resource = {}
        self.sessions: list[Resource] = []
        self.history = RunHistory(companions.endings)
        self.columns = RunColumns()
        self.job_names: tuple[str, ...] = ()
        self.primary: tuple[int, str | None] = (0, None)
        self.version = 0
        self.state, self.reason = "unknown", ""
        self.hangs: list[Hang] = []
        self.attempts: Sequence[AttemptSpan] = ()
        self.started_s = self.now_s = 0.0
        self.ended_s: float | None = None
        self.beat_s: float | None = None
        self.view: RunView = view_run({"name": run_id}, self.history, now_ns=0)
        self._companions = companions
        self._cache: dict[Hashable, tuple[int, Any]] = {}
        self._parts: dict[type[Any], Any] = {}

    @property
    def name(self) -> str:
        """The name that the user gave, else the id."""
        return self.view.display_name or self.id

    @property
    def is_live(self) -> bool:
        """True if it may still change by itself."""
        return self.state in ("running", "stuck")

    @property
    def step(self) -> int | None:
        """The last step of any process; None if it is not known."""
        for attempt in reversed(self.view.attempts):
            steps = [process.step for process in attempt.processes if process.step is not None]
            if steps:
                return max(steps)
        return None

    @property
    def planned_steps(self) -> int | None:
        """The number of steps of the job; None if it is not known."""
        for record in reversed(self.history.processes.values()):
            planned = natural_number(record.fields.get("planned_steps"))
            if planned is not None:
                return planned
        return None

    @property
    def hosts(self) -> int:
        """The number of hosts of the last attempt."""
        return len({process.host for process in self.view.processes})

    def restore(self, history: Mapping[str, Any]) -> None:
        """Take a history that was saved, see `RunHistory.to_json`, in place of its own."""
        self.history = RunHistory.from_json(history, self._companions.endings)

    def cached(self, key: Hashable, make: Callable[[], _T]) -> _T:
        """Return a value that was made for this version of the run, or make it.

        Args:
            key: Names the value and what it depends on.
            make: Makes it.
        """
        known = self._cache.get(key)
        if known is not None and known[0] == self.version:
            value: _T = known[1]
            return value
        made = make()
        if len(self._cache) >= _MOST_CACHED:
            self._cache = {key: item for key, item in self._cache.items() if item[0] == self.version}
            if len(self._cache) >= _MOST_CACHED:
                self._cache.clear()
        self._cache[key] = self.version, made
        return made

    def part(self, kind: type[_T], make: Callable[[], _T]) -> _T:
        """Return what is read of the run beside the store, such as its goodput; made once, it is read on by its users.

        Args:
            kind: Its class.
            make: Makes it.
        """
        found: _T | None = self._parts.get(kind)
        if found is None:
            found = self._parts[kind] = make()
        return found

    def update_state(self, now_ns: int, is_gone: Callable[[Mapping[str, Any]], bool]) -> None:
        """Work out the state of the run from what is known now.

        Args:
            now_ns: The time, in ns since 1970.
            is_gone: Return True if a process in the resource's attempts is known to be gone.
        """
        self._cache = {key: item for key, item in self._cache.items() if item[0] == self.version}
        view = self.view = view_run(self.resource, self.history, self.sessions, now_ns=now_ns, is_gone=is_gone)
        self.now_s = now_ns / _SECOND
        last = view.attempts[-1] if view.attempts else None
        self.hangs = [] if last is None else self._hangs_of(last, now_ns)
        self.state, self.reason = _STATES[view.state], _first_line(view.reason)
        signs_ns = [view.last_event_ns or 0, *(self._sign_ns(process) for process in view.processes)]
        beat_ns = max(signs_ns)
        self.beat_s = beat_ns / _SECOND if beat_ns else None
        if self.hangs and self.state in ("running", "silent"):
            self._judge_hang(now_ns, beat_ns)
        last_sign_ns = max(beat_ns, view.started_ns or 0)
        if (
            self.state == "running" and now_ns - last_sign_ns > SILENT_SECONDS * _SECOND
        ):  # Else its processes are silent.
            self.state, self.reason = "unknown", "no event of any process is known: it may have ended"
        if self.state == "silent":
            self.reason = self.reason or "No event of any process for some time"
        started_ns = view.started_ns or min((record.first_ns for record in self.history.processes.values()), default=0)
        self.started_s = started_ns / _SECOND
        self.ended_s = view.ended_ns / _SECOND if view.ended_ns is not None else None
        self.attempts = [self._span(attempt, is_last=attempt is last, now_ns=now_ns) for attempt in view.attempts]

    def update_signs(self, now_ns: int) -> bool:
        """Take only steps and signs of life, if nothing but values is new; return False if that is not enough.

        Args:
            now_ns: The time, in ns since 1970.
        """
        if self.state != "running":
            return False
        beat_ns = 0
        for process in self.view.processes:
            key = ProcessKey(process.host, process.pid, process.attempt)
            process.step = self.history.last_step(key)
            process.last_event_ns = max(process.last_event_ns, self.history.last_event_ns(key))
            beat_ns = max(beat_ns, process.last_event_ns)
        self.view.last_event_ns = max(self.view.last_event_ns or 0, beat_ns) or None
        self.beat_s = max(self.beat_s or 0.0, beat_ns / _SECOND) or None
        self.now_s = now_ns / _SECOND
        return True

    def _judge_hang(self, now_ns: int, beat_ns: int) -> None:
        first = min(self.hangs, key=lambda hang: hang.since_ns)
        at = "" if first.step is None else f" at step {first.step:,}"
        if now_ns - beat_ns > SILENT_SECONDS * _SECOND:
            self.state = "silent"
            self.reason = f"Ended, or lost, after a hang{at}: no sign of life of any process"
            return
        self.state = "stuck"
        by_frame: dict[str, list[Hang]] = {}
        for hang in self.hangs:
            by_frame.setdefault(hang.frame, []).append(hang)
        fewest, *others = sorted(by_frame.values(), key=len)
        count, rest = len(self.hangs), sum(map(len, others))
        if len(fewest) == 1 and rest > 1 and fewest[0].frame:  # All others wait in a collective, most often.
            one = fewest[0]
            self.reason = f"{rest} of {count} hosts wait{at}, while {one.host} is in {one.frame}"
        else:
            stuck = first.host if count == 1 else f"{count} of {max(count, self.hosts)} hosts"
            verb, where = ("makes", "its main thread is") if count == 1 else ("make", f"the first, {first.host}, is")
            in_frame = f"; {where} in {first.frame}" if first.frame else ""
            self.reason = f"{stuck} {verb} no progress{at}{in_frame}"

    def _hangs_of(self, attempt: AttemptView, now_ns: int) -> list[Hang]:
        found = []
        for process in attempt.processes:
            if process.state is State.COMPLETED:
                continue
            until_ns = process.end.ended_ns or now_ns
            progress_ns = self.history.last_step_ns(process.host, process.pid)
            hang = self._companions.hang(process.host, process.pid, process.started_ns, until_ns, progress_ns)
            if hang is not None:
                found.append(hang)
        return sorted(found, key=lambda hang: (hang.host, hang.time_ns))

    def _sign_ns(self, process: ProcessView) -> int:
        sign_ns = self._companions.last_sign_ns(process.host, process.pid)
        return sign_ns if sign_ns >= process.started_ns else 0

    def _span(self, attempt: AttemptView, *, is_last: bool, now_ns: int) -> AttemptSpan:
        end = {State.COMPLETED: "c", State.FAILED: "x", State.ACTIVE: "r"}.get(attempt.state, "u")
        if is_last and self.state == "stuck":
            end = "h"
        elif end == "x":
            was_asked = any(process.end.was_asked for process in attempt.processes)
            if was_asked or any(word in attempt.reason for word in _PREEMPTED):
                end = "p"
            elif not any(process.end.exception for process in attempt.processes):  # Else others hung since it failed.
                end = "h" if self._hangs_of(attempt, attempt.ended_ns or now_ns) else "x"
        elif end == "u" and is_last and self.hangs:
            end = "h"
        started_s = (attempt.started_ns or 0) / _SECOND or self.started_s
        ended_s = attempt.ended_ns / _SECOND if attempt.ended_ns is not None else None
        return AttemptSpan(attempt.number, started_s, ended_s, end, _first_line(attempt.reason), attempt)


def _first_line(text: str) -> str:
    return next(iter(text.splitlines()), "")
