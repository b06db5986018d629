"""An HTTP response within one deadline, headers included. It needs only the standard library.

A socket's timeout starts again with every byte that arrives: a response of one byte every half second would never time
out.
"""

from __future__ import annotations

import http.client
import io
import socket
import time
from typing import Any

__all__ = ["TimedConnection", "TimedHeadersResponse", "TimedResponse"]


class TimedResponse(http.client.HTTPResponse):
    """A response that must arrive within the timeout that the socket has at its start: status, headers and body.

    For the attribute `response_class` of an `http.client.HTTPConnection`. A read after that raises TimeoutError.
    """

    _reads: _TimedReads | None = None

    def __init__(self, sock: socket.socket, *args: Any, **kwargs: Any) -> None:
        super().__init__(sock, *args, **kwargs)
        timeout = sock.gettimeout()
        if timeout is not None:
            self._reads = _TimedReads(self.fp.detach(), sock, timeout)
            self.fp = io.BufferedReader(self._reads)


class TimedHeadersResponse(TimedResponse):
    """A response with a timeout for status and headers only: its body may be a large file.

    Each read of the body has the whole timeout.
    """

    def begin(self) -> None:
        """Read status and headers."""
        super().begin()
        if self._reads is not None:
            self._reads.lift_deadline()


class TimedConnection(http.client.HTTPConnection):
    """A connection without TLS that returns `TimedResponse`s."""

    response_class = TimedResponse

    def request(self, *args: Any, **kwargs: Any) -> None:
        """Send a request; its response has the whole timeout again, also on a connection that is used again."""
        if self.sock is not None:
            self.sock.settimeout(self.timeout)
        super().request(*args, **kwargs)


class _TimedReads(io.RawIOBase):
    """Limit each read from the socket to the time that is left."""

    def __init__(self, raw: Any, sock: socket.socket, timeout: float) -> None:
        self._raw = raw
        self._socket = sock
        self._timeout = timeout
        self._deadline: float | None = time.monotonic() + timeout

    def lift_deadline(self) -> None:
        """Give each further read the whole timeout."""
        self._deadline = None
        self._socket.settimeout(self._timeout)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        if self._deadline is not None:
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
