"""Dumps as text: all threads in faulthandler's format, and exceptions in the same format.

Unlike faulthandler, this module writes all threads, and cannot crash a running program.
"""

from __future__ import annotations

import os
import select
import threading
import time
from collections.abc import Callable, Collection, Iterator
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Final

from ml_diagnostics_common.thread_frames import current_frames

if TYPE_CHECKING:
    from ml_diagnostics_common.raised_exception import CodeLocation

__all__ = [
    "EXCEPTION_START",
    "HEADER_START",
    "PIPE_BYTES",
    "dump_text",
    "exception_text",
    "header",
    "open_nonblocking",
    "signal_dump_text",
    "write_at_once",
    "write_in_parts",
]

HEADER_START: Final = "INFO: Not a crash. cloud-tpu-diagnostics emits a stack trace snapshot every "
EXCEPTION_START: Final = "Exception left diagnose()"

PIPE_BYTES: Final = 4096
"""PIPE_BUF of Linux: a pipe that polls as writable accepts so many in one write."""

_DEEPEST = 100
"""Frames of a thread; also faulthandler's limit."""
_LONGEST_NAME = 500
_PART_BYTES = 1 << 16
_WAIT_SECONDS = 0.005
_MOST_WAITS = 200


def dump_text(interval_seconds: float, goes_on: Callable[[], bool], leave_out: Collection[int] = ()) -> str:
    """Return the stacks of all threads except the caller's, newest thread first, under faulthandler's headline.

    faulthandler would stop at 100 threads, and hold the GIL for a third of a millisecond for each.

    Args:
        interval_seconds: The interval that the headline shows.
        goes_on: Called before each thread; False leaves out the rest. A thread that leaves the block meanwhile would
            otherwise wait for this one at every system call, a switch interval each.
        leave_out: Identifiers of further threads of this package.
    """
    left_out = {threading.get_ident(), *leave_out}
    frames = current_frames().items()
    known: dict[tuple[int, int], tuple[CodeType, str]] = {}
    threads = [_thread_text(ident, frame, known) for ident, frame in frames if ident not in left_out and goes_on()]
    return f"Timeout ({_clock_text(interval_seconds)})!\n" + "\n".join(threads)


def signal_dump_text(handler: CodeType, leave_out: Collection[int] = ()) -> str:
    """Return the stacks of all threads as faulthandler writes them on a signal: the main thread is the current one.

    Args:
        handler: The handler of the signal; the main thread is shown as it was before that interrupted it.
        leave_out: Identifiers of threads of this package.
    """
    main = threading.main_thread().ident
    known: dict[tuple[int, int], tuple[CodeType, str]] = {}
    frames = current_frames()
    outer: FrameType | None = frames.get(main or 0)
    while outer is not None:
        if outer.f_code is handler and outer.f_back is not None and main is not None:
            frames[main] = outer.f_back
        outer = outer.f_back
    threads = [
        ("Current t" if ident == main else "T") + _thread_text(ident, frame, known)[1:]
        for ident, frame in frames.items()
        if ident not in leave_out
    ]
    return "\n".join(threads)


def header(interval_seconds: float) -> str:
    """Return the line that precedes a periodic dump."""
    return f"{HEADER_START}{interval_seconds} seconds.\n"


def exception_text(error: BaseException, step: int | None) -> str:
    """Return lines with an exception, where it was raised, and the exceptions that it is linked to; never raise.

    Args:
        error: The exception with which the block was left.
        step: The step in which it was raised, if the job published one.
    """
    from ml_diagnostics_common.raised_exception import describe_exception  # Few blocks fail.

    lines = []
    for raised in describe_exception(error):
        if raised.relation:
            lines.append(f"{raised.relation.capitalize()} {raised.title}")
        else:
            lines.append(f"{EXCEPTION_START}{'' if step is None else f' at step {step}'}: {raised.title}")
        lines.append("Stack (most recent call first):")
        lines += [_exception_line(frame) for frame in raised.frames]
    return "".join(f"{line}\n" for line in lines)


def _exception_line(frame: CodeLocation) -> str:
    if not frame.file:
        return f"  <{frame.function.strip('. ')}>"
    return f'  File "{frame.file}", line {frame.line or "???"} in {frame.function}'


def open_nonblocking(number: int) -> int | None:
    """Open the same pipe or terminal again, with an O_NONBLOCK of its own.

    Set on the given descriptor, the flag would make prints fail in the job and in all processes that share it.

    Returns:
        Another descriptor; None for a pipe without a reader, or another user's terminal.
    """
    flags = os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC | os.O_APPEND
    for path in (f"/proc/self/fd/{number}", f"/dev/fd/{number}"):
        try:
            return os.open(path, flags)
        except OSError:  # There is no such file here, for example.
            continue
    return None


def write_in_parts(number: int, text: str, goes_on: Callable[[], bool], *, is_nonblocking: bool = True) -> None:
    """Write to a file, a pipe or a terminal; wait for its reader here, for a second.

    Args:
        number: The descriptor.
        text: The text.
        goes_on: Called before each part; False drops the rest.
        is_nonblocking: True if writes to it never wait.

    Raises:
        OSError: It cannot be written.
    """
    data = memoryview(text.encode("ascii", "backslashreplace"))
    waits = 0
    while data and waits < _MOST_WAITS and goes_on():
        rest = write_at_once(number, data, is_nonblocking=is_nonblocking)
        if rest:
            waits += 1
            time.sleep(_WAIT_SECONDS)
        data = rest


def write_at_once(number: int, data: memoryview, *, is_nonblocking: bool) -> memoryview:
    """Write as much as fits without waiting; return the rest.

    Raises:
        OSError: It cannot be written.
    """
    poller = select.poll()
    poller.register(number, select.POLLOUT)
    while data and (is_nonblocking or poller.poll(0)):
        try:
            data = data[os.write(number, data[: _PART_BYTES if is_nonblocking else PIPE_BYTES]) :]
        except BlockingIOError:
            break
    return data


def _thread_text(ident: int, frame: FrameType, known: dict[tuple[int, int], tuple[CodeType, str]]) -> str:
    return f"Thread 0x{ident:016x} (most recent call first):\n" + "".join(_frame_texts(frame, known))


def _frame_texts(innermost: FrameType, known: dict[tuple[int, int], tuple[CodeType, str]]) -> Iterator[str]:
    """Yield the lines of a stack; each position is formatted once, as idle threads share a few and the GIL is held."""
    frame: FrameType | None = innermost
    for _ in range(_DEEPEST):
        if frame is None:
            return
        code = frame.f_code
        position = (id(code), frame.f_lasti)  # By identity: to hash a code object is to hash all that it is made of.
        if position not in known:
            file, function = _in_one_line(code.co_filename), _in_one_line(code.co_name)
            known[position] = code, f'  File "{file}", line {frame.f_lineno or "???"} in {function}\n'
        yield known[position][1]
        frame = frame.f_back
    if frame is not None:
        yield "  ...\n"


def _in_one_line(name: str) -> str:
    """Return a name as faulthandler writes it: at most 500 characters, without line ends and control characters."""
    if name.isprintable() and len(name) <= _LONGEST_NAME:
        return name
    end = "..." if len(name) > _LONGEST_NAME else ""
    return "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in name[:_LONGEST_NAME]) + end


def _clock_text(seconds: float) -> str:
    """Return seconds as faulthandler writes them: 0:10:00, or 0:00:00.250000."""
    whole, microseconds = divmod(round(seconds * 1e6), 10**6)
    minutes, second = divmod(whole, 60)
    text = f"{minutes // 60}:{minutes % 60:02}:{second:02}"
    return f"{text}.{microseconds:06}" if microseconds else text
