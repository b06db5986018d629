"""The end of a job that its trainer does not record, and the warning of a job that starts again after its end.

When the interpreter exits, the end is recorded with its outcome. A process that is killed, or calls `os._exit`, records
nothing: readers find that it is gone.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import TypeAlias

from ml_diagnostics_common.clock import now_ns
from ml_diagnostics_common.guard import LOSSES, warn_once
from ml_diagnostics_common.journal import Segment, last_payloads, newest_writers
from ml_diagnostics_common.process_hooks import at_exit_from_now
from ml_diagnostics_common.program_end import ProgramEnd, last_uncaught, program_frame, program_outcome

from ml_goodput_measurement._record.arguments import seconds_of
from ml_goodput_measurement._record.process_outcome import ProcessOutcome

__all__ = ["job_ended", "job_started", "warn_if_ended_before", "watch"]

RecordEnd: TypeAlias = Callable[[ProcessOutcome, str], None]
"""Records the end of the process: its outcome, and the type of the exception that ends it, or an empty text."""

_MOST_JOBS = 64
"""Limit: each job keeps a file open, and a sweep may run thousands of jobs in one process."""


class _OpenJobs:
    """The jobs of this process that have started and not ended."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._program: FrameType | None = program_frame()
        self._uncaught_before = last_uncaught()
        self._record_end: dict[tuple[str, str], RecordEnd] = {}

    def add(self, logger_name: str, job_name: str, record_end: RecordEnd) -> None:
        # By name: another recorder of the same job continues it, as after an elastic restart within the process.
        self.discard(logger_name, job_name)
        self._record_end[logger_name, job_name] = record_end
        if len(self._record_end) > _MOST_JOBS:
            self._record_end.pop(next(iter(self._record_end)), None)

    def discard(self, logger_name: str, job_name: str) -> None:
        self._record_end.pop((logger_name, job_name), None)

    def record_ends(self) -> None:
        outcome, exception = self._outcome()
        for record_end in list(self._record_end.values()):
            try:
                record_end(outcome, exception)
            except Exception as error:  # Under test, where losses are raised.
                LOSSES.add(f"process end: {type(error).__name__}")

    def _outcome(self) -> tuple[ProcessOutcome, str]:
        """Return the outcome of the program, and the type of the exception that ends it, if any."""
        program_end = program_outcome(self._program)
        error = last_uncaught()
        is_interactive = hasattr(sys, "ps1") or bool(sys.flags.interactive)  # There it goes on after an exception.
        if is_interactive or program_end is ProgramEnd.UNKNOWN:
            return ProcessOutcome.EXITED, ""
        if program_end is ProgramEnd.RETURNED:
            return ProcessOutcome.RETURNED, ""
        if error is not None and error is not self._uncaught_before:
            return ProcessOutcome.FAILED, type(error).__name__[:200]
        return ProcessOutcome.EXITED, ""  # By SystemExit: its code is not available at exit.


# State of the process: it ends once.
_open_jobs: _OpenJobs | None = None


def watch() -> None:
    """Have the ends of jobs recorded when this process exits; called when an enabled recorder is constructed.

    Exit functions run in the reverse order of their registration. So this one runs before those of the shipper and the
    journal, which were registered when they were imported, and after those of the program, which know the recorder.
    """
    global _open_jobs
    at_exit_from_now(_at_exit)
    if _open_jobs is None or _open_jobs.pid != os.getpid():
        _open_jobs = _OpenJobs()


def job_started(logger_name: str, job_name: str, record_end: RecordEnd) -> None:
    """Note that the start of a job was recorded; ignored in a forked child, where the parent's job goes on.

    Args:
        logger_name: The log of the job.
        job_name: The job.
        record_end: Called when this process exits, unless the end of the job was recorded before.
    """
    if _open_jobs is not None and _open_jobs.pid == os.getpid():
        _open_jobs.add(logger_name, job_name, record_end)


def job_ended(logger_name: str, job_name: str) -> None:
    """Note that the end of a job was recorded."""
    if _open_jobs is not None:
        _open_jobs.discard(logger_name, job_name)


def _at_exit() -> None:
    if _open_jobs is not None and not _is_worker():
        _open_jobs.record_ends()


def _is_worker() -> bool:
    """Return True in a process of multiprocessing: its exit is not the job's, and hides the exception that ends it."""
    process = sys.modules.get("multiprocessing.process")
    return process is not None and process.parent_process() is not None


_WRITERS_READ = 16
"""Each attempt is a writer, and so is each other job of the log: an end before all of these is not found."""

_BORDERS = ("step_start_time", "job_start_time", "job_end_time")
"""The last record of these kinds shows if the job had ended; saves and data loads do not."""

_CUT_SHORT = {"process_outcome", "job_end_exception"}
"""Either of these shows that the trainer did not reach the end of the job."""


def warn_if_ended_before(folder: Path, job_name: str, own_writer: str) -> None:
    """Log one WARNING if the last thing that earlier writers recorded of a job is its end.

    Reads the ends of a few files, so call it in a thread.

    Args:
        folder: The log's folder in the journal.
        job_name: The job.
        own_writer: The writer that continues the job; its own entries are not earlier ones.
    """
    earlier = [segment for segment in newest_writers(folder, _WRITERS_READ) if segment.writer != own_writer]
    borders = [border for segment in earlier for border in _last_border(segment, job_name)]
    ended_seconds, is_end = max(borders, default=(0.0, False))
    if is_end:
        from ml_diagnostics_common.texts import format_ago  # Few jobs warn, and only those need it.

        warn_once(
            ("ended before", str(folder), job_name),
            "continuing job %r, which ended %s; use another name for another job",
            job_name[:200],
            format_ago(round(ended_seconds * 1e9), now_ns()),
        )


def _last_border(segment: Segment, job_name: str) -> list[tuple[float, bool]]:
    """Return the time of a writer's last border, and whether it is a job end; nothing if the tail has none."""
    with contextlib.suppress(OSError):
        for payload in last_payloads(segment):
            key = next((key for key in _BORDERS if key in payload), None)
            if key is not None and payload.get("job_name") == job_name:
                seconds = seconds_of(payload[key])
                # An attempt that failed, or did not record its end itself, is likely to be restarted.
                is_end = key == "job_end_time" and not _CUT_SHORT & payload.keys()
                return [] if seconds is None else [(seconds, is_end)]
    return []
