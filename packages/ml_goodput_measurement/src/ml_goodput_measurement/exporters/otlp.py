"""The gauges of jobs by OTLP over HTTP, sent at an interval. Needs the extra [otlp]."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from ml_diagnostics_common.environment import identity, on_google_hardware
from ml_diagnostics_common.exceptions import MissingExtraError
from ml_diagnostics_common.guard import job_logger

from ml_goodput_measurement.exporters.board import MOST_JOBS
from ml_goodput_measurement.exporters.gauges import GAUGES, Gauge
from ml_goodput_measurement.partition import Bucket

if TYPE_CHECKING:
    from opentelemetry.metrics import CallbackOptions, Observation

    from ml_goodput_measurement.exporters.board import Board

__all__ = ["OtlpExporter", "require_otlp", "resource_attributes"]

_log = job_logger("ml_diagnostics.goodput")

_ATTRIBUTES = {"job": "ml.job.name", "log": "ml.diagnostics.log"}
_KUBERNETES = {
    "k8s.pod.name": ("POD_NAME", "K8S_POD_NAME"),
    "k8s.namespace.name": ("POD_NAMESPACE", "K8S_NAMESPACE"),
    "k8s.node.name": ("NODE_NAME", "K8S_NODE_NAME"),
}
"""Attributes of a pod, by the usual names of the variables that the downward API fills."""


def require_otlp() -> None:
    """Check that the SDK and the exporter of OpenTelemetry are installed.

    Raises:
        MissingExtraError: They are not.
    """
    try:
        import opentelemetry.exporter.otlp.proto.http
        import opentelemetry.sdk.metrics  # noqa: F401
    except ImportError:
        raise MissingExtraError("goodput export otlp", "ml-goodput-measurement", "otlp") from None


def resource_attributes(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return what identifies the exporting process: service.name, host.*, and k8s.* and cloud.* where there are any.

    OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES, which the SDK reads, take precedence.

    Args:
        environ: The environment variables.
    """
    attributes = {"host.name": identity(environ).host}
    if not environ.get("OTEL_SERVICE_NAME"):
        attributes["service.name"] = "ml-diagnostics"
    if environ.get("KUBERNETES_SERVICE_HOST"):
        for attribute, names in _KUBERNETES.items():
            value = next((environ[name] for name in names if environ.get(name)), "")
            if value:
                attributes[attribute] = value
    if on_google_hardware():
        from ml_goodput_measurement._export.gcp_metadata import get_cluster_name, get_gcp_project_id, get_node_zone

        attributes["cloud.provider"] = "gcp"
        found = {
            "cloud.account.id": get_gcp_project_id(),
            "cloud.availability_zone": get_node_zone(),
            "k8s.cluster.name": get_cluster_name(),
        }
        attributes.update({name: value for name, value in found.items() if value})
    given = dict(part.split("=", 1) for part in environ.get("OTEL_RESOURCE_ATTRIBUTES", "").split(",") if "=" in part)
    return {name: value for name, value in attributes.items() if name not in given}


class OtlpExporter:
    """Sends the gauges at an interval, in a thread of the SDK.

    Args:
        board: The states of jobs.
        endpoint: The address, such as http://localhost:4318/v1/metrics; None for that of the environment, or this one.
        interval_seconds: The time between sends.
        timeout_seconds: How long a send may take.
        attributes: The attributes of the resource.
        warns_of_failures: False for a caller that reports a failure itself.
    """

    def __init__(
        self,
        board: Board,
        *,
        endpoint: str | None = None,
        interval_seconds: float = 60.0,
        timeout_seconds: float = 10.0,
        attributes: Mapping[str, str],
        warns_of_failures: bool = True,
    ) -> None:
        """Start to send, the first time after an interval."""
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
        from opentelemetry.sdk.metrics import MeterProvider, ObservableGauge
        from opentelemetry.sdk.metrics.export import MetricExportResult, PeriodicExportingMetricReader
        from opentelemetry.sdk.resources import Resource

        exporter = self._exporter = OTLPMetricExporter(endpoint=endpoint, timeout=timeout_seconds)
        self._has_failed, self._warns = False, warns_of_failures
        export = exporter.export

        def export_noting_failure(*arguments: Any, **options: Any) -> MetricExportResult:
            result = export(*arguments, **options)
            has_failed = result is not MetricExportResult.SUCCESS
            if has_failed and not self._has_failed and self._warns:
                _log.warning("the gauges could not be sent; they are sent again each %g s", interval_seconds)
            self._has_failed = has_failed
            return result

        exporter.export = export_noting_failure  # type: ignore[method-assign]  # A flush of the SDK ignores the result.
        reader = PeriodicExportingMetricReader(
            exporter,
            export_interval_millis=1000 * interval_seconds,
            export_timeout_millis=1000 * timeout_seconds,
            # The SDK's limit of 2,000 values a gauge would add up the buckets of the jobs beyond it.
            cardinality_limits={ObservableGauge: (MOST_JOBS + 1) * len(Bucket)},
        )
        self._provider = MeterProvider([reader], resource=Resource.create(dict(attributes)), shutdown_on_exit=False)
        meter = self._provider.get_meter("ml_goodput_measurement")
        for gauge in GAUGES:
            meter.create_observable_gauge(
                gauge.otlp, callbacks=[_callback(gauge, board)], unit=gauge.unit, description=gauge.help
            )

    def flush(self, timeout_seconds: float = 10.0) -> bool:
        """Send the gauges now; return False if that failed or took longer."""
        return bool(self._provider.force_flush(1000 * timeout_seconds)) and not self._has_failed

    def stop(self, timeout_seconds: float = 10.0, *, is_sent: bool = False) -> None:
        """Stop.

        Args:
            timeout_seconds: How long to wait for the last send.
            is_sent: True to send nothing more; otherwise the gauges are sent once more.
        """
        self._warns = False  # It ends in any case.
        if is_sent:
            self._exporter.shutdown()
        self._provider.shutdown(1000 * timeout_seconds)


def _callback(gauge: Gauge, board: Board) -> Callable[[CallbackOptions], Iterable[Observation]]:
    from opentelemetry.metrics import Observation

    def observe(_: Any) -> Iterable[Observation]:
        for labels, value in gauge.read(board.shown()):
            attributes = {_ATTRIBUTES.get(name, f"ml.job.{name}"): text for name, text in labels.items() if text}
            yield Observation(value, attributes)

    return observe
