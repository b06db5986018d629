"""How a program ends: at its last line or by an exception, why in words, and by Ctrl-C as shells expect it.

Before anything of ours runs, the interpreter has released the SystemExit that ends a program. But the program's
outermost frame, if something keeps it, still has the instruction that it executed last.
"""

from __future__ import annotations

import atexit
import enum
import sys
import threading
import time
from collections.abc import Callable
from opcode import opname
from types import FrameType
from typing import Final

from ml_diagnostics_common.thread_frames import current_frames

__all__ = [
    "UNSEEN_EXIT",
    "ProgramEnd",
    "exit_deadline",
    "exit_failure",
    "failure_of",
    "how_it_was_left",
    "last_uncaught",
    "preserve_interrupt",
    "program_frame",
]

UNSEEN_EXIT: Final = "ended by a SystemExit whose code is not seen from inside"
"""The reason of a program that seems to have ended well; a process that sees the exit code may correct it."""

_LONGEST_REASON: Final = 500


class ProgramEnd(enum.Enum):
    """How the program was left."""

    RETURNED = "at its last line"
    RAISED = "by an exception"
    UNKNOWN = "it is still running, or its frame is not known"


def program_frame() -> FrameType | None:
    """Return the outermost frame of the main thread; None if that is not the program's, as where C embeds Python."""
    frame = current_frames().get(threading.main_thread().ident or 0)
    while frame is not None and frame.f_back is not None:
        frame = frame.f_back
    if frame is None:
        return None
    name, module = frame.f_code.co_name, frame.f_globals.get("__name__")
    return frame if (name, module) in (("<module>", "__main__"), ("_run_module_as_main", "runpy")) else None


def how_it_was_left(frame: FrameType | None) -> ProgramEnd:
    """Return how a program's frame has ended; to be called in the main thread, while the interpreter ends."""
    if frame is None or _runs(frame):
        return ProgramEnd.UNKNOWN
    try:
        last = opname[frame.f_code.co_code[frame.f_lasti]]
    except IndexError:
        return ProgramEnd.UNKNOWN
    return ProgramEnd.RETURNED if last.startswith("RETURN_") else ProgramEnd.RAISED


def _runs(frame: FrameType) -> bool:
    other: FrameType | None = sys._getframe()
    while other is not None and other is not frame:
        other = other.f_back
    return other is frame


def last_uncaught() -> BaseException | None:
    """Return the exception that the interpreter printed last, because the program did not catch it."""
    error = getattr(sys, "last_value", None)
    return error if isinstance(error, BaseException) else None


# --- In words -----------------------------------------------------------------------------------------


def failure_of(error: BaseException) -> str:
    """Return why an uncaught exception is a failure: short, without secrets; empty for `sys.exit(0)`."""
    if isinstance(error, SystemExit):
        return exit_failure(error.code)
    from ml_diagnostics_common.raised_exception import message_of  # See `_redacted`.

    name, message = type(error).__name__, message_of(error)
    return f"{name}: {message}" if message else name


def exit_failure(code: object) -> str:
    """Return why `sys.exit(code)` is a failure; empty where it is not."""
    if code is None or (isinstance(code, int) and code == 0):
        return ""
    if isinstance(code, int):
        return f"sys.exit({int(code)})"
    try:
        return f"sys.exit: {_redacted(str(code))}"
    except Exception:
        return "sys.exit(1)"


def _redacted(text: str) -> str:
    from ml_diagnostics_common.redaction import redact_text  # Its patterns cost milliseconds; most programs end well.

    return redact_text(text[:_LONGEST_REASON])


def exit_deadline(seconds: float, clock: Callable[[], float] = time.monotonic) -> float:
    """Return the moment, of the monotonic clock, until which something may hold up the end of the process.

    All that does so shares the time: several libraries that wait one after the other for a network that does not answer
    hold up the end as long as one of them would. A tenth of the time is for the interpreter.

    Args:
        seconds: How long the end may take, from the first call on.
        clock: The monotonic clock.
    """
    global _end_started
    now = clock()
    if _end_started is None or now - _end_started > _STILL_RUNS_SECONDS:
        _end_started = now
    return max(_end_started + _WAITING_SHARE * seconds, now + _LEAST_SECONDS)


_WAITING_SHARE: Final = 0.9
_LEAST_SECONDS: Final = 0.1
"""Enough to see that all has arrived already."""
_STILL_RUNS_SECONDS: Final = 60.0
"""A process that runs for so long after an end, as by a signal, did not end then."""


# --- Ctrl-C -------------------------------------------------------------------------------------------


def preserve_interrupt() -> None:
    """Have a program that an uncaught KeyboardInterrupt ends die of SIGINT, whatever our threads do until then.

    CPython remembers such an end in a flag, which each `exec` of a string resets, also one within an import and in any
    thread (run_eval_code_obj in Python/pythonrun.c). Without it the exit status is 1, and a shell's loop goes on after
    Ctrl-C. Libraries call this when they start threads that may import something while the program ends.
    """
    global _is_interrupt_preserved
    if not _is_interrupt_preserved:
        _is_interrupt_preserved = True
        atexit.register(_note_interrupt, program_frame())


def _note_interrupt(program: FrameType | None) -> None:
    """Note, when the program has ended, if Ctrl-C was the reason: later, the interpreter does not know it."""
    error = last_uncaught()
    # A console in a program prints such exceptions and goes on; theirs do not start in the program's frame.
    if (
        type(error) is KeyboardInterrupt
        and error.__traceback__ is not None
        and error.__traceback__.tb_frame is program
        and how_it_was_left(program) is ProgramEnd.RAISED
    ):
        # The interpreter clears `sys` after all modules, of which some are leaked, and when no thread runs any more.
        setattr(sys, "_ml_diagnostics_interrupt", _Interrupt())  # noqa: B010


class _Interrupt:
    """Sets CPython's flag again when it is deleted."""

    def __del__(self) -> None:
        try:
            exec("raise KeyboardInterrupt", {})  # A string: only that sets the flag.
        except KeyboardInterrupt:
            pass


# State of the process: it ends once.
_is_interrupt_preserved = False
_end_started: float | None = None
