"""Cloud Monitoring: points of gauges, written by the google client over gRPC.

API: https://cloud.google.com/monitoring/api/ref_v3/rpc/google.monitoring.v3#metricservice
"""

from __future__ import annotations

import contextlib
import enum
import logging
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from ml_diagnostics_common.credentials import find_cloud
from ml_diagnostics_common.endpoints import endpoint
from ml_diagnostics_common.exceptions import DiagnosticsError
from ml_diagnostics_common.failures import classify
from ml_diagnostics_common.grpc_clients import open_client
from ml_diagnostics_common.guard import Counters, log_once

from ml_goodput_measurement._record.arguments import RebuiltFromArguments
from ml_goodput_measurement.exceptions import CloudMonitoringError

if TYPE_CHECKING:
    from google.cloud.monitoring_v3 import MetricServiceClient, TimeSeries

__all__ = ["GCPMetrics", "ValueType", "Written"]

SERIES_PER_REQUEST = 200
"""The maximum of CreateTimeSeries."""

REQUEST_SECONDS = 10.0
"""The deadline of a request."""

_WRITE = "google.monitoring.v3.MetricService/CreateTimeSeries"
_SECOND = 1_000_000_000


class ValueType(enum.Enum):
    """Types of a point's value, by the name of their field in `TypedValue`."""

    BOOL = "bool_value"
    INT = "int64_value"
    DOUBLE = "double_value"
    STRING = "string_value"
    DISTRIBUTION = "distribution_value"


class Written(NamedTuple):
    """The result of a request.

    Attributes:
        accepted: Number of points that were written.
        refused: Number of points that were refused, although the request succeeded.
        code: Name of the google.rpc.Code of the refusal, or empty.
        reason: The server's message on the refusal.
    """

    accepted: int
    refused: int = 0
    code: str = ""
    reason: str = ""


class GCPMetrics(RebuiltFromArguments):
    """Writes points to the Cloud Monitoring of one project. Connects at the first write.

    `CLOUDSDK_API_ENDPOINT_OVERRIDES_MONITORING` redirects it.

    Args:
        project_id: The project's id.
        credentials: A `google.auth.credentials.Credentials`; None finds them as `find_cloud` does.
        environ: The environment variables.

    Attributes:
        failures: Points that `send_metrics` could not write, by reason.
    """

    def __init__(self, project_id: str, *, credentials: Any = None, environ: Mapping[str, str] = os.environ) -> None:
        arguments, names_before = dict(locals()), frozenset(vars(self))
        self.failures = Counters()
        self._project_id = project_id
        self._credentials = credentials
        self._environ = environ
        self._client: MetricServiceClient | None = None
        self._remember(GCPMetrics, arguments, names_before)

    def create_time_series(
        self,
        metric_type: str,
        value: Any,
        value_type: ValueType,
        metric_labels: Mapping[str, str],
        resource_type: str,
        resource_labels: Mapping[str, str],
        seconds: int,
        nanos: int,
    ) -> TimeSeries:
        """Return a time series of one point, as CreateTimeSeries takes it.

        Args:
            metric_type: Such as `compute.googleapis.com/workload/goodput_time`.
            value: The point's value.
            value_type: Its type.
            metric_labels: The metric's labels.
            resource_type: Such as `compute.googleapis.com/Workload`.
            resource_labels: The resource's labels.
            seconds: When the value was right, in seconds since the POSIX epoch.
            nanos: Nanoseconds to add to it.

        Raises:
            TypeError: The value is not of that type, or a label is not a str.
        """
        from google.cloud import monitoring_v3

        return monitoring_v3.TimeSeries(
            metric={"type": metric_type, "labels": dict(metric_labels)},
            resource={"type": resource_type, "labels": dict(resource_labels)},
            points=[
                {
                    "interval": {"end_time": {"seconds": seconds, "nanos": nanos}},
                    "value": {value_type.value: value},
                }
            ],
        )

    def send_metrics(self, metrics: Sequence[Any], context: object = None) -> None:
        """Write points; count those that cannot be written in `failures`, and log each kind of failure once.

        Args:
            metrics: Results of `create_time_series`, or mappings of its arguments; the default time is now, and
                `metric_labels` may be left out.
            context: A description of the points, for messages.
        """
        series = list(self._made(metrics, context))
        for first in range(0, len(series), SERIES_PER_REQUEST):
            batch = series[first : first + SERIES_PER_REQUEST]
            try:
                written = self.write(batch)
            except DiagnosticsError as error:
                reason = getattr(error, "code", type(error).__name__)
                self._failed(reason, len(series) - first, error, context)
                return
            if written.refused:
                self._failed(written.code, written.refused, written.reason, context)

    def write(self, series: Sequence[TimeSeries], *, timeout_seconds: float = REQUEST_SECONDS) -> Written:
        """Write points by one request, without retries.

        Args:
            series: Results of `create_time_series`: at most 200, each series once.
            timeout_seconds: The deadline.

        Returns:
            The numbers of points; if the server refuses a point, the others are written all the same.

        Raises:
            CloudMonitoringError: The request failed as a whole.
            CredentialsError: No credentials were found.
            ConfigurationError: The address in the environment is not valid.
        """
        client = self._connected()
        try:
            with _call_errors():
                client.create_time_series(
                    name=f"projects/{self._project_id}", time_series=list(series), retry=None, timeout=timeout_seconds
                )
        except _PartError as error:
            return Written(len(series) - error.refused, error.refused, error.code, error.reason)
        return Written(len(series))

    def close(self) -> None:
        """Close the connection; a later write opens another."""
        if self._client is not None:
            self._client.transport.close()
            self._client = None

    def _made(self, metrics: Sequence[Any], context: object) -> Iterator[TimeSeries]:
        now = time.time_ns()
        for metric in metrics:
            if not isinstance(metric, Mapping):
                yield metric
                continue
            when = {"seconds": now // _SECOND, "nanos": now % _SECOND, "metric_labels": {}}
            try:
                yield self.create_time_series(**{**when, **metric})
            except (TypeError, ValueError, AttributeError) as error:
                self._failed("malformed", 1, f"{metric.get('metric_type')!r} cannot be made: {error}", context)

    def _failed(self, reason: str, count: int, why: object, context: object) -> None:
        self.failures.add(reason, count)
        log_once(
            logging.WARNING,
            ("gcp_metrics", self._project_id, reason),
            "%d points were not written to Cloud Monitoring, project %s%s (%s). Further ones are counted, not logged.",
            count,
            self._project_id,
            f", {context}" if context else "",
            why,
        )

    def _connected(self) -> MetricServiceClient:
        if self._client is None:
            from google.auth.credentials import AnonymousCredentials
            from google.cloud.monitoring_v3 import MetricServiceClient
            from google.cloud.monitoring_v3.services.metric_service.transports import MetricServiceGrpcTransport

            url = endpoint("monitoring", self._environ)
            if url is not None and url.startswith("http:"):
                credentials = AnonymousCredentials()
            else:
                credentials = self._credentials or find_cloud(self._project_id, environ=self._environ).credentials
            self._client = open_client(
                MetricServiceClient, MetricServiceGrpcTransport, write=_WRITE, url=url, credentials=credentials
            )
        return self._client


# --- Errors -------------------------------------------------------------------------------------------


class _PartError(Exception):
    """Some points of a request were refused, the others written."""

    def __init__(self, code: str, refused: int, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.refused = refused
        self.reason = reason


@contextlib.contextmanager
def _call_errors() -> Iterator[None]:
    """Raise errors of a call as `CloudMonitoringError`, or as `_PartError` if some points were written."""
    from google.api_core.exceptions import GoogleAPIError
    from google.auth.exceptions import GoogleAuthError
    from google.cloud.monitoring_v3 import CreateTimeSeriesSummary

    try:
        yield
    except (GoogleAPIError, GoogleAuthError) as error:
        failure = CloudMonitoringError.of(classify(error))
        for detail in getattr(error, "details", ()):
            if getattr(detail, "type_url", "").endswith("google.monitoring.v3.CreateTimeSeriesSummary"):
                summary = CreateTimeSeriesSummary.deserialize(detail.value)
                refused = summary.total_point_count - summary.success_point_count
                raise _PartError(failure.code, refused, failure.message) from error
        raise failure from error
