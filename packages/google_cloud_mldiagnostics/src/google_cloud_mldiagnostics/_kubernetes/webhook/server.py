"""The server of the webhook: TLS with certificates that change, limits, and an orderly end on SIGTERM."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Final, Literal

import uvicorn
import uvloop
from prometheus_client import start_http_server

from google_cloud_mldiagnostics._kubernetes.api import Connection, KubernetesApi, pod_namespace
from google_cloud_mldiagnostics._kubernetes.names import WEBHOOK_CONFIGURATION
from google_cloud_mldiagnostics._kubernetes.owners import Owners, reason_of
from google_cloud_mldiagnostics._kubernetes.values import is_cluster_name
from google_cloud_mldiagnostics._kubernetes.webhook.app import make_app
from google_cloud_mldiagnostics._kubernetes.webhook.certificates import PairFiles
from google_cloud_mldiagnostics._kubernetes.webhook.cluster import cluster_name
from google_cloud_mldiagnostics._kubernetes.webhook.health import Health
from google_cloud_mldiagnostics._kubernetes.webhook.injection import Injection
from google_cloud_mldiagnostics._kubernetes.webhook.metrics import WebhookMetrics
from google_cloud_mldiagnostics._kubernetes.webhook.self_signed import SelfSigned
from google_cloud_mldiagnostics._kubernetes.webhook.standing_down import StandDown
from google_cloud_mldiagnostics.exceptions import KubernetesError

__all__ = ["WebhookSettings", "serve"]

_LOOKUP_SECONDS: Final = 1.0
_END_SECONDS: Final = 5
"""For the reviews that are not answered yet at the end."""

_log = logging.getLogger("ml_diagnostics.kubernetes")


@dataclass(frozen=True, kw_only=True)
class WebhookSettings:
    """The settings of a server.

    Attributes:
        certificate: The file of the certificate; None to sign one, and keep it in a Secret of the namespace.
        key: The file of its key; None without a file of the certificate.
        cluster: The cluster as `projects/P/locations/L/clusters/C`; empty to ask the metadata server.
        stand_down: `auto` to patch no pod while there is another injector; `never` to search for none.
        host: The address to listen on.
        port: The port for reviews.
        metrics_port: The port for Prometheus, without TLS; None for none.
        namespace: The namespace of the server; empty for that of the pod.
        configuration: The name of the MutatingWebhookConfiguration.
        drain_seconds: How long the server goes on after SIGTERM, until the cluster knows that it ends.
    """

    certificate: Path | None = None
    key: Path | None = None
    cluster: str = ""
    stand_down: Literal["auto", "never"] = "auto"
    host: str = "0.0.0.0"
    port: int = 8443
    metrics_port: int | None = 8080
    namespace: str = ""
    configuration: str = WEBHOOK_CONFIGURATION
    drain_seconds: float = 5.0

    def __post_init__(self) -> None:
        """Check the settings.

        Raises:
            ValueError: One of them is not valid.
        """
        if (self.certificate is None) != (self.key is None):
            raise ValueError("expected the files of both a certificate and its key, got one of them")
        if self.cluster and not is_cluster_name(self.cluster):
            raise ValueError(f"expected the cluster as projects/P/locations/L/clusters/C, got {self.cluster!r:.200}")
        if self.stand_down not in ("auto", "never"):
            raise ValueError(f"expected stand_down to be 'auto' or 'never', got {self.stand_down!r:.50}")


def serve(settings: WebhookSettings, connection: Connection) -> None:
    """Answer reviews until SIGTERM or SIGINT.

    Args:
        settings: The settings.
        connection: The connection to the API server.

    Raises:
        OSError: A file cannot be read, or a port is in use.
        ssl.SSLError: The files are not a certificate and its key.
    """
    cluster = cluster_name(settings.cluster)
    _log.info("The cluster is %s", cluster or "not known")
    uvloop.run(_serve(settings, cluster, connection))


async def _serve(settings: WebhookSettings, cluster: str, connection: Connection) -> None:
    metrics = WebhookMetrics()
    async with KubernetesApi(connection) as api:
        owners = Owners(_CountedLookups(api, metrics).metadata)
        stand_down = StandDown(api, settings.configuration, metrics)
        health = Health(api, _pairs(settings, api), metrics)
        context = await health.start()
        injection = Injection(owners, cluster, lambda: stand_down.is_active)
        config = uvicorn.Config(
            make_app(injection, metrics, is_ready=lambda: health.is_ready, is_draining=lambda: server.is_draining),
            host=settings.host,
            port=settings.port,
            http="httptools",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_keep_alive=120,
            timeout_graceful_shutdown=_END_SECONDS,
        )
        config.load()
        config.ssl = context
        server = _Server(config, settings.drain_seconds)
        tasks = [asyncio.create_task(health.watch(lambda: metrics.cached.set(len(owners))))]
        if settings.stand_down == "auto":
            tasks.append(asyncio.create_task(stand_down.watch()))
        try:
            with _metrics_server(settings, metrics):
                await server.serve()
        finally:
            for task in tasks:
                task.cancel()


def _pairs(settings: WebhookSettings, api: KubernetesApi) -> PairFiles | SelfSigned:
    if settings.certificate is None or settings.key is None:
        return SelfSigned(api, settings.namespace or pod_namespace(), configuration=settings.configuration)
    return PairFiles(settings.certificate, settings.key)


class _Server(uvicorn.Server):
    """Goes on for a while after SIGTERM: until the cluster knows of it, reviews still arrive.

    Attributes:
        is_draining: True after the signal.
    """

    def __init__(self, config: uvicorn.Config, drain_seconds: float) -> None:
        super().__init__(config)
        self.is_draining = False
        self._drain_seconds = drain_seconds
        self._loop = asyncio.get_running_loop()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """End after the while, or at once if this is the second signal."""
        if self.is_draining:
            self.should_exit = True
            return
        self.is_draining = True
        self._loop.call_soon_threadsafe(self._loop.call_later, self._drain_seconds, self._end)

    def _end(self) -> None:
        self.should_exit = True


class _CountedLookups:
    def __init__(self, api: KubernetesApi, metrics: WebhookMetrics) -> None:
        self._api = api
        self._metrics = metrics

    async def metadata(self, path: str) -> dict[str, Any]:
        """Return the metadata of an object, and count the call."""
        started, result = time.perf_counter(), "error"
        try:
            found = await self._api.metadata(path, timeout_seconds=_LOOKUP_SECONDS)
            result = "found"
            return found
        except KubernetesError as error:
            result = reason_of(error)
            raise
        finally:
            self._metrics.lookups.labels(path.split("/")[-2], result).inc()
            self._metrics.lookup_seconds.observe(time.perf_counter() - started)


@contextlib.contextmanager
def _metrics_server(settings: WebhookSettings, metrics: WebhookMetrics) -> Iterator[None]:
    if settings.metrics_port is None:
        yield
        return
    server, thread = start_http_server(settings.metrics_port, settings.host, metrics.registry)
    try:
        yield
    finally:
        server.shutdown()
        thread.join()
