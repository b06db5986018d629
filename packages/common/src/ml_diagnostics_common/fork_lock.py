"""A lock that keeps a process from being forked while one of its threads does what no child may inherit half done."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from typing import Final

__all__ = ["PROCESS_START_LOCK", "ForkLock"]

_WAIT_SECONDS = 10.0


class ForkLock:
    """Makes forks in other threads wait, a bounded time. Never deleted: forks have hooks until the process ends.

    Forks take the locks in the reverse order of their creation, and keep them until they are done.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._fork = threading.local()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(
                before=self._before_fork,
                after_in_parent=self._after_fork_in_parent,
                after_in_child=self._after_fork_in_child,
            )

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

    def _before_fork(self) -> None:
        self._fork.has_lock = self._lock.acquire(timeout=_WAIT_SECONDS)

    def _after_fork_in_parent(self) -> None:
        if getattr(self._fork, "has_lock", False):  # Not in a fork that began before the lock was created.
            self._fork.has_lock = False
            self._lock.release()

    def _after_fork_in_child(self) -> None:
        self._lock = threading.RLock()


PROCESS_START_LOCK: Final = ForkLock()
"""Held while a process is started.

`subprocess` waits until all processes have closed the pipe for the error of exec. A child that is forked by another
thread in that moment has the pipe too, and closes it when it ends.
"""
