"""Death by SIGTERM of a process with a main thread that is stuck in native code, where no Python handler runs.

Four parts of the system do what Python cannot:

- Until a helper process watches the job, SIGTERM keeps its default effect. The helper needs neither the job's GIL nor
  its threads, so from its report on a death by SIGTERM is certain. Where it cannot be started, the default stays.
- The kernel calls Python's C handler once, and then forgets it (SA_RESETHAND): from then on SIGTERM has its default
  effect, though Python has not run.
- The C handler writes the signal's number to a descriptor, and a thread reads it: see `signal_wakeups`. If the main
  thread has not executed the Python handler within half a second, a thread of ours records the end and sends the signal
  again: that is the case of a call that has released the GIL.
- If nothing reads it for a second, the GIL is held. The helper then sends the signal again, and records the death: see
  `termination_helper`.

If another library takes the descriptor, as asyncio's `add_signal_handler` does, a stuck process dies at the second
SIGTERM.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from ml_diagnostics_common.sidecar import Sidecar
from ml_diagnostics_common.signal_wakeups import subscribe, unsubscribe
from ml_diagnostics_common.worker import start

__all__ = ["HelperError", "NativeTermination", "c_handler"]

_HANDLER_SECONDS: Final = 0.5
_POLL_SECONDS: Final = 0.02


class HelperError(Exception):
    """No helper process can watch this process."""


class NativeTermination:
    """Ends this process by SIGTERM if its main thread cannot. Made, launched, armed and stopped in the main thread.

    Args:
        handler: The Python handler that is installed once the helper watches, in place of the default one.
        end: Called in a thread before the signal is sent again; waits a bounded time.
        process: This process as the run's folder has it, for the helper.
    """

    def __init__(self, handler: Callable[..., Any], end: Callable[[], object], process: Mapping[str, Any]) -> None:
        self._handler = handler
        self._end = end
        self._process = process
        self._helper: Sidecar | None = None
        self.is_on = False
        """True from `launch` to `stop`."""

    def launch(self) -> None:
        """Start the helper. It is not a child of the job, which may wait for all of its children.

        Raises:
            HelperError: It cannot be started.
        """
        self.is_on = True
        try:
            _reset_after_one()
            signals = subscribe(self._receive).reader
            if signals is None:
                raise OSError("the program has closed the wake-up descriptor")
            self._helper = Sidecar(
                "google_cloud_mldiagnostics._run.termination_helper", self._process, descriptors={"signals": signals}
            )
        except Exception as error:
            raise HelperError(str(error) or type(error).__name__) from error

    def is_watched(self, timeout_seconds: float) -> bool:
        """Wait until the helper has reported that it watches this process; also in another thread.

        Returns:
            False if it has not yet done so.

        Raises:
            HelperError: It has ended instead.
        """
        helper, output = self._helper, ""
        deadline = time.monotonic() + timeout_seconds
        try:
            while helper is not None:
                for message in helper.receive(max(0.0, deadline - time.monotonic())):
                    if message["kind"] == "watching":
                        return True
                    output += message.get("text", "")
                if time.monotonic() >= deadline:
                    return False
        except EOFError as error:
            raise HelperError(f"{error} ({sys.executable}) {output}".rstrip()) from error
        raise HelperError("it was not started")

    def arm(self) -> None:
        """Have the kernel reset SIGTERM to its default once it has called our handler, which is installed now."""
        set_handler, address = _reset_after_one(), c_handler(signal.SIGTERM)
        if address is None or set_handler(signal.SIGTERM, address) != address:
            raise HelperError("the C library refuses SA_RESETHAND")

    def stop(self) -> None:
        """Stop it, and its helper."""
        if self.is_on:
            self.is_on = False
            unsubscribe(self._receive)
            helper, self._helper = self._helper, None
            if helper is not None:
                helper.end_messages()
                if helper.pid is None:  # It has not reported yet, so its launcher may be our child still.
                    start(helper.wait, "mldiagnostics-termination")

    # --- In threads -----------------------------------------------------------------------------------

    def _receive(self, signals: bytes) -> None:
        """In the thread that reads the descriptor."""
        if signal.SIGTERM in signals:
            start(self._end_if_stuck, "mldiagnostics-termination")

    def _end_if_stuck(self) -> None:
        deadline = time.monotonic() + _HANDLER_SECONDS
        while self._is_pending():
            if time.monotonic() >= deadline:
                try:
                    self._end()
                finally:
                    os.kill(os.getpid(), signal.SIGTERM)
                return
            time.sleep(_POLL_SECONDS)

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


def _reset_after_one() -> Callable[[int, int], int | None]:
    """Return the C library's function that sets a handler with SA_RESETHAND; it returns the handler before.

    Raises:
        OSError, AttributeError: It has none: it is not glibc, but musl.
        ImportError: This Python has no ctypes.
    """
    import ctypes

    set_handler = ctypes.CDLL(None).sysv_signal
    set_handler.restype, set_handler.argtypes = ctypes.c_void_p, [ctypes.c_int, ctypes.c_void_p]
    return set_handler
