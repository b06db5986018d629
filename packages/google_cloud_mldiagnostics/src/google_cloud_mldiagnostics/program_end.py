"""How the program was left, by its outermost frame: at its last line, or by an exception.

Before anything of ours runs, the interpreter has let go of the SystemExit that ends a program. But the frame that was
the program's, if somebody keeps it, still has the instruction that it came to last.
"""

from __future__ import annotations

import enum
import sys
import threading
from opcode import opname
from types import FrameType

__all__ = ["ProgramEnd", "how_it_was_left", "program_frame"]


class ProgramEnd(enum.Enum):
    """How the program was left."""

    RETURNED = "at its last line"
    RAISED = "by an exception"
    UNKNOWN = "it goes on, or nothing tells"


def program_frame() -> FrameType | None:
    """Returns the outermost frame of the main thread; None if that is not the program's, as where C embeds Python."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    while frame is not None and frame.f_back is not None:
        frame = frame.f_back
    if frame is None:
        return None
    name, module = frame.f_code.co_name, frame.f_globals.get("__name__")
    return frame if (name, module) in (("<module>", "__main__"), ("_run_module_as_main", "runpy")) else None


def how_it_was_left(frame: FrameType | None) -> ProgramEnd:
    """Tells how a program's frame has ended; to be asked in the main thread, when the interpreter ends."""
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
