"""The one set of hooks that runs when this process forks and when it exits, and locks that keep it from being forked.

A forked child starts clean: `at_fork` functions run in it in the order of their registration. At exit there are two
moments. Functions of `at_exit` run late, when other exit functions can no longer record anything, in the order of
`ExitOrder`. Functions of `at_exit_from_now` run early: before all that was registered with atexit up to then.
"""

from __future__ import annotations

import atexit
import contextlib
import enum
import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Final, Generic, TypeVar

# It imports logging, and so registers logging's hooks first: before a fork logging's lock is taken after ours.
from ml_diagnostics_common.guard import LOSSES, job_logger

__all__ = [
    "PROCESS_START_LOCK",
    "ExitOrder",
    "ForkLock",
    "LiveObjects",
    "at_exit",
    "at_exit_from_now",
    "at_fork",
    "import_clients",
    "import_undisturbed",
]

_WAIT_SECONDS = 10.0
_CLIENTS = (
    "google.auth.compute_engine",
    "google.auth.transport.mtls",
    "google.auth.transport.requests",
    "google.oauth2.credentials",
    "google.oauth2.service_account",
    "configparser",
    "encodings.idna",
    "netrc",
    "ml_diagnostics_common._bounded_adapter",
)

logger = job_logger("ml_diagnostics")

_Kind = TypeVar("_Kind")


class ExitOrder(enum.IntEnum):
    """When `at_exit` calls a function."""

    MIRRORS = 1
    """Mirrors start to write what the journals have on disk, while shippers send it."""
    SHIPPERS = 2
    """Shippers send what the journals have on disk."""
    MIRRORS_END = 3
    """Mirrors have written it, or have had their time."""
    DEVICES = 4
    """No thread of ours calls into a device's library from here on: the interpreter is about to tear it down."""
    JOURNALS = 5
    """Last: all others may still append to them."""


# State of the process: what its forked children and its exit call.
_in_child: list[Callable[[], object]] = []
_fork_locks: list[ForkLock] = []
_exit_functions: dict[ExitOrder, Callable[[], object]] = {}
_early_exit_functions: set[tuple[int, Callable[[], object]]] = set()


def at_fork(function: Callable[[], object]) -> None:
    """Call a function in each forked child, where only the thread that forked exists: locks may be held for ever."""
    _in_child.append(function)


def at_exit(function: Callable[[], object], order: ExitOrder) -> None:
    """Call a function when this process, or a forked child, exits; one for each order."""
    _exit_functions[order] = function


def at_exit_from_now(function: Callable[[], object]) -> None:
    """Call a function when this process exits, before all that was registered with atexit so far; not in its children.

    For what must precede another library's exit function, such as JAX's, which drops all arrays. A second registration
    in the same process changes nothing.
    """
    pid = os.getpid()
    if (pid, function) not in _early_exit_functions:
        _early_exit_functions.add((pid, function))
        atexit.register(lambda: function() if os.getpid() == pid else None)


class LiveObjects(Generic[_Kind]):
    """The live objects of a kind in this process; they are kept by others.

    Iteration yields a copy that is taken at once: a WeakSet may change while it is iterated over, by another thread or
    by a collection of garbage.
    """

    def __init__(self) -> None:
        self._objects: weakref.WeakValueDictionary[int, _Kind] = weakref.WeakValueDictionary()

    def add(self, each: _Kind) -> None:
        """Add an object."""
        self._objects[id(each)] = each

    def discard(self, each: _Kind) -> None:
        """Remove an object, if it was added."""
        self._objects.pop(id(each), None)

    def clear(self) -> None:
        """Remove all objects."""
        self._objects.clear()

    def __iter__(self) -> Iterator[_Kind]:
        return iter([each for reference in self._objects.valuerefs() if (each := reference()) is not None])


class ForkLock:
    """Keep this process from being forked while a thread does work that no child may inherit half done.

    Forks in other threads wait, a bounded time. A lock is never deleted. Forks take all locks, in the reverse order of
    their creation, and keep them until they are done.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._fork = threading.local()
        _fork_locks.append(self)

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Hold the lock; go on without it after a bounded time, when forks do not wait any longer either."""
        lock = self._lock  # A child that is forked in here has another one afterwards.
        has_lock = lock.acquire(timeout=_WAIT_SECONDS)
        try:
            yield
        finally:
            if has_lock:
                lock.release()

    def before_fork(self) -> None:
        """Take the lock, or stop waiting for it."""
        self._fork.has_lock = self._lock.acquire(timeout=_WAIT_SECONDS)

    def after_fork_in_parent(self) -> None:
        """Release the lock."""
        if getattr(self._fork, "has_lock", False):  # Not in a fork that started before the lock was created.
            self._fork.has_lock = False
            self._lock.release()

    def after_fork_in_child(self) -> None:
        """Replace the lock, which a thread of the parent's may hold."""
        self._lock = threading.RLock()


def _before_fork() -> None:
    for lock in reversed(_fork_locks):
        lock.before_fork()


def _after_fork_in_parent() -> None:
    for lock in _fork_locks:
        lock.after_fork_in_parent()


def _after_fork_in_child() -> None:
    LOSSES.renew_lock()
    for lock in _fork_locks:
        lock.after_fork_in_child()
    _call_all(_in_child, "in a forked child")


def _at_exit() -> None:
    _call_all([_exit_functions[order] for order in sorted(_exit_functions)], "at exit")


def _call_all(functions: list[Callable[[], object]], moment: str) -> None:
    """Call all functions, whichever of them fail or are interrupted by Ctrl-C."""
    with contextlib.ExitStack() as remaining:
        for function in reversed(functions):
            remaining.callback(_call, function, moment)


def _call(function: Callable[[], object], moment: str) -> None:
    try:
        function()
    except Exception as error:
        LOSSES.add(f"{moment}: {type(error).__name__}")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
atexit.register(_at_exit)

PROCESS_START_LOCK: Final = ForkLock()
"""Held while a process is started.

`subprocess` waits until all processes have closed the pipe for the error of exec. A child that is forked by another
thread in that moment has the pipe too, and closes it when it ends.
"""

_IMPORT_LOCK: Final = ForkLock()
"""Held while a thread of ours imports modules, such as Google's clients.

The thread then holds the locks of these modules. A child that is forked in that moment has the locks and not the
thread: it would wait for ever when it imports one of the modules itself, as the workers of data loaders do.
"""


def import_clients(*others: str) -> None:
    """Import what all of Google's clients need, as far as it is installed; users of the rest report what is missing.

    Args:
        *others: The full names of modules that are imported too.
    """
    import_undisturbed(*_CLIENTS, *others)


def import_undisturbed(*names: str) -> None:
    """Import modules, while which no other thread forks; those that cannot be imported are left out.

    It costs nothing where they have been imported before.

    Args:
        *names: The modules' full names.
    """
    names = tuple(name for name in names if name not in sys.modules)
    if not names:
        return
    with _IMPORT_LOCK.held():
        for name in names:
            try:
                import_module(name)
            except Exception as error:
                logger.debug("%s cannot be imported: %s", name, error)
