"""Memory that is free in this process, and not in the system's hands yet."""

from __future__ import annotations

import ctypes
from contextlib import suppress

__all__ = ["give_back"]


def give_back() -> None:
    """Give free memory back to the system; without effect where the C library is not glibc, which keeps it."""
    with suppress(OSError, AttributeError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)
