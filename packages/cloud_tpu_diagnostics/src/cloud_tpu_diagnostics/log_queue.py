"""What this package logs: queued where it happens, often under a lock, and logged where no lock is held.

A log call may wait for ever, for instance for a pipe that is not read any more. Then a thread of ours that holds a
lock would stop the program where it leaves its block, and the thread that arms the timer would let it fire. A thread
that waits within a log call holds the handler's lock, for which the program waits at its end. So nothing is logged
while stdout or stderr are full; a thread waits for them without a lock.
"""

from __future__ import annotations

import _thread
import logging
from collections import deque
from collections.abc import Callable
from functools import partial

from ml_diagnostics_common import guard
from ml_diagnostics_common.guard import LOSSES
from ml_diagnostics_common.worker import start

__all__ = ["flush", "flush_in_background", "guarded_as", "log", "log_once", "renew", "report_loss", "warn_once"]

_STANDARD_STREAMS = (1, 2)
_POLL_MILLISECONDS = 1000
_MOST_QUEUED = 1000

# State of the process: what is to be logged, and the lock of the one thread that waits to log it.
_queue: deque[Callable[[], object]] = deque(maxlen=_MOST_QUEUED)
_flushing = _thread.allocate_lock()


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
    """Log what is queued: in this thread, which holds no lock of ours; in the background while it would wait."""
    if not _queue:
        return
    if _has_room(0):
        _log_queued()
    else:
        flush_in_background()


def flush_in_background() -> None:
    """Log what is queued in a thread, once nothing waits there; return at once, locks or not."""
    if (
        _queue
        and _flushing.acquire(blocking=False)
        and start(partial(_flush_patiently, _flushing), "cloud-tpu-diagnostics-log") is None
    ):
        _flushing.release()  # No more threads: the next call logs it.


def renew() -> None:
    """In a forked child: leave the queue to the parent."""
    global _flushing
    _flushing = _thread.allocate_lock()
    _queue.clear()


def _flush_patiently(flushing: _thread.LockType) -> None:
    try:
        while _queue:
            if _has_room(_POLL_MILLISECONDS):
                _log_queued()
    finally:
        flushing.release()
    flush_in_background()  # What was queued between the last look and the release.


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


def _has_room(milliseconds: int) -> bool:
    """Return False while a standard stream accepts nothing; a closed one, and one with an error, do not wait."""
    import select

    for stream in _STANDARD_STREAMS:
        poller = select.poll()
        poller.register(stream, select.POLLOUT)
        if not poller.poll(milliseconds):
            return False
    return True
