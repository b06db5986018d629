"""Which processes of this host are gone, and how they ended, as far as a companion recorded it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final

from ml_diagnostics_common.child_process import process_started_ns
from ml_diagnostics_common.entry import LogEntry
from ml_diagnostics_common.environment import identity
from ml_diagnostics_common.log_source import LogSource, notes_of
from ml_diagnostics_common.process_endings import ProcessEndings

from cloud_tpu_diagnostics.entries import LOG_ID
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


def with_endings(
    dumps: Sequence[ProcessDump],
    is_over: Callable[[ProcessDump], bool] = is_gone,
    *,
    endings: ProcessEndings | None = None,
    notes: list[str] | None = None,
) -> list[ProcessDump]:
    """Return the dumps, those of processes that are gone with how these ended.

    Args:
        dumps: The newest of each process.
        is_over: Returns True if a process without a known end writes no more stacks.
        endings: How processes ended; None reads the journal if a process is over.
        notes: Gets what could not be read then.
    """
    over = {(dump.host, dump.pid) for dump in dumps if not dump.ended and is_over(dump)}
    if not over:
        return list(dumps)
    known = _read_endings([] if notes is None else notes) if endings is None else endings
    return [
        _with_ending(dump, known.after(dump.host, dump.pid, dump.time_ns - _SLACK_NS, with_blocks=True))
        if (dump.host, dump.pid) in over
        else dump
        for dump in dumps
    ]


def _read_endings(notes: list[str]) -> ProcessEndings:
    endings, source = ProcessEndings(), LogSource(LOG_ID)
    for entries in source.read_new():
        endings.add(entries)
    notes += notes_of([source])
    return endings


def _with_ending(dump: ProcessDump, later: Sequence[LogEntry]) -> ProcessDump:
    if later:
        payload = later[0].payload
        ended = str(payload.get("message") or payload.get("how") or "exit reason unknown")
        return dump._replace(ended=ended, has_ended_well=payload.get("how") == "clean")
    last = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(dump.time_ns / 1e9))
    if is_gone(dump):
        return dump._replace(ended=f"gone: process {dump.pid} exited without recording its end; last event at {last}")
    return dump._replace(ended=f"process {dump.pid} has left diagnose(); last event at {last}")
