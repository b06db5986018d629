"""A parser of faulthandler's dumps.

The format is that of `Python/traceback.c` and `Modules/faulthandler.c` of CPython 3.10 to 3.14. A dump starts with
`Timeout (0:10:00)!` (the timer) or `Fatal Python error: ...` (a fault); one that was requested by a signal starts with
a thread. The newest thread is first, with an empty line between two threads; after 100 threads, `...` ends the dump.

The format of an exception is our own (`exception_text`), in the same lines of frames:

    Exception left diagnose() at step 12: ValueError: batch 12 is empty
    Stack (most recent call first):
      File "/job/train.py", line 88 in train_step
      <950 frames left out>
    Caused by KeyError: 'y'
    Stack (most recent call first):
      ...
"""

from __future__ import annotations

import enum
import re
import sys
from functools import lru_cache
from typing import Final, NamedTuple

from cloud_tpu_diagnostics._dumps.text import EXCEPTION_START, HEADER_START

__all__ = [
    "Dump",
    "DumpParser",
    "Frame",
    "ThreadStack",
    "Trigger",
    "parse_dumps",
]

_MOST_LINE_BYTES = 2**16
"""faulthandler cuts names at 500 characters, of up to ten bytes as it writes them."""
_MOST_DUMP_CHARACTERS = 2**22
"""100 threads of 100 frames take 1 MB as a rule."""


class Trigger(str, enum.Enum):
    """The cause of a dump."""

    TIMER = "timer"
    SIGNAL = "signal"
    FAULT = "fault"
    EXCEPTION = "exception"
    """The block was left with one. Its stack is first, followed by those of the exceptions that it is linked to."""

    @property
    def is_last(self) -> bool:
        """True if the process, or its block, has ended with it."""
        return self in (Trigger.FAULT, Trigger.EXCEPTION)


class Frame(NamedTuple):
    """One call."""

    file: str
    line: int
    """0 if unknown."""
    function: str

    def __str__(self) -> str:
        """Return `train_step (/job/train.py:88)`."""
        return f"{self.function} ({self.file}:{self.line})"

    @classmethod
    def from_text(cls, text: str) -> Frame:
        """Return the frame of which `str` is the text.

        Raises:
            ValueError: It is not the text of a frame.
        """
        function, _, location = text.partition(" (")
        file, _, line = location.rpartition(":")
        if not line.endswith(")"):
            raise ValueError(f"expected a frame such as 'f (file.py:1)', got {text!r}")
        return cls(file, int(line[:-1]), function)


class ThreadStack(NamedTuple):
    """One thread."""

    thread: str
    """Its name as written: `0x00007f12`, `0x00007f12 [worker_3]`, a name, or nothing for a stack on its own. Of an
    exception linked to the first: `Caused by KeyError: 'y'`."""
    is_current: bool
    """True if it holds the GIL, received the signal, or raised the exception."""
    frames: tuple[Frame, ...]
    """Innermost first."""


class Dump(NamedTuple):
    """One dump."""

    trigger: Trigger
    headline: str
    """`Timeout (0:10:00)!`, `Fatal Python error: Segmentation fault`, the line of an exception, or nothing."""
    threads: tuple[ThreadStack, ...]
    is_cut: bool
    """True if not all threads were written: the oldest are missing, among them the main thread."""
    text: str
    """Its lines, without those that the program wrote between them."""

    @property
    def step(self) -> int | None:
        """The step that an exception ended, if the job published one."""
        found = _STEP.match(self.headline)
        return int(found[1]) if found is not None else None


def parse_dumps(text: str | bytes) -> list[Dump]:
    """Return all dumps in a text that may contain anything else; never raise."""
    parser = DumpParser()
    data = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    return parser.feed(data) + parser.finish()


class DumpParser:
    """Parses dumps as they are written, in pieces cut anywhere.

    It never raises, and holds one dump and one line at most, each capped.
    """

    def __init__(self) -> None:
        self._tail = b""
        self._skips_to_newline = False
        self._open = _OpenDump()
        self._after_empty_line = False

    def feed(self, data: bytes) -> list[Dump]:
        """Add what was written since the last call.

        Returns:
            The dumps that are complete now. The end of a dump that nothing follows is not visible: see `finish`.
        """
        if self._skips_to_newline:
            _, newline, data = data.partition(b"\n")
            self._skips_to_newline = not newline
        whole, newline, rest = data.rpartition(b"\n")
        if newline:
            whole, self._tail = b"".join((self._tail, whole, newline)), rest
        else:
            whole, self._tail = b"", self._tail + rest
        if len(self._tail) > _MOST_LINE_BYTES:
            self._tail, self._skips_to_newline = b"", True
        return self._read(whole.decode("utf-8", "backslashreplace")) if whole else []

    def finish(self) -> list[Dump]:
        """Return the open dump, if there is one; call it at the end, or when nothing was added for a while."""
        tail, self._tail = self._tail, b""
        dumps = self._read(tail.decode("utf-8", "backslashreplace") + "\n") if tail else []
        self._after_empty_line = False
        return dumps + self._close()

    def _read(self, text: str) -> list[Dump]:
        """Return the dumps that these whole lines complete."""
        complete: list[Dump] = []
        for match in _PIECES.finditer(text.replace("\r\n", "\n") if "\r" in text else text):
            kind = match.lastgroup
            if kind == "other":
                line = match.group()
                start = _START_IN_LINE.search(line, 1)
                if start is not None:  # For example after a progress bar, which does not end its line.
                    self._after_empty_line = False
                    complete += self._read(line[start.start() :])
                    continue
            elif kind is not None:
                complete += self._take(kind, match)
            self._after_empty_line = kind == "empty" or (kind == "thread" and match["gap"] != "")
        return complete

    def _take(self, kind: str, piece: re.Match[str]) -> list[Dump]:
        text = piece[0]
        if kind == "linked":
            if self._open.trigger is Trigger.EXCEPTION:
                self._open.link(text)
            return []
        if kind == "thread":
            thread_id, name, current, stack = piece.group("id", "name", "current", "stack")
            complete = [] if self._goes_on_with(thread_id) else self._close()
            self._open.add_thread(thread_id, name, current is not None, stack, text)
            return complete
        if kind in ("header", "timeout", "fault", "exception"):
            return self._start_dump(kind, text)
        if kind == "cut":
            return self._cut(text)
        if kind == "frames":
            self._open.add_frames(text)
        elif kind != "empty":
            self._open.add_text(text)
        elif not self._after_empty_line:
            self._open.add_text("\n")
        # The names of modules are a fault's last line.
        return self._close() if kind == "modules" and self._open.trigger is Trigger.FAULT else []

    def _goes_on_with(self, thread_id: str | None) -> bool:
        """Return True if a thread belongs to the open dump: its first follows no empty line, and none is repeated."""
        if self._open.trigger is Trigger.EXCEPTION:
            return thread_id is None and (self._open.is_linked or not self._open.threads)
        if not self._open.threads:
            return True
        return self._after_empty_line and thread_id is not None and thread_id not in self._open.ids

    def _start_dump(self, kind: str, line: str) -> list[Dump]:
        closed = [] if kind == "timeout" and self._open.is_only_a_header() else self._close()
        self._open.trigger = _TRIGGERS.get(kind, Trigger.TIMER)
        if kind != "header":
            self._open.headline = line.rstrip("\n")
        self._open.add_text(line)
        return closed

    def _cut(self, line: str) -> list[Dump]:
        if not self._open.threads or not self._after_empty_line:
            return []
        self._open.add_text(line)
        self._open.is_cut = True
        # A fault's names of modules follow.
        return [] if self._open.trigger is Trigger.FAULT else self._close()

    def _close(self) -> list[Dump]:
        dump, self._open = self._open, _OpenDump()
        return [dump.finished()] if dump.threads or dump.headline else []


class _OpenDump:
    """A dump that is being read."""

    def __init__(self) -> None:
        self.trigger = Trigger.SIGNAL
        self.headline = ""
        self.threads: list[ThreadStack] = []
        self.ids: set[str] = set()
        self.is_cut = False
        self._texts: list[str] = []
        self._space_left = _MOST_DUMP_CHARACTERS
        self._linked = ""

    @property
    def is_linked(self) -> bool:
        """True if the next stack is of an exception that the previous one is linked to."""
        return bool(self._linked)

    def link(self, line: str) -> None:
        self._linked = line.rstrip("\n")
        self.add_text(line)

    def is_only_a_header(self) -> bool:
        return self.trigger is Trigger.TIMER and not self.headline and not self.threads

    def add_thread(self, thread_id: str | None, name: str | None, is_current: bool, stack: str, text: str) -> None:
        if not self._add(text):
            return
        if thread_id is not None:
            self.ids.add(thread_id)
        thread = (thread_id or self._linked) + (f" [{name}]" if name else "")
        is_current = is_current or (thread_id is None and not self._linked)
        self.threads.append(ThreadStack(thread, is_current, _frames(stack)))
        self._linked = ""

    def add_frames(self, text: str) -> None:
        """Add frames that lines of the program, or the end of a piece, have separated from their thread."""
        if self.threads and self._add(text):
            last = self.threads[-1]
            self.threads[-1] = last._replace(frames=last.frames + _frames(text))

    def add_text(self, text: str) -> None:
        if self._texts or self.trigger is not Trigger.SIGNAL:
            self._add(text)

    def _add(self, text: str) -> bool:
        self._space_left -= len(text)
        if self._space_left < 0:
            self._space_left = 0  # Later, shorter lines are left out as well.
            self.is_cut = True
            return False
        self._texts.append(text)
        return True

    def finished(self) -> Dump:
        text = "".join(self._texts).rstrip("\n") + "\n"
        return Dump(self.trigger, self.headline, tuple(self.threads), self.is_cut, text)


# One piece is a line, or a thread with its frames. Every line is in one, so that nothing is searched twice.
_FRAME_LINES = (
    r"(?:[ ]{2}(?:File[ ][^\n]*line[ ](?:\d+|\?\?\?)[ ]in[ ][^\n]*|<[a-zA-Z ]+>|<\d+[ ]frames[ ]left[ ]out>"
    r"|\.\.\.|Garbage-collecting)\n)"
)
_PIECES = re.compile(
    rf"""
    (?P<thread>
        (?:(?:(?P<current>Current[ ]t)|T)hread[ ](?P<id>0x[0-9a-fA-F]{{1,16}})(?:[ ]\[(?P<name>[^\n]*)\])?|Stack)
        [ ]\(most[ ]recent[ ]call[ ]first\):\n
        (?P<stack>{_FRAME_LINES}*)
        (?P<gap>\n?)
    )
    | (?P<frames>{_FRAME_LINES}+)
    | (?P<empty>\n+)
    | (?P<cut>\.\.\.\n)
    | (?P<header>{re.escape(HEADER_START)}[^\n]*\n)
    | (?P<timeout>Timeout[ ]\(\d+:\d\d:\d\d(?:\.\d+)?\)!\n)
    | (?P<fault>Fatal[ ]Python[ ]error:[^\n]*\n)
    | (?P<exception>{re.escape(EXCEPTION_START)}(?:[ ]at[ ]step[ ]-?\d+)?:[ ][^\n]*\n)
    | (?P<linked>(?:Caused[ ]by|While[ ]handling|In[ ]the[ ]group)[ ][^\n]*\n)
    | (?P<modules>Extension[ ]modules:[^\n]*\n)
    | (?P<detail>(?:
        Python[ ]runtime[ ]state:
        | Current[ ]thread's[ ]C[ ]stack[ ]trace[ ]
        | [ ][ ]Binary[ ]file[ ]
        | <Cannot[ ]show[ ]all[ ]threads[ ]
      )[^\n]*\n)
    | (?P<other>[^\n]*\n)
    """,
    re.VERBOSE,
)
_START_IN_LINE = re.compile(
    rf"""
    {re.escape(HEADER_START)} | {re.escape(EXCEPTION_START)} | Timeout[ ]\(\d+:\d\d:\d\d | Fatal[ ]Python[ ]error:
    | (?:Current[ ]t|T)hread[ ]0x[0-9a-fA-F]{{1,16}}[ ] | Stack[ ]\(most[ ]recent[ ]call[ ]first\):
    """,
    re.VERBOSE,
)
_FRAME = re.compile(r'  File (?:"([^\n]*)"|([^\n]*)), line (\d{1,18}|\?\?\?) in ([^\n]*)\n|  <(\d+ frames left out)>\n')
_STEP = re.compile(re.escape(EXCEPTION_START) + r" at step (-?\d{1,18}):")
_TRIGGERS: Final = {"fault": Trigger.FAULT, "exception": Trigger.EXCEPTION}


@lru_cache(maxsize=2048)  # Most threads wait in the same frames as others, and as before.
def _frames(text: str) -> tuple[Frame, ...]:
    """Return frames without faulthandler's marks: `  ...`, `  <no Python frame>`.

    A mark for frames that were left out of an exception's stack is a frame without a file, so that its position shows.
    """
    return tuple(
        Frame("", 0, f"... {left_out} ...")
        if left_out
        else Frame(sys.intern(file or unquoted), 0 if line == "???" else int(line), sys.intern(function))
        for file, unquoted, line, function, left_out in _FRAME.findall(text)
    )
