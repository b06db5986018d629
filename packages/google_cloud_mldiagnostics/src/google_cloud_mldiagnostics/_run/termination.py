"""SIGTERM: the run's end is recorded, and the process then dies of the signal as it would without us.

A handler in Python runs when the main thread next executes Python. For a main thread that is stuck in native code there
is `NativeTermination`: where SIGTERM would end the process, no handler is installed before its helper process watches.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any, Final

from ml_diagnostics_common.guard import LOSSES, warn_once
from ml_diagnostics_common.process_hooks import at_fork
from ml_diagnostics_common.processes import handled_signals
from ml_diagnostics_common.signal_wakeups import in_main_thread
from ml_diagnostics_common.worker import start

from google_cloud_mldiagnostics._run.native_termination import HelperError, NativeTermination, c_handler

__all__ = ["Termination"]

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

        Where SIGTERM would end the process, `complete` has to follow.
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
        """In a thread of its own."""
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
        # A C handler that was installed over ours stays: JAX would not see preemptions any more.
        if is_ours and c_handler(signal.SIGTERM) in (self._c_handler, None):
            signal.signal(signal.SIGTERM, self.previous)

    def _ends_process(self) -> bool:
        # The first process of a container is not ended by a signal that it has no handler for (kill(2)).
        return self.previous is signal.SIG_DFL and os.getpid() != 1

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        """No lock is taken here that this very thread may hold: see `Lifecycle.end`."""
        ends_process = self._ends_process()
        if ends_process:
            signal.signal(number, self._own_handler)  # The end is not to be cut short by a second signal.
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

    It would not run any more if Python installed one, and cannot be chained.
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
