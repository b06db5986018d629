"""Interrupts of a command: Ctrl-C, SIGTERM and SIGHUP raise KeyboardInterrupt, whatever the main thread does just then.

Python calls a handler between two instructions of the main thread. Three moments need care: while a program or a
request is being started, which must not be forgotten; while an object is finalized, since Python drops what is raised
there; and just before a wait in the kernel, since a signal between the last instruction and the wait does not end that.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
import time
from collections.abc import Iterator
from types import FrameType

__all__ = ["interrupts_put_off", "signals_as_keyboard_interrupt", "waits_woken"]

_NAMES = ("SIGINT", "SIGTERM", "SIGHUP")  # Windows has no SIGHUP.
_AGAIN_SECONDS = 0.05
"""The finalizer that dropped an interrupt is over by then."""
_WAKE_SECONDS = (0.01, 0.1, 1.0)
"""The main thread is waiting by then, also on a machine that is busy."""


@contextlib.contextmanager
def interrupts_put_off() -> Iterator[None]:
    """Handle Ctrl-C, SIGTERM and SIGHUP at the end of the block, so that what was started in it is known.

        process = None
        try:
            with interrupts_put_off():
                process = subprocess.Popen(argv)
            process.wait()
        except KeyboardInterrupt:
            ...  # `process` is what runs, or None

    A program that is started meanwhile gets the signals as it would otherwise.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # Handlers run in the main thread only.
        return
    numbers = [getattr(signal, name) for name in _NAMES if hasattr(signal, name)]
    handlers = {number: handler for number in numbers if callable(handler := signal.getsignal(number))}
    arrived: list[int] = []
    is_over = False

    def note(number: int, frame: FrameType | None) -> None:
        if is_over:  # It was not replaced yet, or a signal has interrupted that.
            handlers[signal.Signals(number)](number, frame)
        else:
            arrived.append(number)

    try:
        for number in handlers:
            signal.signal(number, note)
        yield
    finally:
        is_over = True
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for number in arrived:
            signal.raise_signal(number)


@contextlib.contextmanager
def signals_as_keyboard_interrupt() -> Iterator[None]:
    """Raise KeyboardInterrupt on SIGTERM and SIGHUP within the block, so that cleanup runs as after Ctrl-C.

    Ignored signals stay ignored, as under nohup. Outside the main thread, the block changes nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    with _dropped_interrupts_sent_again():
        numbers = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
        before = {number: signal.getsignal(number) for number in numbers}
        try:
            for number, handler in before.items():
                if handler != signal.SIG_IGN:
                    signal.signal(number, _interrupt)
            yield
        finally:
            for number, handler in before.items():
                if handler is not None:  # None: the handler was not set from Python, and cannot be restored.
                    signal.signal(number, handler)


@contextlib.contextmanager
def waits_woken() -> Iterator[None]:
    """Wake the main thread from a wait that began just after a signal had arrived: Python then calls its handler.

    The wait goes on if no handler raises, as after each signal. Outside the main thread, the block changes nothing.
    """
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "pthread_kill"):
        yield
        return
    from ml_diagnostics_common.signal_wakeups import block_signals, subscribe, unsubscribe

    def wake() -> None:
        block_signals()
        for seconds in _WAKE_SECONDS:
            time.sleep(seconds)
            _send_to_main_thread(signal.SIGURG)

    def receive(data: bytes) -> None:
        if any(number != signal.SIGURG for number in data):
            threading.Thread(target=wake, daemon=True).start()

    try:
        subscribe(receive)
    except OSError:  # The limit of open files is reached: the command may do without.
        yield
        return
    before = signal.signal(signal.SIGURG, _do_nothing)  # Ignored by default, and then it would wake nothing.
    try:
        yield
    finally:
        unsubscribe(receive)
        signal.signal(signal.SIGURG, signal.SIG_DFL if before is None else before)


@contextlib.contextmanager
def _dropped_interrupts_sent_again() -> Iterator[None]:
    """Send a signal once more if Python has dropped its exception, which was raised while an object was finalized."""
    report_unraisable = sys.unraisablehook

    def send_again(dropped: sys.UnraisableHookArgs) -> None:
        if not issubclass(dropped.exc_type, KeyboardInterrupt):
            report_unraisable(dropped)
            return
        again = threading.Timer(_AGAIN_SECONDS, _send_to_main_thread, [signal.SIGTERM])
        again.daemon = True
        again.start()

    sys.unraisablehook = send_again
    try:
        yield
    finally:
        if sys.unraisablehook is send_again:
            sys.unraisablehook = report_unraisable


def _send_to_main_thread(number: int) -> None:
    """Send a signal to the main thread, which may be waiting in the kernel: in another one it would not end that."""
    ident = threading.main_thread().ident
    if ident is not None and hasattr(signal, "pthread_kill"):
        signal.pthread_kill(ident, number)
    else:
        signal.raise_signal(number)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _do_nothing(number: int, frame: FrameType | None) -> None:
    pass
