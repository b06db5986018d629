"""`kubectl port-forward`: connect a pod's ports to ports of this machine.

Each connection has two streams with the same request id: one for data, one for errors.

Source: https://github.com/kubernetes/kubernetes/tree/master/staging/src/k8s.io/kubelet/pkg/cri/streaming/portforward
"""

import contextlib
import socket
import threading
from typing import Final

from .pods import Pod
from .spdy import Session, Stream

PROTOCOL: Final = "portforward.k8s.io"
TUNNELLED_PROTOCOL: Final = f"SPDY/3.1+{PROTOCOL}"


class PortForwarding:
    """Serve one `kubectl port-forward`.

    Args:
        pod: The pod.
        session: The client.
    """

    def __init__(self, pod: Pod, session: Session) -> None:
        self._pod = pod
        self._session = session
        self._errors: dict[str, Stream] = {}
        self._connections: list[socket.socket] = []
        self._threads: list[threading.Thread] = []

    def run(self) -> None:
        """Forward connections until the client disconnects."""
        self._session.receive(self._open)
        for connection in self._connections:
            _break(connection)
        for thread in self._threads:
            thread.join()

    def _open(self, stream: Stream) -> None:
        request = stream.headers.get("requestid", "")
        if stream.headers.get("streamtype") == "error":
            self._errors[request] = stream
            return
        error = self._errors.pop(request)
        thread = threading.Thread(target=self._carry, args=(stream, error), daemon=True)
        self._threads.append(thread)
        thread.start()

    def _carry(self, data: Stream, error: Stream) -> None:
        """Forward one connection in both directions, until the program at the port closes it."""
        port = int(data.headers["port"])
        with contextlib.suppress(OSError):  # the client has disconnected
            try:
                connection = socket.create_connection(("127.0.0.1", self._pod.ports.get(port, port)), timeout=5)
            except OSError as problem:
                error.send(_refused(self._pod, port, problem))
            else:
                with connection:
                    self._connections.append(connection)
                    connection.settimeout(None)
                    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    _exchange(connection, data)
                    self._connections.remove(connection)
            error.end()
            data.end()


def _exchange(connection: socket.socket, data: Stream) -> None:
    inward = threading.Thread(target=_send_all, args=(data, connection), daemon=True)
    inward.start()
    try:
        while piece := connection.recv(32768):
            data.send(piece)
    except OSError:  # one end has disconnected
        _break(connection)
    data.take(b"")  # end the other direction, too, as kubectl does
    inward.join()


def _send_all(data: Stream, connection: socket.socket) -> None:
    try:
        for piece in data.pieces():
            connection.sendall(piece)
        connection.shutdown(socket.SHUT_WR)
    except OSError:  # the program at the port has disconnected
        pass


def _break(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):  # it is broken already
        connection.shutdown(socket.SHUT_RDWR)


def _refused(pod: Pod, port: int, problem: OSError) -> bytes:
    return (
        f"error forwarding port {port} to pod {pod.name}, uid : failed to execute portforward in network namespace "
        f'"host": failed to connect to localhost:{port} inside namespace "host", IPv4: dial tcp4 127.0.0.1:{port}: '
        f"connect: {(problem.strerror or str(problem)).lower()}"
    ).encode()
