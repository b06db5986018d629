"""The streams between kubectl and a command: one message a piece, which begins with the number of its stream.

Source: https://github.com/kubernetes/kubernetes/blob/master/staging/src/k8s.io/apimachinery/pkg/util/remotecommand
"""

from collections.abc import Iterator
from typing import Final, Protocol

from ml_diagnostics_testing.kubernetes.websocket import WebSocket

STDIN: Final = 0
STDOUT: Final = 1
STDERR: Final = 2
ERROR: Final = 3
PROTOCOL: Final = "v5.channel.k8s.io"
_END_OF_STREAM: Final = 255


class Channels(Protocol):
    """Numbered streams to one client."""

    def send(self, channel: int, data: bytes) -> None:
        """Send a piece of a stream; OSError if the client is gone."""

    def stdin(self) -> Iterator[bytes]:
        """Yield what the client sends, b"" where it ends the stream, until it is gone."""

    def close(self) -> None:
        """End all streams."""


class WebSocketChannels:
    """Streams over one WebSocket, version 5: the client may end its own."""

    def __init__(self, websocket: WebSocket) -> None:
        self._websocket = websocket

    def send(self, channel: int, data: bytes) -> None:
        """Send a piece of a stream; OSError if the client is gone."""
        self._websocket.send(bytes([channel]) + data)

    def stdin(self) -> Iterator[bytes]:
        """Yield what the client sends, b"" where it ends the stream, until it is gone."""
        for message in self._websocket.messages():
            if message[:1] == bytes([STDIN]):
                yield message[1:]
            elif message == bytes([_END_OF_STREAM, STDIN]):
                yield b""

    def close(self) -> None:
        """End all streams."""
        self._websocket.close()
