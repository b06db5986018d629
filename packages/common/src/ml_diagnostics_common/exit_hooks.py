"""How this process ends, seen from inside: `sys.exit`, an uncaught exception, or the program's last line.

Each hook is chained: what was there before is called as before, and restored afterwards, unless the program has
installed another one since. In a forked child they do nothing.

A SystemExit that is raised by hand, or by a `sys.exit` that was imported by name before, is known to have ended the
program, but not with which code.
"""

from __future__ import annotations

import atexit
import builtins
import functools
import os
import sys
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any

from ml_diagnostics_common.program_end import (
    UNSEEN_EXIT,
    ProgramEnd,
    exit_failure,
    failure_of,
    how_it_was_left,
    last_uncaught,
    preserve_interrupt,
    program_frame,
)
from ml_diagnostics_common.raised_exception import RaisedException, describe_exception

__all__ = ["ExitHooks"]


class ExitHooks:
    """Reports how this process ends. Several objects in a process do not disturb each other.

    Args:
        end: Called while the interpreter ends, in the main thread, with whether the program has failed, and the reason:
            empty for one that ended well, UNSEEN_EXIT for one that seems to have.
    """

    def __init__(self, end: Callable[[bool, str], object]) -> None:
        self._end = end
        self._pid = os.getpid()
        self._is_installed = False
        self._failure = ""
        self._raised: tuple[RaisedException, ...] = ()
        self._exit: tuple[int, str] | None = None
        self._uncaught_before: BaseException | None = None
        self._program: FrameType | None = None
        self._exits: list[tuple[Any, str, Any, Any]] = []  # Its module and name, what was there before, and ours.
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
        """Stop watching, and restore what was there; what was installed over ours stays, and ours does nothing."""
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
        return self._raised

    def _at_exit(self) -> None:
        if self.is_watching():
            how = how_it_was_left(self._program)
            failure = self._failure_at_exit(how)
            is_unseen = not failure and how is ProgramEnd.RAISED and self._exit is None and not _is_interactive()
            self._end(bool(failure), UNSEEN_EXIT if is_unseen else failure)

    def _failure_at_exit(self, how: ProgramEnd) -> str:
        if self._failure:
            return self._failure
        if how is ProgramEnd.RETURNED:
            return ""  # The program has caught that SystemExit, and kept it.
        if self._exit is not None:
            return self._exit[1]
        # An excepthook that was put over ours did not call it: rich's, for one.
        uncaught = last_uncaught()
        is_new = uncaught is not None and uncaught is not self._uncaught_before
        if uncaught is not None and is_new and sys.excepthook is not self._own_excepthook and not _is_interactive():
            self._raised = describe_exception(uncaught)
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
                self._raised = describe_exception(error)
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
