"""Death by SIGTERM of a process whose main thread is stuck in native code, where no Python handler runs.

Three parts of the system do what Python cannot:

- The kernel calls Python's C handler once, and then forgets it (SA_RESETHAND): from then on SIGTERM has its default
  effect, though Python has not run.
- The C handler writes the signal's number to a descriptor (`signal.set_wakeup_fd`). A thread of ours reads it. If the
  main thread has not executed the Python handler within half a second, the thread records the end and sends the signal
  again: that is the case of a call that has released the GIL.
- If nothing reads it for a second, the GIL is held. A helper process then sends the signal again, and records the
  death: see `termination_helper`.

If another library takes the descriptor, as asyncio's `add_signal_handler` does, a stuck process dies at the second
SIGTERM.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from ml_diagnostics_common import background
from ml_diagnostics_common.descriptors import Descriptor, with_high_number
from ml_diagnostics_common.guard import LOSSES

from google_cloud_mldiagnostics.termination_helper import SETTINGS

__all__ = ["NativeTermination", "c_handler"]

_HANDLER_SECONDS: Final = 0.5
_LOOK_SECONDS: Final = 0.02
_PAUSE_SECONDS: Final = 0.1
_MOST_BYTES: Final = 4096


class NativeTermination:
    """Ends this process by SIGTERM if its main thread cannot. Made, started and stopped in the main thread.

    Args:
        handler: The Python handler that was installed just now, in place of the default one.
        end: Called in a thread before the signal is sent again; waits a bounded time.
        process: This process as the run's folder has it, for the helper.
    """

    def __init__(self, handler: Callable[..., Any], end: Callable[[], object], process: Mapping[str, Any]) -> None:
        self._handler = handler
        self._end = end
        self._process = process
        self._writing: Descriptor | None = None
        self._previous_descriptor = -1

    def start(self) -> None:
        """Start it; without effect where the C library cannot (it is not glibc), or nothing more can be opened."""
        if sys.platform != "linux":
            return
        try:
            reading, writing = _channel()
        except OSError:
            return
        number = writing.number()
        if number is None or not _forget_after_one(signal.SIGTERM):
            return
        self._writing = writing
        self._previous_descriptor = signal.set_wakeup_fd(number, warn_on_full_buffer=False)
        background.start(lambda: self._watch(reading))

    def stop(self) -> None:
        """Stop it, with its thread and its helper, unless another descriptor was set over ours."""
        if self._writing is not None and self._restore_descriptor():
            _shut_down(self._writing)
            self._writing = None

    def leave_to_child(self) -> None:
        """In a forked child: its signals are not the parent's."""
        if self._writing is not None:
            self._restore_descriptor()

    def _restore_descriptor(self) -> bool:
        current = signal.set_wakeup_fd(-1)
        is_ours = self._writing is not None and current == self._writing.number()
        wanted = self._previous_descriptor if is_ours else current
        try:
            if wanted != -1:
                signal.set_wakeup_fd(wanted, warn_on_full_buffer=False)
        except (OSError, ValueError):  # Its owner has closed it.
            LOSSES.add("sigterm: wakeup descriptor")
        return is_ours

    # --- The thread -----------------------------------------------------------------------------------

    def _watch(self, reading: Descriptor) -> None:
        try:
            _launch_helper(reading, self._process)
        except Exception as error:  # Also while the interpreter ends. A call that releases the GIL is covered.
            LOSSES.add(f"termination_helper: {type(error).__name__}")
        while (number := reading.number()) is not None:
            poller = select.poll()
            poller.register(number, select.POLLIN)
            poller.poll()
            if reading.number() is None:
                return  # The job has closed it.
            try:
                signals = os.read(number, _MOST_BYTES)
            except BlockingIOError:
                continue
            if not signals:
                reading.close()
                return
            if signal.SIGTERM in signals:
                self._pass_on(signals)
                self._end_if_stuck()
            elif self._previous_descriptor != -1:
                self._pass_on(signals)
            else:
                time.sleep(_PAUSE_SECONDS)  # A program may have a timer's signal a thousand times a second.

    def _pass_on(self, numbers: bytes) -> None:
        """Write the numbers to the descriptor that was set before ours, as asyncio's."""
        if self._previous_descriptor != -1:
            try:
                os.write(self._previous_descriptor, numbers)
            except OSError:
                LOSSES.add("sigterm: wakeup descriptor")

    def _end_if_stuck(self) -> None:
        deadline = time.monotonic() + _HANDLER_SECONDS
        while self._is_pending():
            if time.monotonic() >= deadline:
                try:
                    self._end()
                finally:
                    os.kill(os.getpid(), signal.SIGTERM)
                return
            time.sleep(_LOOK_SECONDS)

    def _is_pending(self) -> bool:
        """Return True if the kernel has called the C handler, and Python has not called ours."""
        return signal.getsignal(signal.SIGTERM) == self._handler and c_handler(signal.SIGTERM) is None


def c_handler(number: int) -> int | None:
    """Return the address of the process's C handler of a signal; None for the default one, or without ctypes."""
    try:
        import ctypes

        get_handler = ctypes.pythonapi.PyOS_getsig
    except (ImportError, AttributeError):
        return None
    get_handler.restype, get_handler.argtypes = ctypes.c_void_p, [ctypes.c_int]
    address: int | None = get_handler(number)
    return address


def _forget_after_one(number: int) -> bool:
    """Have the kernel reset a signal to its default when it has called the handler; False where that cannot be."""
    address = c_handler(number)
    if address is None:
        return False
    import ctypes

    try:
        set_handler = ctypes.CDLL(None).sysv_signal
    except (OSError, AttributeError):  # Not in musl.
        return False
    set_handler.restype, set_handler.argtypes = ctypes.c_void_p, [ctypes.c_int, ctypes.c_void_p]
    return bool(set_handler(number, address) == address)


def _channel() -> tuple[Descriptor, Descriptor]:
    """Return two ends whose numbers programs do not use: a job that closes all it finds reuses the low ones."""
    reading, writing = (Descriptor(with_high_number(end.detach())) for end in socket.socketpair())
    for end in (reading, writing):
        number = end.number()
        if number is not None:
            os.set_blocking(number, False)
    return reading, writing


def _shut_down(writing: Descriptor) -> None:
    """Have all readers see the end, though forked children have this end open, too."""
    number = writing.number()
    if number is not None:
        end = socket.socket(fileno=number)
        try:
            end.shutdown(socket.SHUT_WR)
        except OSError:
            LOSSES.add("sigterm: shutdown")
        end.detach()
    writing.close()


def _launch_helper(reading: Descriptor, process: Mapping[str, Any]) -> None:
    """Start the helper; it is no child of the job, which may wait for all of its children."""
    import subprocess

    from ml_diagnostics_common.child_process import (
        child_environment,
        module_folders,
        process_descriptor,
        program_of,
        python_command,
    )

    job, signals = process_descriptor(os.getpid()), reading.number()
    if job is None or signals is None or getattr(sys, "frozen", False):
        return
    try:
        settings = {"pid": os.getpid(), "signals": signals, "job": job, **process}
        program = "import os\nif os.fork(): os._exit(0)\n" + program_of("google_cloud_mldiagnostics.termination_helper")
        launcher = subprocess.Popen(
            [*python_command(is_bare=True), "-c", program, *module_folders()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=[signals, job],
            env=child_environment(**{SETTINGS: json.dumps(settings)}),
            # Out of reach of Ctrl-C, and of whatever ends the job's group.
            start_new_session=True,
        )
    finally:
        os.close(job)
    launcher.wait()
