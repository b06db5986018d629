"""The uploads of a monitor that are on, and the helper process that does them, restarted if it dies."""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ml_diagnostics_common.backoff import Backoff
from ml_diagnostics_common.guard import LOSSES, job_logger, log_once
from ml_diagnostics_common.processes import has_ended
from ml_diagnostics_common.sidecar import IN_SIDECAR, Sidecar
from ml_diagnostics_common.worker import start

from ml_goodput_measurement._monitor.settings import MonitorSettings, Upload

__all__ = ["HelperProcess", "Uploaders"]

_log = job_logger("ml_diagnostics.goodput")

_MARGIN_SECONDS = 1.0
"""Additional wait for the process after its last uploads, in which it reports those that it gave up."""
_GOOD_LIFE_SECONDS = 60.0
"""A process that lived for so long did not fail at its start."""
_KILLED_SECONDS = 0.25
"""The wait for a killed process, so that it has ended when a stop returns."""
_RUN_OF_STOPS_SECONDS = 60.0
"""Stops within this time share the time to wait, unless an upload was started in between."""
_AFTER_TROUBLE_SECONDS = 60.0
_OUTPUT_LINES = 20


class HelperProcess:
    """One life of the helper process, as the trainer sees it.

    Args:
        settings: The monitor's.

    Raises:
        Exception: No process can be started. Mostly an OSError, but an interpreter that is shutting down raises others.
    """

    def __init__(self, settings: MonitorSettings) -> None:
        self._flush_seconds = settings.flush_seconds
        self._sidecar = Sidecar("ml_goodput_measurement._monitor.helper", settings.to_json(), is_detached=False)
        self.pid = self._sidecar.pid
        self.end: str | None = None
        """Its exit reason, once it has ended."""
        self._ended = threading.Event()
        self._awaited: dict[int, threading.Event] = {}
        self._last_done = 0
        self._output: deque[str] = deque(maxlen=_OUTPUT_LINES)
        self._commands = 0

    def send(self, uploads: Mapping[str, list[int]], *, flush: bool, flush_seconds: float) -> int:
        """Send the uploads that are to be on; none: flush and end. Never waits.

        Returns:
            The number of the command, for `wait_done` and `has_done`.
        """
        self._commands += 1
        number = self._commands
        if flush:  # No caller waits for other commands.
            self._awaited[number] = threading.Event()
            if self._ended.is_set():
                self._awaited[number].set()
        self._sidecar.send(
            {"kind": "uploads", "number": number, "uploads": uploads, "flush": flush, "flush_seconds": flush_seconds}
        )
        return number

    def wait_done(self, number: int, timeout_seconds: float) -> None:
        """Wait until it has executed a command that flushes, or has ended, within that time."""
        event = self._awaited.get(number)
        if event is not None:
            event.wait(timeout_seconds)
            self._awaited.pop(number, None)

    def has_done(self, number: int) -> bool:
        """Return True if it has reported that it executed a command."""
        return number <= self._last_done

    def wait_ended(self, timeout_seconds: float) -> bool:
        """Return True if it has ended, within that time."""
        return self._ended.wait(timeout_seconds)

    def kill(self) -> None:
        """End it immediately."""
        self._sidecar.kill()

    def discard(self) -> None:
        """End it immediately, and close the connection: for a process that no thread follows."""
        self._sidecar.kill()
        self._sidecar.close()

    def follow(self) -> str:
        """Receive its messages until it ends; for a thread of its own.

        Returns:
            Its exit reason, and its last output that was not a message.
        """
        try:
            while True:
                for message in self._sidecar.receive():
                    self._handle(message)
        except EOFError:
            pass
        finally:
            code = self._wait()
            self.end = f"killed by signal {-code}" if code < 0 else f"exit code {code}"
            self.end += "".join(f"\n    {line}" for line in self._output)
            self._ended.set()
            for event in list(self._awaited.values()):
                event.set()
            self._sidecar.close()
        return self.end

    def _wait(self) -> int:
        """Wait for its end; bounded if the trainer has closed the socket, since a forked child may keep it open."""
        import subprocess

        if not self._sidecar.is_connected:
            self._sidecar.close()
            try:
                return self._sidecar.wait(self._flush_seconds + _MARGIN_SECONDS)
            except subprocess.TimeoutExpired:
                self._sidecar.kill()
        return self._sidecar.wait()

    def _handle(self, message: Mapping[str, Any]) -> None:
        try:
            if message["kind"] == "log":
                _log.log(message["level"], "%s", message["message"])
            elif message["kind"] == "output":  # Prints of a library, or a traceback; logged only if the process dies.
                self._output.append(message["text"])
            elif message["kind"] == "done" and message["number"] is not None:  # None: it takes this process for dead.
                self._last_done = message["number"]
                event = self._awaited.get(message["number"])
                if event is not None:
                    event.set()
        except Exception as error:  # For instance that of a log handler of the trainer.
            LOSSES.add(f"monitor: {type(error).__name__}")


class Uploaders:
    """Starts and stops uploads; one helper process does all that are on.

    Each command contains all uploads that are to be on. So it does not matter how calls interleave (threads may make
    them, and signal handlers that interrupt each other), or how often the process dies.

    Args:
        settings: The monitor's.
        backoff: The time until a process that died is restarted.
        sleep: Waits a number of seconds.
    """

    def __init__(
        self,
        settings: MonitorSettings,
        *,
        backoff: Backoff | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._settings = settings
        self._backoff = backoff or Backoff(first_seconds=1.0, longest_seconds=600.0)
        self._sleep = sleep
        self._owner: int | None = None
        self._lock = threading.RLock()  # A signal handler may interrupt its own thread in here.
        self._locks_pid = os.getpid()
        self._wanted: dict[Upload, list[int]] = {}
        self._process: HelperProcess | None = None
        self._first_stop = -float("inf")
        self._stop_seconds_left = 0.0

    @property
    def pid(self) -> int | None:
        """The helper process, while there is one."""
        process = self._process
        return process.pid if process else None

    def start(self, upload: Upload, windows: Sequence[int] = ()) -> None:
        """Turn an upload on; if it is on already, only its windows change."""
        if not _may_start():
            return
        if self._is_forked() and not self._take_over():
            log_once(
                logging.WARNING,
                "a forked monitor",
                "This process was forked from one whose monitor uploads goodput: that goes on, here nothing is started",
            )
            return
        if self._owner is None:
            self._owner = os.getpid()
        with self._lock:
            if not self._wanted:
                self._first_stop = -float("inf")
            self._wanted[upload] = list(windows)
            if self._process is None:
                self._launch()
            else:
                self._send(self._process, flush=False)

    def stop(self, upload: Upload, *, flush: bool) -> None:
        """Turn an upload off after doing it once more; wait for that until the deadline at the latest.

        Consecutive stops share the time to wait: also if something hangs, together they take no longer than one.
        """
        if self._is_forked():
            return
        now = time.monotonic()
        if now - self._first_stop > _RUN_OF_STOPS_SECONDS:
            self._first_stop, self._stop_seconds_left = now, self._settings.flush_seconds + _MARGIN_SECONDS
        try:
            self._stop(upload, self._stop_seconds_left, flush=flush)
        finally:
            self._stop_seconds_left = max(0.0, self._stop_seconds_left - (time.monotonic() - now))

    def _stop(self, upload: Upload, seconds: float, *, flush: bool) -> None:
        flush_seconds = max(0.0, seconds - _MARGIN_SECONDS) if flush else 0.0
        deadline = time.monotonic() + flush_seconds
        with self._lock:
            windows = self._wanted.pop(upload, None)
            if windows is None:
                return
            process, is_last = self._process, not self._wanted
            if is_last:
                self._process = self._owner = None  # It ends now; later starts start another process.
            number = self._send(process, flush=flush, flush_seconds=flush_seconds) if process else 0
        if process is not None:
            give_up_at = deadline + min(_MARGIN_SECONDS, seconds - flush_seconds)
            self._wait(process, number, give_up_at, is_last=is_last, flush=flush)
        if flush and (process is None or not process.has_done(number)) and time.monotonic() < deadline:
            self._upload_once(upload, windows, deadline)

    def _wait(self, process: HelperProcess, number: int, give_up_at: float, *, is_last: bool, flush: bool) -> None:
        """Wait until a process has done a command."""
        seconds = max(0.0, give_up_at - time.monotonic())
        if not is_last:
            if flush:
                process.wait_done(number, seconds)
        elif not process.wait_ended(seconds):
            if flush:
                _log.warning(
                    "The goodput monitor's helper process did not finish its last uploads in time "
                    "(final_flush_timeout_seconds is %g): killed",
                    self._settings.flush_seconds,
                )
            process.kill()
            process.wait_ended(_KILLED_SECONDS)

    def _upload_once(self, upload: Upload, windows: list[int], deadline: float) -> None:
        """Do a last upload by a process of its own, after the helper process has died."""
        process = None
        try:
            process = HelperProcess(self._settings)
            if start(process.follow, "goodput-monitor") is None:
                process.discard()
                raise RuntimeError("no thread can be started to follow it")
            process.send({upload.value: windows}, flush=False, flush_seconds=0.0)
            seconds = max(0.0, deadline - time.monotonic())
            number = process.send({}, flush=True, flush_seconds=seconds)
            has_ended = process.wait_ended(seconds + _MARGIN_SECONDS)
            if process.has_done(number):
                return
            trouble = process.end if has_ended else f"it took more than {seconds:.0f} s"
        except Exception as error:
            trouble = f"{type(error).__name__}: {error}"
        if process is not None:
            process.kill()
        _log.warning(
            "The last upload of goodput (%s) failed: the helper process had died, and another one failed, too (%s). "
            "What was recorded is in the journal: see `goodput report`",
            upload.value,
            trouble,
        )

    def _is_forked(self) -> bool:
        """Return True in a forked child of the process that has uploads on."""
        pid = os.getpid()
        if self._locks_pid != pid:  # The thread that held it may not exist here.
            self._lock, self._locks_pid = threading.RLock(), pid
        return self._owner not in (None, pid)

    def _take_over(self) -> bool:
        """Make a forked child the owner if its parent has ended: a trainer that made itself a daemon."""
        if self._owner is None or not has_ended(self._owner):
            return False
        self._wanted, self._process, self._owner = {}, None, None
        return True

    def _send(self, process: HelperProcess, *, flush: bool, flush_seconds: float = 0.0) -> int:
        # A copy: a signal handler may stop an upload at each step of this loop.
        wanted = {upload.value: windows for upload, windows in dict(self._wanted).items()}
        return process.send(wanted, flush=flush, flush_seconds=flush_seconds if flush else 0.0)

    def _launch(self) -> None:
        """Start a process for the wanted uploads, and the thread that restarts it."""
        process = self._new_process()
        # It is followed before any caller, such as a signal handler, can wait for its end.
        if start(lambda: self._keep(process), "goodput-monitor") is None:
            _log.warning("The goodput monitor could not start its thread: nothing is uploaded")
            if process is not None:
                process.discard()
            return
        self._put_to_work(process)

    def _new_process(self) -> HelperProcess | None:
        try:
            return HelperProcess(self._settings)
        except Exception as error:
            _log.warning(
                "The goodput monitor could not start its helper process (%s: %s); it tries again later",
                type(error).__name__,
                error,
            )
            return None

    def _put_to_work(self, process: HelperProcess | None) -> None:
        self._process = process
        if process is not None:
            self._send(process, flush=False)
            if not self._wanted:
                self._process = None  # It was stopped during its start, and was just sent that.

    # --- Its thread -----------------------------------------------------------------------------------

    def _keep(self, process: HelperProcess | None) -> None:
        """Start the next process whenever one has ended, while uploads are on."""
        while True:
            try:
                if not self._outlive(process):
                    return
                with self._lock:
                    if not self._is_missing():
                        return
                process = self._new_process()  # Without the lock, for which a stop may wait.
                with self._lock:
                    is_missing = self._is_missing()
                    if is_missing:
                        self._put_to_work(process)
                if not is_missing:  # Stopped meanwhile, or a start has started another one.
                    if process is not None:
                        process.kill()
                        process.follow()
                    return
            except BaseException as error:  # No memory, or no descriptor for a module that Python has yet to load.
                with self._lock:
                    if self._process is process:
                        self._process = None
                process = None
                _log.warning(
                    "The goodput monitor could not restart its helper process (%s: %s); next try in %.0f s",
                    type(error).__name__,
                    error,
                    _AFTER_TROUBLE_SECONDS,
                )
                self._sleep(_AFTER_TROUBLE_SECONDS)

    def _is_missing(self) -> bool:
        """Return True if uploads are on without a process."""
        return bool(self._wanted) and self._process is None and threading.main_thread().is_alive()

    def _outlive(self, process: HelperProcess | None) -> bool:
        """Follow a process to its end; return when it is time for the next one, False if none is wanted."""
        started, end = time.monotonic(), ""
        if process is not None:
            end = process.follow()
        with self._lock:
            if self._process is not process or not self._wanted:
                return False  # It was stopped.
            self._process = None
        if time.monotonic() - started > _GOOD_LIFE_SECONDS:
            self._backoff.succeeded()
        wait_seconds = self._backoff.failed()
        if process is not None and threading.main_thread().is_alive():
            _log.warning(
                "The goodput monitor's helper process ended by itself (%s); it is restarted in %.0f s. The job "
                "continues, and nothing that was recorded is lost",
                end,
                wait_seconds,
            )
        self._sleep(wait_seconds)
        return True


def _may_start() -> bool:
    """Return True if a process started from here would be a helper process, and not the trainer again."""
    if os.environ.get(IN_SIDECAR):
        return False  # A sitecustomize.py or a .pth file starts uploads in each Python, and so in the helper process.
    if getattr(sys, "frozen", False):
        log_once(
            logging.WARNING,
            "a frozen monitor",
            "Goodput is not uploaded: this program is frozen (sys.frozen), so it has no Python for a helper process. "
            "Run the trainer with a Python interpreter; `goodput report` shows the results in any case",
        )
        return False
    return True
