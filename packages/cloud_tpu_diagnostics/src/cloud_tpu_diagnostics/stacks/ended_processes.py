"""Which processes of this host are gone, and how they ended, as far as a companion recorded it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from ml_diagnostics_common.child_process import process_started_ns
from ml_diagnostics_common.environment import diagnostics_directory, identity
from ml_diagnostics_common.reader import JournalReader

from cloud_tpu_diagnostics.entries import JOB_ENDED, LOG_ID
from cloud_tpu_diagnostics.grouping import ProcessDump

__all__ = ["is_gone", "with_endings"]

_SLACK_NS: Final = 5_000_000_000
"""Between the clock of the kernel, in whole seconds, times of files, and times of entries."""


def is_gone(dump: ProcessDump) -> bool:
    """Return True if the process was one of this host and is not any more, or its id is that of a later one."""
    if dump.host != identity().host or dump.pid <= 0:
        return False
    started_ns = process_started_ns(dump.pid)
    return started_ns is None or started_ns > dump.time_ns + _SLACK_NS


def with_endings(dumps: Sequence[ProcessDump], is_over: Callable[[ProcessDump], bool] = is_gone) -> list[ProcessDump]:
    """Return the dumps, those of processes that are gone with how these ended.

    Args:
        dumps: The newest of each process.
        is_over: Tells whether a process without a known end writes no more stacks.
    """
    over = {(dump.host, dump.pid) for dump in dumps if not dump.ended and is_over(dump)}
    endings = _endings(over) if over else {}
    return [
        _with_ending(dump, endings.get((dump.host, dump.pid), [])) if (dump.host, dump.pid) in over else dump
        for dump in dumps
    ]


def _with_ending(dump: ProcessDump, endings: Iterable[tuple[int, dict[str, Any]]]) -> ProcessDump:
    later = (payload for time_ns, payload in endings if time_ns >= dump.time_ns - _SLACK_NS)
    payload = next(later, None)
    if payload is not None:
        ended = str(payload.get("message") or payload.get("how") or "how is not known")
        return dump._replace(ended=ended, has_ended_well=payload.get("how") == "clean")
    last = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(dump.time_ns / 1e9))
    if is_gone(dump):
        return dump._replace(ended=f"gone: process {dump.pid} exited without recording its end; last event at {last}")
    return dump._replace(ended=f"process {dump.pid} has left diagnose(); last event at {last}")


def _endings(processes: set[tuple[str, int]]) -> dict[tuple[str, int], list[tuple[int, dict[str, Any]]]]:
    """Return, by host and pid, what companions recorded of ends, the oldest first."""
    wanted = {(host, str(pid)): (host, pid) for host, pid in processes}
    found: dict[tuple[str, int], list[tuple[int, dict[str, Any]]]] = {}
    for batch in JournalReader(LOG_ID, root=diagnostics_directory()).read_new():
        for entry in batch:
            labels = entry.context.labels
            process = wanted.get((labels.get("host", ""), labels.get("pid", "")))
            if process is not None and entry.payload.get("kind") == JOB_ENDED:
                found.setdefault(process, []).append((entry.timestamp_ns, entry.payload))
    return found
