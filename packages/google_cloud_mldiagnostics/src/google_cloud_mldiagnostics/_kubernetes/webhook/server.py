"""The server of the webhook: TLS with certificates that change, limits, and an orderly end on SIGTERM."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import uvicorn
import uvloop
from prometheus_client import start_http_server

from google_cloud_mldiagnostics._kubernetes.api import Connection, KubernetesApi
from google_cloud_mldiagnostics._kubernetes.owners import Owners
from google_cloud_mldiagnostics._kubernetes.webhook.app import make_app
from google_cloud_mldiagnostics._kubernetes.webhook.certificates import ServingCertificate
from google_cloud_mldiagnostics._kubernetes.webhook.injection import Injection
from google_cloud_mldiagnostics._kubernetes.webhook.metrics import WebhookMetrics
from google_cloud_mldiagnostics.exceptions import KubernetesError

__all__ = ["WebhookSettings", "serve"]

_CHECK_SECONDS: Final = 1.0
_LOOKUP_SECONDS: Final = 1.0
_DRAIN_SECONDS: Final = 5

_log = logging.getLogger("ml_diagnostics.kubernetes")


@dataclass(frozen=True)
class WebhookSettings:
    """The settings of a server.

    Attributes:
        certificate: The file of the certificate.
        key: The file of its key.
        cluster: The cluster as `projects/P/locations/L/clusters/C`; empty if it is not known.
        host: The address to listen on.
        port: The port for reviews.
        metrics_port: The port for Prometheus, without TLS; None for none.
    """

    certificate: Path
    key: Path
    cluster: str = ""
    host: str = "0.0.0.0"
    port: int = 8443
    metrics_port: int | None = 8080


def serve(settings: WebhookSettings, connection: Connection) -> None:
    """Answer reviews until SIGTERM or SIGINT.

    Args:
        settings: The settings.
        connection: The connection to the API server.

    Raises:
        OSError: A file cannot be read, or a port is in use.
        ssl.SSLError: The files are not a certificate and its key.
    """
    uvloop.run(_serve(settings, connection))


async def _serve(settings: WebhookSettings, connection: Connection) -> None:
    metrics = WebhookMetrics()
    certificate = ServingCertificate(settings.certificate, settings.key)
    async with KubernetesApi(connection) as api:
        lookups = _CountedLookups(api, metrics)
        owners = Owners(lookups.metadata)
        state = _State(api, certificate, owners, metrics)
        config = uvicorn.Config(
            make_app(Injection(owners, settings.cluster), metrics, lambda: state.is_ready),
            host=settings.host,
            port=settings.port,
            http="httptools",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_keep_alive=120,
            timeout_graceful_shutdown=_DRAIN_SECONDS,
        )
        config.load()
        config.ssl = certificate.context
        checks = asyncio.create_task(state.check())
        try:
            with _metrics_server(settings, metrics):
                await uvicorn.Server(config).serve()
        finally:
            checks.cancel()


class _CountedLookups:
    def __init__(self, api: KubernetesApi, metrics: WebhookMetrics) -> None:
        self._api = api
        self._metrics = metrics

    async def metadata(self, path: str) -> dict[str, Any]:
        """Return the metadata of an object, and count the call."""
        started, result = time.perf_counter(), "failed"
        try:
            found = await self._api.metadata(path, timeout_seconds=_LOOKUP_SECONDS)
            result = "found"
            return found
        finally:
            self._metrics.lookups.labels(path.split("/")[-2], result).inc()
            self._metrics.lookup_seconds.observe(time.perf_counter() - started)


class _State:
    """The state that changes while the server runs: its certificate, and the first answer of the API server."""

    def __init__(
        self, api: KubernetesApi, certificate: ServingCertificate, owners: Owners, metrics: WebhookMetrics
    ) -> None:
        self._api = api
        self._certificate = certificate
        self._owners = owners
        self._metrics = metrics
        self._has_answered = False

    @property
    def is_ready(self) -> bool:
        """True if the certificate is valid, and the API server has answered once."""
        return self._has_answered and time.time() < self._certificate.not_after_seconds

    async def check(self) -> None:
        """Check the certificate's files every second, and the API server until it has answered."""
        while True:
            self._reload()
            self._metrics.cached.set(len(self._owners))
            if not self._has_answered:
                with contextlib.suppress(KubernetesError):
                    await self._api.version(timeout_seconds=_LOOKUP_SECONDS)
                    self._has_answered = True
            await asyncio.sleep(_CHECK_SECONDS)

    def _reload(self) -> None:
        try:
            if self._certificate.reload():
                self._metrics.certificate_reloads.labels("loaded").inc()
        except (OSError, ssl.SSLError, ValueError) as error:
            self._metrics.certificate_reloads.labels("refused").inc()
            _log.warning("The certificate of before goes on serving: %s", error)
        self._metrics.certificate_not_after.set(self._certificate.not_after_seconds)


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
