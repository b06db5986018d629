"""The server side of SPDY/3.1: many streams in one connection, as kubectl uses for ports and commands.

Newer versions of kubectl tunnel it through a WebSocket. There is no flow control, because kubectl has none either.

Source: https://www.chromium.org/spdy/spdy-protocol/spdy-protocol-draft3-1/
"""

import queue
import socket
import struct
import threading
import zlib
from collections.abc import Callable, Iterator, Mapping
from email.message import Message
from io import BufferedIOBase
from typing import Final, Protocol

from .websocket import WebSocket

_VERSION: Final = 0x8003
_SYN_STREAM, _SYN_REPLY, _RST_STREAM, _PING, _GO_AWAY = 1, 2, 3, 6, 7
_FIN: Final = 1
_CANCEL: Final = 5
_MAX_DATA: Final = 32768
_HEADER_TEXTS: Final = (
    "options head post put delete trace accept accept-charset accept-encoding accept-language accept-ranges age allow "
    "authorization cache-control connection content-base content-encoding content-language content-length "
    "content-location content-md5 content-range content-type date etag expect expires from host if-match "
    "if-modified-since if-none-match if-range if-unmodified-since last-modified location max-forwards pragma "
    "proxy-authenticate proxy-authorization range referer retry-after server te trailer transfer-encoding upgrade "
    "user-agent vary via warning www-authenticate method get status 200_OK version HTTP/1.1 url public set-cookie "
    "keep-alive origin"
)
_REST: Final = (
    "100101201202205206300302303304305306307402405406407408409410411412413414415416417502504505203 Non-Authoritative "
    "Information204 No Content301 Moved Permanently400 Bad Request401 Unauthorized403 Forbidden404 Not Found500 "
    "Internal Server Error501 Not Implemented503 Service UnavailableJan Feb Mar Apr May Jun Jul Aug Sept Oct Nov Dec "
    "00:00:00 Mon, Tue, Wed, Thu, Fri, Sat, Sun, GMTchunked,text/html,image/png,image/jpg,image/gif,application/xml,"
    "application/xhtml+xml,text/plain,text/javascript,publicprivatemax-age=gzip,deflate,sdchcharset=utf-8charset="
    "iso-8859-1,utf-,*,enq=0."
)


def _dictionary() -> bytes:
    """Return the compression dictionary of headers: section 2.6.10.1 of the specification."""
    texts = [text.replace("_", " ").encode() for text in _HEADER_TEXTS.split()]
    return b"".join(struct.pack(">I", len(text)) + text for text in texts) + _REST.encode()


def is_upgrade(headers: Message) -> bool:
    """Return True for a request to upgrade to SPDY."""
    return (headers.get("Upgrade") or "").upper() == "SPDY/3.1"


def handshake(protocol: str) -> dict[str, str]:
    """Return the response headers that accept an upgrade to SPDY."""
    return {"Upgrade": "SPDY/3.1", "Connection": "Upgrade", "X-Stream-Protocol-Version": protocol}


class Transport(Protocol):
    """The transport of frames: a connection or a WebSocket."""

    def pieces(self) -> Iterator[bytes]:
        """Yield the client's data in pieces of any size, until the client disconnects."""

    def send(self, data: bytes) -> None:
        """Send bytes, from one thread at a time; OSError if the client has disconnected."""

    def close(self) -> None:
        """Close the sending side."""


class SocketTransport:
    """Frames directly on a connection."""

    def __init__(self, reader: BufferedIOBase, connection: socket.socket) -> None:
        self._reader = reader
        self._socket = connection

    def pieces(self) -> Iterator[bytes]:
        """Yield the client's data in pieces of any size, until the client disconnects."""
        try:
            while piece := self._reader.read1(65536):
                yield piece
        except (OSError, ValueError):  # broken; closed
            return

    def send(self, data: bytes) -> None:
        """Send bytes, from one thread at a time; OSError if the client has disconnected."""
        self._socket.sendall(data)

    def close(self) -> None:
        """Close the sending side."""
        try:
            self._socket.shutdown(socket.SHUT_WR)
        except OSError:  # the client has disconnected first
            pass


class WebSocketTransport:
    """Frames in the messages of a WebSocket."""

    def __init__(self, websocket: WebSocket) -> None:
        self.pieces = websocket.messages
        self.send = websocket.send
        self.close = websocket.close


class Stream:
    """One stream, opened by the client.

    Attributes:
        headers: The headers of the stream, by name in lower case.
    """

    def __init__(self, session: "Session", number: int, headers: Mapping[str, str]) -> None:
        self.headers = headers
        self._session = session
        self._number = number
        self._received: queue.SimpleQueue[bytes] = queue.SimpleQueue()

    def pieces(self) -> Iterator[bytes]:
        """Yield the client's data, until it ends the stream or disconnects."""
        while piece := self._received.get():
            yield piece

    def send(self, data: bytes) -> None:
        """Send bytes; OSError if the client has disconnected."""
        for start in range(0, len(data), _MAX_DATA):
            self._session.send_data(self._number, data[start : start + _MAX_DATA])

    def end(self) -> None:
        """Send the end of the stream."""
        self._session.send_data(self._number, b"", is_last=True)

    def reset(self) -> None:
        """Reset the stream."""
        self._session.send_control(_RST_STREAM, struct.pack(">II", self._number, _CANCEL))

    def take(self, data: bytes) -> None:
        """Add received data; b"" ends the stream. The session calls this."""
        self._received.put(data)


class Session:
    """The streams of one client. Any thread may send; one thread receives.

    Args:
        transport: The transport to the client.
    """

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._streams: dict[int, Stream] = {}
        dictionary = _dictionary()
        self._inflate = zlib.decompressobj(zdict=dictionary)
        self._deflate = zlib.compressobj(zdict=dictionary)
        self._lock = threading.Lock()

    def receive(self, on_stream: Callable[[Stream], None]) -> None:
        """Distribute the client's data to its streams, until the client disconnects.

        Args:
            on_stream: Called with each new stream.
        """
        buffer = bytearray()
        for piece in self._transport.pieces():
            buffer += piece
            while len(buffer) >= 8 and len(buffer) >= (end := 8 + int.from_bytes(buffer[5:8], "big")):
                self._take(struct.unpack(">I", buffer[:4])[0], buffer[4], bytes(buffer[8:end]), on_stream)
                del buffer[:end]
        for stream in list(self._streams.values()):
            stream.take(b"")

    def send_data(self, number: int, data: bytes, *, is_last: bool = False) -> None:
        """Send a frame of a stream's data."""
        with self._lock:
            self._transport.send(struct.pack(">II", number, is_last * _FIN << 24 | len(data)) + data)

    def send_control(self, kind: int, payload: bytes) -> None:
        """Send a control frame."""
        with self._lock:
            self._transport.send(struct.pack(">HHI", _VERSION, kind, len(payload)) + payload)

    def close(self) -> None:
        """End all streams."""
        with self._lock:
            self._transport.close()

    def _take(self, head: int, flags: int, payload: bytes, on_stream: Callable[[Stream], None]) -> None:
        if not head >> 31:
            stream = self._streams.get(head)
            if stream is not None and payload:
                stream.take(payload)
            if stream is not None and flags & _FIN:
                self._streams.pop(head).take(b"")
            return
        kind = head & 0xFFFF
        number = int.from_bytes(payload[:4], "big") & 0x7FFFFFFF
        if kind == _SYN_STREAM:
            stream = self._streams[number] = Stream(self, number, self._read_headers(payload[10:]))
            self._accept(number)
            on_stream(stream)
        elif kind == _RST_STREAM and number in self._streams:
            self._streams.pop(number).take(b"")
        elif kind == _PING:
            self.send_control(_PING, payload)

    def _accept(self, number: int) -> None:
        with self._lock:
            none = self._deflate.compress(bytes(4)) + self._deflate.flush(zlib.Z_SYNC_FLUSH)
            payload = struct.pack(">I", number) + none
            self._transport.send(struct.pack(">HHI", _VERSION, _SYN_REPLY, len(payload)) + payload)

    def _read_headers(self, block: bytes) -> dict[str, str]:
        """Parse a compressed block of headers: their number, then length and text of each name and value."""
        data, position = self._inflate.decompress(block), 4
        texts = []
        for _ in range(2 * int.from_bytes(data[:4], "big")):
            end = position + 4 + int.from_bytes(data[position : position + 4], "big")
            texts.append(data[position + 4 : end].decode())
            position = end
        return dict(zip(texts[::2], texts[1::2], strict=True))
