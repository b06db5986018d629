"""Waiting for what another thread or process does."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def eventually(finds: Callable[[], T], timeout_seconds: float = 30.0) -> T:
    """Waits until something is found, which may not even be there to look at before, and returns it."""
    deadline = time.monotonic() + timeout_seconds
    while True:
        with contextlib.suppress(FileNotFoundError, LookupError):
            if found := finds():
                return found
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.01)
