"""The gauges of jobs for Prometheus, computed at each scrape from the last states. Needs the extra [prometheus]."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ml_diagnostics_common.exceptions import MissingExtraError

from ml_goodput_measurement.exporters.gauges import GAUGES

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import GaugeMetricFamily

    from ml_goodput_measurement.exporters.board import Board

__all__ = ["DEFAULT_PORT", "JobCollector", "PrometheusEndpoint", "require_prometheus"]

DEFAULT_PORT = 9464
"""The port that OpenTelemetry's exporters for Prometheus use."""


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
            for labels, value in gauge.values(shown):
                family.add_metric([labels[name] for name in gauge.labels], value)
            if family.samples:
                yield family

    def describe(self) -> Iterator[GaugeMetricFamily]:
        """Yield nothing: a registry that collects to find the names would do so before there are any states."""
        return iter(())


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
        from prometheus_client import start_http_server

        self._server, self._thread = start_http_server(port, addr=host, registry=self.registry)
        return int(self._server.server_port)

    def stop(self) -> None:
        """Stop to serve."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(1.0)
