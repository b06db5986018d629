"""Death by SIGTERM of a process whose main thread is stuck in native code, where no Python handler runs.

Three parts of the system do what Python cannot:

- The kernel calls Python's C handler once, and then forgets it (SA_RESETHAND): from then on SIGTERM has its default
  effect, though Python has not run.
- The C handler writes the signal's number to a descriptor, and a thread reads it: see `signal_wakeups`. If the main
  thread has not executed the Python handler within half a second, a thread of ours records the end and sends the signal
  again: that is the case of a call that has released the GIL.
- If nothing reads it for a second, the GIL is held. A helper process then sends the signal again, and records the
  death: see `termination_helper`.

If another library takes the descriptor, as asyncio's `add_signal_handler` does, a stuck process dies at the second
SIGTERM.
"""

from __future__ import annotations

import _socket  # `socket` takes milliseconds to import, and nothing of it is needed here.
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from ml_diagnostics_common import background
from ml_diagnostics_common.descriptors import Descriptor, with_high_number
from ml_diagnostics_common.guard import LOSSES
from ml_diagnostics_common.signal_wakeups import SignalWakeups, subscribe, unsubscribe

from google_cloud_mldiagnostics.termination_helper import SETTINGS

__all__ = ["NativeTermination", "c_handler"]

_HANDLER_SECONDS: Final = 0.5
_LOOK_SECONDS: Final = 0.02


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
        self._control: Descriptor | None = None
        self._is_on = False

    def start(self) -> None:
        """Start it; without effect where the C library cannot (it is not glibc), or nothing more can be opened."""
        if sys.platform != "linux":
            return
        try:
            wakeups = subscribe(self._receive)
        except OSError:
            return
        self._is_on = _forget_after_one(signal.SIGTERM)
        if self._is_on:
            background.start(lambda: self._launch_helper(wakeups))
        else:
            unsubscribe(self._receive)

    def stop(self) -> None:
        """Stop it, and its helper."""
        if self._is_on:
            self._is_on = False
            unsubscribe(self._receive)
            self._end_helper()

    # --- In threads -----------------------------------------------------------------------------------

    def _receive(self, signals: bytes) -> None:
        """In the thread that reads the descriptor."""
        if signal.SIGTERM in signals:
            background.start(self._end_if_stuck)

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

    # --- The helper -----------------------------------------------------------------------------------

    def _launch_helper(self, wakeups: SignalWakeups) -> None:
        """Start it; it is no child of the job, which may wait for all of its children."""
        try:
            theirs, ours = (Descriptor(with_high_number(end.detach())) for end in _socket.socketpair())
            self._control = ours
            _launch({"signals": wakeups.reader, "control": theirs.number()}, self._process)
        except Exception as error:  # Also while the interpreter ends. A call that releases the GIL is covered.
            LOSSES.add(f"termination_helper: {type(error).__name__}")
        if not self._is_on:  # Stopped meanwhile.
            self._end_helper()

    def _end_helper(self) -> None:
        """Have it read the end of its control, though forked children have this side open, too."""
        control, self._control = self._control, None
        number = control.number() if control is not None else None
        if number is not None:
            end = _socket.socket(fileno=number)
            try:
                end.shutdown(_socket.SHUT_WR)
            except OSError:
                LOSSES.add("termination_helper: OSError")
            end.detach()


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


def _launch(descriptors: Mapping[str, int | None], process: Mapping[str, Any]) -> None:
    from ml_diagnostics_common.child_process import process_descriptor, start_detached

    job = process_descriptor(os.getpid())
    if job is None:
        return
    try:
        numbers = {name: number for name, number in {**descriptors, "job": job}.items() if number is not None}
        settings = {"pid": os.getpid(), **numbers, **process}
        launcher = start_detached(
            "google_cloud_mldiagnostics.termination_helper",
            numbers.values(),
            variables={SETTINGS: json.dumps(settings)},
        )
    finally:
        os.close(job)
    launcher.wait()
