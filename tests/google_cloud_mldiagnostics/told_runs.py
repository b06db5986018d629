"""What processes of a run may tell, as entries: for tests of what is shown of it."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

from google_cloud_mldiagnostics import _entries as entries
from google_cloud_mldiagnostics._reading.run_history import RunHistory
from google_cloud_mldiagnostics._reading.run_view import RunView, view_run
from google_cloud_mldiagnostics.control_plane import Resource
from ml_diagnostics_common.entry import COMPANION_LOG_ID, EntryContext, LogEntry, format_timestamp

BEGAN_NS = 1_763_710_310_000_000_000
SECOND_NS = 1_000_000_000
_numbers = itertools.count(10**11)


def at(seconds: float) -> int:
    """A time so many seconds after the run began, in ns."""
    return BEGAN_NS + round(seconds * SECOND_NS)


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
    """An entry of a process, as a journal has it."""
    resource = {"type": entries.RESOURCE_TYPE, "labels": {"node_id": "run-1"}}
    labels = {"host": host, "pid": str(pid), "run": "run-1", "process_index": "0"}
    context = EntryContext(log_id, "", resource, labels, writer=f"{host}-{pid}-1-0")
    return LogEntry(at(seconds), next(_numbers), dict(payload), context, own_resource_labels={"namespace": namespace})


def process(
    phase: str, seconds: float, *, host: str = "host-0", pid: int = 100, index: int = 0, count: int = 1, **told: Any
) -> LogEntry:
    """A process tells of itself."""
    attempt = told.pop("attempt", 1)
    payload = entries.process_entry(
        phase, attempt=attempt, host=host, process_index=index, process_count=count, pid=pid, **told
    )
    return entry(entries.PROCESS, seconds, payload, host=host, pid=pid)


def metric(name: str, seconds: float, value: float, *, step: int | None = None, **told: Any) -> LogEntry:
    """A value is recorded."""
    steps = {} if step is None else {"step_index": step}
    return entry(name, seconds, {"values": [value], **steps, "unit": "1"}, **told)


def session(
    session_id: str, phase: str, seconds: float, *, host: str = "host-0", index: int = 0, **told: Any
) -> LogEntry:
    """A process tells of a profile."""
    payload = entries.session_entry(
        session_id,
        phase,
        kind=told.pop("kind", "programmatic"),
        folder=told.pop("folder", f"/runs/run-1/profiles/plugins/profile/{session_id}"),
        host=host,
        process_index=index,
        **told,
    )
    return entry(entries.SESSION, seconds, payload, host=host)


def ending(how: str, seconds: float, *, host: str = "host-0", pid: int = 100, **told: Any) -> LogEntry:
    """The companion of a process tells of its end."""
    payload = {"verb": "stacktraceanalyzer", "kind": "job_ended", "how": how, "message": f"The job: {how}", **told}
    return entry("", seconds, payload, host=host, pid=pid, log_id=COMPANION_LOG_ID)


def resource(phase: str = "ACTIVE", **told: Any) -> Resource:
    """The run as a control plane has it."""
    kept = {"name": "run-1", "displayName": "Run 1", "runPhase": phase, "createTime": rfc3339(0), "labels": {}}
    return {**kept, **told}


def attempt(number: int, phase: str, seconds: float, *processes: Mapping[str, Any], **told: Any) -> dict[str, Any]:
    """An attempt as the folder of a run has it."""
    return {"number": number, "phase": phase, "startTime": rfc3339(seconds), "processes": list(processes), **told}


def kept_process(phase: str = "ACTIVE", *, host: str = "host-0", pid: int = 100, index: int = 0) -> dict[str, Any]:
    """A process as an attempt in the folder of a run has it."""
    return {
        "hostname": host,
        "process_index": index,
        "pid": pid,
        "started": "7",
        "phase": phase,
        "startTime": rfc3339(0),
    }


def view(kept: Resource, *told: LogEntry, now: float, **options: Any) -> RunView:
    """The run as it is shown so many seconds after it began."""
    history = RunHistory()
    history.add(told)
    return view_run(kept, history, now_ns=at(now), **options)
