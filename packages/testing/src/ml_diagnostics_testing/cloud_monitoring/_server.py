"""The loopback Cloud Monitoring: its REST and gRPC APIs, and its interface for tests."""

import re
import time
import urllib.parse
from collections.abc import Callable, Mapping
from typing import Any

from google.cloud.monitoring_v3.types import (
    CreateMetricDescriptorRequest,
    CreateTimeSeriesRequest,
    ListMetricDescriptorsRequest,
    ListMetricDescriptorsResponse,
    ListTimeSeriesRequest,
)
from google.protobuf import empty_pb2, json_format  # type: ignore[import-untyped]

from ml_diagnostics_testing._grpc_server import Method, RestAndGrpcServer
from ml_diagnostics_testing.certificates import CertificateAuthority
from ml_diagnostics_testing.cloud_monitoring._store import TimeSeriesStore
from ml_diagnostics_testing.http_server import (
    ApiError,
    Request,
    RequestRecord,
    Response,
    json_response,
)

_SERVICE = "google.monitoring.v3.MetricService"
_DASHBOARDS = re.compile("/v1/projects/[^/]+/dashboards")
# By method name: the operation, the request message, and for REST the verb, the collection and the field of the body.
_METHODS: Mapping[str, tuple[str, Any, str, str, str]] = {
    "CreateTimeSeries": ("write", CreateTimeSeriesRequest.pb(), "POST", "timeSeries", ""),
    "ListTimeSeries": ("list", ListTimeSeriesRequest.pb(), "GET", "timeSeries", ""),
    "CreateMetricDescriptor": (
        "descriptor",
        CreateMetricDescriptorRequest.pb(),
        "POST",
        "metricDescriptors",
        "metricDescriptor",
    ),
    "ListMetricDescriptors": ("descriptor", ListMetricDescriptorsRequest.pb(), "GET", "metricDescriptors", ""),
}


class CloudMonitoringServer(RestAndGrpcServer):
    """Serve Cloud Monitoring on 127.0.0.1: gRPC and REST with one store and the limits of the real service.

    It accepts gauges, with these limits: at most 200 time series per request, each once; points of a series in order
    and at least five seconds apart, at most five minutes in the future and 25 hours in the past; one value type per
    metric. If some series of a request are invalid, the others are still written.

    It runs from construction until `close`, and is a context manager. The operations of its `faults` and `requests`
    are "write", "list", "descriptor" and "dashboard". Dashboards are stored without validation, over REST only.
    The Google client for Python uses gRPC only.

    Args:
        project: The project for `environment`. Requests may name any project.
        clock: Returns the time in seconds since the epoch.
        tls: Serves with TLS, with a certificate of this authority; None serves without.

    Attributes:
        dashboards: The created dashboards, oldest first, in the form of REST's JSON.
    """

    def __init__(
        self,
        project: str = "test-project",
        *,
        clock: Callable[[], float] = time.time,
        tls: CertificateAuthority | None = None,
    ) -> None:
        self.dashboards: list[dict[str, Any]] = []
        self._store = TimeSeriesStore()
        methods = {name: self._method(name, operation) for name, (operation, *_) in _METHODS.items()}
        super().__init__(project, "MONITORING", _SERVICE, methods, clock=clock, tls=tls)

    def series(self, filter_: str = "") -> list[dict[str, Any]]:
        """Return the time series of all projects that pass a filter, as REST's JSON; points newest first.

        Args:
            filter_: A filter, for example
                `metric.type = ends_with("/goodput_time") AND metric.labels.goodput_source = "A"`.
        """
        return [json_format.MessageToDict(series) for series in self._store.select(filter_)]

    def clear(self) -> None:
        """Delete all time series, metric descriptors and dashboards."""
        self.dashboards.clear()
        self._store.clear()

    def operation(self, method: str, path: str) -> str:
        """Return the operation of a request."""
        if _DASHBOARDS.fullmatch(urllib.parse.unquote(path)):
            return "dashboard"
        found = _rest_method(method, path)
        return _METHODS[found][0] if found else "other"

    def handle(self, request: Request) -> Response:
        """Answer a REST request."""
        if _DASHBOARDS.fullmatch(urllib.parse.unquote(request.path)):
            return self._handle_dashboards(request)
        name = _rest_method(request.method, request.path)
        if name is None:
            raise ApiError(404, f"the loopback Cloud Monitoring has no {request.method} {request.path}")
        project = urllib.parse.unquote(request.path).split("/")[3]
        _, message, verb, _, field = _METHODS[name]
        body = _query(request.query) if verb == "GET" else request.json()
        if field:
            body = {field: body}
        try:
            parsed = json_format.ParseDict({**body, "name": f"projects/{project}"}, message())
        except (json_format.ParseError, TypeError) as error:
            raise ApiError(400, f"the request cannot be read: {error}") from None
        return json_response(json_format.MessageToDict(self._do(name, parsed, request.record, request.time)))

    def _handle_dashboards(self, request: Request) -> Response:
        if request.method == "GET":
            return json_response({"dashboards": self.dashboards})
        if request.method != "POST" or not isinstance(request.json(), dict):
            raise ApiError(400, "the loopback Cloud Monitoring supports only creating and listing dashboards")
        parent = urllib.parse.unquote(request.path).removeprefix("/v1/")
        dashboard = {**request.json(), "name": f"{parent}/{len(self.dashboards) + 1}", "etag": "1"}
        if request.query.get("validateOnly", "").lower() != "true":
            self.dashboards.append(dashboard)
        return json_response(dashboard)

    def _method(self, name: str, operation: str) -> Method:
        def do(raw: bytes, record: RequestRecord, now: float) -> bytes:
            try:
                request = _METHODS[name][1].FromString(raw)
            except Exception as error:
                raise ApiError(400, f"the request cannot be read: {error}") from None
            return bytes(self._do(name, request, record, now).SerializeToString())

        return Method(operation, do)

    def _do(self, name: str, request: Any, record: RequestRecord, now: float) -> Any:
        parts = request.name.split("/")
        if len(parts) != 2 or parts[0] != "projects" or not parts[1]:
            raise ApiError(400, f"Field name had an invalid value of {request.name!r}: name must be projects/PROJECT")
        project = parts[1]
        if name == "CreateTimeSeries":
            record.entries = len(request.time_series)
            self._store.write(project, list(request.time_series), now)
            return empty_pb2.Empty()
        if name == "ListTimeSeries":
            page = self._store.list_page(project, request)
            record.entries = len(page.time_series)
            return page
        if name == "CreateMetricDescriptor":
            return self._store.define(project, request.metric_descriptor)
        found = self._store.descriptors(project, request.filter)
        record.entries = len(found)
        return ListMetricDescriptorsResponse.pb()(metric_descriptors=found)


def _rest_method(verb: str, path: str) -> str | None:
    parts = urllib.parse.unquote(path).strip("/").split("/")
    if len(parts) != 4 or parts[:2] != ["v3", "projects"]:
        return None
    return next((name for name, known in _METHODS.items() if known[2:4] == (verb, parts[3])), None)


def _query(parameters: Mapping[str, str]) -> dict[str, Any]:
    """Convert query parameters to nested fields: `interval.endTime=...` becomes a field of `interval`."""
    body: dict[str, Any] = {}
    for name, value in parameters.items():
        *folders, leaf = name.split(".")
        inner = body
        for folder in folders:
            inner = inner.setdefault(folder, {})
        inner[leaf] = value
    return body
