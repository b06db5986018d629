"""Warnings that repeat: one a minute of each kind reaches the log."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

__all__ = ["Warnings"]

_SECONDS: Final = 60.0

_log = logging.getLogger("ml_diagnostics.kubernetes")


class Warnings:
    """Logs one warning a minute of each kind."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Log nothing yet.

        Args:
            clock: Monotonic seconds.
        """
        self._clock = clock
        self._next: dict[str, float] = {}

    def warn(self, kind: str, message: str) -> None:
        """Log a warning, unless one of its kind was logged less than a minute ago.

        Args:
            kind: The kind, one of a few.
            message: The message.
        """
        now = self._clock()
        if now >= self._next.get(kind, now):
            self._next[kind] = now + _SECONDS
            _log.warning("%s", message)
