"""The metrics of the webhook, for Prometheus."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

__all__ = ["WebhookMetrics"]

_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0)
"""Up to the time after which the API server goes on without an answer."""


class WebhookMetrics:
    """The metrics of one server.

    Attributes:
        registry: The contents of `/metrics`.
        reviews: Reviews by `result`; see `injection.Result`.
        review_seconds: How long each took.
        lookups: Owners and namespaces that were asked for, by `kind` and `result`: found, forbidden, missing,
            unavailable or error.
        lookup_seconds: How long each took.
        cached: The number of answers that are kept.
        stood_down: 1 while no pod is patched since there is another injector.
        certificate_not_after: When the certificate expires, in seconds since 1970.
        certificate_reloads: Changes of the certificate, by `result`: loaded or refused.
    """

    def __init__(self) -> None:
        """Count from zero."""
        self.registry = registry = CollectorRegistry()
        self.reviews = Counter("mldiagnostics_webhook_reviews", "Reviews", ["result"], registry=registry)
        self.review_seconds = Histogram(
            "mldiagnostics_webhook_review_seconds", "Time of a review", buckets=_SECONDS, registry=registry
        )
        self.lookups = Counter("mldiagnostics_webhook_lookups", "Look-ups", ["kind", "result"], registry=registry)
        self.lookup_seconds = Histogram(
            "mldiagnostics_webhook_lookup_seconds", "Time of a look-up", buckets=_SECONDS, registry=registry
        )
        self.cached = Gauge("mldiagnostics_webhook_cache_entries", "Kept answers", registry=registry)
        self.stood_down = Gauge("mldiagnostics_webhook_stood_down", "Another injector", registry=registry)
        self.certificate_not_after = Gauge(
            "mldiagnostics_webhook_certificate_not_after_seconds", "End of the certificate", registry=registry
        )
        self.certificate_reloads = Counter(
            "mldiagnostics_webhook_certificate_reloads", "Changes of the certificate", ["result"], registry=registry
        )
