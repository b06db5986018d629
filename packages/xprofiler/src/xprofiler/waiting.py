"""A message on standard error if something takes long."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from ml_diagnostics_common.command.console import Console
from ml_diagnostics_common.worker import start

__all__ = ["notify_if_slow"]


@contextlib.contextmanager
def notify_if_slow(console: Console, text: str, after_seconds: float = 4.0) -> Iterator[None]:
    """Print a message once if the block takes longer than a delay.

    Args:
        console: Receives the message.
        text: The message.
        after_seconds: The delay.
    """
    is_over = threading.Event()

    def notify() -> None:
        if not is_over.wait(after_seconds):
            with contextlib.suppress(OSError):
                console.notify(text)

    start(notify, "xprofiler-notice")
    try:
        yield
    finally:
        is_over.set()
