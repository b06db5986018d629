"""Sample entries of a run's processes, for tests of its display."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

from google_cloud_mldiagnostics import _entries as entries
from google_cloud_mldiagnostics._reading.run_history import RunHistory
from google_cloud_mldiagnostics._reading.run_view import RunView, view_run
from google_cloud_mldiagnostics.control_plane import Resource
from ml_diagnostics_common.entry import COMPANION_LOG_ID, EntryContext, LogEntry, format_timestamp

START_NS = 1_763_710_310_000_000_000
SECOND_NS = 1_000_000_000
END_NOT_RECORDED_BEFORE = "ended without a word: it was killed, or called os._exit"
"""The text that earlier releases stored for `END_NOT_RECORDED`."""
_numbers = itertools.count(10**11)


def at(seconds: float) -> int:
    """Return the time at this many seconds after the run's start, in ns."""
    return START_NS + round(seconds * SECOND_NS)


def rfc3339(seconds: float) -> str:
    return format_timestamp(at(seconds))


def entry(
    namespace: str,
    seconds: float,
    payload: Mapping[str, Any],
    *,
    host: str = "host-0",
    pid: int = 100,
    log_id: str = entries.LOG_ID,
) -> LogEntry:
    """Return an entry of a process, as a journal has it."""
    resource = {"type": entries.RESOURCE_TYPE, "labels": {"node_id": "run-1"}}
    labels = {"host": host, "pid": str(pid), "run": "run-1", "process_index": "0"}
    context = EntryContext(log_id, "", resource, labels, writer=f"{host}-{pid}-1-0")
    return LogEntry(at(seconds), next(_numbers), dict(payload), context, own_resource_labels={"namespace": namespace})


def process(
    phase: str, seconds: float, *, host: str = "host-0", pid: int = 100, index: int = 0, count: int = 1, **fields: Any
) -> LogEntry:
    """Return an entry in which a process reports its own state."""
    attempt = fields.pop("attempt", 1)
    payload = entries.process_entry(
        phase, attempt=attempt, host=host, process_index=index, process_count=count, pid=pid, **fields
    )
    return entry(entries.PROCESS, seconds, payload, host=host, pid=pid)


def metric(name: str, seconds: float, value: float, *, step: int | None = None, **fields: Any) -> LogEntry:
    """Return an entry with the value of a metric."""
    steps = {} if step is None else {"step_index": step}
    return entry(name, seconds, {"values": [value], **steps, "unit": "1"}, **fields)


def session(
    session_id: str, phase: str, seconds: float, *, host: str = "host-0", index: int = 0, **fields: Any
) -> LogEntry:
    """Return an entry in which a process reports a profile."""
    payload = entries.session_entry(
        session_id,
        phase,
        kind=fields.pop("kind", "programmatic"),
        folder=fields.pop("folder", f"/runs/run-1/profiles/plugins/profile/{session_id}"),
        host=host,
        process_index=index,
        **fields,
    )
    return entry(entries.SESSION, seconds, payload, host=host)


def ending(how: str, seconds: float, *, host: str = "host-0", pid: int = 100, **fields: Any) -> LogEntry:
    """Return an entry in which the companion of a process reports the end of the process."""
    payload = {"verb": "stacktraceanalyzer", "kind": "job_ended", "how": how, "message": f"The job: {how}", **fields}
    return entry("", seconds, payload, host=host, pid=pid, log_id=COMPANION_LOG_ID)


def resource(phase: str = "ACTIVE", **fields: Any) -> Resource:
    """Return the run as a control plane has it."""
    kept = {"name": "run-1", "displayName": "Run 1", "runPhase": phase, "createTime": rfc3339(0), "labels": {}}
    return {**kept, **fields}


def attempt(number: int, phase: str, seconds: float, *processes: Mapping[str, Any], **fields: Any) -> dict[str, Any]:
    """Return an attempt as the folder of a run has it."""
    return {"number": number, "phase": phase, "startTime": rfc3339(seconds), "processes": list(processes), **fields}


def kept_process(phase: str = "ACTIVE", *, host: str = "host-0", pid: int = 100, index: int = 0) -> dict[str, Any]:
    """Return a process as an attempt in the folder of a run has it."""
    return {
        "hostname": host,
        "process_index": index,
        "pid": pid,
        "started": "7",
        "phase": phase,
        "startTime": rfc3339(0),
    }


def view(kept: Resource, *log: LogEntry, now: float, **options: Any) -> RunView:
    """Return the run as it is shown at this many seconds after its start."""
    history = RunHistory()
    history.add(log)
    return view_run(kept, history, now_ns=at(now), **options)
