"""The gauges of jobs for Prometheus, computed at each scrape from the last states. Needs the extra [prometheus]."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from ml_diagnostics_common.exceptions import MissingExtraError

from ml_goodput_measurement.exporters.gauges import GAUGES

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import GaugeMetricFamily

    from ml_goodput_measurement.exporters.board import Board

__all__ = ["DEFAULT_PORT", "JobCollector", "PrometheusEndpoint", "require_prometheus"]

DEFAULT_PORT = 9464
"""The port that OpenTelemetry's exporters for Prometheus use."""
_CLIENT_SECONDS = 10.0
"""A client that sends or takes nothing for so long is closed."""
_MOST_CLIENTS = 64
"""The most clients at the same time: each has a thread and a socket. A scrape takes a fraction of a second."""


def require_prometheus() -> None:
    """Check that prometheus_client is installed.

    Raises:
        MissingExtraError: It is not.
    """
    try:
        import prometheus_client  # noqa: F401
    except ImportError:
        raise MissingExtraError("goodput export prometheus", "ml-goodput-measurement", "prometheus") from None


class JobCollector:
    """A collector for a registry of prometheus_client.

    Args:
        board: The states of jobs.
    """

    def __init__(self, board: Board) -> None:
        self._board = board

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield the gauges that have values; never waits for a read."""
        from prometheus_client.core import GaugeMetricFamily

        shown = self._board.shown()
        for gauge in GAUGES:
            family = GaugeMetricFamily(gauge.prometheus, gauge.help, labels=gauge.labels)
            for labels, value in gauge.read(shown):
                family.add_metric([labels[name] for name in gauge.labels], value)
            if family.samples:
                yield family

    def describe(self) -> Iterator[GaugeMetricFamily]:
        """Yield the gauges without values: a registry finds those that a request with `name[]=` selects by these."""
        from prometheus_client.core import GaugeMetricFamily

        for gauge in GAUGES:
            yield GaugeMetricFamily(gauge.prometheus, gauge.help)


class PrometheusEndpoint:
    """Serves the gauges over HTTP, under /metrics.

    Args:
        board: The states of jobs.
    """

    def __init__(self, board: Board) -> None:
        """Serve nothing yet."""
        from prometheus_client import CollectorRegistry

        self.registry: CollectorRegistry = CollectorRegistry(auto_describe=False)
        self.registry.register(JobCollector(board))

    def start(self, host: str, port: int) -> int:
        """Start to serve, in a thread, and return the port.

        Args:
            host: The address to listen on.
            port: The port; 0 for any that is free.

        Raises:
            OSError: The port is taken, or the address is not of this machine.
        """
        from prometheus_client import make_wsgi_app

        self._server = _Server(host, port)
        self._server.set_app(make_wsgi_app(self.registry))
        self._thread = threading.Thread(target=self._server.serve_forever, name="goodput-prometheus", daemon=True)
        self._thread.start()
        return self._server.server_port

    def stop(self) -> None:
        """Stop to serve."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(1.0)


class _Server(ThreadingMixIn, WSGIServer):
    """Answers each client in a thread.

    prometheus_client's own server waits for a silent client forever, until no socket is left and its loop spins.
    """

    daemon_threads = True
    request_queue_size = _MOST_CLIENTS

    def __init__(self, host: str, port: int) -> None:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        self.address_family = found[0][0]
        self._lock = threading.Lock()
        self._clients: list[socket.socket] = []
        super().__init__((str(found[0][4][0]), port), _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Start a thread for a client; of too many, close the oldest, which is not a scraper."""
        with self._lock:
            self._clients.append(request)
            oldest = self._clients.pop(0) if len(self._clients) > _MOST_CLIENTS else None
            if oldest is not None:
                with contextlib.suppress(OSError):  # It is closed already.
                    oldest.shutdown(socket.SHUT_RDWR)  # Its thread ends, and closes it.
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Close a client."""
        with self._lock:
            if request in self._clients:
                self._clients.remove(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Do nothing: a client has gone, or was too slow."""


class _Handler(WSGIRequestHandler):
    """Answers one request, and logs nothing."""

    timeout = _CLIENT_SECONDS

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing."""
