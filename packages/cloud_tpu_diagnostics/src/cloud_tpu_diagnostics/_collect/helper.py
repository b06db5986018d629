"""A small process beside a block without a companion: it asks faulthandler if Python does not answer a request.

Nothing in the job itself can do so: a Python thread waits for the GIL, and this package has no C code.

A module apart from `companion`: most blocks have no companion, and loading that module takes 2.5 ms of CPU time.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from ml_diagnostics_common.process_hooks import import_undisturbed
from ml_diagnostics_common.worker import start

from cloud_tpu_diagnostics._collect.dump_requests import DumpRequests
from cloud_tpu_diagnostics._collect.log_queue import flush_in_background, guarded_as, warn_once

if TYPE_CHECKING:
    from ml_diagnostics_common.sidecar import Sidecar

__all__ = ["Helper"]


class Helper:
    """The helper process.

    Args:
        requests: The requests that it watches.
        dump_signal: The signal that it sends.
    """

    def __init__(self, requests: DumpRequests, dump_signal: int) -> None:
        self._requests, self._dump_signal = requests, dump_signal
        self._is_over = False
        self.sidecar: Sidecar | None = None
        """The process, once it was started."""
        self.thread_ident = 0
        """The identifier of the thread that starts the process; 0 while there is none."""

    def start(self) -> None:
        """Start the process in a thread; return at once."""
        start(self._run, "cloud-tpu-diagnostics-helper")

    def stop(self) -> None:
        """End the process."""
        self._is_over = True
        if self.sidecar is not None:
            self.sidecar.end_messages()

    @guarded_as("start a process beside the job")
    def _run(self) -> None:
        self.thread_ident = threading.get_ident()
        try:
            self._start()
        finally:
            self.thread_ident = 0

    def _start(self) -> None:
        import_undisturbed("ml_diagnostics_common.sidecar")  # Here, off the thread of the rounds.
        from ml_diagnostics_common.sidecar import Sidecar

        descriptors = self._requests.descriptors
        if not {"wakeups", "answers"} <= descriptors.keys():
            return  # The program has closed them.
        settings = {"dump_signal": self._dump_signal}
        try:
            self.sidecar = Sidecar("cloud_tpu_diagnostics._companion.requests", settings, descriptors=descriptors)
            self.sidecar.wait()  # Until it is not a child of this process any more.
        except OSError as error:
            warn_once(
                "no helper",
                "No process can be started beside the job (%s): while native code holds the GIL, a signal leaves no "
                "stack traces. The periodic ones continue.",
                error,
            )
            flush_in_background()
        finally:
            if self._is_over:  # Stopped meanwhile.
                self.stop()
