"""With `--verbose`, the requests of clients that know nothing of a console: those of Cloud Storage, and for tokens."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

from xprofiler.console import Console

__all__ = ["told_requests"]

_LOGGER: Final = "urllib3.connectionpool"  # A line an answer: http://host "GET /path HTTP/1.1" 200 123
_SECRET: Final = re.compile(r"(?<=upload_id=)[^&\s\"]+")  # Whoever knows it may go on with the upload.


class _Told(logging.Handler):
    """Tells a console of what is logged."""

    def __init__(self, console: Console) -> None:
        super().__init__(logging.DEBUG)
        self._console = console

    def emit(self, record: logging.LogRecord) -> None:
        """Tells of it."""
        message = record.getMessage()
        if "HTTP/" in message:
            with suppress(OSError):  # Else the request would seem to fail; who speaks next learns it.
                self._console.detail(_SECRET.sub("...", message))


@contextmanager
def told_requests(console: Console) -> Iterator[None]:
    """Tells of requests as they are answered, for as long as the block lasts."""
    logger, handler = logging.getLogger(_LOGGER), _Told(console)
    level = logger.level
    logger.setLevel(logging.DEBUG)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
