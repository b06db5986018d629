"""Ctrl-C, and the other ways in which a command is told to end, as one: KeyboardInterrupt."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType

__all__ = ["all_as_keyboard_interrupt"]


@contextlib.contextmanager
def all_as_keyboard_interrupt() -> Iterator[None]:
    """Within the block SIGTERM and SIGHUP interrupt as Ctrl-C does, so that what must be undone is undone.

    One that is ignored, as under nohup, stays so.
    """
    names = ("SIGTERM", "SIGHUP")
    numbers = [getattr(signal, name) for name in names if hasattr(signal, name)]
    if threading.current_thread() is not threading.main_thread():
        numbers = []
    before = {number: signal.getsignal(number) for number in numbers}
    try:
        for number, handler in before.items():
            if handler != signal.SIG_IGN:
                signal.signal(number, _interrupt)
        yield
    finally:
        for number, handler in before.items():
            if handler is not None:  # Else it was set by what is no Python.
                signal.signal(number, handler)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
