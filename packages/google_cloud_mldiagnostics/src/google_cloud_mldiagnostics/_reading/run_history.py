"""The history of a run's processes and profiles, from its entries in any order, each entry once. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from ml_diagnostics_common.entry import COMPANION_LOG_ID, EntryContext, LogEntry, ProcessEndings, parse_timestamp

from google_cloud_mldiagnostics._entries import PROCESS, SESSION

__all__ = [
    "ProcessKey",
    "RunHistory",
    "SessionRecord",
    "earliest",
    "mappings",
    "natural_number",
    "number",
    "texts",
    "time_ns",
]


class ProcessKey(NamedTuple):
    """A process in an attempt of the run: a process may take part in several."""

    host: str
    pid: int
    attempt: int


class ProcessRecord:
    """The state of one process in one attempt.

    Attributes:
        first_ns: The time of its first entry, in ns since 1970.
        last_ns: The time of its last entry.
        fields: The newest value of each field: see `entries.process_entry`.
    """

    def __init__(self, entry: LogEntry) -> None:
        self.first_ns = self.last_ns = entry.timestamp_ns
        self.fields: dict[str, Any] = dict(entry.payload)

    @classmethod
    def restored(cls, first_ns: int, last_ns: int, fields: Mapping[str, Any]) -> ProcessRecord:
        """Return a record with these attributes."""
        record = cls.__new__(cls)
        record.first_ns, record.last_ns, record.fields = first_ns, last_ns, dict(fields)
        return record

    def add(self, entry: LogEntry) -> None:
        """Add one of its entries. An address of the first one stays valid, a reason is that of the last one alone."""
        is_later = entry.timestamp_ns >= self.last_ns
        self.first_ns, self.last_ns = min(self.first_ns, entry.timestamp_ns), max(self.last_ns, entry.timestamp_ns)
        first, last = (self.fields, entry.payload) if is_later else (entry.payload, self.fields)
        self.fields = {**first, "reason": "", **last}


class SessionRecord:
    """The state of one profile.

    Attributes:
        first_ns: The time of its first entry, in ns since 1970.
        hosts: The last entry of each process, by host and index: see `entries.session_entry`.
        writers: The process that wrote it, as host and pid.
    """

    def __init__(self, first_ns: int) -> None:
        self.first_ns = first_ns
        self.hosts: dict[tuple[str, int | None], Mapping[str, Any]] = {}
        self.writers: dict[tuple[str, int | None], tuple[str, int]] = {}
        self._written_ns: dict[tuple[str, int | None], int] = {}

    def to_json(self) -> dict[str, Any]:
        """Return the record as JSON."""
        hosts = [
            [*process, payload, *self.writers[process], self._written_ns[process]]
            for process, payload in self.hosts.items()
        ]
        return {"first_ns": self.first_ns, "hosts": hosts}

    @classmethod
    def from_json(cls, state: Mapping[str, Any]) -> SessionRecord:
        """Return the record that `to_json` wrote."""
        record = cls(state["first_ns"])
        for host, index, payload, writer_host, writer_pid, written_ns in state["hosts"]:
            record.hosts[host, index] = payload
            record.writers[host, index] = writer_host, writer_pid
            record._written_ns[host, index] = written_ns
        return record

    def add(self, entry: LogEntry) -> None:
        """Add one entry on it."""
        self.first_ns = min(self.first_ns, entry.timestamp_ns)
        process = (str(entry.payload.get("hostname", "")), natural_number(entry.payload.get("process_index")))
        if self._written_ns.get(process, 0) <= entry.timestamp_ns:
            self._written_ns[process] = entry.timestamp_ns
            self.hosts[process] = entry.payload
            labels = entry.context.labels
            self.writers[process] = labels.get("host", ""), natural_number(labels.get("pid")) or 0


class RunHistory:
    """Determine the state of processes and profiles from entries.

    Attributes:
        processes: The state of each process in each attempt.
        sessions: The state of each profile by session id.
    """

    def __init__(self, endings: ProcessEndings | None = None) -> None:
        """Start without entries.

        Args:
            endings: The ends that companions recorded, if another part reads them once for many runs.
        """
        self.processes: dict[ProcessKey, ProcessRecord] = {}
        self.sessions: dict[str, SessionRecord] = {}
        self._signs_ns: dict[tuple[str, int], int] = {}
        self._steps: dict[tuple[str, int], tuple[int, int]] = {}  # By host and pid: time and number.
        self._last_attempts: dict[tuple[str, int], int] = {}
        self._endings = ProcessEndings() if endings is None else endings

    def to_json(self) -> dict[str, Any]:
        """Return what it has of the run's own entries as JSON, without the ends that companions recorded."""
        return {
            "processes": [
                [*key, record.first_ns, record.last_ns, record.fields] for key, record in self.processes.items()
            ],
            "sessions": {name: record.to_json() for name, record in self.sessions.items()},
            "signs": [[*writer, sign_ns] for writer, sign_ns in self._signs_ns.items()],
            "steps": [[*writer, *step] for writer, step in self._steps.items()],
        }

    @classmethod
    def from_json(cls, state: Mapping[str, Any], endings: ProcessEndings | None = None) -> RunHistory:
        """Return the history that `to_json` wrote; raises LookupError, TypeError or ValueError for anything else."""
        history = cls(endings)
        for host, pid, attempt, first_ns, last_ns, fields in state["processes"]:
            key = ProcessKey(host, pid, attempt)
            history.processes[key] = ProcessRecord.restored(first_ns, last_ns, fields)
            history._last_attempts[host, pid] = max(attempt, history._last_attempts.get((host, pid), 0))
        history.sessions = {name: SessionRecord.from_json(record) for name, record in state["sessions"].items()}
        history._signs_ns = {(host, pid): sign_ns for host, pid, sign_ns in state["signs"]}
        history._steps = {(host, pid): (time_ns, step) for host, pid, time_ns, step in state["steps"]}
        return history

    def add(self, entries: Iterable[LogEntry]) -> None:
        """Add entries of the run, and of the companions of its processes."""
        context: EntryContext | None = None
        writer, sign_ns, step = ("", 0), 0, (0, 0)  # Looked up once for many entries of a writer.
        for entry in entries:
            if entry.context is not context:
                self._remember(writer, sign_ns, step)
                context = entry.context
                writer = (context.labels.get("host", ""), natural_number(context.labels.get("pid")) or 0)
                sign_ns, step = self._signs_ns.get(writer, 0), self._steps.get(writer, (0, 0))
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
        self._remember(writer, sign_ns, step)

    def add_values(self, host: str, pid: int, last_ns: int, step: int | None = None) -> None:
        """Note values of metrics of a process that another part has read: of a million, the last one is enough.

        Args:
            host: The process's host.
            pid: Its id there.
            last_ns: The time of the last value, in ns since 1970.
            step: The step of that value; None if it has none.
        """
        self._remember((host, pid), max(last_ns, self._signs_ns.get((host, pid), 0)), (0, 0))
        if step is not None and last_ns >= self._steps.get((host, pid), (0, 0))[0]:
            self._steps[host, pid] = last_ns, step

    def _remember(self, writer: tuple[str, int], sign_ns: int, step: tuple[int, int]) -> None:
        if sign_ns > 0:
            self._signs_ns[writer] = sign_ns
        if step[0] > 0:
            self._steps[writer] = step

    def last_step(self, key: ProcessKey) -> int | None:
        """Return the step that a process recorded a metric of last; None if it recorded none."""
        known = self._steps.get(key[:2])
        return known[1] if known is not None else None

    def last_step_ns(self, host: str, pid: int) -> int:
        """Return the time of a process's last value with a step, in ns since 1970; 0 if there is none."""
        return self._steps.get((host, pid), (0, 0))[0]

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
            self._last_attempts[key[:2]] = max(key.attempt, self._last_attempts.get(key[:2], 0))

    def last_event_ns(self, key: ProcessKey) -> int:
        """Return the time of the last entry of a process, of any kind; 0 if there is none."""
        record = self.processes.get(key)
        own_ns = record.last_ns if record is not None else 0
        # Other entries of the process do not contain the attempt, and belong to its last one.
        is_last = self._last_attempts.get(key[:2], 0) <= key.attempt
        return max(own_ns, self._signs_ns.get(key[:2], 0)) if is_last else own_ns

    def ending(self, key: ProcessKey, since_ns: int) -> LogEntry | None:
        """Return what its companion recorded of the end of a process; another may have had the pid before that time."""
        return next(iter(self._endings.after(key.host, key.pid, since_ns)), None)


def natural_number(value: object) -> int | None:
    """Return a whole number from JSON, Cloud Logging (which has only floats) or a label; None for anything else."""
    if type(value) is int:  # Exact, where a float would round the nanoseconds of a time.
        return value if 0 <= value < 2**62 else None
    found = number(value)
    return int(found) if found is not None and 0 <= found < 2**62 and found == int(found) else None


def number(value: object) -> float | None:
    """Return a finite number, also from its text; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        found = float(value)
    except (ValueError, OverflowError):
        return None
    return found if math.isfinite(found) else None


def time_ns(text: object) -> int | None:
    """Return a time of the API; None if there is none: the API writes year 1 for an event that has not occurred."""
    try:
        moment_ns = parse_timestamp(str(text)) if text else 0
    except ValueError:
        return None
    return moment_ns if moment_ns > 0 else None


def earliest(times_ns: Iterable[int | None]) -> int | None:
    """Return the earliest of the known times."""
    return min((moment_ns for moment_ns in times_ns if moment_ns is not None), default=None)


def texts(mapping: object) -> dict[str, str]:
    """Return a JSON object as texts; empty if it is none."""
    return {str(key): str(value) for key, value in mapping.items()} if isinstance(mapping, Mapping) else {}


def mappings(items: object) -> list[Mapping[str, Any]]:
    """Return the objects of a JSON list; empty if it is none."""
    return [item for item in items if isinstance(item, Mapping)] if isinstance(items, (list, tuple)) else []
