"""The log of requests for `--verbose`, for clients that have no console: Cloud Storage, and requests for tokens."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

from ml_diagnostics_common.command.console import Console

__all__ = ["log_requests"]

_LOGGER: Final = "urllib3.connectionpool"  # A line an answer: http://host "GET /path HTTP/1.1" 200 123
_SECRET: Final = re.compile(r"(?<=upload_id=)[^&\s\"]+")  # It authorizes continuing the upload.


class _ConsoleHandler(logging.Handler):
    """Prints log records to a console."""

    def __init__(self, console: Console) -> None:
        super().__init__(logging.DEBUG)
        self._console = console

    def emit(self, record: logging.LogRecord) -> None:
        """Print a record of a response."""
        message = record.getMessage()
        if "HTTP/" in message:
            with suppress(OSError):  # A closed terminal must not fail the request; the next output raises.
                self._console.detail(_SECRET.sub("...", message))


@contextmanager
def log_requests(console: Console) -> Iterator[None]:
    """Print requests when they are answered, within the block."""
    logger, handler = logging.getLogger(_LOGGER), _ConsoleHandler(console)
    level = logger.level
    logger.setLevel(logging.DEBUG)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
