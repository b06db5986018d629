"""The one guard between a training job and this code: a recording call never raises our errors.

A failure of a guarded call is counted by reason in `LOSSES` and logged once. With ML_DIAGNOSTICS_RAISE=1, which our own
tests set, the error is raised instead, so that no test misses a broken recording call.
"""

from __future__ import annotations

import functools
import logging
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar, cast

__all__ = [
    "LOSSES",
    "Counters",
    "can_log",
    "guarded",
    "guarded_as",
    "job_logger",
    "log_once",
    "report_loss",
    "warn_once",
]

_STALLED_MILLISECONDS = 20
_STANDARD_STREAMS = (1, 2)

_Function = TypeVar("_Function", bound=Callable[..., Any])


class Counters(Mapping[str, int]):
    """Counts by reason, exact under threads; reads as a mapping of those that are not zero."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # A signal handler may interrupt its own thread in here.
        self._counts: dict[str, int] = {}

    def add(self, reason: str, count: int = 1) -> None:
        """Add `count` to the counter of `reason`."""
        with self._lock:
            self._counts[reason] = self._counts.get(reason, 0) + count

    def __getitem__(self, reason: str) -> int:
        return self._counts[reason]

    def __iter__(self) -> Iterator[str]:
        return iter(self.as_dict())

    def __len__(self) -> int:
        return len(self._counts)

    def as_dict(self) -> dict[str, int]:
        """Return a copy of the counts."""
        with self._lock:
            return dict(self._counts)

    def total(self) -> int:
        """Return the sum over all reasons."""
        with self._lock:
            return sum(self._counts.values())

    def renew_lock(self) -> None:
        """Replace the lock in a forked child, where the thread that held it may not exist: see `process_hooks`."""
        self._lock = threading.RLock()


# State of the process: losses of guarded calls, and the keys of `log_once`.
LOSSES = Counters()
_logged_in_this_process: set[object] = set()


def job_logger(name: str) -> logging.Logger:
    """Return a logger that drops and counts a record that could not be written without waiting for a reader.

    If the collector of a job's stderr stops, its pipe becomes full, and a thread that writes there waits for ever; at
    the end the interpreter waits for the lock of the handler that a thread of ours would hold.
    """
    logger = logging.getLogger(name)
    logger.addFilter(_unless_stalled)
    return logger


def _unless_stalled(record: logging.LogRecord) -> bool:
    if can_log(logging.getLogger(record.name), _STALLED_MILLISECONDS):
        return True
    LOSSES.add("log_not_writable")
    return False


def can_log(logger: logging.Logger, wait_milliseconds: int = 0) -> bool:
    """Return False if the stream of a logger's handler would have to wait for its reader, also after a short wait.

    If a handler does not expose its stream, the standard streams are checked. A stream that is closed, or has an error,
    does not wait.
    """
    import select

    if not hasattr(select, "poll"):
        return True
    for handler in _handlers_of(logger):
        stream = getattr(handler, "stream", None)
        for each in _STANDARD_STREAMS if stream is None else (stream,):
            try:
                poller = select.poll()
                poller.register(each, select.POLLOUT)
                is_ready = bool(poller.poll(wait_milliseconds))
            except Exception:
                continue  # It has no descriptor.
            if not is_ready:
                return False
    return True


def _handlers_of(logger: logging.Logger) -> list[logging.Handler]:
    handlers: list[logging.Handler] = []
    each: logging.Logger | None = logger
    while each is not None:
        handlers += each.handlers
        each = each.parent if each.propagate else None
    return handlers or ([logging.lastResort] if logging.lastResort is not None else [])


logger = job_logger("ml_diagnostics")


def warn_once(key: object, message: str, *args: object) -> None:
    """Log one WARNING a process for each key; errors of logging handlers do not reach the caller."""
    log_once(logging.WARNING, key, message, *args)


def log_once(level: int, key: object, message: str, *args: object) -> None:
    """Log once, like `warn_once`, at any level."""
    if key in _logged_in_this_process:
        return
    _logged_in_this_process.add(key)
    try:
        logger.log(level, message, *args)
    except Exception:
        LOSSES.add("log_handler_raised")


def report_loss(
    what: str,
    error: Exception,
    could_not: str = "record its event",
    *,
    warn: Callable[..., None] = warn_once,
) -> None:
    """Count a failed recording call, and log it once; raise the error again under test.

    Args:
        what: The call.
        error: The reason.
        could_not: The failed action as a verb phrase, for the log.
        warn: Called like `warn_once`, to log it.
    """
    if os.environ.get("ML_DIAGNOSTICS_RAISE") == "1":
        raise error
    LOSSES.add(f"{what}: {type(error).__name__}")
    warn(
        (what, type(error)),
        "%s could not %s (%s: %s). The job goes on; further losses of this kind are counted, not logged.",
        what,
        could_not,
        type(error).__name__,
        _describe(error),
    )


def guarded(function: _Function) -> _Function:
    """Keep every Exception of a function from its caller: count it, log it once, and return None.

    KeyboardInterrupt, SystemExit and other BaseExceptions that are not Exceptions always pass.
    """
    return guarded_as("record its event")(function)


def guarded_as(could_not: str, *, warn: Callable[..., None] = warn_once) -> Callable[[_Function], _Function]:
    """Guard a call, like `guarded`, that does something else than recording.

    Args:
        could_not: The action of the call as a verb phrase, such as "start its uploads"; logged if it fails.
        warn: Called like `warn_once`, to log it.
    """

    def guard(function: _Function) -> _Function:
        what = function.__qualname__

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            try:
                return function(*args, **kwargs)
            except Exception as error:
                report_loss(what, error, could_not, warn=warn)
                return None

        return cast(_Function, call)

    return guard


def _describe(error: Exception) -> str:
    try:
        return str(error)[:500]
    except Exception:
        return "its message cannot be shown"
