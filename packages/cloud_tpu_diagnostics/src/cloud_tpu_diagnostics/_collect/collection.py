"""The parts that the outermost block of `diagnose` turns on, and off again.

faulthandler writes faults from C to the file or to stderr, and Python answers SIGUSR1 (see `dump_requests`). Each
interval a thread of this package writes a header line and a dump; if it cannot run, faulthandler's timer writes the
dump. With a companion both write to a pipe, and the companion writes header and dump to their destination.
"""

from __future__ import annotations

import _thread
import logging
import os
import sys
import threading
from typing import TYPE_CHECKING

from ml_diagnostics_common.guard import LOSSES, job_logger
from ml_diagnostics_common.worker import start

from cloud_tpu_diagnostics._collect.console import Console
from cloud_tpu_diagnostics._collect.dump_requests import DumpRequests, Helper
from cloud_tpu_diagnostics._collect.failure import is_failure
from cloud_tpu_diagnostics._collect.log_queue import flush_in_background, guarded_as, log, warn_once
from cloud_tpu_diagnostics._collect.timer import Rounds, Timer, TimerPause
from cloud_tpu_diagnostics._collect.watchdog import Watchdog, undo_all
from cloud_tpu_diagnostics._config import Plan
from cloud_tpu_diagnostics._dumps.text import dump_text, exception_text, header, write_in_parts

if TYPE_CHECKING:
    from cloud_tpu_diagnostics._collect.companion import CompanionLink
    from cloud_tpu_diagnostics._collect.trace_file import TraceFile

__all__ = ["Collection"]

_log = job_logger("ml_diagnostics.diagnose")


class Collection:
    """The parts of a block that are on, from `start` to `stop`.

    Args:
        plan: The checked configuration.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self._output: TraceFile | Console | None = None
        self._watchdog: Watchdog | None = None
        self._requests: DumpRequests | None = None
        self._companion: CompanionLink | None = None
        self._helper: Helper | None = None
        self._writing = _thread.allocate_lock()
        """Held by the thread of this package that writes a dump."""
        self._timer = Timer(plan.interval_seconds)
        self._rounds = Rounds(
            self._timer,
            plan.interval_seconds,
            later=self._after_start,
            recheck=self._recheck,
            run_round=self._run_round,
        )
        self._changing = threading.RLock()
        self._is_on = False
        self._is_closed = False
        """True once the program was found to have closed our descriptors."""
        self._is_exception_dumped = False

    def start(self) -> None:
        """Turn on what the plan contains, as far as possible."""
        with self._changing:
            self._is_on = True
            if self.plan.is_collecting:
                self._output = _open_output(self.plan)
            if self.plan.hangs is not None or self.plan.fast_fail is not None or self._output is not None:
                self._watchdog = Watchdog(self._output.number if self._output is not None else None)
                self._watchdog.start()
                if self._output is not None:
                    self._answer_requests(self._output)
                self._start_companion(self._watchdog)
            if self._output is not None:
                self._start_timer()

    def stop(self, error: BaseException | None) -> None:
        """Turn off all that was turned on, without waiting. If this is interrupted, it is called again.

        Args:
            error: The exception with which the block was left; None if there was none.
        """
        with self._changing:
            self._is_on = False
            if error is not None and is_failure(error) and not self._is_exception_dumped:
                self._is_exception_dumped = True
                self._dump_exception(error)
            watchdog, companion, output = self._watchdog, self._companion, self._output
            requests, helper = self._requests, self._helper
            undo_all(
                [
                    output.close if output is not None else None,
                    (lambda: companion.leave(error)) if companion is not None else None,
                    helper.stop if helper is not None else None,
                    watchdog.stop if watchdog is not None else None,
                    requests.stop if requests is not None else None,
                    self._timer.cancel,
                    self._rounds.stop,
                ]
            )

    @guarded_as("record the stack of an exception")
    def _dump_exception(self, error: BaseException) -> None:
        """Write the exception's stack to the trace file; without one, send it to the companion.

        Not to the console, as the interpreter prints it there.
        """
        companion, output = self._companion, self._output
        text = exception_text(error, companion.step() if companion is not None else None)
        if output is not None and output.path is not None and output.is_open():
            try:
                os.write(output.number, text.encode("utf-8", "backslashreplace"))
                return
            except OSError:
                pass  # The disk is full.
        if companion is not None and self.plan.is_collecting:
            companion.send_exception(text)

    @property
    def locks(self) -> tuple[threading.RLock, threading.RLock]:
        """The locks that `stop` takes, in this order."""
        return self._changing, self._timer.lock

    def before_fork(self, until: float) -> TimerPause:
        """Keep the timer's locks out of the child; see `Timer.before_fork`."""
        return self._timer.before_fork(until)

    def after_fork(self, pause: TimerPause) -> None:
        """Continue, in the parent; see `Timer.after_fork`."""
        self._timer.after_fork(pause)

    def forget_parent(self) -> None:
        """Release faults and signals, in a forked child that starts a collection of its own."""
        if self._watchdog is not None:
            self._watchdog.stop()
        if self._requests is not None:
            self._requests.stop()

    # --- Requests by a signal --------------------------------------------------------------------------

    def _answer_requests(self, output: TraceFile | Console) -> None:
        self._requests = DumpRequests(
            output.nonblocking if output.nonblocking is not None else output.number,
            is_nonblocking=output.nonblocking is not None,
            note=self._note,
            writing=self._writing,
        )
        self._requests.start()

    @guarded_as("start a process beside the job")
    def _start_helper(self) -> None:
        """Start the process that asks faulthandler to answer where Python cannot, unless a companion does so."""
        with self._changing:
            requests, watchdog, output = self._requests, self._watchdog, self._output
            if not self._is_on or self._companion is not None or self._helper is not None:
                return
            if requests is None or watchdog is None or output is None or watchdog.dump_signal is None:
                return
            if not self._is_open():
                return
            watchdog.answer(output.number)
            self._helper = Helper(requests, watchdog.dump_signal)
            self._helper.start()

    # --- The companion --------------------------------------------------------------------------------

    def _start_companion(self, watchdog: Watchdog) -> None:
        """Start one if it is needed: to ship, for hangs, for fast-fail, or as this process may not wait for stderr."""
        output, plan = self._output, self.plan
        is_needed = plan.to_cloud or plan.hangs is not None or plan.fast_fail is not None
        if not (is_needed or (output is not None and output.nonblocking is None)):
            return
        try:
            from cloud_tpu_diagnostics._collect.companion import CompanionLink

            self._companion = CompanionLink(
                self.plan,
                trace_path=output.path if output is not None else None,
                console=output.number if output is not None else 2,
                dump_signal=watchdog.dump_signal,
                main_thread_signal=watchdog.main_thread_signal,
                on_end=self._continue_without_companion,
                requests=self._requests.descriptors if self._requests is not None else {},
                our_threads=self._our_threads,
            )
            # Into the pipe, as the companion learns only from what it reads in which frame a job is stuck.
            watchdog.answer(self._companion.timer_number())
            if output is not None and output.nonblocking is None and self._requests is not None:
                self._requests.write_to(self._companion.timer_number())
        except Exception as error:  # Usually an OSError; an interpreter that is shutting down raises others.
            LOSSES.add("diagnose: no companion")
            self._warn_without_companion(
                f"cannot be started ({type(error).__name__}: {error})",
                continues=output is not None and output.nonblocking is not None,
            )

    def _continue_without_companion(self) -> None:
        """Continue without the companion, which has ended; called in another thread."""
        with self._changing:
            if not self._is_on or self._companion is None:
                return
            companion, self._companion = self._companion, None
            try:
                # If the job has closed our descriptors, which ends the companion's messages too, none may be used.
                number = self._output.nonblocking if self._output is not None and self._can_write() else None
                continues = number is not None and self._timer.arm_again(number)
                if not continues:
                    self._timer.cancel()
                if not self._is_closed:
                    self._warn_without_companion("has ended", continues=continues)
                if self._watchdog is not None:
                    self._watchdog.stop_answering()
            finally:
                companion.leave(None)  # Nothing writes to its pipe any more.
        self._start_helper()
        flush_in_background()

    def _warn_without_companion(self, what: str, *, continues: bool) -> None:
        warn_once(
            "without companion",
            "The process beside the job %s: nothing is uploaded, and hangs are not detected.%s",
            what,
            " Stack traces continue." if continues else "",
        )

    # --- The timer and its rounds ---------------------------------------------------------------------

    def _start_timer(self) -> None:
        number = self._output.nonblocking if self._output is not None else None
        if self._companion is not None:
            number = self._companion.timer_number()
        if number is None:
            warn_once("no timer", "There are no periodic stack traces, since writes to stderr may block.")
            start(self._start_helper, "cloud-tpu-diagnostics-helper")
            return
        self._timer.arm(number)
        self._rounds.start()

    def _after_start(self) -> None:
        """Do what a short block does without."""
        self._start_helper()
        self._prune()

    @guarded_as("delete old stack traces")
    def _prune(self) -> None:
        if self._output is not None:
            self._output.prune()

    @guarded_as("recheck its signals")
    def _recheck(self) -> None:
        with self._changing:
            if self._is_on and self._can_write() and self._watchdog is not None:
                self._watchdog.recheck()
                if self._requests is not None:
                    self._requests.recheck()

    @guarded_as("write a note for readers of its traces")
    def _note(self, sentence: str) -> None:
        output = self._output
        if output is not None and output.path is not None and output.is_open():
            os.write(output.number, f"INFO: {sentence}\n".encode())

    def _run_round(self, is_in_time: bool) -> bool:
        """Arm the timer again, dump if it is in time, and send a snapshot.

        Returns:
            False if there is nothing more to do.
        """
        with self._changing:
            if not self._is_on or not self._can_write() or not self._timer.arm_again():
                return False
            self._recheck()
            companion = self._companion
        if is_in_time:
            self._dump("" if companion is not None else header(self.plan.interval_seconds))
        if companion is not None:
            self._send_snapshot(companion)
        return True

    @guarded_as("dump the stacks of its threads")
    def _dump(self, header: str) -> None:
        """Write without `_changing`: a thread that leaves the block must not wait for it."""
        number = self._timer.copy_of_descriptor()
        if number is None:
            return
        try:
            text = dump_text(self.plan.interval_seconds, lambda: self._is_on, leave_out=self._our_threads())
            with self._writing:
                write_in_parts(number, header + text, lambda: self._is_on)
        except OSError:
            pass  # The pipe has no reader, or the disk is full.
        finally:
            os.close(number)

    def _our_threads(self) -> tuple[int, ...]:
        """Return the identifiers of our own threads, which dumps leave out."""
        return tuple(each.thread_ident for each in (self._requests, self._helper) if each is not None)

    def _can_write(self) -> bool:
        """Return True while the output is open and has space."""
        output = self._output
        if output is None:
            return False
        if not self._is_open():
            self._stop_after_close()
            return False
        if self._companion is None and output.is_full():
            self._timer.cancel()
            warn_once("full", "The file of stack traces is full: there are no more periodic ones in this block.")
            return False
        return True

    def _is_open(self) -> bool:
        """Return False once the program has closed our descriptors, or if there is no output."""
        if self._output is None or self._is_closed:
            return False
        return self._output.is_open() and (self._requests is None or self._requests.is_open())

    def _stop_after_close(self) -> None:
        """Stop: the program has closed our descriptors, and faults must not go to files that get their numbers."""
        self._is_closed = True
        self._timer.cancel()
        if self._watchdog is not None:
            self._watchdog.stop()
        if self._requests is not None:
            self._requests.stop()
        warn_once(
            "closed",
            "The program has closed the descriptors of diagnose(): there are no more stack traces in this block%s. "
            "Enter it after that.",
            ", and hangs are not detected" if self.plan.hangs is not None else "",
        )

    @guarded_as("take a snapshot")
    def _send_snapshot(self, companion: CompanionLink) -> None:
        companion.send_snapshot()


def _open_output(plan: Plan) -> TraceFile | Console | None:
    """Open the file, or find stderr, and log which; return None if there is neither."""
    is_notebook = type(sys.stderr).__module__.partition(".")[0] == "ipykernel"
    if plan.to_cloud or is_notebook:  # The stderr of a kernel is that of its server, which its user does not see.
        from cloud_tpu_diagnostics._collect.trace_file import (
            open_trace_file,  # Here, as most blocks write to the console.
        )

        file = open_trace_file(plan.directory)
        if file is not None:
            level = logging.WARNING if is_notebook and not plan.to_cloud else logging.INFO
            log(_log, level, "Stack trace will be written in: %s", file.path)
            return file
    try:
        console = Console()
    except OSError as error:
        warn_once("no stderr", "There are no stack traces: there is no stderr to write them to (%s).", error)
        return None
    log(_log, logging.INFO, "Stack trace will be written to the console.")
    return console
