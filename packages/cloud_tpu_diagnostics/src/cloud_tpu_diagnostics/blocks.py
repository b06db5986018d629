"""The blocks of `diagnose` in this process: nested and overlapping ones share one collection; a fork has none."""

from __future__ import annotations

import os
import sys
import threading

from ml_diagnostics_common.guard import report_loss, warn_once

from cloud_tpu_diagnostics.collection import Collection
from cloud_tpu_diagnostics.configuration.hang_configuration import HangConfig
from cloud_tpu_diagnostics.configuration.stack_trace_configuration import StackTraceConfig
from cloud_tpu_diagnostics.plan import Plan, plan_of

__all__ = ["enter", "leave"]

# State of the process: what is collected, and for how many blocks; and, in a forked child, what its parent collects:
# faulthandler still writes there.
_lock = threading.RLock()  # A signal handler may interrupt its own thread in here.
_current: Collection | None = None
_blocks = 0
_of_the_parent: Collection | None = None


def enter(traces: StackTraceConfig | None, hangs: HangConfig | None) -> Collection | None:
    """Begins to collect, or joins what is being collected.

    Returns:
        What to give to `leave`; None if nothing can be collected, which has been said.

    Raises:
        ConfigurationError: The configuration cannot work.
    """
    if sys.platform == "win32":
        warn_once("windows", "diagnose() does nothing on Windows: there are no stack traces, and no watch for hangs.")
        return None
    plan = plan_of(traces, hangs)
    try:
        return _join(plan)
    except Exception as error:
        report_loss("diagnose", error, "collect stack traces")
        return None


def leave(collection: Collection, error: BaseException | None) -> None:
    """Ends what `enter` has begun, once every block is left; nothing, in a forked child that leaves its parent's.

    Args:
        collection: What `enter` returned.
        error: What the block was left with, if it was an exception.
    """
    global _current, _blocks
    try:
        with _lock:
            if collection is not _current:
                return
            _blocks -= 1
            if not _blocks:
                _current = None
                collection.stop(error)
    except Exception as ours:
        report_loss("diagnose", ours, "turn off all that it had turned on")


def _join(plan: Plan) -> Collection:
    global _current, _blocks, _of_the_parent
    with _lock:
        if _current is None:
            if _of_the_parent is not None:
                _of_the_parent.forget_parent()
                _of_the_parent = None
            collection = Collection(plan)
            collection.start()
            _current = collection
        elif plan != _current.plan:
            warn_once(
                "another configuration",
                "A block of diagnose() was entered within another one of a different configuration: "
                "the first one's holds until all are left.",
            )
        _blocks += 1
        return _current


def _before_fork() -> None:
    _lock.acquire()
    if _current is not None:
        _current.before_fork()


def _after_fork_in_parent() -> None:
    try:
        if _current is not None:
            _current.after_fork()
    finally:
        _lock.release()


def _after_fork_in_child() -> None:
    global _lock, _current, _blocks, _of_the_parent
    _lock = threading.RLock()
    _of_the_parent = _current or _of_the_parent
    _current, _blocks = None, 0


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
