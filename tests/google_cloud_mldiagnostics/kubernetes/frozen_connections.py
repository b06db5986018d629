"""A TCP proxy with connections that can be frozen: open, and without any data, as with a firewall that forgets them."""

from __future__ import annotations

import contextlib
import socket
import threading
from types import TracebackType


class FreezingProxy:
    """Forwards connections to a port of this machine; those that are open at a freeze carry nothing any more.

    Attributes:
        port: Its own port.
    """

    def __init__(self, target_port: int) -> None:
        self._target_port = target_port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._sockets: list[socket.socket] = []
        self._frozen = threading.Event()
        threading.Thread(target=self._accept, daemon=True).start()

    def freeze(self) -> None:
        """Freeze the connections that are open; new ones work."""
        frozen, self._frozen = self._frozen, threading.Event()
        frozen.set()

    def __enter__(self) -> FreezingProxy:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for each in (self._listener, *self._sockets):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                try:
                    server = socket.create_connection(("127.0.0.1", self._target_port))
                except ConnectionRefusedError:
                    client.close()
                    continue
                self._sockets += [client, server]
                for source, target in ((client, server), (server, client)):
                    threading.Thread(target=self._forward, args=(source, target, self._frozen), daemon=True).start()

    def _forward(self, source: socket.socket, target: socket.socket, frozen: threading.Event) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                if frozen.is_set():
                    return  # The sockets stay open.
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)
