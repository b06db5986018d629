"""The memory that glibc keeps for this process: one heap, without large blocks, given back when much of it is free."""

from __future__ import annotations

import ctypes
import sys
from contextlib import suppress
from typing import Final

__all__ = ["give_back", "keep_little"]

_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_M_ARENA_MAX: Final = -8

_LARGE_BYTES: Final = 1 << 20


def keep_little() -> None:
    """Let all threads share one heap, and large blocks lie outside of it, where the C library is glibc.

    To be called before threads are started. Each thread of a server that answers with large arrays would keep a heap of
    its own as large as its largest answer: 40 MB of a run of five million values. They work under one lock, so that one
    heap costs no time. In the heap a freed array stays as a hole if anything was put behind it: 35 MB of the same run.
    glibc takes arrays of up to 32 MiB into the heap once one was freed, unless the threshold is set.
    """
    if not sys.platform.startswith("linux"):
        return
    choose = getattr(ctypes.CDLL(None), "mallopt", None)  # Other C libraries have none.
    if choose is not None:
        choose(_M_ARENA_MAX, 1)
        choose(_M_MMAP_THRESHOLD, _LARGE_BYTES)
        choose(_M_TRIM_THRESHOLD, 2 * _LARGE_BYTES)  # As glibc does: an array just below costs no call of the system.


def give_back() -> None:
    """Give free memory back to the system; without effect where the C library is not glibc, which keeps it."""
    with suppress(OSError, AttributeError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)
