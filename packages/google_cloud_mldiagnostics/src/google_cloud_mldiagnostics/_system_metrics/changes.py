"""Select what is recorded of states: a change at once, and all of it once a minute."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

__all__ = ["REPEAT_SECONDS", "Changes"]

REPEAT_SECONDS: Final = 60.0
"""The time after which an unchanged state is recorded again, so that its end is known to a minute."""


class Changes:
    """The states of several metrics when they were last recorded.

    Args:
        monotonic: The clock, in seconds.
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._recorded: dict[str, tuple[object, float]] = {}

    def is_due(self, name: str) -> bool:
        """Return True if a metric has not been recorded for a minute."""
        recorded = self._recorded.get(name)
        return recorded is None or self._monotonic() - recorded[1] >= REPEAT_SECONDS

    def take(self, name: str, state: object) -> bool:
        """Return True if a metric is to be recorded now, and note that it is.

        Args:
            name: The metric.
            state: Its state: another than the last recorded one is a change.
        """
        recorded = self._recorded.get(name)
        if recorded is not None and recorded[0] == state and not self.is_due(name):
            return False
        self._recorded[name] = state, self._monotonic()
        return True
