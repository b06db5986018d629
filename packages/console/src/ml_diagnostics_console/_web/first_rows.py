"""Requests wait for the first rows of a store, so that the page does not show an empty list first."""

from __future__ import annotations

import threading
import time

__all__ = ["FirstRows"]


class FirstRows:
    """The first rows of a store, for which requests wait; not for ever, since a cloud may not answer."""

    def __init__(self) -> None:
        self._are_there = threading.Event()
        self._are_there.set()
        self._deadline = 0.0

    def expect(self, most_seconds: float) -> None:
        """Let requests wait from now on, for so long at most, all of them together."""
        self._deadline = time.monotonic() + most_seconds
        self._are_there.clear()

    def have(self) -> None:
        """Let requests go on."""
        self._are_there.set()

    def wait(self) -> None:
        """Wait until there is something to show, or nothing is to be expected."""
        self._are_there.wait(max(0.0, self._deadline - time.monotonic()))
