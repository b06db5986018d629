"""A word on standard error where something takes long."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from xprofiler.console import Console

__all__ = ["told_if_slow"]


@contextlib.contextmanager
def told_if_slow(console: Console, text: str, after_seconds: float = 4.0) -> Iterator[None]:
    """Says something once, if the block has not ended by then.

    Args:
        console: Where.
        text: What.
        after_seconds: When.
    """
    timer = threading.Timer(after_seconds, _say, (console, text))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _say(console: Console, text: str) -> None:
    with contextlib.suppress(OSError):
        console.say(text)
