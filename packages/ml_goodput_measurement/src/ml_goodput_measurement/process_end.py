"""The end of jobs whose trainer does not record it: recorded when the interpreter exits, as what it was.

A process that is killed, or calls `os._exit`, records nothing: readers find out that it is gone.
"""

from __future__ import annotations

import atexit
import os
import sys
from types import FrameType
from typing import TYPE_CHECKING

from ml_diagnostics_common.guard import LOSSES
from ml_diagnostics_common.program_end import ProgramEnd, how_it_was_left, last_uncaught, program_frame

from ml_goodput_measurement.process_outcome import ProcessOutcome

if TYPE_CHECKING:
    from ml_goodput_measurement.recorder import GoodputRecorder

__all__ = ["job_ended", "job_started", "watch"]

_MOST_JOBS = 64
"""Of so many jobs at most the end is recorded: each keeps a file open, and a sweep may run thousands in one process."""


class _OpenJobs:
    """The jobs of this process that have started and not ended."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._program: FrameType | None = program_frame()
        self._uncaught_before = last_uncaught()
        self._recorders: dict[tuple[str, str], GoodputRecorder] = {}

    def add(self, recorder: GoodputRecorder) -> None:
        # By name: another recorder of the same job continues it, as after an elastic restart within the process.
        self._recorders.pop(_key(recorder), None)
        self._recorders[_key(recorder)] = recorder
        if len(self._recorders) > _MOST_JOBS:
            self._recorders.pop(next(iter(self._recorders)), None)

    def discard(self, recorder: GoodputRecorder) -> None:
        self._recorders.pop(_key(recorder), None)

    def record_ends(self) -> None:
        outcome, exception = self._outcome()
        for recorder in list(self._recorders.values()):
            try:
                recorder._record_process_end(outcome, exception)
            except Exception as error:  # Under test, where losses are raised.
                LOSSES.add(f"process end: {type(error).__name__}")

    def _outcome(self) -> tuple[ProcessOutcome, str]:
        """Return how the program ends, and the type of the exception that ends it, if any."""
        how = how_it_was_left(self._program)
        error = last_uncaught()
        is_interactive = hasattr(sys, "ps1") or bool(sys.flags.interactive)  # There it goes on after an exception.
        if is_interactive or how is ProgramEnd.UNKNOWN:
            return ProcessOutcome.EXITED, ""
        if how is ProgramEnd.RETURNED:
            return ProcessOutcome.RETURNED, ""
        if error is not None and error is not self._uncaught_before:
            return ProcessOutcome.FAILED, type(error).__name__[:200]
        return ProcessOutcome.EXITED, ""  # By SystemExit, whose code is not available at exit.


def _key(recorder: GoodputRecorder) -> tuple[str, str]:
    return recorder.logger_name, recorder.job_name


# State of the process: it ends once.
_open_jobs: _OpenJobs | None = None


def watch() -> None:
    """Have the ends of jobs recorded when this process exits; called when an enabled recorder is constructed.

    Exit functions run in the reverse order of their registration. So this one runs before those of the shipper and the
    journal, which were registered when they were imported, and after those of the program, which know the recorder.
    """
    global _open_jobs
    if _open_jobs is None:
        atexit.register(_at_exit)
    if _open_jobs is None or _open_jobs.pid != os.getpid():
        _open_jobs = _OpenJobs()


def job_started(recorder: GoodputRecorder) -> None:
    """Note that a recorder recorded the start of its job; ignored in a forked child, where the parent's job goes on."""
    if _open_jobs is not None and _open_jobs.pid == os.getpid():
        _open_jobs.add(recorder)


def job_ended(recorder: GoodputRecorder) -> None:
    """Note that the end of a recorder's job was recorded."""
    if _open_jobs is not None:
        _open_jobs.discard(recorder)


def _at_exit() -> None:
    if _open_jobs is not None and _open_jobs.pid == os.getpid() and not _is_worker():
        _open_jobs.record_ends()


def _is_worker() -> bool:
    """Return True in a process of multiprocessing: its exit is not the job's, and hides the exception that ends it."""
    process = sys.modules.get("multiprocessing.process")
    return process is not None and process.parent_process() is not None
