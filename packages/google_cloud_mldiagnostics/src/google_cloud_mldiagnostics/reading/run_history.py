"""What the entries of a run tell of its processes and its profiles, in any order, each entry once. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from ml_diagnostics_common.entry import EntryContext, LogEntry, parse_timestamp
from ml_diagnostics_common.process_endings import COMPANION_LOG_ID, ProcessEndings

from google_cloud_mldiagnostics.entries import PROCESS, SESSION

__all__ = [
    "ProcessKey",
    "RunHistory",
    "SessionRecord",
    "earliest",
    "natural_number",
    "number",
    "time_ns",
]


class ProcessKey(NamedTuple):
    """Which process, in which attempt of the run: a process may make several."""

    host: str
    pid: int
    attempt: int


class ProcessRecord:
    """What one process told of itself in one attempt.

    Attributes:
        first_ns: When it was first heard of, in ns since 1970.
        last_ns: When it was last heard of.
        told: What it said, the last word counting: see `entries.process_entry`.
    """

    def __init__(self, entry: LogEntry) -> None:
        self.first_ns = self.last_ns = entry.timestamp_ns
        self.told: dict[str, Any] = dict(entry.payload)

    def add(self, entry: LogEntry) -> None:
        """Takes note of one more of its entries. An address of the first still holds, a reason is of the last alone."""
        is_later = entry.timestamp_ns >= self.last_ns
        self.first_ns, self.last_ns = min(self.first_ns, entry.timestamp_ns), max(self.last_ns, entry.timestamp_ns)
        first, last = (self.told, entry.payload) if is_later else (entry.payload, self.told)
        self.told = {**first, "reason": "", **last}


class SessionRecord:
    """What processes told of one profile.

    Attributes:
        first_ns: When it was first heard of, in ns since 1970.
        hosts: The last word of each process, by host and index: see `entries.session_entry`.
        tellers: Which process said it, by host and pid.
    """

    def __init__(self, first_ns: int) -> None:
        self.first_ns = first_ns
        self.hosts: dict[tuple[str, int | None], Mapping[str, Any]] = {}
        self.tellers: dict[tuple[str, int | None], tuple[str, int]] = {}
        self._said_ns: dict[tuple[str, int | None], int] = {}

    def add(self, entry: LogEntry) -> None:
        """Takes note of one more entry on it."""
        self.first_ns = min(self.first_ns, entry.timestamp_ns)
        who = (str(entry.payload.get("hostname", "")), natural_number(entry.payload.get("process_index")))
        if self._said_ns.get(who, 0) <= entry.timestamp_ns:
            self._said_ns[who] = entry.timestamp_ns
            self.hosts[who] = entry.payload
            labels = entry.context.labels
            self.tellers[who] = labels.get("host", ""), natural_number(labels.get("pid")) or 0


class RunHistory:
    """Takes entries, and keeps what they tell of processes and profiles.

    Attributes:
        processes: By process and attempt.
        sessions: By id.
    """

    def __init__(self) -> None:
        """Knows nothing yet."""
        self.processes: dict[ProcessKey, ProcessRecord] = {}
        self.sessions: dict[str, SessionRecord] = {}
        self._signs_ns: dict[tuple[str, int], int] = {}
        self._steps: dict[tuple[str, int], tuple[int, int]] = {}  # By host and pid: when, and which step.
        self._endings = ProcessEndings()

    def add(self, entries: Iterable[LogEntry]) -> None:
        """Take note of entries of the run, and of the companions of its processes."""
        context: EntryContext | None = None
        who, sign_ns, step = ("", 0), 0, (0, 0)  # Of the writer: looked up once for many entries.
        for entry in entries:
            if entry.context is not context:
                self._remember(who, sign_ns, step)
                context = entry.context
                who = (context.labels.get("host", ""), natural_number(context.labels.get("pid")) or 0)
                sign_ns, step = self._signs_ns.get(who, 0), self._steps.get(who, (0, 0))
            if context.log_id == COMPANION_LOG_ID:
                self._endings.add((entry,))
                continue
            timestamp_ns, payload, own = entry.timestamp_ns, entry.payload, entry.own_resource_labels
            if timestamp_ns > sign_ns:
                sign_ns = timestamp_ns
            namespace = own["namespace"] if own and "namespace" in own else entry.resource_label("namespace")
            if namespace == PROCESS:
                self._add_process(entry)
            elif namespace == SESSION:
                session_id = str(payload.get("session_id", ""))
                self.sessions.setdefault(session_id, SessionRecord(timestamp_ns)).add(entry)
            elif timestamp_ns >= step[0] and "step_index" in payload:
                number = payload["step_index"]
                if type(number) is not int or not 0 <= number < 2**62:
                    number = natural_number(number)
                if number is not None:
                    step = timestamp_ns, number
        self._remember(who, sign_ns, step)

    def _remember(self, who: tuple[str, int], sign_ns: int, step: tuple[int, int]) -> None:
        if sign_ns > 0:
            self._signs_ns[who] = sign_ns
        if step[0] > 0:
            self._steps[who] = step

    def last_step(self, key: ProcessKey) -> int | None:
        """Return the step that a process recorded a metric of last; None if it recorded none."""
        known = self._steps.get(key[:2])
        return known[1] if known is not None else None

    def _add_process(self, entry: LogEntry) -> None:
        payload = entry.payload
        key = ProcessKey(
            str(payload.get("hostname", "")),
            natural_number(payload.get("pid")) or 0,
            natural_number(payload.get("attempt")) or 1,
        )
        if key in self.processes:
            self.processes[key].add(entry)
        else:
            self.processes[key] = ProcessRecord(entry)

    def last_sign_ns(self, key: ProcessKey) -> int:
        """When a process was last heard of, by an entry of any kind; 0 if never."""
        record = self.processes.get(key)
        own_ns = record.last_ns if record is not None else 0
        # Its other entries do not say of which attempt they are: they are of its last.
        is_last = not any(other[:2] == key[:2] and other.attempt > key.attempt for other in self.processes)
        return max(own_ns, self._signs_ns.get(key[:2], 0)) if is_last else own_ns

    def ending(self, key: ProcessKey, since_ns: int) -> LogEntry | None:
        """Return what its companion recorded of the end of a process; another may have had the pid before that time."""
        return next(iter(self._endings.after(key.host, key.pid, since_ns)), None)


def natural_number(value: object) -> int | None:
    """A whole number as JSON, Cloud Logging (which has floats only) or a label has it; None for anything else."""
    found = number(value)
    return int(found) if found is not None and 0 <= found < 2**62 and found == int(found) else None


def number(value: object) -> float | None:
    """A finite number, or the text of one; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        found = float(value)
    except (ValueError, OverflowError):
        return None
    return found if math.isfinite(found) else None


def time_ns(text: object) -> int | None:
    """A time of the API; None where there is none: it has year 1 for what has not been."""
    try:
        moment_ns = parse_timestamp(str(text)) if text else 0
    except ValueError:
        return None
    return moment_ns if moment_ns > 0 else None


def earliest(times_ns: Iterable[int | None]) -> int | None:
    """The earliest of those that are known."""
    return min((moment_ns for moment_ns in times_ns if moment_ns is not None), default=None)
