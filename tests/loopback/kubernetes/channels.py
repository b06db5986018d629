"""The streams between kubectl and a command in a pod.

Source: https://github.com/kubernetes/kubernetes/blob/master/staging/src/k8s.io/apimachinery/pkg/util/remotecommand
"""

import threading
from collections.abc import Iterable, Iterator
from typing import Final, Protocol

from .spdy import Session, Stream
from .websocket import WebSocket

STDIN: Final = 0
STDOUT: Final = 1
STDERR: Final = 2
ERROR: Final = 3
PROTOCOL: Final = "v5.channel.k8s.io"
SPDY_PROTOCOL: Final = "v4.channel.k8s.io"
_NAMES: Final = ("stdin", "stdout", "stderr", "error")
_END_OF_STREAM: Final = 255


class Channels(Protocol):
    """The numbered streams of one client."""

    def send(self, channel: int, data: bytes) -> None:
        """Send data on a stream; OSError if the client has disconnected."""

    def stdin(self) -> Iterator[bytes]:
        """Yield the client's data, and b"" at its end, until the client disconnects."""

    def close(self) -> None:
        """End all streams."""


class WebSocketChannels:
    """Streams over one WebSocket: the first byte of each message is the number of its stream."""

    def __init__(self, websocket: WebSocket) -> None:
        self._websocket = websocket

    def send(self, channel: int, data: bytes) -> None:
        """Send data on a stream; OSError if the client has disconnected."""
        self._websocket.send(bytes([channel]) + data)

    def stdin(self) -> Iterator[bytes]:
        """Yield the client's data, and b"" at its end, until the client disconnects."""
        for message in self._websocket.messages():
            if message[:1] == bytes([STDIN]):
                yield message[1:]
            elif message == bytes([_END_OF_STREAM, STDIN]):
                yield b""

    def close(self) -> None:
        """End all streams."""
        self._websocket.close()


class SpdyChannels:
    """Streams over SPDY, for older versions of kubectl.

    Args:
        session: The client.
        expected: The streams that it will open besides the one for errors: "stdin", "stdout", "stderr".
    """

    def __init__(self, session: Session, expected: Iterable[str]) -> None:
        self._session = session
        self._expected = {"error", *expected}
        self._streams: dict[str, Stream] = {}
        self._ready = threading.Event()
        self._receiving = threading.Thread(target=self._receive, daemon=True)
        self._receiving.start()
        self._ready.wait()

    def send(self, channel: int, data: bytes) -> None:
        """Send data on a stream; OSError if the client has disconnected."""
        stream = self._streams.get(_NAMES[channel])
        if stream is not None:
            stream.send(data)

    def stdin(self) -> Iterator[bytes]:
        """Yield the client's data, and b"" at its end, until the client disconnects."""
        if "stdin" in self._streams:
            yield from self._streams["stdin"].pieces()
            yield b""
        self._receiving.join()

    def close(self) -> None:
        """End all streams."""
        try:
            for stream in self._streams.values():
                stream.end()
        except OSError:  # the client has disconnected
            pass

    def _receive(self) -> None:
        self._session.receive(self._open)
        self._ready.set()

    def _open(self, stream: Stream) -> None:
        self._streams[stream.headers.get("streamtype", "")] = stream
        if self._expected <= self._streams.keys():
            self._ready.set()
