"""The end of a program, seen from inside: at its last line, by `sys.exit` or an exception; the reason; and Ctrl-C.

Before anything of ours runs, the interpreter has released the SystemExit that ends a program. But the program's
outermost frame, if something keeps it, still has the instruction that it executed last.
"""

from __future__ import annotations

import atexit
import builtins
import enum
import functools
import os
import sys
import threading
import time
from collections.abc import Callable
from opcode import opname
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ml_diagnostics_common.thread_frames import current_frames

if TYPE_CHECKING:
    from ml_diagnostics_common.file_systems import FileSystem, FileSystemProbes
    from ml_diagnostics_common.raised_exception import RaisedException

__all__ = [
    "UNSEEN_EXIT",
    "ExitHooks",
    "ProgramEnd",
    "exit_deadline",
    "exit_failure",
    "failure_of",
    "last_uncaught",
    "preserve_interrupt",
    "program_frame",
    "program_outcome",
]

UNSEEN_EXIT: Final = "ended by a SystemExit whose code is not seen from inside"
"""The reason of a program that seems to have ended well; a process that sees the exit code may correct it."""

_LONGEST_REASON: Final = 500


class ProgramEnd(enum.Enum):
    """The exit of the program."""

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


def program_outcome(frame: FrameType | None) -> ProgramEnd:
    """Return the outcome of a program by its frame; to be called in the main thread, while the interpreter ends."""
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


# --- Reasons ------------------------------------------------------------------------------------------


def failure_of(error: BaseException) -> str:
    """Return why an uncaught exception is a failure: short, without secrets; empty for `sys.exit(0)`."""
    if isinstance(error, SystemExit):
        return exit_failure(error.code)
    from ml_diagnostics_common.raised_exception import message_of  # See `_redacted`.

    name, message = type(error).__name__, message_of(error)
    return f"{name}: {message}" if message else name


class _Failure(NamedTuple):
    """The exception that ends the program, and the file systems that it is about."""

    raised: tuple[RaisedException, ...] = ()
    probes: FileSystemProbes | None = None
    """Started at once: Python 3.12 starts no thread any more when the program has ended (gh-104690)."""

    @classmethod
    def of(cls, error: BaseException) -> _Failure:
        from ml_diagnostics_common.file_systems import FileSystemProbes  # See `_redacted`.
        from ml_diagnostics_common.raised_exception import describe_exception, failed_paths

        raised = describe_exception(error)
        paths = failed_paths(raised)
        return cls(raised, FileSystemProbes(paths) if paths else None)


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
        and program_outcome(program) is ProgramEnd.RAISED
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


# --- Hooks --------------------------------------------------------------------------------------------


class ExitHooks:
    """Report the end of this process: `sys.exit`, an uncaught exception, or the program's last line.

    Several objects in a process do not disturb each other. Each hook calls the hook that it replaced, and restores it
    afterwards, unless the program has installed another one since. In a forked child the hooks do nothing.

    A SystemExit that is raised by hand, or by a `sys.exit` that was imported by name before, is known to have ended the
    program, but not with which code.

    Args:
        end: Called while the interpreter ends, in the main thread, with whether the program has failed, and the reason:
            empty for one that ended well, UNSEEN_EXIT for one that seems to have.
    """

    def __init__(self, end: Callable[[bool, str], object]) -> None:
        self._end = end
        self._pid = os.getpid()
        self._is_installed = False
        self._failure = ""
        self._uncaught = _Failure()
        self._exit: tuple[int, str] | None = None
        self._uncaught_before: BaseException | None = None
        self._program: FrameType | None = None
        self._exits: list[tuple[Any, str, Any, Any]] = []  # Module, name, the previous function, and ours.
        self._previous_excepthook: Callable[..., Any] = sys.excepthook
        self._own_excepthook = self._on_uncaught  # One object, so that it is recognised.

    def install(self) -> None:
        """Start watching. Ctrl-C ends the program as it would without us: see `preserve_interrupt`."""
        self._is_installed = True
        self._uncaught_before = last_uncaught()
        self._program = program_frame()
        self._wrap_exit(sys, "exit")
        if not _is_interactive():  # There, users call these, and read what their repr prints.
            self._wrap_exit(builtins, "exit")
            self._wrap_exit(builtins, "quit")
        self._previous_excepthook, sys.excepthook = _living(sys.excepthook), self._own_excepthook
        preserve_interrupt()
        atexit.register(self._at_exit)

    def uninstall(self) -> None:
        """Stop watching, and restore the previous hooks; under a later hook, ours stays and does nothing."""
        self._is_installed = False
        for module, name, previous, own in self._exits:
            if getattr(module, name, None) is own:
                setattr(module, name, previous)
        if sys.excepthook is self._own_excepthook:
            sys.excepthook = self._previous_excepthook
        atexit.unregister(self._at_exit)

    def is_watching(self) -> bool:
        """Return True in the process that installed the hooks, until they are uninstalled."""
        return self._is_installed and os.getpid() == self._pid

    @property
    def previous_excepthook(self) -> Callable[..., Any]:
        """The excepthook that ours has replaced."""
        return self._previous_excepthook

    @property
    def failure(self) -> str:
        """Why the program has failed, once an exception was not caught; empty before."""
        return self._failure

    @property
    def raised(self) -> tuple[RaisedException, ...]:
        """The uncaught exception, and those that it is linked to; empty before."""
        return self._uncaught.raised

    def file_systems(self) -> list[FileSystem]:
        """Return the file systems that the exception is about; waits a moment for those that do not answer."""
        return self._uncaught.probes.answers() if self._uncaught.probes is not None else []

    def _at_exit(self) -> None:
        if self.is_watching():
            outcome = program_outcome(self._program)
            failure = self._failure_at_exit(outcome)
            is_unseen = not failure and outcome is ProgramEnd.RAISED and self._exit is None and not _is_interactive()
            self._end(bool(failure), UNSEEN_EXIT if is_unseen else failure)

    def _failure_at_exit(self, outcome: ProgramEnd) -> str:
        if self._failure:
            return self._failure
        if outcome is ProgramEnd.RETURNED:
            return ""  # The program has caught that SystemExit, and kept it.
        if self._exit is not None:
            return self._exit[1]
        # An excepthook that was put over ours did not call it: rich's, for one.
        uncaught = last_uncaught()
        is_new = uncaught is not None and uncaught is not self._uncaught_before
        if uncaught is not None and is_new and sys.excepthook is not self._own_excepthook and not _is_interactive():
            self._uncaught = _Failure.of(uncaught)
            return failure_of(uncaught)
        return ""

    def _wrap_exit(self, module: Any, name: str) -> None:
        previous = _living(getattr(module, name, None))  # Python may run without those of `site`.
        if previous is not None:
            own = functools.partial(self._leave, previous)
            self._exits.append((module, name, previous, own))
            setattr(module, name, own)

    def _leave(self, leave: Callable[[Any], object], status: Any = None) -> None:
        try:
            leave(status)
        except SystemExit as error:
            if not self.is_watching() or threading.current_thread() is not threading.main_thread():
                raise
            if isinstance(error, _NotedExit):  # By other hooks, which recognise this object.
                self._note(error)
                raise
            raise self._noted(error) from None  # Not by a name of this frame's: the exception would keep itself.

    def _noted(self, error: SystemExit) -> SystemExit:
        noted = _NotedExit(*error.args)
        self._note(noted)
        return noted

    def _note(self, noted: _NotedExit) -> None:
        noted.hooks = (*noted.hooks, self)
        self._exit = (id(noted), exit_failure(noted.code))

    def forget_exit(self, exit_id: int) -> None:
        """Take back a note: the program has caught that SystemExit."""
        if self._exit is not None and self._exit[0] == exit_id:
            self._exit = None

    def _on_uncaught(self, kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
        try:
            # Programs call the hook themselves too, to show an exception that they have caught.
            if self.is_watching() and error is last_uncaught() and not _is_interactive():
                self._failure = failure_of(error)
                self._uncaught = _Failure.of(error)
        finally:
            self._previous_excepthook(kind, error, traceback)


class _NotedExit(SystemExit):
    """The exception of `sys.exit`, to be recognised: one that the program catches ends nothing.

    One that ends the program is released by the interpreter, when no Python code runs any more; one that is caught, by
    the code that has caught it.
    """

    hooks: tuple[ExitHooks, ...] = ()

    def __del__(self) -> None:
        try:
            sys._getframe(1)
            is_caught = threading.main_thread().is_alive()
        except Exception:  # ValueError: there is no caller. Or the interpreter is being taken apart.
            return
        if is_caught:
            for hooks in self.hooks:
                hooks.forget_exit(id(self))

    def __reduce__(self) -> tuple[type[SystemExit], tuple[object, ...]]:
        """Become the exception of `sys.exit` where the program sends it to another process."""
        return SystemExit, self.args


# To the program and its users, in tracebacks and in logs, it is what `sys.exit` raises.
_NotedExit.__name__ = _NotedExit.__qualname__ = SystemExit.__qualname__
_NotedExit.__module__ = SystemExit.__module__


def _living(hook: Any) -> Any:
    """Return a hook; in place of one that was uninstalled but not removed, by another thread, the one before it."""
    while True:
        method, *arguments = (hook.func, *hook.args) if isinstance(hook, functools.partial) else (hook,)
        owner = getattr(method, "__self__", None)
        if not isinstance(owner, ExitHooks) or owner.is_watching():
            return hook
        hook = arguments[0] if arguments else owner.previous_excepthook


def _is_interactive() -> bool:
    """Return True if the program goes on after an uncaught exception."""
    return hasattr(sys, "ps1") or bool(sys.flags.interactive)
