"""A small process beside a block without a companion: it asks faulthandler if Python does not answer a request.

Nothing in the job itself can do so: a Python thread waits for the GIL, and this package has no C code.
"""

from __future__ import annotations

import _socket
import json
import os
import threading
from collections.abc import Mapping

from ml_diagnostics_common.client_imports import import_undisturbed
from ml_diagnostics_common.descriptors import Descriptor, with_high_number
from ml_diagnostics_common.worker import start

from cloud_tpu_diagnostics.dump_requests import DumpRequests
from cloud_tpu_diagnostics.log_queue import flush_in_background, guarded_as, warn_once

__all__ = ["Helper"]


class Helper:
    """Starts the process, and ends it.

    Args:
        requests: The requests that it watches.
        dump_signal: The signal that it sends.
    """

    def __init__(self, requests: DumpRequests, dump_signal: int) -> None:
        self._requests, self._dump_signal = requests, dump_signal
        self._is_over = False
        self._control: Descriptor | None = None
        self.thread_ident = 0
        """The identifier of the thread that starts the process; 0 while there is none."""

    def start(self) -> None:
        """Start the process in a thread; return at once."""
        start(self._run, "cloud-tpu-diagnostics-helper")

    def stop(self) -> None:
        """End the process."""
        self._is_over = True
        self._end_process()

    def _end_process(self) -> None:
        """Shut the control down: closing it is not enough, since forked children of the job have it open, too."""
        control, self._control = self._control, None
        number = control.number() if control is not None else None
        if number is not None:
            end = _socket.socket(fileno=number)
            try:
                end.shutdown(_socket.SHUT_WR)
            except OSError:
                pass  # The process has ended.
            finally:
                end.detach()

    @guarded_as("start a process beside the job")
    def _run(self) -> None:
        self.thread_ident = threading.get_ident()
        try:
            self._launch()
        finally:
            self.thread_ident = 0

    def _launch(self) -> None:
        # Here, off the thread of the rounds.
        import_undisturbed("ml_diagnostics_common.child_process", "cloud_tpu_diagnostics.companion.helper")
        from ml_diagnostics_common.child_process import process_descriptor

        read, write = (Descriptor(with_high_number(end.detach())) for end in _socket.socketpair())
        self._control = write
        job = process_descriptor(os.getpid())
        job = None if job is None else with_high_number(job)
        numbers = {"control": read.number(), "job": job, **self._requests.descriptors}
        try:
            _launch({name: number for name, number in numbers.items() if number is not None}, self._dump_signal)
        except OSError as error:
            warn_once(
                "no helper",
                "No process can be started beside the job (%s): while native code holds the GIL, a signal leaves no "
                "stack traces. The periodic ones go on.",
                error,
            )
            flush_in_background()
        finally:
            if job is not None:
                os.close(job)
            if self._is_over:  # Stopped meanwhile.
                self._end_process()


def _launch(descriptors: Mapping[str, int], dump_signal: int) -> None:
    """Start the process, and return once it is not a child of this process any more."""
    from ml_diagnostics_common.child_process import start_detached

    from cloud_tpu_diagnostics.companion.helper import SETTINGS

    if not {"control", "wakeups", "answers"} <= descriptors.keys():
        return  # The program has closed them.
    settings = {"pid": os.getpid(), "dump_signal": dump_signal, "descriptors": dict(descriptors)}
    start_detached(
        "cloud_tpu_diagnostics.companion.helper",
        descriptors.values(),
        variables={"ML_DIAGNOSTICS_COMPANION": "1", SETTINGS: json.dumps(settings)},
    ).wait()
