"""Interrupts of a command while it starts something that must not be forgotten."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType

__all__ = ["interrupts_put_off"]

_NAMES = ("SIGINT", "SIGTERM", "SIGHUP")  # Windows has no SIGHUP.


@contextlib.contextmanager
def interrupts_put_off() -> Iterator[None]:
    """Handle Ctrl-C, SIGTERM and SIGHUP at the end of the block, so that a program that was started is known.

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
