"""What the shipper's thread itself has logged is for people, and never comes back to Cloud Logging.

`google.cloud.logging`'s `setup_logging()` sends what every logger says. With DEBUG, each request of ours would make
urllib3 say so, which would be sent, beside each batch of entries; and that Cloud Logging refuses an entry is nothing
to tell Cloud Logging. All other handlers get these records as they would without us.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterator
from typing import Final

__all__ = ["kept_from_cloud_logging"]

_LOGGERS: Final = (
    "ml_diagnostics",
    "google.auth._default",
    "google.auth.compute_engine._metadata",
    "google.auth.transport.requests",
    "google.cloud.logging_v2.services.logging_service_v2.client",
    "google.cloud.logging_v2.services.logging_service_v2.transports.grpc",
    "grpc",
    "grpc._channel",
    "grpc._common",
    "requests",
    "urllib3.connection",
    "urllib3.connectionpool",
    "urllib3.util.retry",
)
"""Who speaks in a thread that ships. A filter is asked of records of its own logger only, not of those below it."""

_threads_of_this_process: set[int] = set()


@contextlib.contextmanager
def kept_from_cloud_logging() -> Iterator[None]:
    """What this thread logs in here goes to all handlers but those that send to Cloud Logging."""
    thread_id = threading.get_ident()
    _threads_of_this_process.add(thread_id)
    for name in _LOGGERS:
        logging.getLogger(name).addFilter(_filter_of_this_process)  # Once, however often it is added.
    try:
        yield
    finally:
        _threads_of_this_process.discard(thread_id)


class _Filter(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        if threading.get_ident() not in _threads_of_this_process:
            return True
        handlers = _handlers(record.name)
        kept = [handler for handler in handlers if not _sends_to_cloud_logging(handler)]
        if len(kept) == len(handlers):
            return True
        if not kept and logging.lastResort is not None:
            kept = [logging.lastResort]
        for handler in kept:
            if record.levelno >= handler.level:
                handler.handle(record)
        return False


_filter_of_this_process = _Filter()


def _handlers(logger_name: str) -> list[logging.Handler]:
    """All that a logger's records go to."""
    handlers: list[logging.Handler] = []
    logger: logging.Logger | None = logging.getLogger(logger_name)
    while logger is not None:
        handlers += logger.handlers
        logger = logger.parent if logger.propagate else None
    return handlers


def _sends_to_cloud_logging(handler: logging.Handler) -> bool:
    """Not one that writes to standard output, which belongs to people, whoever collects it later."""
    is_googles = any(kind.__module__.startswith("google.cloud.logging") for kind in type(handler).__mro__)
    return is_googles and hasattr(handler, "transport")
