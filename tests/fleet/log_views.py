"""Entries of logs as rows of BigQuery: as a Log Analytics view has them, and as a log sink writes them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa
from ml_diagnostics_common.entry import EntryContext, LogEntry, encode_cloud

TIME = pa.timestamp("us", "UTC")


def analytics_view(entries: Sequence[LogEntry], *, times: bool = True) -> pa.Table:
    """Return entries as rows of a Log Analytics view; its columns `labels` and `json_payload` have the type JSON."""
    rows = [encode_cloud(entry) for entry in entries]
    logs = [entry.context.log_id for entry in entries]
    columns = {
        "log_id": pa.array(logs, pa.string()),
        "insert_id": pa.array([row["insertId"] for row in rows], pa.string()),
        "labels": pa.array([json.dumps(row["labels"]) for row in rows], pa.string()),
        "json_payload": pa.array([json.dumps(row["jsonPayload"]) for row in rows], pa.string()),
        "severity": pa.array([row["severity"] for row in rows], pa.string()),
    }
    if times:
        columns["timestamp"] = _times(entries)
    return pa.table(columns)


def sink_table(entries: Sequence[LogEntry]) -> pa.Table:
    """Return entries as rows of the table that a log sink writes: labels and payloads are records, numbers floats."""
    rows = [encode_cloud(entry) for entry in entries]
    names = [f"projects/p/logs/{entry.context.log_id.replace('/', '%2F')}" for entry in entries]
    return pa.table(
        {
            "logName": pa.array(names, pa.string()),
            "textPayload": pa.array([None] * len(rows), pa.string()),
            "jsonPayload": pa.array([_floats(row["jsonPayload"]) for row in rows]),
            "timestamp": _times(entries),
            "receiveTimestamp": _times(entries),
            "insertId": pa.array([row["insertId"] for row in rows], pa.string()),
            "labels": pa.array([row["labels"] for row in rows]),
        }
    )


def foreign_entries(log: str, job: str, times_ns: Iterable[int]) -> list[LogEntry]:
    """Return saves that Orbax itself wrote to a log: without a writer and a number."""
    context = EntryContext(log, "", {}, {"instance": "vm-1"})
    return [
        LogEntry(
            time_ns,
            0,
            {
                "job_name": job,
                "event_type": "save",
                "step": number,
                "storage_type": "gs",
                "checkpoint_manager_blocking_start_time": time_ns / 1e9,
                "checkpoint_manager_blocking_duration_secs": 0.5,
            },
            context,
            None,
            f"{number:x}f00d",
        )
        for number, time_ns in enumerate(times_ns)
    ]


def _times(entries: Sequence[LogEntry]) -> pa.Array:
    return pa.array([entry.timestamp_ns // 1000 for entry in entries], pa.int64()).cast(TIME)


def _floats(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _floats(one) for name, one in value.items()}
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value
