"""Log records of the shipper's thread are for users, and are never sent to Cloud Logging.

`setup_logging()` of google.cloud.logging sends the records of all loggers. At DEBUG each of the shipper's requests
causes records of urllib3 or of Google's client, and each would be another entry. All other handlers get the records.
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
"""The loggers of a thread that ships. A logger's filter does not apply to the loggers below it."""

_threads_of_this_process: set[int] = set()


@contextlib.contextmanager
def kept_from_cloud_logging() -> Iterator[None]:
    """Keep this thread's log records from the handlers that send to Cloud Logging."""
    thread_id = threading.get_ident()
    _threads_of_this_process.add(thread_id)
    for name in _LOGGERS:
        logging.getLogger(name).addFilter(_filter_of_this_process)  # A second addition changes nothing.
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
    """Return the handlers that get a logger's records."""
    handlers: list[logging.Handler] = []
    logger: logging.Logger | None = logging.getLogger(logger_name)
    while logger is not None:
        handlers += logger.handlers
        logger = logger.parent if logger.propagate else None
    return handlers


def _sends_to_cloud_logging(handler: logging.Handler) -> bool:
    """Return False for a handler that writes to standard output, even if an agent collects that."""
    is_googles = any(kind.__module__.startswith("google.cloud.logging") for kind in type(handler).__mro__)
    return is_googles and hasattr(handler, "transport")
