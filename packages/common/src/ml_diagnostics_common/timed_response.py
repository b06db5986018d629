"""An HTTP response within one deadline, headers included. Needs nothing but the standard library.

A socket's timeout starts again with every byte that arrives: a server that sends one byte every half second would
never be given up.
"""

from __future__ import annotations

import http.client
import io
import socket
import time
from typing import Any

__all__ = ["TimedConnection", "TimedResponse"]


class TimedResponse(http.client.HTTPResponse):
    """A response whose status, headers and body must all arrive within the timeout that the socket has at its start.

    For the attribute `response_class` of an `http.client.HTTPConnection`. A read after that raises TimeoutError.
    """

    def __init__(self, sock: socket.socket, *args: Any, **kwargs: Any) -> None:
        super().__init__(sock, *args, **kwargs)
        timeout = sock.gettimeout()
        if timeout is not None:
            raw = self.fp.detach()
            self.fp = io.BufferedReader(_TimedReads(raw, sock, time.monotonic() + timeout))


class TimedConnection(http.client.HTTPConnection):
    """A connection without TLS whose responses are `TimedResponse`s."""

    response_class = TimedResponse

    def request(self, *args: Any, **kwargs: Any) -> None:
        """Send a request; its response has the whole timeout again, also on a connection that is used again."""
        if self.sock is not None:
            self.sock.settimeout(self.timeout)
        super().request(*args, **kwargs)


class _TimedReads(io.RawIOBase):
    """Gives each read from the socket only the time that is left."""

    def __init__(self, raw: Any, sock: socket.socket, deadline: float) -> None:
        self._raw = raw
        self._socket = sock
        self._deadline = deadline

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("timed out")
        self._socket.settimeout(left)
        count: int | None = self._raw.readinto(buffer)
        return count

    def fileno(self) -> int:
        number: int = self._raw.fileno()
        return number

    def close(self) -> None:
        self._raw.close()
        super().close()
