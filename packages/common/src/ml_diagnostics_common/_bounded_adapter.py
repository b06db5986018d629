"""Responses of a server that is not trusted: one deadline for the whole, and a limit after decompression.

This module imports requests and urllib3. Their own limits are not enough: their timeout is for each read from the
socket, and a compressed body of 2 MB may become 2 GiB in memory.
"""

from __future__ import annotations

import functools
import ssl
import time
import zlib
from collections.abc import Iterator
from typing import Any

import requests
import urllib3
from requests.adapters import HTTPAdapter
from urllib3.exceptions import DecodeError, ProtocolError

from ml_diagnostics_common._timed_response import TimedHeadersResponse, TimedResponse
from ml_diagnostics_common.worker import MOST_THREADS

__all__ = [
    "BoundedAdapter",
    "Deadline",
    "ResponseTooLargeError",
    "TimedHeadersAdapter",
    "bounded_http",
]

_CONNECT_SECONDS = 5.0
_PIECE_BYTES = 1 << 18
_GZIP_OR_ZLIB = zlib.MAX_WBITS | 32


def bounded_http(most_bytes: int, tls: ssl.SSLContext | None = None) -> requests.Session:
    """Return a `requests.Session` that limits responses in size and, given a `Deadline`, in time.

    Args:
        most_bytes: The limit of a body after decompression, unless `response.raw.most_bytes` is set.
        tls: A context with a client certificate; None for connections without one.
    """
    session = requests.Session()
    session.headers["Accept-Encoding"] = "gzip"  # Only this is decompressed here, in bounded memory.
    for prefix in ("http://", "https://"):
        session.mount(prefix, BoundedAdapter(most_bytes, tls))
    return session


class ResponseTooLargeError(ProtocolError):
    """The body is larger than the limit; the connection is closed."""


class Deadline(urllib3.Timeout):
    """A moment of the monotonic clock by which a request must be over, whatever it consists of.

    Args:
        moment: The moment, in seconds of `time.monotonic`.
    """

    def __init__(self, moment: float) -> None:
        super().__init__()
        self.moment = moment

    @property
    def seconds_left(self) -> float:
        """The time that is left, at least 0."""
        return max(0.0, self.moment - time.monotonic())

    @property
    def connect_timeout(self) -> float:
        """Return how long to wait for a connection, or to send."""
        return max(0.001, min(_CONNECT_SECONDS, self.seconds_left))

    @property
    def read_timeout(self) -> float:
        """Return how long to wait for the whole response. Zero is an error in urllib3, as intended."""
        return self.seconds_left

    def clone(self) -> Deadline:
        """Return the same moment: urllib3 clones it for each request, and would restart the time."""
        return Deadline(self.moment)


class TimedHeadersAdapter(HTTPAdapter):
    """Send the requests of a `requests.Session`; headers have one deadline, the body's reads one each."""

    _response_class: type[TimedResponse] = TimedHeadersResponse

    def __init__(self) -> None:
        super().__init__(pool_maxsize=MOST_THREADS)  # urllib3 warns of each connection beyond, and closes it.

    def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:
        """Make pools of connections with deadlines for responses."""
        super().init_poolmanager(*args, **kwargs)
        self.poolmanager.pool_classes_by_scheme = _pools(self._response_class)

    def proxy_manager_for(self, *args: Any, **kwargs: Any) -> Any:
        """Make the same for connections through a proxy."""
        manager = super().proxy_manager_for(*args, **kwargs)
        if type(manager) is urllib3.ProxyManager:  # Those of SOCKS have their own.
            manager.pool_classes_by_scheme = _pools(self._response_class)
        return manager


class BoundedAdapter(TimedHeadersAdapter):
    """The same with one deadline for all of a response; each body is decompressed and counted as it is read.

    Args:
        most_bytes: The limit of a body after decompression, unless `response.raw.most_bytes` is set.
        tls: A context with a client certificate; None for connections without one.
    """

    _response_class = TimedResponse

    def __init__(self, most_bytes: int, tls: ssl.SSLContext | None = None) -> None:
        self._most_bytes = most_bytes
        self._tls = {} if tls is None else {"ssl_context": tls}
        super().__init__()

    def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:
        """Make pools that also use the client certificate."""
        super().init_poolmanager(*args, **kwargs, **self._tls)

    def proxy_manager_for(self, *args: Any, **kwargs: Any) -> Any:
        """Make the same for connections through a proxy."""
        return super().proxy_manager_for(*args, **kwargs, **self._tls)

    def send(self, *args: Any, **kwargs: Any) -> Any:
        """Send a request; see `requests.adapters.HTTPAdapter.send`."""
        response = super().send(*args, **kwargs)
        response.raw = _BoundedBody(response.raw, self._most_bytes)
        return response


@functools.cache
def _pools(response: type[TimedResponse]) -> dict[str, Any]:
    class Connection(urllib3.connection.HTTPConnection):
        response_class = response

    class TlsConnection(urllib3.connection.HTTPSConnection):
        response_class = response

    class HTTPConnectionPool(urllib3.HTTPConnectionPool):  # The name is in its messages.
        ConnectionCls = Connection

    class HTTPSConnectionPool(urllib3.HTTPSConnectionPool):
        ConnectionCls = TlsConnection

    return {"http": HTTPConnectionPool, "https": HTTPSConnectionPool}


class _BoundedBody:
    """A replacement for urllib3's body, which would decompress everything that it has read at once.

    Attributes:
        most_bytes: The limit after decompression.
    """

    def __init__(self, raw: Any, most_bytes: int) -> None:
        self.most_bytes = most_bytes
        self._raw = raw

    def __getattr__(self, name: str) -> Any:
        return getattr(self._raw, name)

    def read_all(self) -> bytes:
        """Return the whole body.

        Raises:
            ResponseTooLargeError: It is too large.
            urllib3.exceptions.HTTPError: It did not arrive whole and in time, or cannot be decompressed.
        """
        return b"".join(self.stream())

    def stream(self, *_: object, **__: object) -> Iterator[bytes]:
        """Yield the body in pieces; requests reads it by this. Raises as `read_all`."""
        try:
            encoding = (self._raw.headers.get("Content-Encoding") or "identity").strip().lower()
            pieces = self._received()
            count = 0
            for piece in pieces if encoding == "identity" else self._decompressed(encoding, pieces):
                count += len(piece)
                if count > self.most_bytes:
                    raise self._too_large()
                yield piece
        except BaseException:
            self._raw.close()  # Otherwise the connection would be used again, with the rest of the body.
            raise

    def _received(self) -> Iterator[bytes]:
        announced = self._raw.length_remaining or 0
        if announced > self.most_bytes:
            raise self._too_large()
        while piece := self._raw.read(max(announced, _PIECE_BYTES), decode_content=False):
            yield piece

    def _decompressed(self, encoding: str, pieces: Iterator[bytes]) -> Iterator[bytes]:
        if encoding not in ("gzip", "x-gzip", "deflate"):
            raise DecodeError(f"the response is compressed by {encoding[:40]!r}, which was not asked for")
        member = zlib.decompressobj(_GZIP_OR_ZLIB)
        received = False
        for piece in pieces:
            rest = piece
            while rest:
                if member.eof:  # RFC 1952: one gzip file may follow another.
                    member = zlib.decompressobj(_GZIP_OR_ZLIB)
                try:
                    decompressed = member.decompress(rest, _PIECE_BYTES)
                except zlib.error as error:
                    raise DecodeError(f"the response cannot be decompressed: {error}") from error
                received = True
                rest = member.unused_data or member.unconsumed_tail
                yield decompressed
        yield member.flush()  # A few bytes at most: those that exceeded the last piece.
        if received and not member.eof:
            raise ProtocolError("the compressed response ends in the middle")

    def _too_large(self) -> ResponseTooLargeError:
        return ResponseTooLargeError(f"the response is larger than {self.most_bytes / 2**20:.4g} MiB; it was dropped")
