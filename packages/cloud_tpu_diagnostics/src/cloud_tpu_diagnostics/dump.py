"""A dump of all threads as faulthandler writes it, made by Python: whole, and without holding up those threads."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import CodeType, FrameType

__all__ = ["dump_text", "write_in_parts"]

_DEEPEST = 100
"""Frames of a thread; faulthandler's limit too."""
_LONGEST_NAME = 500
_PART_BYTES = 1 << 16
_WAIT_SECONDS = 0.005
_MOST_WAITS = 200


def dump_text(interval_seconds: float, goes_on: Callable[[], bool]) -> str:
    """Returns the stacks of all threads but the caller's, newest thread first, under faulthandler's headline.

    faulthandler would stop at 100 threads, and hold the GIL for a third of a millisecond for each.

    Args:
        interval_seconds: For the headline.
        goes_on: Asked before each thread; False: the rest is not wanted any more. Who leaves the block meanwhile would
            wait for this thread at every call to the system, a switch interval each.
    """
    own = threading.get_ident()
    frames = sys._current_frames().items()
    known: dict[tuple[int, int], tuple[CodeType, str]] = {}
    threads = [_thread_text(ident, frame, known) for ident, frame in frames if ident != own and goes_on()]
    return f"Timeout ({_clock_text(interval_seconds)})!\n" + "\n".join(threads)


def write_in_parts(number: int, text: str, goes_on: Callable[[], bool]) -> None:
    """Writes to a file, or to a pipe or terminal that does not wait: its reader is waited for here, for a second.

    Args:
        number: The descriptor.
        text: What is written.
        goes_on: Asked before each part; False: the rest is not wanted any more.

    Raises:
        OSError: It cannot be written.
    """
    data = memoryview(text.encode("ascii", "backslashreplace"))
    waits = 0
    while data and waits < _MOST_WAITS and goes_on():
        try:
            data = data[os.write(number, data[:_PART_BYTES]) :]
        except BlockingIOError:
            waits += 1
            time.sleep(_WAIT_SECONDS)


def _thread_text(ident: int, frame: FrameType, known: dict[tuple[int, int], tuple[CodeType, str]]) -> str:
    return f"Thread 0x{ident:016x} (most recent call first):\n" + "".join(_frame_texts(frame, known))


def _frame_texts(innermost: FrameType, known: dict[tuple[int, int], tuple[CodeType, str]]) -> Iterator[str]:
    """Idle threads are at the same few places: each is looked up once, while others wait for the GIL."""
    frame: FrameType | None = innermost
    for _ in range(_DEEPEST):
        if frame is None:
            return
        code = frame.f_code
        place = (id(code), frame.f_lasti)  # By identity: to hash a code object is to hash all that it is made of.
        if place not in known:
            file, function = _in_one_line(code.co_filename), _in_one_line(code.co_name)
            known[place] = code, f'  File "{file}", line {frame.f_lineno or "???"} in {function}\n'
        yield known[place][1]
        frame = frame.f_back
    if frame is not None:
        yield "  ...\n"


def _in_one_line(name: str) -> str:
    """As faulthandler writes it: 500 characters at most, without those that end a line or rule a terminal."""
    if name.isprintable() and len(name) <= _LONGEST_NAME:
        return name
    end = "..." if len(name) > _LONGEST_NAME else ""
    return "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in name[:_LONGEST_NAME]) + end


def _clock_text(seconds: float) -> str:
    """Writes seconds as faulthandler does: 0:10:00, or 0:00:00.250000."""
    whole, microseconds = divmod(round(seconds * 1e6), 10**6)
    minutes, second = divmod(whole, 60)
    text = f"{minutes // 60}:{minutes % 60:02}:{second:02}"
    return f"{text}.{microseconds:06}" if microseconds else text
