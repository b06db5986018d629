"""How the C library keeps the memory of this process."""

from __future__ import annotations

import sys
from typing import Final

__all__ = ["use_one_arena"]

_M_ARENA_MAX: Final = -8


def use_one_arena() -> None:
    """Let all threads share one heap, where the C library is glibc: to be called before they are started.

    Each thread of a server that answers with large arrays would keep a heap of its own as large as its largest answer:
    40 MB of a run of five million values. They work under one lock, so that one heap costs no time.
    """
    if not sys.platform.startswith("linux"):
        return
    import ctypes

    choose = getattr(ctypes.CDLL(None), "mallopt", None)  # Other C libraries have none.
    if choose is not None:
        choose(_M_ARENA_MAX, 1)
