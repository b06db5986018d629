"""A message on standard error if something takes long."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from ml_diagnostics_common.command.console import Console

__all__ = ["told_if_slow"]


@contextlib.contextmanager
def told_if_slow(console: Console, text: str, after_seconds: float = 4.0) -> Iterator[None]:
    """Print a message once if the block takes longer than a delay.

    Args:
        console: Receives the message.
        text: The message.
        after_seconds: The delay.
    """
    timer = threading.Timer(after_seconds, _notify, (console, text))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _notify(console: Console, text: str) -> None:
    with contextlib.suppress(OSError):
        console.notify(text)
