"""How this process ends, seen from inside: `sys.exit`, an exception that nobody catches, SIGTERM, or its last line.

Each hook is chained: what was there before is called as ever, and put back afterwards, unless somebody else has come
in between. In a forked child they do nothing of ours.

Of a SystemExit that is raised by hand, or by a `sys.exit` that was imported by name before the run began, it is seen
that it ended the program, but not with which code.
"""

from __future__ import annotations

import atexit
import builtins
import functools
import os
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any

from ml_diagnostics_common.guard import LOSSES, warn_once

from google_cloud_mldiagnostics.failures import UNSEEN_EXIT, exit_failure, failure_of
from google_cloud_mldiagnostics.program_end import ProgramEnd, how_it_was_left, program_frame

__all__ = ["ExitHooks"]

_MOST_BYTES = 65_536


class ExitHooks:
    """Tells how this process ends.

    Args:
        end: Called with COMPLETED or FAILED, and the reason, when the process ends; it waits a bounded time, and may be
            called in a signal handler, again, while it waits.
        tell_signal: Called with a signal's name when it has come, and a handler of the user's decides what follows.
    """

    def __init__(self, end: Callable[[str, str], object], tell_signal: Callable[[str], object]) -> None:
        self._end = end
        self._tell_signal = tell_signal
        self._pid = os.getpid()
        self._is_installed = False
        self._failure = ""
        self._exit: tuple[int, str] | None = None
        self._uncaught_before: BaseException | None = None
        self._program: FrameType | None = None
        self._exits: list[tuple[Any, str, Any, Any]] = []  # Where it is, its name, what was there before, and ours.
        self._previous_excepthook: Callable[..., Any] = sys.excepthook
        self.previous_sigterm: Any = None
        # One object each, so that it is known again.
        self._own_excepthook = self._on_uncaught
        self._own_sigterm = self._on_sigterm

    def install(self) -> None:
        """Begins to look. Off the main thread without signals: Python has none there."""
        self._is_installed = True
        self._uncaught_before = _last_uncaught()
        self._program = program_frame()
        self._wrap_exit(sys, "exit")
        if not _is_interactive():  # There they are for people, who read what they print.
            self._wrap_exit(builtins, "exit")
            self._wrap_exit(builtins, "quit")
        self._previous_excepthook, sys.excepthook = _living(sys.excepthook), self._own_excepthook
        atexit.register(self._at_exit)
        if threading.current_thread() is threading.main_thread():
            self._install_sigterm()
        if not threading.main_thread().is_alive():
            warn_once(
                "begun at exit",
                "A run was begun while the interpreter ends, where Python calls nobody any more who would see it end. "
                "Call its finish().",
            )

    def uninstall(self) -> None:
        """Stops looking, and puts back what was there; what others have put over ours stays, and ours does nothing."""
        self._is_installed = False
        for place, name, previous, own in self._exits:
            if getattr(place, name, None) is own:
                setattr(place, name, previous)
        if sys.excepthook is self._own_excepthook:
            sys.excepthook = self._previous_excepthook
        atexit.unregister(self._at_exit)
        is_main = threading.current_thread() is threading.main_thread()
        if is_main and self.previous_sigterm is not None and signal.getsignal(signal.SIGTERM) is self._own_sigterm:
            signal.signal(signal.SIGTERM, self.previous_sigterm)

    def previous(self, own: object) -> Any:
        """What was there before one of ours: the excepthook, or the handler of SIGTERM."""
        return self._previous_excepthook if own == self._own_excepthook else self.previous_sigterm

    def is_looking(self) -> bool:
        """Whether this is the process that installed the hooks, and it still looks."""
        return self._is_installed and os.getpid() == self._pid

    # --- The last line, sys.exit, and exceptions ------------------------------------------------------

    def _at_exit(self) -> None:
        if self.is_looking():
            how = how_it_was_left(self._program)
            failure = self._failure_at_exit(how)
            is_unseen = not failure and how is ProgramEnd.RAISED and self._exit is None and not _is_interactive()
            self._end("FAILED" if failure else "COMPLETED", UNSEEN_EXIT if is_unseen else failure)

    def _failure_at_exit(self, how: ProgramEnd) -> str:
        if self._failure:
            return self._failure
        if how is ProgramEnd.RETURNED:
            return ""  # Somebody has caught that SystemExit, and kept it.
        if self._exit is not None:
            return self._exit[1]
        # Somebody's excepthook, put over ours, did not call it: rich's, for one.
        uncaught = _last_uncaught()
        is_new = uncaught is not None and uncaught is not self._uncaught_before
        if uncaught is not None and is_new and sys.excepthook is not self._own_excepthook and not _is_interactive():
            return failure_of(uncaught)
        return ""

    def _wrap_exit(self, place: Any, name: str) -> None:
        previous = _living(getattr(place, name, None))  # Python may run without those of `site`.
        if previous is not None:
            own = functools.partial(self._leave, previous)
            self._exits.append((place, name, previous, own))
            setattr(place, name, own)

    def _leave(self, leave: Callable[[Any], object], status: Any = None) -> None:
        try:
            leave(status)
        except SystemExit as error:
            if not self.is_looking() or threading.current_thread() is not threading.main_thread():
                raise
            raise self._noted(error) from None  # Not by a name of this frame's: the exception would keep itself.

    def _noted(self, error: SystemExit) -> SystemExit:
        noted = _NotedExit(*error.args)
        noted.hooks = self
        self._exit = (id(noted), exit_failure(noted.code))
        return noted

    def forget_exit(self, exit_id: int) -> None:
        """Takes back a note: somebody has caught that SystemExit."""
        if self._exit is not None and self._exit[0] == exit_id:
            self._exit = None

    def _on_uncaught(self, kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
        try:
            # Programs call the hook themselves too, to show an exception that they have caught.
            if self.is_looking() and error is _last_uncaught() and not _is_interactive():
                self._failure = failure_of(error)
        finally:
            self._previous_excepthook(kind, error, traceback)

    # --- SIGTERM --------------------------------------------------------------------------------------

    def _install_sigterm(self) -> None:
        if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL and _is_caught_in_c(signal.SIGTERM):
            return
        previous = _living(signal.getsignal(signal.SIGTERM))
        # None is a handler of C's, which could not be chained: JAX's that sees preemptions.
        if previous is signal.SIG_DFL or (callable(previous) and not isinstance(previous, signal.Handlers)):
            self.previous_sigterm = previous
            signal.signal(signal.SIGTERM, self._own_sigterm)

    def _on_sigterm(self, number: int, frame: FrameType | None) -> None:
        """No lock is taken here that this very thread may hold: see `Lifecycle.end`."""
        previous = self.previous_sigterm
        # The first process of a container is not ended by a signal that it has no handler for (kill(2)).
        ends_us = previous is signal.SIG_DFL and os.getpid() != 1
        if self.is_looking():
            try:
                if ends_us:
                    self._end("FAILED", self._failure or "SIGTERM")
                else:
                    self._tell_signal("SIGTERM")
            except Exception as error:
                LOSSES.add(f"sigterm: {type(error).__name__}")
        if ends_us:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        elif previous is not signal.SIG_DFL:
            previous(number, frame)


class _NotedExit(SystemExit):
    """What `sys.exit` raises, to be known again: one that somebody catches ends nothing.

    One that ends the program is let go of by the interpreter, when no code of Python's runs any more; one that is
    caught, by the code that has caught it.
    """

    hooks: ExitHooks | None = None

    def __del__(self) -> None:
        try:
            sys._getframe(1)
            is_caught = threading.main_thread().is_alive()
        except Exception:  # ValueError: nobody called us. Or the interpreter is being taken apart.
            return
        if is_caught and self.hooks is not None:
            self.hooks.forget_exit(id(self))


def _living(hook: Any) -> Any:
    """A hook; in place of one that looks no more, and that another thread could not put back, what was there before."""
    while True:
        method, *arguments = (hook.func, *hook.args) if isinstance(hook, functools.partial) else (hook,)
        owner = getattr(method, "__self__", None)
        if not isinstance(owner, ExitHooks) or owner.is_looking():
            return hook
        hook = arguments[0] if arguments else owner.previous(method)


def _last_uncaught() -> BaseException | None:
    """What the interpreter showed last, because nobody caught it."""
    error = getattr(sys, "last_value", None)
    return error if isinstance(error, BaseException) else None


def _is_interactive() -> bool:
    """Whether the program goes on after an exception that nobody catches."""
    return hasattr(sys, "ps1") or bool(sys.flags.interactive)


def _is_caught_in_c(number: int) -> bool:
    """Whether the process has a handler for a signal for which Python has none: SigCgt of /proc/self/status (proc(5)).

    Python tells only what there was when it began, and what it has set itself.
    """
    try:
        descriptor = os.open("/proc/self/status", os.O_RDONLY | os.O_CLOEXEC)
        try:
            digits = os.read(descriptor, _MOST_BYTES).partition(b"SigCgt:")[2].split(None, 1)
        finally:
            os.close(descriptor)
        return bool(digits) and bool(int(digits[0], 16) >> (number - 1) & 1)
    except (OSError, ValueError):
        return False
