"""Records of a job, for the tests of hooks: its events in order, its metrics, the outcome of its run."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

from ml_diagnostics_common.entry import LogEntry
from ml_diagnostics_common.reader import JournalReader

QUIET: dict[str, Any] = {"stacks": False, "hangs": False, "monitor": False}
"""Arguments of `instrument` for a job without helper processes."""

_IF_LONG_ENOUGH = ("compilation", "checkpoint_wait")
"""Activities that JAX and Orbax report by themselves, recorded only if they take a millisecond or more."""


def folder() -> Path:
    return Path(os.environ["ML_DIAGNOSTICS_DIR"])


def read(log_id: str) -> Iterator[LogEntry]:
    for batch in JournalReader(log_id, root=folder()).read_new():
        yield from batch


def activities(job: str) -> list[str]:
    """Return the activities of a job, such as `start`, `load`, `step 3`, `evaluation`, `save 3`, `end`.

    Compilations, and waits for a save in the background, are left out: how long they take decides if they are recorded.
    """
    return [name for name, _ in groupby(each for each in _activities(job) if each not in _IF_LONG_ENOUGH)]


def _activities(job: str) -> Iterator[str]:
    is_open = ""
    for payload in (entry.payload for entry in read(f"goodput_{job}")):
        if "event_type" in payload:
            yield f"{payload['event_type']} {payload['step']}"
        elif "step_start_time" in payload:
            is_open = f"step {payload['step_count']}"
            yield is_open
        elif "step_ended" in payload:
            assert is_open == f"step {payload['step_end_count']}", payload
        elif "data_loading_start_time" in payload:
            yield "load"
        elif "custom_badput_event_start_time" in payload:
            yield str(payload["custom_badput_event_type"]).lower()
        elif "job_start_time" in payload:
            yield "start"
        elif "job_end_time" in payload:
            exception = payload.get("job_end_exception") or payload.get("process_exception")
            yield f"end {exception}" if exception else "end"
        elif "process_ended" in payload:
            yield f"process {payload['process_outcome']} {payload.get('process_exception', '')}".strip()


def seconds(job: str) -> dict[str, float]:
    """Return how long the loads of a job took in all, and each of its steps until its recorded end."""
    found: dict[str, float] = {"load": 0.0}
    for payload in (entry.payload for entry in read(f"goodput_{job}")):
        if "step_start_time" in payload:
            found[f"step {payload['step_count']}"] = -payload["step_start_time"]
        elif "step_ended" in payload:
            found[f"step {payload['step_end_count']}"] += payload["step_ended"]
        elif "data_loading_start_time" in payload:
            found["load"] -= payload["data_loading_start_time"]
        elif "data_loading_end_time" in payload:
            found["load"] += payload["data_loading_end_time"]
    return found


def metrics() -> dict[str, dict[Any, float]]:
    """Return the recorded values by metric and step, without those of the system."""
    found: dict[str, dict[Any, float]] = {}
    for entry in read("ml_diagnostics_metric"):
        if values := entry.payload.get("values"):
            found.setdefault(entry.resource_label("namespace"), {})[entry.payload.get("step_index")] = values[0]
    return found


def only_run() -> dict[str, Any]:
    """Return the stored run."""
    (run,) = runs()
    return run


def runs() -> list[dict[str, Any]]:
    """Return the stored runs."""
    return [dict(json.loads(stored.read_text())) for stored in folder().glob("runs/*/run.json")]
