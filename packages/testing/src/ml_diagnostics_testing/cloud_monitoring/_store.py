"""The time series of the loopback Cloud Monitoring: validation, storage, filters and listing.

Rules: https://cloud.google.com/monitoring/api/ref_v3/rest/v3/projects.timeSeries/create and
https://cloud.google.com/monitoring/quotas. Messages are those of google-cloud-monitoring.
"""

import re
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from google.api import metric_pb2  # type: ignore[import-untyped]
from google.cloud.monitoring_v3.types import ListTimeSeriesRequest, ListTimeSeriesResponse, TimeSeries

from ml_diagnostics_testing._filter_language import Parser, Test
from ml_diagnostics_testing.http_server import ApiError

MAX_SERIES_PER_REQUEST = 200
SAMPLING_SECONDS = 5
FUTURE_SECONDS = 5 * 60
PAST_SECONDS = 25 * 3600 + 10

_DEFAULT_PAGE_POINTS = 100_000
_MAX_LABELS = 30
_MAX_LABEL_VALUE = 1024
_INVALID_ARGUMENT = 3  # google.rpc.Code
_NS = 1_000_000_000
_SUMMARY = "type.googleapis.com/google.monitoring.v3.CreateTimeSeriesSummary"
_METRIC_TYPE = re.compile(r"[\w-]+(\.[\w-]+)+/[\w./-]+")
_LABEL = re.compile(r"[a-zA-Z][a-zA-Z0-9_]{0,99}")
# The common part of the filter language: comparisons, joined by AND. https://cloud.google.com/monitoring/api/v3/filters
_SUBJECT = re.compile(r"metric\.type|resource\.type|(?:metric|resource)\.labels?\.\w+")
_FUNCTIONS: dict[str, Callable[[str, str], bool]] = {
    "starts_with": str.startswith,
    "ends_with": str.endswith,
    "has_substring": str.__contains__,
}

# The required labels of resource types. Other types accept any labels.
_RESOURCE_LABELS: Mapping[str, frozenset[str]] = {
    "compute.googleapis.com/Workload": frozenset({"location", "workload_id", "replica_id"}),
    "global": frozenset(),
}
_VALUE_TYPES: Mapping[str, int] = {
    "bool_value": metric_pb2.MetricDescriptor.BOOL,
    "int64_value": metric_pb2.MetricDescriptor.INT64,
    "double_value": metric_pb2.MetricDescriptor.DOUBLE,
    "string_value": metric_pb2.MetricDescriptor.STRING,
    "distribution_value": metric_pb2.MetricDescriptor.DISTRIBUTION,
}
_Key = tuple[str, str, frozenset[tuple[str, str]], str, frozenset[tuple[str, str]]]


class TimeSeriesStore:
    """Store gauges, reject invalid requests, and answer listings."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._series: dict[_Key, Any] = {}
        self._descriptors: dict[tuple[str, str], Any] = {}

    def write(self, project: str, candidates: list[Any], now: float) -> None:
        """Handle CreateTimeSeries.

        Args:
            project: The project's id.
            candidates: `TimeSeries` messages with one point each.
            now: The server's time with its `Skew`, in seconds.

        Raises:
            ApiError: The request is too large, and nothing was written; or some series were rejected, and the others
                were written. The details then contain both counts, as with the real service.
        """
        if len(candidates) > MAX_SERIES_PER_REQUEST:
            raise ApiError(
                400,
                "Field timeSeries had an invalid value: "
                f"A maximum of {MAX_SERIES_PER_REQUEST} TimeSeries can be written in a single request.",
            )
        refused: dict[int, str] = {}
        seen: set[_Key] = set()
        with self._lock:
            for index, series in enumerate(candidates):
                key = _key(project, series)
                try:
                    self._write_one(project, key, series, now, f"timeSeries[{index}]", duplicate=key in seen)
                except ApiError as error:
                    refused[index] = error.message
                seen.add(key)
        if refused:
            raise _summary(refused, len(candidates))

    def list_page(self, project: str, request: Any) -> Any:
        """Handle ListTimeSeries: return the series that pass a filter with their points in an interval, newest first.

        Args:
            project: The project's id.
            request: A `ListTimeSeriesRequest` message. Aggregation is not supported.

        Returns:
            A `ListTimeSeriesResponse` message.

        Raises:
            ApiError: The filter is invalid or names no metric type, the interval is missing, or the page token was
                not issued by this server.
        """
        if "metric.type" not in request.filter:
            raise ApiError(400, "The provided filter doesn't refer to any known metric.: name metric.type")
        if not request.interval.HasField("end_time"):
            raise ApiError(400, "Field interval.endTime had an invalid value: The interval must have an end time.")
        if request.HasField("aggregation") or request.HasField("secondary_aggregation"):
            raise ApiError(501, "the loopback Cloud Monitoring does not aggregate")
        first, page = _page_start(request.page_token), ListTimeSeriesResponse.pb()()
        points_left = request.page_size or _DEFAULT_PAGE_POINTS
        for index, series in enumerate(self._within(project, request)):
            if index < first:
                continue
            if page.time_series and points_left <= 0:
                page.next_page_token = str(index)
                break
            page.time_series.append(series)
            points_left -= len(series.points)
        return page

    def select(self, filter_: str) -> list[Any]:
        """Return the series of all projects that pass a filter, with all points, newest first."""
        test = _compile_filter(filter_)
        with self._lock:
            return [_copy(series) for series in self._series.values() if test(series)]

    def define(self, project: str, descriptor: Any) -> Any:
        """Handle CreateMetricDescriptor; return the descriptor."""
        if not _METRIC_TYPE.fullmatch(descriptor.type):
            raise ApiError(400, f"Field metricDescriptor.type had an invalid value of {descriptor.type!r}")
        descriptor.name = f"projects/{project}/metricDescriptors/{descriptor.type}"
        with self._lock:
            self._descriptors[project, descriptor.type] = descriptor
        return descriptor

    def descriptors(self, project: str, filter_: str) -> list[Any]:
        """Handle ListMetricDescriptors."""
        test = _compile_filter(filter_)
        with self._lock:
            found = [kept for (owner, _), kept in self._descriptors.items() if owner == project]
        return [kept for kept in found if test(TimeSeries.pb()(metric=metric_pb2.Metric(type=kept.type)))]

    def clear(self) -> None:
        """Delete all series and descriptors."""
        with self._lock:
            self._series.clear()
            self._descriptors.clear()

    def _within(self, project: str, request: Any) -> Iterator[Any]:
        test = _compile_filter(request.filter)
        end, start = _ns(request.interval.end_time), _ns(request.interval.start_time)
        headers_only = request.view == ListTimeSeriesRequest.TimeSeriesView.HEADERS
        with self._lock:
            kept = sorted(((key, series) for key, series in self._series.items()), key=lambda pair: repr(pair[0]))
            for key, series in kept:
                if key[0] != project or not test(series):
                    continue
                points = [point for point in series.points if start < _ns(point.interval.end_time) <= end]
                if points:
                    found = _copy(series)
                    del found.points[:]
                    found.points.extend([] if headers_only else points)
                    yield found

    def _write_one(self, project: str, key: _Key, series: Any, now: float, field: str, *, duplicate: bool) -> None:
        """Write the point of one series.

        Raises:
            ApiError: The point is rejected.
        """
        _check(series, now, field)
        if duplicate:
            raise ApiError(
                400,
                f"Field {field} had an invalid value: Duplicate TimeSeries encountered. "
                "Only one point can be written per TimeSeries per request.",
            )
        descriptor = self._described(project, series, field)
        kept = self._series.get(key)
        if kept is not None:
            _check_order(_ns(kept.points[0].interval.end_time), _ns(series.points[0].interval.end_time), descriptor)
            kept.points.insert(0, series.points[0])
            return
        kept = self._series[key] = _copy(series)
        kept.metric_kind, kept.value_type = descriptor.metric_kind, descriptor.value_type
        kept.resource.labels["project_id"] = project

    def _described(self, project: str, series: Any, field: str) -> Any:
        """Return the metric's descriptor; create it for the first point of a metric."""
        given = _VALUE_TYPES.get(series.points[0].value.WhichOneof("value"))
        names = metric_pb2.MetricDescriptor.ValueType.Name
        descriptor = self._descriptors.get((project, series.metric.type))
        if descriptor is None:
            made = metric_pb2.MetricDescriptor(
                type=series.metric.type, metric_kind=metric_pb2.MetricDescriptor.GAUGE, value_type=given
            )
            descriptor = self.define(project, made)
        if descriptor.value_type != given:
            raise ApiError(
                400,
                f"Field {field}.points[0].value had an invalid value: Value type for metric {series.metric.type} "
                f"must be {names(descriptor.value_type)}, but is {names(given)}.",
            )
        known = {label.key for label in descriptor.labels}
        for name in sorted(set(series.metric.labels) - known):
            descriptor.labels.add(key=name)
        return descriptor


def _check(series: Any, now: float, field: str) -> None:
    """Reject a time series that is invalid by itself, independent of earlier ones."""

    def refuse(where: str, why: str) -> ApiError:
        return ApiError(400, f"Field {field}{where} had an invalid value: {why}")

    if not _METRIC_TYPE.fullmatch(series.metric.type):
        raise refuse(".metric.type", f"{series.metric.type!r} is not a valid metric type.")
    if len(series.metric.labels) > _MAX_LABELS:
        raise refuse(".metric.labels", f"A metric has at most {_MAX_LABELS} labels.")
    for name, value in series.metric.labels.items():
        if not _LABEL.fullmatch(name) or len(value) > _MAX_LABEL_VALUE:
            raise refuse(
                f".metric.labels[{name}]", f"The name is malformed, or has over {_MAX_LABEL_VALUE} characters."
            )
    if not series.resource.type:
        raise refuse(".resource.type", "The resource type is missing.")
    wanted = _RESOURCE_LABELS.get(series.resource.type)
    labels = set(series.resource.labels) - {"project_id"}
    if wanted is not None and labels != wanted:
        raise refuse(".resource", f"{series.resource.type} has the labels {sorted(wanted)}, not {sorted(labels)}.")
    if series.metric_kind not in (
        metric_pb2.MetricDescriptor.METRIC_KIND_UNSPECIFIED,
        metric_pb2.MetricDescriptor.GAUGE,
    ):
        raise ApiError(400, "the loopback Cloud Monitoring takes gauges only")
    if len(series.points) != 1:
        raise refuse(".points", "Exactly one point must be written per TimeSeries per request.")
    point = series.points[0]
    if point.value.WhichOneof("value") is None:
        raise refuse(".points[0].value", "The value is missing.")
    interval = point.interval
    if interval.HasField("start_time") and _ns(interval.start_time) not in (0, _ns(interval.end_time)):
        raise refuse(".points[0].interval.start_time", "A gauge's interval starts when it ends.")
    ahead = _ns(interval.end_time) / _NS - now
    if ahead > FUTURE_SECONDS:
        raise refuse(".points[0].interval.end_time", "Data points cannot be written more than 5m in the future.")
    if ahead < -PAST_SECONDS:
        raise refuse(".points[0].interval.end_time", "Data points cannot be written more than 25h10s in the past.")


def _check_order(last_ns: int, new_ns: int, descriptor: Any) -> None:
    if new_ns < last_ns:
        raise ApiError(
            400,
            "Points must be written in order. One or more of the points specified had an older end time than the "
            "most recent point.",
        )
    if new_ns < last_ns + SAMPLING_SECONDS * _NS:
        raise ApiError(
            400,
            "One or more points were written more frequently than the maximum sampling period configured for the "
            f"metric. {{Metric: {descriptor.type}}}",
        )


def _summary(refused: Mapping[int, str], total: int) -> ApiError:
    """Return the error of a partly successful request, with the message and details of the real service."""
    by_reason: dict[str, list[int]] = {}
    for index, reason in refused.items():
        by_reason.setdefault(reason, []).append(index)
    reasons = "; ".join(f"{reason}: timeSeries[{','.join(map(str, where))}]" for reason, where in by_reason.items())
    details = {
        "@type": _SUMMARY,
        "totalPointCount": total,
        "successPointCount": total - len(refused),
        "errors": [{"status": {"code": _INVALID_ARGUMENT}, "pointCount": len(refused)}],
    }
    return ApiError(400, f"One or more TimeSeries could not be written: {reasons}", details=[details])


def _key(project: str, series: Any) -> _Key:
    metric, resource = series.metric, series.resource
    return (
        project,
        str(metric.type),
        frozenset(label for label in metric.labels.items() if label[1]),
        str(resource.type),
        frozenset(label for label in resource.labels.items() if label[1] and label[0] != "project_id"),
    )


def _copy(series: Any) -> Any:
    copy = TimeSeries.pb()()
    copy.CopyFrom(series)
    return copy


def _ns(timestamp: Any) -> int:
    return int(timestamp.seconds) * _NS + int(timestamp.nanos)


def _page_start(token: str) -> int:
    if token and not (token.isascii() and token.isdigit()):
        raise ApiError(400, f"page_token {token!r} was not issued by this server")
    return int(token or 0)


def _compile_filter(text: str) -> Test:
    """Return a test of TimeSeries messages, for a filter such as `metric.type = "a/b" AND resource.labels.x = "y"`.

    Raises:
        ApiError: The filter is invalid or not supported by this server.
    """
    return _Filter(text).parse()


class _Filter(Parser):
    operators = ("=", "!=")
    disjunctions = ()
    negations = ()
    has_groups = False

    def comparison(self) -> Test:
        subject = self.text()
        if not _SUBJECT.fullmatch(subject.text):
            raise self.error("the loopback server does not support this field", subject.position)
        equal = self.expect(*self.operators) == "="
        function = self.take(*_FUNCTIONS)
        if function:
            self.expect("(")
        if not self.peek().text.startswith('"'):
            raise self.error("expected a value in quotation marks")
        wanted = self.unquoted(self.text())
        if function:
            self.expect(")")
        compare = _FUNCTIONS.get(function, str.__eq__)
        return lambda series: compare(_value(series, subject.text), wanted) is equal


def _value(series: Any, subject: str) -> str:
    owner, _, name = subject.partition(".")
    message = getattr(series, owner)
    return str(message.type if name == "type" else message.labels.get(name.partition(".")[2], ""))
