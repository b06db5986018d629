"""The server side of a WebSocket with binary messages.

Source: https://www.rfc-editor.org/rfc/rfc6455
"""

import base64
import hashlib
import socket
import threading
from collections.abc import Iterator
from email.message import Message
from io import BufferedIOBase

from wsproto.connection import Connection, ConnectionType
from wsproto.events import BytesMessage, CloseConnection, Ping, TextMessage
from wsproto.utilities import LocalProtocolError

_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"


def is_upgrade(headers: Message) -> bool:
    """Return True for a request to upgrade to a WebSocket."""
    return (headers.get("Upgrade") or "").lower() == "websocket" and "Sec-WebSocket-Key" in headers


def handshake(headers: Message, subprotocol: str) -> dict[str, str]:
    """Return the response headers that accept an upgrade to a WebSocket."""
    key = headers["Sec-WebSocket-Key"].encode()
    accept = base64.b64encode(hashlib.sha1(key + _GUID, usedforsecurity=False).digest()).decode()
    return {
        "Upgrade": "websocket",
        "Connection": "Upgrade",
        "Sec-WebSocket-Accept": accept,
        "Sec-WebSocket-Protocol": subprotocol,
    }


class WebSocket:
    """A WebSocket after its handshake. Any thread may send; one thread receives.

    Args:
        reader: Reads the client's data.
        connection: The connection.
    """

    def __init__(self, reader: BufferedIOBase, connection: socket.socket) -> None:
        self._reader = reader
        self._socket = connection
        self._protocol = Connection(ConnectionType.SERVER)
        self._lock = threading.Lock()
        self._is_over = False

    def send(self, message: bytes) -> None:
        """Send one message.

        Raises:
            OSError: The client has disconnected.
        """
        with self._lock:
            if self._is_over:
                raise BrokenPipeError("the client has left the WebSocket")
            self._socket.sendall(self._protocol.send(BytesMessage(message)))

    def close(self) -> None:
        """Send a close frame. The receiving thread still reads the client's remaining messages."""
        with self._lock:
            if not self._is_over:
                self._is_over = True
                try:
                    self._socket.sendall(self._protocol.send(CloseConnection(1000)))
                    self._socket.shutdown(socket.SHUT_WR)
                except (OSError, LocalProtocolError):  # the client has disconnected first
                    pass

    def messages(self) -> Iterator[bytes]:
        """Yield each message, until the client disconnects."""
        parts: list[bytes] = []
        while True:
            for event in self._events():
                if isinstance(event, CloseConnection):
                    self.close()
                elif isinstance(event, Ping):
                    self._answer(event)
                elif isinstance(event, BytesMessage | TextMessage):
                    parts.append(event.data.encode() if isinstance(event.data, str) else bytes(event.data))
                    if event.message_finished:
                        yield b"".join(parts)
                        parts.clear()
                elif event is None:
                    self._is_over = True
                    return

    def _events(self) -> Iterator[object]:
        """Yield the events in the next bytes; None at the end."""
        try:
            received = self._reader.read1(65536)
        except (OSError, ValueError):  # broken; closed
            received = b""
        if not received:
            yield None
            return
        with self._lock:
            self._protocol.receive_data(received)
            events = list(self._protocol.events())
        yield from events

    def _answer(self, ping: Ping) -> None:
        with self._lock:
            if not self._is_over:
                try:
                    self._socket.sendall(self._protocol.send(ping.response()))
                except OSError:  # the client has disconnected; the next read reports it
                    pass
