"""SIGTERM: record the end of the run; the process then dies of the signal as it would without this library.

A Python handler runs when the main thread next executes Python. If the main thread is stuck in native code, no Python
handler runs, and `NativeTermination` ends the process. Four parts of the system do what Python cannot:

- Until a helper process watches the job, SIGTERM keeps its default effect. The helper needs neither the job's GIL nor
  its threads, so from its report on a death by SIGTERM is certain. Where it cannot be started, the default stays.
- The kernel calls Python's C handler once, and then forgets it (SA_RESETHAND): from then on SIGTERM has its default
  effect, though Python has not run.
- The C handler writes the signal's number to a descriptor, and a thread reads it: see `signal_wakeups`. If the main
  thread has not executed the Python handler within half a second, a thread records the end and sends the signal again:
  that is the case of a call that has released the GIL.
- If nothing reads it for a second, the GIL is held. The helper then sends the signal again, and records the death: see
  `termination_helper`.

If another library takes the descriptor, as asyncio's `add_signal_handler` does, a stuck process dies at the second
SIGTERM.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any, Final

from ml_diagnostics_common.guard import LOSSES, warn_once
from ml_diagnostics_common.process_hooks import at_fork
from ml_diagnostics_common.processes import handled_signals
from ml_diagnostics_common.sidecar import Sidecar
from ml_diagnostics_common.signal_wakeups import in_main_thread, subscribe, unsubscribe
from ml_diagnostics_common.worker import start

__all__ = ["HelperError", "NativeTermination", "Termination", "c_handler"]

_HANDLER_SECONDS: Final = 0.5
_POLL_SECONDS: Final = 0.02


class HelperError(Exception):
    """The helper process cannot watch this process."""


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
            HelperError: The helper cannot be started.
        """
        self.is_on = True
        try:
            _reset_after_one()
            wakeups = subscribe(self._receive)
            signals, handling = wakeups.reader, wakeups.handling
            if signals is None or handling is None:
                raise OSError("the program has closed the wake-up descriptor")
            self._helper = Sidecar(
                "google_cloud_mldiagnostics._run.termination_helper",
                self._process,
                descriptors={"signals": signals, "handling": handling},
            )
        except Exception as error:
            raise HelperError(str(error) or type(error).__name__) from error

    def is_watched(self, timeout_seconds: float) -> bool:
        """Wait until the helper has reported that it watches this process; also in another thread.

        Returns:
            False if it has not yet done so.

        Raises:
            HelperError: The helper has ended.
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
        """React to a signal, in the thread that reads the descriptor."""
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
        OSError, AttributeError: The C library, such as musl, lacks the function.
        ImportError: This Python has no ctypes.
    """
    import ctypes

    set_handler = ctypes.CDLL(None).sysv_signal
    set_handler.restype, set_handler.argtypes = ctypes.c_void_p, [ctypes.c_int, ctypes.c_void_p]
    return set_handler


_HELPER_SECONDS: Final = 1.0  # machinelearning_run returns within about a second; the helper takes 50 ms.
_MOST_HELPER_SECONDS: Final = 60.0
_STUCK_SECONDS: Final = 1.0  # Beside the half second that the main thread is waited for: users expect death in two.

# State of the process: what a forked child must undo.
_installed: list[Termination] = []


class Termination:
    """Handles SIGTERM, unless the process has a handler in C or ignores it; a handler of the user's runs as before.

    Args:
        end: Called before the process dies of SIGTERM, in the signal handler or in a thread; waits a bounded time: the
            seconds that it is given, or its own for None.
        report: Called in the signal handler with the signal's name if the user's handler decides what follows.
        is_watching: Returns False once the run has ended otherwise, and in a forked child.
        process: This process as the run's folder has it, for the helper process that records a death: see
            `termination_helper`.
    """

    def __init__(
        self,
        end: Callable[[float | None], object],
        report: Callable[[str], object],
        is_watching: Callable[[], bool],
        process: Mapping[str, Any],
    ) -> None:
        self._end = end
        self._report = report
        self._is_watching = is_watching
        self._process = process
        self._own_handler = self._on_signal  # One object, so that it is recognised.
        self._c_handler: int | None = None
        self._native: NativeTermination | None = None
        self.previous: Any = None
        """The handler that ours has replaced; None if it has not replaced any."""

    def install(self) -> None:
        """Install the handler, or start what it needs first; without effect off the main thread, where Python cannot.

        If SIGTERM would end the process, `complete` has to follow.
        """
        if threading.current_thread() is not threading.main_thread():
            return
        current = signal.getsignal(signal.SIGTERM)
        if _is_handled_in_c(current):
            return
        previous = _living(current)
        # None is a handler in C, which cannot be chained.
        if previous is signal.SIG_DFL or (callable(previous) and not isinstance(previous, signal.Handlers)):
            self.previous = previous
            if self._ends_process() and sys.platform == "linux":
                self._native = NativeTermination(self._own_handler, lambda: self._end(_STUCK_SECONDS), self._process)
                try:
                    self._native.launch()
                except HelperError as error:
                    self._go_without(error)
            else:
                self._set_handler()

    def complete(self) -> None:
        """Install the handler that waits for the helper process; wait a bounded time for that.

        If the machine is slow, the handler is installed later.
        """
        if self._native is not None and not self._await_helper(self._native, _HELPER_SECONDS):
            start(self._complete_later, "mldiagnostics-termination")

    def uninstall(self) -> None:
        """Restore the handler that was there before, unless another one was installed since, in Python or in C."""
        if threading.current_thread() is not threading.main_thread():
            return  # Python cannot. The handler, and the helper for a stuck main thread, stay without the run.
        self._restore()
        if self._native is not None:
            self._native.stop()
        if self in _installed:
            _installed.remove(self)

    def is_watching(self) -> bool:
        """Return False once the run has ended otherwise, and in a forked child."""
        return self._is_watching()

    def leave_to_child(self) -> None:
        """In a forked child: SIGTERM ends it at once, as without us; the user's handler stays chained."""
        if self.previous is signal.SIG_DFL:
            self._restore()

    def _set_handler(self) -> None:
        signal.signal(signal.SIGTERM, self._own_handler)
        self._c_handler = c_handler(signal.SIGTERM)
        _installed.append(self)

    def _await_helper(self, native: NativeTermination, timeout_seconds: float) -> bool:
        """Return False if the helper has not reported within this time; also in another thread."""
        try:
            is_watched = native.is_watched(timeout_seconds)
        except HelperError as error:
            failure = error  # `error` is deleted when the block ends.
            in_main_thread(lambda: self._go_without(failure))
            return True
        if is_watched:
            in_main_thread(self._set_native_handler)
        return is_watched

    def _complete_later(self) -> None:
        """Wait for the helper, in a separate thread."""
        native = self._native
        if native is not None and not self._await_helper(native, _MOST_HELPER_SECONDS):
            failure = HelperError(f"it did not report within {_MOST_HELPER_SECONDS:.0f} s")
            in_main_thread(lambda: self._go_without(failure))

    def _set_native_handler(self) -> None:
        """In the main thread, and in a forked child if it was forked meanwhile: it must not end its parent's helper."""
        native = self._native
        if native is None or not native.is_on or not self._is_watching():
            return
        current = signal.getsignal(signal.SIGTERM)
        if _living(current) is not signal.SIG_DFL or _is_handled_in_c(current):  # Another was installed meanwhile.
            native.stop()
            return
        self._set_handler()
        try:
            native.arm()
        except HelperError as error:
            self._restore()
            self._go_without(error)

    def _go_without(self, error: HelperError) -> None:
        """Leave SIGTERM its default effect: with our handler a process that holds the GIL would outlive it."""
        native, self._native = self._native, None
        if native is None or not native.is_on or not self._is_watching():
            return
        native.stop()
        warn_once(
            "termination_helper",
            "The helper process that records a death by SIGTERM cannot be started: %s. SIGTERM ends this process at "
            "once, as without a run, and the run is shown as FAILED without the reason SIGTERM. To record it, install "
            "a handler of SIGTERM that calls sys.exit.",
            error,
        )

    def _restore(self) -> None:
        is_ours = signal.getsignal(signal.SIGTERM) is self._own_handler
        # A C handler that was installed over ours stays: JAX would miss preemptions.
        if is_ours and c_handler(signal.SIGTERM) in (self._c_handler, None):
            signal.signal(signal.SIGTERM, self.previous)

    def _ends_process(self) -> bool:
        # The first process of a container is not ended by a signal that it has no handler for (kill(2)).
        return self.previous is signal.SIG_DFL and os.getpid() != 1

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        """Take no lock that this thread may hold: see `Lifecycle.end`."""
        ends_process = self._ends_process()
        if ends_process:
            signal.signal(number, self._own_handler)  # A second signal must not interrupt the recording of the end.
        if self._is_watching():
            try:
                if ends_process:
                    self._end(None)
                else:
                    self._report("SIGTERM")
            except Exception as error:
                LOSSES.add(f"sigterm: {type(error).__name__}")
        if ends_process:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        elif self.previous is not signal.SIG_DFL:
            self.previous(number, frame)


def _living(handler: Any) -> Any:
    """Return a handler; in place of one whose run is over, which another thread could not remove, the one before it."""
    while True:
        owner = getattr(handler, "__self__", None)
        if not isinstance(owner, Termination) or owner.is_watching():
            return handler
        handler = owner.previous


def _is_handled_in_c(handler: Any) -> bool:
    """Return True if the process has a C handler of SIGTERM that Python does not know: JAX's, for preemptions.

    It would not run if Python installed one, and cannot be chained.
    """
    if handler is signal.SIG_DFL:
        try:  # Python knows only the handlers that were installed when it started, and those that it has set itself.
            return signal.SIGTERM in handled_signals()
        except (OSError, ValueError):
            return False
    # All of Python's handlers have one C handler. That of Ctrl-C shows which, unless it is ignored.
    if callable(handler) and callable(signal.getsignal(signal.SIGINT)):
        return c_handler(signal.SIGTERM) not in (c_handler(signal.SIGINT), None)
    return False


def _forget_parent() -> None:
    for termination in _installed:
        try:
            termination.leave_to_child()
        except Exception as error:
            LOSSES.add(f"sigterm: {type(error).__name__}")
    _installed.clear()


at_fork(_forget_parent)
