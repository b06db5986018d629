"""The blocks of `diagnose` in this process: nested and overlapping ones share one collection; a fork has none."""

from __future__ import annotations

import os
import sys
import threading
import time
import weakref
from functools import partial
from types import SimpleNamespace
from typing import Any, Final

from ml_diagnostics_common.guard import LOSSES
from ml_diagnostics_common.worker import start

from cloud_tpu_diagnostics._collect import log_queue
from cloud_tpu_diagnostics._collect.collection import Collection
from cloud_tpu_diagnostics._collect.timer import TimerPause
from cloud_tpu_diagnostics._config import Plan, plan_of
from cloud_tpu_diagnostics.configuration.fast_fail_configuration import FastFailConfig
from cloud_tpu_diagnostics.configuration.hang_configuration import HangConfig
from cloud_tpu_diagnostics.configuration.stack_trace_configuration import StackTraceConfig

__all__ = ["FORK_HOOKS", "Block"]

# State of the process: what is collected, and the blocks that are entered, by their tokens; and, in a forked child,
# what its parent collects: faulthandler still writes there.
_lock = threading.RLock()  # A signal handler may interrupt its own thread in here.
_current: Collection | None = None
_entered: dict[object, weakref.ref[Block]] = {}
_of_the_parent: Collection | None = None
_of_this_thread = threading.local()


class Block:
    """One block, entered once and left once.

    A signal's handler may raise anywhere, also in here: KeyboardInterrupt. What it leaves undone is done once nothing
    refers to the block, so every step here can be repeated.
    """

    def __init__(self) -> None:
        self.token = object()

    def enter(
        self,
        traces: StackTraceConfig | None,
        hangs: HangConfig | None,
        directory: str | os.PathLike[str] | None = None,
        fast_fail: FastFailConfig | None = None,
    ) -> None:
        """Start a collection, or join the present one; log what cannot be collected.

        Raises:
            ConfigurationError: The configuration cannot work.
        """
        if sys.platform == "win32":
            log_queue.warn_once(
                "windows",
                "diagnose() does nothing on Windows: no stack traces, and no watch for hangs.",
            )
            log_queue.flush()
            return
        plan = plan_of(traces, hangs, directory, fast_fail)
        try:
            _join(plan, self)
        except Exception as error:
            self.leave(error)
            log_queue.report_loss("diagnose", error, "collect stack traces")
        log_queue.flush()

    def leave(self, error: BaseException | None) -> None:
        """Undo `enter` once every block is left; do nothing in a forked child that leaves its parent's block.

        Args:
            error: The exception with which the block was left, if there was one.
        """
        try:
            _leave(self.token, error)
        except Exception as ours:
            log_queue.report_loss("diagnose", ours, "turn off all that it had turned on")
        log_queue.flush()


def _join(plan: Plan, block: Block) -> None:
    global _current, _of_the_parent
    with _lock:
        for lost in [token for token, entered in list(_entered.items()) if entered() is None]:
            _leave(lost, None)
        token = block.token
        _entered[token] = weakref.ref(block, lambda _: _leave_lost(token))
        if _current is None:
            if _of_the_parent is not None:
                _of_the_parent.forget_parent()
                _of_the_parent = None
            collection = Collection(plan)
            if _current is None:  # A signal's handler may have entered a block of its own meanwhile.
                _current = collection
                collection.start()
        elif plan != _current.plan:
            log_queue.warn_once(
                "another configuration",
                "A block of diagnose() was entered within another one that has a different configuration: "
                "that of the first block applies until all are left.",
            )


def _leave(token: object, error: BaseException | None) -> None:
    if token not in _entered:
        return
    # A `try` that follows directly would start with an instruction at which an exception does not release the lock.
    with _lock:
        _leave_alone(token, error)


def _leave_alone(token: object, error: BaseException | None) -> None:
    """Leave with the lock held."""
    global _current
    try:
        if _current is not None and list(_entered) == [token]:
            _current.stop(error)
    except RecursionError:
        raise  # Done again when nothing refers to the block, or when the next one is entered.
    except Exception:
        _current = None  # Most of it is off.
        _entered.pop(token, None)
        raise
    if list(_entered) == [token]:
        _current = None
    _entered.pop(token, None)


def _leave_lost(token: object) -> None:
    """Leave a block that nothing refers to any more.

    A collection of garbage calls this in any function of any thread, which may hold locks that rank below ours. So it
    waits for none: another thread does it then. Without threads, the next block that is entered does it.
    """
    while token in _entered:
        try:
            if not _leave_at_once(token):
                start(partial(_leave, token, None), "cloud-tpu-diagnostics-leave")
                return
        except RecursionError:
            return
        except BaseException as error:  # It cannot be raised from here; a further interrupt only repeats the loop.
            LOSSES.add(f"diagnose: {type(error).__name__}")


def _leave_at_once(token: object) -> bool:
    """Leave in the main thread, where a signal's handler has interrupted it; return False if that would wait."""
    if threading.get_ident() != threading.main_thread().ident:
        return False
    locks: list[Any] = [_lock, *(_current.locks if _current is not None else ())]
    missing = [lock for lock in locks if not lock._is_owned()]
    try:
        if not all(lock.acquire(blocking=False) for lock in missing):
            return False
        _leave(token, None)
        return True
    finally:
        for lock in missing:
            if lock._is_owned():
                lock.release()


class _Fork:
    """The steps of `_before_fork` that were completed."""

    def __init__(self) -> None:
        self.has_lock = False
        self.collection: Collection | None = None
        self.pause: TimerPause | None = None


def _before_fork(until: float) -> None:
    """Turn the timer off, and keep other threads out of the blocks.

    Args:
        until: When to continue without the locks, by the monotonic clock: the program must not wait for a stuck thread.
    """
    fork = _Fork()
    _forks().append(fork)
    fork.has_lock = _lock.acquire(timeout=max(0.0, until - time.monotonic()))
    fork.collection = _current
    if fork.collection is not None:
        fork.pause = fork.collection.before_fork(until)


def _after_fork_in_parent() -> None:
    fork = _forks().pop()
    try:
        if fork.collection is not None and fork.pause is not None:
            fork.collection.after_fork(fork.pause)
    finally:
        if fork.has_lock:
            _lock.release()


def _forks() -> list[_Fork]:
    """Return the forks of this thread: several, where a signal's handler forks during a fork."""
    if not hasattr(_of_this_thread, "forks"):
        _of_this_thread.forks = []
    forks: list[_Fork] = _of_this_thread.forks
    return forks


def _after_fork_in_child() -> None:
    global _lock, _current, _of_the_parent
    _lock = threading.RLock()
    _forks().clear()
    _of_the_parent = _current or _of_the_parent
    _current = None
    _entered.clear()


FORK_HOOKS: Final = SimpleNamespace(
    before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child
)
"""Called by `diagnostic` around each fork. Defined last: an import that is not complete has none."""
