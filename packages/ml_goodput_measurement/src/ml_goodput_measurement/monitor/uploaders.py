"""Which uploads of a monitor are on, and the helper process that does them: started again if it dies."""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence

from ml_diagnostics_common.backoff import Backoff
from ml_diagnostics_common.child_process import has_ended
from ml_diagnostics_common.guard import job_logger, log_once
from ml_diagnostics_common.worker import start

from ml_goodput_measurement.monitor.helper_process import IN_HELPER, HelperProcess
from ml_goodput_measurement.monitor.settings import MonitorSettings, Upload

__all__ = ["Uploaders"]

_log = job_logger("ml_diagnostics.goodput")

_MARGIN_SECONDS = 1.0
"""How much longer than for its last uploads the process is waited for: it reports those that it gave up."""
_GOOD_LIFE_SECONDS = 60.0
"""A process that lived for so long did not fail at its start."""
_KILLED_SECONDS = 0.25
"""How long a process that was killed is waited for, so that it is gone when a stop returns."""
_RUN_OF_STOPS_SECONDS = 60.0
"""Stops within this time share the time to wait, unless an upload was started in between."""
_AFTER_TROUBLE_SECONDS = 60.0


class Uploaders:
    """Starts and stops uploads; one helper process does all that are on.

    What shall be on is kept here, and the process is always told all of it. So it does not matter how calls
    interleave (they may come from threads, and from signal handlers amid one another), or how often the process dies.

    Args:
        settings: Of the monitor.
        backoff: How long to wait until a process that died is started again.
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
        """Of the helper process, while there is one."""
        process = self._process
        return process.pid if process else None

    def start(self, upload: Upload, windows: Sequence[int] = ()) -> None:
        """Turns an upload on; nothing changes if it is on already, but for other windows."""
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

        Stops that follow each other share the time to wait: whatever hangs, together they take no longer than one.
        """
        if self._is_forked():
            return
        began = time.monotonic()
        if began - self._first_stop > _RUN_OF_STOPS_SECONDS:
            self._first_stop, self._stop_seconds_left = began, self._settings.flush_seconds + _MARGIN_SECONDS
        try:
            self._stop(upload, self._stop_seconds_left, flush=flush)
        finally:
            self._stop_seconds_left = max(0.0, self._stop_seconds_left - (time.monotonic() - began))

    def _stop(self, upload: Upload, seconds: float, *, flush: bool) -> None:
        flush_seconds = max(0.0, seconds - _MARGIN_SECONDS) if flush else 0.0
        deadline = time.monotonic() + flush_seconds
        with self._lock:
            windows = self._wanted.pop(upload, None)
            if windows is None:
                return
            process, is_last = self._process, not self._wanted
            if is_last:
                self._process = self._owner = None  # It ends now; a start from here on starts another.
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
        """Does a last upload whose process is dead: by one that does nothing else."""
        process = None
        try:
            process = HelperProcess(self._settings)
            start(process.follow, "goodput-monitor")
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
            "The last upload of goodput (%s) could not be done: the helper process was dead, and so it went with "
            "another one (%s). What was recorded is in the journal: `goodput report` tells it",
            upload.value,
            trouble,
        )

    def _is_forked(self) -> bool:
        """Whether this is a child of the process whose uploads are on."""
        pid = os.getpid()
        if self._locks_pid != pid:  # The thread that held it may not exist here.
            self._lock, self._locks_pid = threading.RLock(), pid
        return self._owner not in (None, pid)

    def _take_over(self) -> bool:
        """Makes a forked child the owner if its parent is gone: a trainer that made itself a daemon."""
        if self._owner is None or not has_ended(self._owner):
            return False
        self._wanted, self._process, self._owner = {}, None, None
        return True

    def _send(self, process: HelperProcess, *, flush: bool, flush_seconds: float = 0.0) -> int:
        wanted = {upload.value: windows for upload, windows in self._wanted.items()}
        return process.send(wanted, flush=flush, flush_seconds=flush_seconds if flush else 0.0)

    def _launch(self) -> None:
        """Starts a process that does what is wanted, and the thread that looks after it and its successors."""
        process = self._new_process()
        # It is followed before anybody, such as a signal handler, can wait for its end.
        if start(lambda: self._keep(process), "goodput-monitor") is None:
            _log.warning("The goodput monitor could not start its thread: nothing is uploaded")
            if process is not None:
                process.kill()
            return
        self._put_to_work(process)

    def _new_process(self) -> HelperProcess | None:
        try:
            return HelperProcess(self._settings)
        except Exception as error:
            _log.warning(
                "The goodput monitor could not start its helper process (%s: %s); it is tried again later",
                type(error).__name__,
                error,
            )
            return None

    def _put_to_work(self, process: HelperProcess | None) -> None:
        self._process = process
        if process is not None:
            self._send(process, flush=False)
            if not self._wanted:
                self._process = None  # It was stopped amid its start, and has just been told so.

    # --- Its thread -----------------------------------------------------------------------------------

    def _keep(self, process: HelperProcess | None) -> None:
        """Starts the next process whenever one has ended, as long as there are uploads that are on."""
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
                    "The goodput monitor could not look after its helper process (%s: %s); it is tried again in %.0f s",
                    type(error).__name__,
                    error,
                    _AFTER_TROUBLE_SECONDS,
                )
                self._sleep(_AFTER_TROUBLE_SECONDS)

    def _is_missing(self) -> bool:
        """Whether there should be a process, and there is none."""
        return bool(self._wanted) and self._process is None and threading.main_thread().is_alive()

    def _outlive(self, process: HelperProcess | None) -> bool:
        """Follows a process to its end; returns when it is time for the next one, False if there shall be none."""
        started, how = time.monotonic(), ""
        if process is not None:
            how = process.follow()
        with self._lock:
            if self._process is not process or not self._wanted:
                return False  # It was told to end.
            self._process = None
        if time.monotonic() - started > _GOOD_LIFE_SECONDS:
            self._backoff.succeeded()
        wait_seconds = self._backoff.failed()
        if process is not None and threading.main_thread().is_alive():
            _log.warning(
                "The goodput monitor's helper process ended by itself (%s); it is started again in %.0f s. The job "
                "goes on, and nothing that was recorded is lost",
                how,
                wait_seconds,
            )
        self._sleep(wait_seconds)
        return True


def _may_start() -> bool:
    """Whether a helper process that is started from here would be one, and not the trainer once more."""
    if os.environ.get(IN_HELPER):
        return False  # A sitecustomize.py or a .pth file starts uploads in each Python, and so in the helper.
    if getattr(sys, "frozen", False):
        log_once(
            logging.WARNING,
            "a frozen monitor",
            "Goodput is not uploaded: this program is frozen (sys.frozen), so there is no Python to do it in a process "
            "of its own. Run the trainer with a Python interpreter; `goodput report` tells the figures in any case",
        )
        return False
    return True
