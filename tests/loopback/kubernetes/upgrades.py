"""Requests that switch to another protocol, WebSocket or SPDY, to run a command or to forward ports."""

import contextlib
import socket
import time
import urllib.parse
from collections.abc import Callable
from io import BufferedIOBase

from ml_diagnostics_testing.http_server import ApiError, Request, Response

from . import channels, spdy, websocket
from .execution import execute
from .pods import Pod
from .port_forwarding import PROTOCOL, TUNNELLED_PROTOCOL, PortForwarding

_START_SECONDS = 0.1
"""A container takes longer to start a program. Older kubectl drop what arrives before they have set up all streams:
https://github.com/kubernetes/kubernetes/pull/131203"""

_TakesOver = Callable[[BufferedIOBase, socket.socket], None]


def exec_response(pod: Pod, request: Request) -> Response:
    """Accept a request to run a command in a pod.

    Raises:
        ApiError: The request is invalid.
    """
    query = urllib.parse.parse_qs(request.target.partition("?")[2], keep_blank_values=True, errors="surrogateescape")
    container = query.get("container", [pod.containers[0]])[0]
    if container not in pod.containers:
        raise ApiError(400, f"container {container} is not valid for pod {pod.name}", name="BadRequest")
    if query.get("tty") == ["true"]:
        raise ApiError(400, "the loopback cluster has no terminals", name="BadRequest")
    argv = query.get("command", [])
    streams = {name for name in ("stdin", "stdout", "stderr") if query.get(name) == ["true"]}

    def over_websocket(reader: BufferedIOBase, connection: socket.socket) -> None:
        client = channels.WebSocketChannels(websocket.WebSocket(reader, connection))
        time.sleep(_START_SECONDS)
        execute(pod, argv, container, client, with_stdin="stdin" in streams)

    def over_spdy(reader: BufferedIOBase, connection: socket.socket) -> None:
        session = spdy.Session(spdy.SocketTransport(reader, connection))
        client = channels.SpdyChannels(session, streams)
        execute(pod, argv, container, client, with_stdin="stdin" in streams)

    if websocket.is_upgrade(request.headers):
        return _accept(websocket.handshake(request.headers, channels.PROTOCOL), pod, over_websocket, by_command=True)
    if spdy.is_upgrade(request.headers):
        return _accept(spdy.handshake(channels.SPDY_PROTOCOL), pod, over_spdy, by_command=True)
    raise _no_upgrade()


def port_forward_response(pod: Pod, request: Request) -> Response:
    """Accept a request to forward a pod's ports.

    Raises:
        ApiError: The request is invalid.
    """

    def over_websocket(reader: BufferedIOBase, connection: socket.socket) -> None:
        transport = spdy.WebSocketTransport(websocket.WebSocket(reader, connection))
        PortForwarding(pod, spdy.Session(transport)).run()

    def over_spdy(reader: BufferedIOBase, connection: socket.socket) -> None:
        PortForwarding(pod, spdy.Session(spdy.SocketTransport(reader, connection))).run()

    if websocket.is_upgrade(request.headers):
        headers = websocket.handshake(request.headers, TUNNELLED_PROTOCOL)
        return _accept(headers, pod, over_websocket, by_command=False)
    if spdy.is_upgrade(request.headers):
        return _accept(spdy.handshake(PROTOCOL), pod, over_spdy, by_command=False)
    raise _no_upgrade()


def _accept(headers: dict[str, str], pod: Pod, takes_over: _TakesOver, *, by_command: bool) -> Response:
    def with_pod(reader: BufferedIOBase, connection: socket.socket) -> None:
        def breaks() -> None:
            with contextlib.suppress(OSError):  # it is closed already
                connection.shutdown(socket.SHUT_RDWR)

        with pod.used(breaks, by_command=by_command):
            takes_over(reader, connection)

    return Response(101, headers=headers, takes_over=with_pod)


def _no_upgrade() -> ApiError:
    return ApiError(400, "Upgrade request required: over a WebSocket, or SPDY/3.1", name="BadRequest")
