"""A block's companion, as the block sees it: what it is told, and what is done when it has something to say."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack
from typing import Any

from ml_diagnostics_common.guard import job_logger
from ml_diagnostics_common.worker import start

from cloud_tpu_diagnostics.companion.companion_process import CompanionProcess, CompanionSettings
from cloud_tpu_diagnostics.configuration.hang_configuration import HangConfig
from cloud_tpu_diagnostics.log_queue import flush_in_background, guarded_as, log, log_once, warn_once
from cloud_tpu_diagnostics.plan import Plan
from cloud_tpu_diagnostics.trace_file import MOST_FILE_BYTES

__all__ = ["CompanionLink"]

_log = job_logger("ml_diagnostics.diagnose")


_ABORTED = 134
"""The exit code that shells give to a process that SIGABRT has ended."""


class CompanionLink:
    """Starts the companion of a block.

    Args:
        plan: The block's.
        trace_path: The file that dumps go to; None: `console`.
        console: The number of stderr.
        dump_signal: Which signal makes this process write all its stacks.
        main_thread_signal: Which one makes a thread write its own.
        on_end: Called in another thread once it is gone.
        requests: Descriptors that it sees unanswered requests for stack traces by, by name.
        our_threads: Returns threads that are left out of snapshots.

    Raises:
        OSError: It cannot be started.
    """

    def __init__(
        self,
        plan: Plan,
        *,
        trace_path: str | None,
        console: int,
        dump_signal: int | None,
        main_thread_signal: int | None,
        on_end: Callable[[], None],
        requests: Mapping[str, int] | None = None,
        our_threads: Callable[[], Collection[int]] = tuple,
    ) -> None:
        self._our_other_threads = our_threads
        self._hangs = plan.hangs
        self._on_end = on_end
        self._is_left = False
        self._our_threads: set[int] = set()
        if plan.hangs is not None and plan.hangs.abort and os.getpid() == 1:
            warn_once(
                "process 1",
                "This job is process 1 of its container, which the kernel protects from signals: in a hang that keeps "
                "Python from running it cannot be ended. Start it with: python -m cloud_tpu_diagnostics run -- COMMAND",
            )
        with ExitStack() as undoing:
            self._progress_path = progress_path = _start_publishing(undoing)
            settings = CompanionSettings(
                job_pid=os.getpid(),
                interval_seconds=plan.interval_seconds,
                trace_path=trace_path,
                is_shipped=plan.to_cloud,
                main_thread_signal=main_thread_signal,
                dump_signal=dump_signal,
                progress_path=progress_path,
                hang=plan.hangs.to_json() if plan.hangs is not None and progress_path else None,
                most_bytes=MOST_FILE_BYTES,
            )
            self._process = CompanionProcess(settings, self._hear, console=console, requests=requests)
            self._undoing = undoing.pop_all()

    def timer_number(self) -> int:
        """The descriptor for the timer, which never waits; raises OSError if it is closed."""
        return self._process.timer_descriptor

    def tell_snapshot(self) -> None:
        """Takes a snapshot of this process's threads, for the companion to write down."""
        from cloud_tpu_diagnostics.snapshot import take_snapshot

        self._our_threads |= {threading.get_ident(), self._process.thread_ident or 0}
        snapshot = take_snapshot(leave_out=self._our_threads.union(self._our_other_threads()))
        self._process.tell({"kind": "snapshot", **snapshot.to_json()})

    def step(self) -> int | None:
        """Return the step that the job published last; None where it published none."""
        from ml_diagnostics_common.progress import ProgressReader

        if self._progress_path is None:
            return None
        reader = ProgressReader(self._progress_path)
        try:
            progress = reader.read()
        finally:
            reader.close()
        return None if progress is None else progress.step

    def send_exception(self, text: str) -> None:
        """Send the stack of the exception that leaves the block, for the companion to record.

        Args:
            text: As `exception_dump` returns it.
        """
        self._process.tell({"kind": "exception", "text": text})

    def leave(self, error: BaseException | None) -> None:
        """Tells how the block was left.

        Args:
            error: With what; None if in peace.
        """
        self._is_left = True
        self._undoing.close()
        if error is None or (isinstance(error, SystemExit) and not error.code):
            self._process.leave("clean", None, None if error is None else 0)
        else:
            # Its text is the job's: it may be long, secret, or code to run.
            self._process.leave("exception", type(error).__qualname__, _exit_code(error))

    # --- What it says: in its thread ------------------------------------------------------------------

    @guarded_as("hear its companion")
    def _hear(self, message: Mapping[str, Any]) -> None:
        if message["kind"] == "ended":
            if not self._is_left:
                self._on_end()
        elif message["kind"] == "log":
            if message["level"] > logging.INFO:
                log(_log, message["level"], "%s", message["message"])
            else:  # A recorder of this process may have logged the same.
                log_once(message["level"], message["message"], "%s", message["message"])
            flush_in_background()
        elif message["kind"] == "exit" and self._hangs is not None and self._hangs.abort:
            os._exit(_ABORTED)
        elif message["kind"] == "hang" and self._hangs is not None:
            hangs = self._hangs
            start(lambda: self._tell_snapshots(hangs), "cloud-tpu-diagnostics-snapshots")
            if hangs.on_hang is not None:
                start(lambda: _call(hangs, message), "cloud-tpu-diagnostics-on-hang")

    def _tell_snapshots(self, hangs: HangConfig) -> None:
        for number in range(hangs.snapshots):
            if number:
                time.sleep(hangs.snapshot_interval_seconds)
            if self._is_left:
                return
            self.tell_snapshot()


def _call(hangs: HangConfig, message: Mapping[str, Any]) -> None:
    """Calls what the job wants to be called in a hang; an error in there is the job's, and is logged."""
    from cloud_tpu_diagnostics.configuration.hang_configuration import Verdict

    try:
        if hangs.on_hang is not None:
            hangs.on_hang(Verdict(**{name: message[name] for name in Verdict._fields}))
    except Exception:
        _log.exception("on_hang has failed")


def _start_publishing(undoing: ExitStack) -> str | None:
    """Has heartbeats published where the companion reads them, until it is undone; None where they cannot be."""
    from ml_diagnostics_common.progress import ProgressPage, start_publishing, stop_publishing

    try:
        page = ProgressPage.create()
    except OSError as error:
        warn_once(
            "no progress page",
            "Hangs are not watched for, and stack traces do not tell the step: nowhere is room for the job's progress "
            "(%s).",
            error,
        )
        return None
    start_publishing(page)
    undoing.callback(stop_publishing, page)
    return str(page.path)


def _exit_code(error: BaseException) -> int | None:
    """What the program will exit with, if nothing else happens; None where nobody can know."""
    if not isinstance(error, SystemExit):
        return None
    return error.code & 0xFF if isinstance(error.code, int) else 1
