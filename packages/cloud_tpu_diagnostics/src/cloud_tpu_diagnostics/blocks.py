"""The blocks of `diagnose` in this process: nested and overlapping ones share one collection; a fork has none."""

from __future__ import annotations

import sys
import threading
import weakref
from types import SimpleNamespace
from typing import Final

from ml_diagnostics_common.guard import LOSSES, report_loss, warn_once

from cloud_tpu_diagnostics.collection import Collection
from cloud_tpu_diagnostics.configuration.hang_configuration import HangConfig
from cloud_tpu_diagnostics.configuration.stack_trace_configuration import StackTraceConfig
from cloud_tpu_diagnostics.plan import Plan, plan_of

__all__ = ["FORK_HOOKS", "Block"]

# State of the process: what is collected, and the blocks that are entered, by their tokens; and, in a forked child,
# what its parent collects: faulthandler still writes there.
_lock = threading.RLock()  # A signal handler may interrupt its own thread in here.
_current: Collection | None = None
_entered: dict[object, weakref.ref[Block]] = {}
_of_the_parent: Collection | None = None


class Block:
    """One block, entered once and left once.

    A signal's handler may raise anywhere, in here too: KeyboardInterrupt. What it leaves undone is done when the block
    is let go of; so all that is done here can be done again.
    """

    def __init__(self) -> None:
        self.token = object()

    def enter(self, traces: StackTraceConfig | None, hangs: HangConfig | None) -> None:
        """Begins to collect, or joins what is being collected; what cannot be collected is said.

        Raises:
            ConfigurationError: The configuration cannot work.
        """
        if sys.platform == "win32":
            warn_once(
                "windows",
                "diagnose() does nothing on Windows: no stack traces, and no watch for hangs.",
            )
            return
        plan = plan_of(traces, hangs)
        try:
            _join(plan, self)
        except Exception as error:
            self.leave(error)
            report_loss("diagnose", error, "collect stack traces")

    def leave(self, error: BaseException | None) -> None:
        """Ends what `enter` has begun, once every block is left; nothing, in a forked child that leaves its parent's.

        Args:
            error: What the block was left with, if it was an exception.
        """
        try:
            _leave(self.token, error)
        except Exception as ours:
            report_loss("diagnose", ours, "turn off all that it had turned on")


def _join(plan: Plan, block: Block) -> None:
    global _current, _of_the_parent
    with _lock:
        for lost in [token for token, entered in list(_entered.items()) if entered() is None]:
            _leave(lost, None)
        token = block.token
        _entered[token] = weakref.ref(block, lambda _: _leave_what_is_let_go(token))
        if _current is None:
            if _of_the_parent is not None:
                _of_the_parent.forget_parent()
                _of_the_parent = None
            collection = Collection(plan)
            if _current is None:  # A signal's handler may have entered a block of its own meanwhile.
                _current = collection
                collection.start()
        elif plan != _current.plan:
            warn_once(
                "another configuration",
                "A block of diagnose() was entered within another one of a different configuration: "
                "the first one's holds until all are left.",
            )


def _leave(token: object, error: BaseException | None) -> None:
    global _current
    if token not in _entered:
        return
    with _lock:
        try:
            if _current is not None and list(_entered) == [token]:
                _current.stop(error)
        except RecursionError:
            raise  # Once more when the block is let go of, or the next one entered.
        except Exception:
            _current = None  # Most of it is off.
            _entered.pop(token, None)
            raise
        if list(_entered) == [token]:
            _current = None
        _entered.pop(token, None)


def _leave_what_is_let_go(token: object) -> None:
    while token in _entered:
        try:
            _leave(token, None)
        except RecursionError:
            return
        except BaseException as error:  # Nobody would get it from here: interrupted once more, it begins once more.
            LOSSES.add(f"diagnose: {type(error).__name__}")


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
    global _lock, _current, _of_the_parent
    _lock = threading.RLock()
    _of_the_parent = _current or _of_the_parent
    _current = None
    _entered.clear()


FORK_HOOKS: Final = SimpleNamespace(
    before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child
)
"""Called by `diagnostic` around each fork. Defined last: an import that is not complete has none."""
