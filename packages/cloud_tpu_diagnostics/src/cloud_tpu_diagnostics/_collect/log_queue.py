"""Log messages of this package: queued where they arise, often under a lock, and logged where no lock is held.

A handler of the job's may wait forever, for instance for a pipe without a reader. A thread of this package that
logged under a lock would then stop the program where it leaves its block, and the thread that arms the timer would let
it fire. So messages wait in a queue until a thread that holds no lock logs them, and while the logger of common would
drop them.
"""

from __future__ import annotations

import logging
import sys
import time
from collections import deque
from collections.abc import Callable
from functools import partial

from ml_diagnostics_common import guard
from ml_diagnostics_common.guard import LOSSES, can_log
from ml_diagnostics_common.process_hooks import at_fork
from ml_diagnostics_common.worker import Worker, wait_until

__all__ = ["flush", "flush_in_background", "guarded_as", "log", "log_once", "report_loss", "warn_once"]

_POLL_MILLISECONDS = 1000
_WAIT_SECONDS = 1.0
_MOST_QUEUED = 1000
_ENOUGH_PENDING = 2
"""One call that runs, and one that handles what is queued meanwhile."""

_logger = logging.getLogger("ml_diagnostics.diagnose")

# State of the process: what is to be logged.
_queue: deque[Callable[[], object]] = deque(maxlen=_MOST_QUEUED)


def log(logger: logging.Logger, level: int, message: str, *args: object) -> None:
    """Queue a message."""
    if logger.isEnabledFor(level):
        _queue.append(partial(logger.log, level, message, *args))


def log_once(level: int, key: object, message: str, *args: object) -> None:
    """Queue a message that is logged once a process for each key."""
    _queue.append(partial(guard.log_once, level, key, message, *args))


def warn_once(key: object, message: str, *args: object) -> None:
    """Queue a warning that is logged once a process for each key."""
    log_once(logging.WARNING, key, message, *args)


report_loss = partial(guard.report_loss, warn=warn_once)


def _warn_in_background(key: object, message: str, *args: object) -> None:
    warn_once(key, message, *args)
    flush_in_background()


guarded_as = partial(guard.guarded_as, warn=_warn_in_background)


def flush() -> None:
    """Log what is queued: in this thread, which holds no lock of ours; in the background while it would wait.

    Return after what the background has taken from the queue is logged too, or after a second: the process may end
    next, and with it the thread there. While the interpreter shuts down nothing is logged: its threads have ended, and
    nothing can be imported.
    """
    if sys.is_finalizing() or not (_queue or _worker.pending_count()):
        return
    if not can_log(_logger):
        flush_in_background()
        return
    _log_queued()
    deadline = time.monotonic() + _WAIT_SECONDS
    wait_until(lambda: not _worker.pending_count(), lambda: deadline - time.monotonic())


def flush_in_background() -> None:
    """Log what is queued in a thread, once nothing waits there; return at once, locks or not."""
    if _queue and _worker.pending_count() < _ENOUGH_PENDING:
        _worker.put(_log_in_background)


def _log_in_background() -> None:
    while _queue:
        if can_log(_logger, _POLL_MILLISECONDS):
            _log_queued()


def _log_queued() -> None:
    try:
        while True:
            _log_safely(_queue.popleft())
    except IndexError:
        return


def _log_safely(call: Callable[[], object]) -> None:
    try:
        call()
    except Exception:  # A handler of the job's.
        LOSSES.add("log_handler_raised")


_worker = Worker("cloud-tpu-diagnostics-log", idle_seconds=0.0)
at_fork(_queue.clear)  # It is the parent's.
