"""Connections of the page's server: none may wait for ever without a request, and too many of them are one line."""

from __future__ import annotations

import asyncio
import errno
import sys
from typing import Any, Final

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

__all__ = ["HEAD_SECONDS", "Connection", "report_too_many_files_once"]

HEAD_SECONDS: Final = 20.0
"""Browsers open connections in advance, and send requests on them within seconds."""
_FULL: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class Connection(H11Protocol):
    """One connection, closed if the head of a request is not complete in time.

    uvicorn limits only the time between two requests: a client that sends a byte a minute, or nothing at all, would
    keep a file descriptor of the server for ever, and some hundreds of them lock out all others.

    Attributes:
        head_seconds: The time for the head of a request.
    """

    head_seconds = HEAD_SECONDS
    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for the first request."""
        super().connection_made(transport)
        self._watch_head()

    def data_received(self, data: bytes) -> None:
        """Take a part of a request."""
        super().data_received(data)
        self._watch_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._stop_watching()
        super().connection_lost(exc)

    def _watch_head(self) -> None:
        if self.conn.their_state is not h11.IDLE:
            self._stop_watching()
        elif self._deadline is None:
            self._deadline = self.loop.call_later(self.head_seconds, self._close_waiting)

    def _stop_watching(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _close_waiting(self) -> None:
        if self.conn.their_state is h11.IDLE:
            self.transport.abort()


def report_too_many_files_once(loop: asyncio.AbstractEventLoop) -> None:
    """Print one line when no more connections can be accepted: asyncio prints 2,000 tracebacks a second meanwhile.

    Args:
        loop: The loop of the server.
    """
    has_reported = False

    def handle(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        nonlocal has_reported
        error = context.get("exception")
        if not isinstance(error, OSError) or error.errno not in _FULL:
            loop.default_exception_handler(context)
        elif not has_reported:
            has_reported = True
            text = "too many connections are open; new ones wait until others are closed"
            print(f"mldiagnostics: {text} ({error.strerror})", file=sys.stderr)

    loop.set_exception_handler(handle)
