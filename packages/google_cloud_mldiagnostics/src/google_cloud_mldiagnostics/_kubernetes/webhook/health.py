"""The health of a server: its certificate, which can change, and whether the API server has ever answered."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
import time
from collections.abc import Callable
from typing import Final, Protocol

from google_cloud_mldiagnostics._kubernetes.api import KubernetesApi
from google_cloud_mldiagnostics._kubernetes.webhook.certificates import Pair, ServingCertificate
from google_cloud_mldiagnostics._kubernetes.webhook.metrics import WebhookMetrics
from google_cloud_mldiagnostics._kubernetes.webhook.warnings import Warnings
from google_cloud_mldiagnostics.exceptions import KubernetesError

__all__ = ["Health", "PairSource"]

_CHECK_SECONDS: Final = 1.0
_CALL_SECONDS: Final = 1.0

_log = logging.getLogger("ml_diagnostics.kubernetes")


class PairSource(Protocol):
    """A source of the pair that is to be served: files, or a Secret.

    Attributes:
        check_seconds: How often it is to be read.
    """

    check_seconds: float

    async def pair(self) -> Pair:
        """Return the pair.

        Raises:
            OSError: It cannot be read.
            KubernetesError: The same.
        """


class Health:
    """The certificate of a server, and its readiness."""

    def __init__(self, api: KubernetesApi, source: PairSource, metrics: WebhookMetrics) -> None:
        """Read nothing yet.

        Args:
            api: The API of the cluster.
            source: The source of the pair.
            metrics: The metrics of the certificate.
        """
        self._api = api
        self._source = source
        self._metrics = metrics
        self._warnings = Warnings()
        self._certificate: ServingCertificate | None = None
        self._has_answered = False

    @property
    def is_ready(self) -> bool:
        """True if the certificate is valid, and the API server has answered once."""
        certificate = self._certificate
        return self._has_answered and certificate is not None and time.time() < certificate.not_after_seconds

    async def start(self) -> ssl.SSLContext:
        """Return the context of the first pair; wait for the API server if the pair is kept there.

        Raises:
            OSError: A file cannot be read.
            ssl.SSLError: The files are not a certificate and its key.
        """
        while True:
            try:
                self._certificate = ServingCertificate(await self._source.pair())
                return self._certificate.context
            except KubernetesError as error:
                self._warnings.warn("start", f"The webhook has no certificate yet, and tries again: {error}")
            await asyncio.sleep(_CHECK_SECONDS)

    async def watch(self, each_second: Callable[[], object]) -> None:
        """Read the pair as often as its source needs, and ask the API server until it has answered.

        Args:
            each_second: Called every second.
        """
        next_read = 0.0
        while True:
            try:
                each_second()
                if time.monotonic() >= next_read:
                    next_read = time.monotonic() + self._source.check_seconds
                    await self._reload()
                if not self._has_answered:
                    with contextlib.suppress(KubernetesError):
                        await self._api.version(timeout_seconds=_CALL_SECONDS)
                        self._has_answered = True
            except Exception:
                _log.exception("The certificate of before goes on serving: a bug in the webhook")
            await asyncio.sleep(_CHECK_SECONDS)

    async def _reload(self) -> None:
        assert self._certificate is not None
        try:
            if self._certificate.replace(await self._source.pair()):
                self._metrics.certificate_reloads.labels("loaded").inc()
        except (OSError, ValueError, KubernetesError) as error:  # An SSLError is an OSError.
            self._metrics.certificate_reloads.labels("refused").inc()
            self._warnings.warn("certificate", f"The certificate of before goes on serving: {error}")
        self._metrics.certificate_not_after.set(self._certificate.not_after_seconds)
