"""A block's companion, as the block sees it: what is sent to it, and what its messages cause."""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from ml_diagnostics_common.descriptors import Descriptor, with_high_number
from ml_diagnostics_common.guard import job_logger
from ml_diagnostics_common.worker import start

from cloud_tpu_diagnostics._collect.compilations import Compilations
from cloud_tpu_diagnostics._collect.failure import failure_message, is_failure
from cloud_tpu_diagnostics._collect.log_queue import flush_in_background, guarded_as, log, log_once, warn_once
from cloud_tpu_diagnostics._collect.printed_lines import PrintedLines
from cloud_tpu_diagnostics._collect.trace_file import MOST_FILE_BYTES
from cloud_tpu_diagnostics._companion import RUN_BY, CompanionSettings
from cloud_tpu_diagnostics._config import Plan
from cloud_tpu_diagnostics._signals import sigterm_handler
from cloud_tpu_diagnostics.configuration.hang_configuration import HangConfig

if TYPE_CHECKING:
    from cloud_tpu_diagnostics._collect.fast_fail import JobFastFail

__all__ = ["CompanionLink", "CompanionProcess"]

_log = job_logger("ml_diagnostics.diagnose")

_TIMER_PIPE_BYTES = 2**20
"""A dump of 100 threads takes 155 KB. What does not fit, because the companion is stopped, is lost."""
_ABORTED = 134
"""The exit code that shells give to a process that SIGABRT has ended."""

_left: CompanionProcess | None = None
"""State of the process: the companion of the last block that was left. It waits for the end of this process."""


class CompanionProcess:
    """The process, and what a block sends to it. Nothing but the constructor raises, and nothing waits.

    Args:
        settings: Its settings; what this process knows of itself is added.
        on_message: Called in a thread with each message of the companion, and at last with {"kind": "ended"}, once it
            has ended or can no longer be received from. What it raises is dropped.
        console: The descriptor that dumps are written to if the settings have no path.
        descriptors: Further descriptors for the companion, by name.

    Raises:
        OSError: It cannot be started.
    """

    def __init__(
        self,
        settings: CompanionSettings,
        on_message: Callable[[dict[str, Any]], None],
        *,
        console: int = 2,
        descriptors: Mapping[str, int] | None = None,
    ) -> None:
        from ml_diagnostics_common.sidecar import Sidecar

        self._owner = os.getpid()
        self._on_message = on_message
        self._labels = _labels(self._owner)
        self._sigterm_handler: dict[str, str | None] = {}
        self._compilations = Compilations()
        self._has_left = False
        self._has_fast_fail = settings.fast_fail is not None
        self.thread_ident = 0
        """The identifier of the thread that receives; 0 before it runs."""
        settings = settings._replace(
            trace_bytes=_size(settings.trace_path),
            labels=self._labels,
            is_end_recorded=os.environ.get(RUN_BY) == str(os.getppid()),
        )
        # Our reading end stays open: without a reader, a write of the timer would raise SIGPIPE.
        self._timer_read, self._timer_write = _timer_pipe()
        console_copy = None if settings.trace_path is not None else _copy(console)
        numbers = {"timer": self._timer_read.number(), "console": console_copy, **(descriptors or {})}
        try:
            _replace_last()
            self._sidecar = Sidecar(
                "cloud_tpu_diagnostics._companion.main",
                settings._asdict(),
                descriptors={name: number for name, number in numbers.items() if number is not None},
            )
            if start(self._listen, "cloud-tpu-diagnostics-companion") is None:
                raise OSError("no thread can be started")
        except Exception as error:
            self._close_timer_pipe()
            raise error if isinstance(error, OSError) else OSError(f"{type(error).__name__}: {error}") from error
        finally:
            if console_copy is not None:
                os.close(console_copy)

    @property
    def pid(self) -> int | None:
        """Its process; None until it runs."""
        return self._sidecar.pid

    @property
    def timer_descriptor(self) -> int:
        """The end of a pipe that faulthandler's timer may write to; it never blocks.

        Raises:
            OSError: The job has closed it.
        """
        number = self._timer_write.number()
        if number is None:
            raise OSError("the job has closed the pipe to its companion")
        return number

    def send(self, message: Mapping[str, Any]) -> None:
        """Send a message; a forked child sends none."""
        self._sidecar.send(message)

    def leave(
        self,
        how: str,
        exception: str | None = None,
        exit_code: int | None = None,
        failure: Mapping[str, Any] | None = None,
    ) -> None:
        """Report how the block was left. The timer must be cancelled before.

        The companion then waits for the end of this process, or for the next block's companion.

        Args:
            how: "clean" or "exception".
            exception: The exception's type, if there was one.
            exit_code: The exit code of a SystemExit.
            failure: The result of `failure_message`.
        """
        self._update_labels()  # A recorder or a run may have named the job since the last update.
        self._update_sigterm_handler()
        self._has_left = True
        self._update_compilations(is_last=True)
        message = {"kind": "left", "how": how, "exception": exception, "exit_code": exit_code}
        self.send({**message, "failure": failure} if failure else message)
        if os.getpid() == self._owner:
            global _left
            _left = self
            self._close_timer_pipe()

    def replace(self) -> None:
        """Let the companion of a block that was left end: that of the next block records the end of this process."""
        self.send({"kind": "replaced"})
        if os.getpid() == self._owner:
            self._sidecar.end_messages()

    def _close_timer_pipe(self) -> None:
        try:
            self._timer_write.close()
            self._timer_read.close()
        except OSError:
            pass

    def _listen(self) -> None:
        """Receive until the companion has ended, or has nothing more to send, in a thread of its own."""
        self.thread_ident = threading.get_ident()
        is_lingering = False
        try:
            self._update_sigterm_handler()
            while not is_lingering:
                messages = self._sidecar.receive()
                if not self._has_left:
                    self._update_labels()
                    self._update_sigterm_handler()
                    self._update_compilations()
                for message in messages:
                    # With fast-fail it goes on: a process that has left its block may wait for the others for minutes.
                    is_lingering = is_lingering or (message["kind"] == "lingers" and not self._has_fast_fail)
                    self._pass_on(message)
        except Exception:
            pass  # Mostly an EOFError: it has ended, or the job has closed the socket.
        if not is_lingering:  # Otherwise the socket is kept for `replace`.
            self._sidecar.close()
        self._pass_on({"kind": "ended"})

    def _update_labels(self) -> None:
        """Send labels that have changed: recorders name the job, and JAX learns its index, in the block."""
        labels = _labels(self._owner)
        if labels != self._labels:
            self._labels = labels
            self.send({"kind": "labels", "labels": labels})

    def _update_sigterm_handler(self) -> None:
        """Send the handler of SIGTERM if it has changed: only this process knows the functions of Python."""
        read_ns = time.monotonic_ns()  # The thread that leaves the block may send a later one at the same time.
        handler = sigterm_handler()
        if handler != self._sigterm_handler:
            self.send({"kind": "sigterm_handler", "read_ns": read_ns, **handler})
            self._sigterm_handler = handler

    def _update_compilations(self, *, is_last: bool = False) -> None:
        """Send what JAX has compiled, every few seconds, and at the end of the block."""
        message = self._compilations.message(math.inf if is_last else time.monotonic())
        if message is not None:
            self.send({"kind": "compiles", **message})
        if is_last:
            self._compilations.close()
        else:
            self._compilations.check()

    def _pass_on(self, message: dict[str, Any]) -> None:
        if message["kind"] in ("hello", "lingers"):
            return
        if message["kind"] == "output":  # The last lines of an interpreter that crashes.
            message = {"kind": "log", "level": logging.WARNING, "message": f"The companion printed: {message['text']}"}
        try:
            self._on_message(message)
        except Exception:
            pass  # Its own guard has logged it, and the next message may be handled.


def _replace_last() -> None:
    """Let the companion of the last block that this process has left end, if there is one."""
    global _left
    last, _left = _left, None
    if last is not None:
        last.replace()


class CompanionLink:
    """Starts the companion of a block.

    Args:
        plan: The block's.
        trace_path: The file that dumps go to; None: `console`.
        console: The number of stderr.
        dump_signal: The signal on which this process writes all its stacks.
        main_thread_signal: The signal on which a thread writes its own.
        on_end: Called in another thread once it has ended.
        requests: Descriptors that show unanswered requests for stack traces, by name.
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
        requests: Mapping[str, int],
        our_threads: Callable[[], Collection[int]],
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
                interval_seconds=plan.interval_seconds,
                trace_path=trace_path,
                is_shipped=plan.to_cloud,
                main_thread_signal=main_thread_signal,
                dump_signal=dump_signal,
                progress_path=progress_path,
                hang=plan.hangs.to_json() if plan.hangs is not None and progress_path else None,
                fast_fail=None if plan.fast_fail is None else plan.fast_fail.to_json(),
                most_bytes=MOST_FILE_BYTES,
            )
            printed = PrintedLines()
            undoing.callback(printed.undo)
            descriptors = {**requests, **printed.descriptors()}
            self._process = CompanionProcess(settings, self._receive, console=console, descriptors=descriptors)
            printed.close_descriptors()
            self._undoing = undoing.pop_all()
        self._fast_fail: JobFastFail | None = None
        if plan.fast_fail is not None:
            from cloud_tpu_diagnostics._collect.fast_fail import JobFastFail

            self._fast_fail = JobFastFail(plan.fast_fail, self._process.send, self.send_snapshot)
            self._fast_fail.start()

    def timer_number(self) -> int:
        """Return the descriptor for the timer, which never waits; raises OSError if it is closed."""
        return self._process.timer_descriptor

    def send_snapshot(self) -> None:
        """Take a snapshot of this process's threads, for the companion to record."""
        from cloud_tpu_diagnostics._dumps.snapshot import take_snapshot

        self._our_threads |= {threading.get_ident(), self._process.thread_ident}
        snapshot = take_snapshot(leave_out=self._our_threads.union(self._our_other_threads()))
        self._process.send({"kind": "snapshot", **snapshot.to_json()})

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
            text: The result of `exception_text`.
        """
        self._process.send({"kind": "exception", "text": text})

    def leave(self, error: BaseException | None) -> None:
        """Report how the block was left.

        Args:
            error: The exception that leaves it, if any.
        """
        self._is_left = True
        self._undoing.close()
        if self._fast_fail is not None:
            self._fast_fail.leave(has_failed=error is not None and is_failure(error))
        if error is None or (isinstance(error, SystemExit) and not error.code):
            self._process.leave("clean", None, None if error is None else 0)
        else:
            failure = failure_message(error) if is_failure(error) else None
            self._process.leave("exception", type(error).__qualname__, _exit_code(error), failure)

    # --- Messages, in a thread of their own -----------------------------------------------------------

    @guarded_as("handle a message of its companion")
    def _receive(self, message: Mapping[str, Any]) -> None:
        kind, hangs = message["kind"], self._hangs
        if self._fast_fail is not None and kind.startswith("fast_fail"):
            self._fast_fail.receive(message)
        elif kind == "ended":
            if not self._is_left:
                self._on_end()
        elif kind == "log":
            if message["level"] > logging.INFO:
                log(_log, message["level"], "%s", message["message"])
            else:  # A recorder of this process may have logged the same.
                log_once(message["level"], message["message"], "%s", message["message"])
            flush_in_background()
        elif kind == "exit" and hangs is not None and hangs.abort:
            os._exit(_ABORTED)
        elif kind == "hang" and hangs is not None:
            start(lambda: self._send_snapshots(hangs), "cloud-tpu-diagnostics-snapshots")
            if hangs.on_hang is not None:
                start(lambda: _call(hangs, message), "cloud-tpu-diagnostics-on-hang")

    def _send_snapshots(self, hangs: HangConfig) -> None:
        for number in range(hangs.snapshots):
            if number:
                time.sleep(hangs.snapshot_interval_seconds)
            if self._is_left:
                return
            self.send_snapshot()


def _call(hangs: HangConfig, message: Mapping[str, Any]) -> None:
    """Call the job's `on_hang`; an error in there is the job's, and is logged."""
    from cloud_tpu_diagnostics.configuration.hang_configuration import Verdict

    try:
        if hangs.on_hang is not None:
            hangs.on_hang(Verdict(**{name: message[name] for name in Verdict._fields}))
    except Exception:
        _log.exception("on_hang has failed")


def _start_publishing(undoing: ExitStack) -> str | None:
    """Publish heartbeats where the companion reads them, until it is undone; return None if that is impossible."""
    from ml_diagnostics_common.progress import ProgressPage, start_publishing, stop_publishing

    try:
        page = ProgressPage.create()
    except OSError as error:
        warn_once(
            "no progress page",
            "Hangs are not detected, and stack traces do not have the step: the page for the job's progress cannot "
            "be created (%s).",
            error,
        )
        return None
    start_publishing(page)
    undoing.callback(stop_publishing, page)
    return str(page.path)


def _timer_pipe() -> tuple[Descriptor, Descriptor]:
    import fcntl

    read, write = map(with_high_number, os.pipe())
    # faulthandler has no timeout: a full pipe must not stop the thread that leaves the block.
    for number in (read, write):
        os.set_blocking(number, False)
    try:
        fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, _TIMER_PIPE_BYTES)  # type: ignore[attr-defined,unused-ignore]
    except (AttributeError, OSError):
        pass  # The system has no such call, or the user has too many pipes: it holds 64 KB.
    return Descriptor(read), Descriptor(write)


def _size(path: str | None) -> int:
    """Return the size of a file; 0 if there is none."""
    try:
        return os.stat(path).st_size if path is not None else 0  # noqa: PTH116
    except OSError:
        return 0


def _copy(number: int) -> int | None:
    """Return a copy of a descriptor of the job, for the companion; None if it is closed."""
    try:
        return with_high_number(os.dup(number))
    except OSError:
        return None


def _labels(pid: int) -> dict[str, str]:
    """Return the labels that distinguish this process among all of the job."""
    from ml_diagnostics_common.environment import announced_labels

    return {**announced_labels(), "pid": str(pid)}


def _exit_code(error: BaseException) -> int | None:
    """Return the exit code of the program if nothing else happens; None where that is unknown."""
    if not isinstance(error, SystemExit):
        return None
    return error.code & 0xFF if isinstance(error.code, int) else 1
