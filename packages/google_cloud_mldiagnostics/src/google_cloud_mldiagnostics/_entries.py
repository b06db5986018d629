"""Entries of the log `ml_diagnostics_metric`: one for each value; the monitored resource gives its kind.

The resource is a `generic_node` with the run's id as `node_id` and the kind of the entry as `namespace`:

a metric's name     {"values": [0.123], "step_index": 1, "unit": "1", ...labels}. A value that JSON has no number for is
                    the text NaN, Infinity or -Infinity, and the entry is marked with "not_finite": true
mlrun_configs       {"userConfigs": {...}}, {"softwareConfigs": {...}}, {"hardwareConfigs": {...}}
mlrun_process       one process of an attempt: see `process_entry`
mlrun_session       one profile: see `session_entry`
mlrun_losses        counts of lost data: {"lost_entries": {reason: n}} if the disk did not take entries, or
                    {"lost_values": {reason: n}} if values could not be recorded

The first two are those of the public package; the others are ours.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from ml_diagnostics_common.environment import ExpectedProcesses

__all__ = [
    "CONFIGS",
    "LOG_ID",
    "LOSSES_NAMESPACE",
    "PROCESS",
    "RESOURCE_TYPE",
    "SESSION",
    "json_number",
    "mean_of_finite",
    "not_finite_text",
    "process_entry",
    "session_entry",
]


def not_finite_text(number: float) -> str:
    """Return the JSON text of a number that is not finite."""
    return "NaN" if math.isnan(number) else "Infinity" if number > 0 else "-Infinity"


def json_number(number: float) -> float | str:
    """Return a number for JSON: itself, if it is finite, else a text."""
    return number if math.isfinite(number) else not_finite_text(number)


def mean_of_finite(numbers: Sequence[float]) -> float:
    """Return the mean of the finite numbers; the last number if none is finite.

    Args:
        numbers: At least one.
    """
    finite = [number for number in numbers if math.isfinite(number)]
    # Each divided before they are added, so that no sum is too large for a float.
    return math.fsum(number / len(finite) for number in finite) if finite else numbers[-1]


LOG_ID: Final = "ml_diagnostics_metric"
RESOURCE_TYPE: Final = "generic_node"
CONFIGS: Final = "mlrun_configs"
PROCESS: Final = "mlrun_process"
SESSION: Final = "mlrun_session"
LOSSES_NAMESPACE: Final = "mlrun_losses"


def process_entry(
    phase: str,
    *,
    attempt: int,
    host: str,
    process_index: int,
    process_count: int,
    pid: int,
    expected_processes: ExpectedProcesses | None = None,
    planned_steps: int | None = None,
    config_digest: str = "",
    reason: str = "",
    address: str = "",
    profiler_port: int | None = None,
    capture_folder: str = "",
    capture_name: str = "",
    traceback: Sequence[Mapping[str, Any]] = (),
    file_systems: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """Return the payload for a process of a run that has started, continues, or has ended.

    Args:
        phase: ACTIVE, COMPLETED or FAILED.
        attempt: The run's attempt, from 1.
        host: The host's name.
        process_index: The index of the process in the run.
        process_count: The number of processes of the run.
        pid: The process id on its host.
        expected_processes: The number of processes that the job should have, and who says so; None if unknown.
        planned_steps: The number of steps of the job; None if unknown.
        config_digest: Equal on all processes with equal user configs: see `_user_configs.digest_of`.
        reason: Why it has ended.
        address: The address of its host for other hosts.
        profiler_port: The port of its profiler server; None if there is none.
        capture_folder: The folder on its machine that a profile on demand must be written to; the process moves or
            uploads it to the destination of the run's profiles.
        capture_name: The name of its file in that folder, without `.xplane.pb`.
        traceback: The exception that ended it, and those that it is linked to: `RaisedException.to_json` of each.
        file_systems: The file systems that the exception is about: `FileSystem.to_json` of each.
    """
    payload: dict[str, Any] = {
        "phase": phase,
        "attempt": attempt,
        "hostname": host,
        "process_index": str(process_index),
        "process_count": process_count,
        "pid": pid,
    }
    if expected_processes is not None:
        payload["expected_processes"], payload["expected_processes_source"] = expected_processes
    if planned_steps is not None:
        payload["planned_steps"] = planned_steps
    if config_digest:
        payload["config_digest"] = config_digest
    if reason:
        payload["reason"] = reason
    if address:
        payload["address"] = address
    if profiler_port is not None:
        payload["profiler_port"] = profiler_port
    if capture_folder:
        payload["capture_folder"] = capture_folder
    if capture_name:
        payload["capture_name"] = capture_name
    if traceback:
        payload["traceback"] = list(traceback)
    if file_systems:
        payload["file_systems"] = list(file_systems)
    return payload


def session_entry(
    session_id: str,
    phase: str,
    *,
    kind: str,
    folder: str,
    host: str,
    process_index: int,
    duration_seconds: float | None = None,
    size_bytes: int | None = None,
    planes: list[str] | None = None,
    problem: str = "",
) -> dict[str, Any]:
    """Return the payload of one process's entry on a profile.

    Args:
        session_id: The session's id, the same on all hosts.
        phase: ACTIVE, SUCCEEDED or FAILED.
        kind: programmatic or on_demand.
        folder: The folder of the session's files.
        host: The host's name.
        process_index: The index of the process in the run.
        duration_seconds: The duration of the profile.
        size_bytes: The size of this host's xplane.
        planes: The names of its planes.
        problem: The failure.
    """
    payload: dict[str, Any] = {
        "session_id": session_id,
        "phase": phase,
        "kind": kind,
        "folder": folder,
        "hostname": host,
        "process_index": str(process_index),
    }
    known = {
        "duration_seconds": duration_seconds,
        "size_bytes": size_bytes,
        "planes": planes,
        "problem": problem or None,
    }
    return payload | {name: value for name, value in known.items() if value is not None}
