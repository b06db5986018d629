"""How long the background part of asynchronous saves takes, as far as Orbax recorded it.

Orbax records how long a save waited for the one before it. If it waited at all, the one before it was over at the end
of the wait: then its background part is the time from the end of its blocking part until then.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from ml_diagnostics_common.entry import LogEntry

from ml_goodput_measurement._query.sources import Sources, open_source

__all__ = ["background_seconds"]

_LEAST_WAIT_SECONDS = 0.1
"""A shorter wait is not for the background part."""
_APART_SECONDS = 86_400.0
"""A longer time is not that of one save."""


def background_seconds(job_name: str, log_id: str, sources: Sources | None = None) -> float | None:
    """Return the median time of the background parts that the journal and the mirror have; None if none is known.

    Args:
        job_name: The job.
        log_id: Its log.
        sources: The sources beside the journal; None for the configured mirror.
    """
    saves: dict[str | None, list[tuple[float, float, float]]] = {}

    def keep_saves(entries: list[LogEntry]) -> list[LogEntry]:
        for entry in entries:
            payload = entry.payload
            if "wait_for_prev_duration_secs" in payload and payload.get("job_name") == job_name:
                save = _parts_of(payload)
                if save is not None:
                    saves.setdefault(entry.context.writer, []).append(save)
        return []

    for entries in open_source(log_id, job_name=job_name, sources=sources).read_new(take=keep_saves):
        keep_saves(entries)  # With a mirror, all entries are yielded.
    times = [seconds for parts in saves.values() for seconds in _background_parts(parts)]
    return statistics.median(times) if times else None


def _parts_of(payload: Mapping[str, Any]) -> tuple[float, float, float] | None:
    """Return the start, the end of the wait, and the end of the blocking part of a save; None if they are not there."""
    names = ("wait_for_prev_start_time", "wait_for_prev_duration_secs", "checkpoint_manager_blocking_start_time",
             "checkpoint_manager_blocking_duration_secs")  # fmt: skip
    values = [payload.get(name) for name in names]
    if payload.get("event_type") != "save" or not all(isinstance(value, (int, float)) for value in values):
        return None
    wait_start, wait, start, blocking = (float(value) for value in values if value is not None)
    return wait_start, wait_start + wait, start + blocking


def _background_parts(saves: list[tuple[float, float, float]]) -> list[float]:
    saves.sort()
    parts = []
    for (_, _, ended), (started, waited, _) in pairwise(saves):
        if waited - started >= _LEAST_WAIT_SECONDS and 0 < waited - ended < _APART_SECONDS:
            parts.append(waited - ended)
    return parts
