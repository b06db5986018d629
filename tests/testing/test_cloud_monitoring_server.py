"""The loopback Cloud Monitoring works with the real google-cloud-monitoring client."""

import json
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from typing import Any

import grpc  # type: ignore[import-untyped]
import pytest
from google.api import metric_pb2  # type: ignore[import-untyped]
from google.api_core import exceptions
from google.cloud import monitoring_v3
from google.cloud.monitoring_v3.services.metric_service.transports import MetricServiceGrpcTransport
from ml_diagnostics_testing.cloud_monitoring import CloudMonitoringServer
from ml_diagnostics_testing.faults import Delay, Hang, Reset, Skew, Status

NOW = 1_800_000_000
GOODPUT = "compute.googleapis.com/workload/goodput_time"
WORKLOAD = {"location": "us-central2-b", "workload_id": "run-1", "replica_id": "0"}
HEADERS = monitoring_v3.ListTimeSeriesRequest.TimeSeriesView.HEADERS


@pytest.fixture
def server() -> Iterator[Any]:
    with CloudMonitoringServer(clock=lambda: NOW) as server:
        yield server


@pytest.fixture
def client(server: Any) -> Iterator[Any]:
    with grpc.insecure_channel(server.grpc_target) as channel:
        yield monitoring_v3.MetricServiceClient(transport=MetricServiceGrpcTransport(channel=channel))


def series(
    value: float = 1.0,
    end: Any = NOW,
    metric: Any = GOODPUT,
    resource: Any = WORKLOAD,
    field: str = "double_value",
    points: int = 1,
    **labels: Any,
) -> Any:
    point: Any = {"interval": {"end_time": {"seconds": end}}, "value": {field: value}}
    return monitoring_v3.TimeSeries(
        metric={"type": metric, "labels": labels},
        resource={"type": "compute.googleapis.com/Workload", "labels": resource},
        points=[point] * points,
    )


def write(client: Any, *several: Any, project: str = "test-project") -> None:
    client.create_time_series(name=f"projects/{project}", time_series=several)


def listed(
    client: Any, filter_: Any = f'metric.type = "{GOODPUT}"', start: float = 0, end: Any = NOW, **more: Any
) -> Any:
    interval = {"start_time": {"seconds": start}, "end_time": {"seconds": end}}
    request = {"name": "projects/test-project", "filter": filter_, "interval": interval, **more}
    return list(client.list_time_series(request=request))


def summary_of(error: Any) -> Any:
    (summary,) = [monitoring_v3.CreateTimeSeriesSummary.deserialize(detail.value) for detail in error.details]
    return summary


def rest(server: Any, verb: Any, path: Any, body: Any = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(server.rest_url + path, data=data, method=verb)
    try:
        with urllib.request.urlopen(request) as response:
            return response.status, json.loads(response.read())
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read())


# --- Writing and listing --------------------------------------------------------------------------------


def test_what_is_written_is_listed_newest_first(server: Any, client: Any) -> None:
    write(client, series(1.0, NOW - 5, goodput_source="TOTAL"))
    write(client, series(2.0, NOW, goodput_source="TOTAL"))
    (found,) = listed(client)
    assert [point.value.double_value for point in found.points] == [2.0, 1.0]
    assert dict(found.metric.labels) == {"goodput_source": "TOTAL"}
    assert dict(found.resource.labels) == {**WORKLOAD, "project_id": "test-project"}
    assert found.metric_kind == metric_pb2.MetricDescriptor.GAUGE
    assert found.value_type == metric_pb2.MetricDescriptor.DOUBLE
    assert [record.entries for record in server.requests_for("write")] == [1, 1]


def test_a_listing_has_the_points_of_its_interval(client: Any) -> None:
    for end in (NOW - 20, NOW - 10, NOW):
        write(client, series(end=end))
    (found,) = listed(client, start=NOW - 20, end=NOW - 10)
    assert [point.interval.end_time.timestamp() for point in found.points] == [NOW - 10]
    assert listed(client, start=NOW) == []
    assert [len(found.points) for found in listed(client, view=HEADERS)] == [0]


@pytest.mark.parametrize(
    ("filter_", "expected"),
    [
        ('metric.labels.kind = "a"', {1.0}),
        ('metric.label.kind != "a"', {2.0, 3.0}),
        ('metric.labels.kind = starts_with("b")', {2.0, 3.0}),
        ('metric.labels.kind = has_substring("x") AND resource.labels.workload_id = "run-1"', {3.0}),
        ('resource.type = "compute.googleapis.com/Workload" metric.labels.kind = ends_with("x")', {3.0}),
        ('resource.labels.workload_id = "other"', set()),
    ],
)
def test_a_filter_selects(client: Any, filter_: str, expected: Any) -> None:
    write(client, *(series(value, kind=kind) for value, kind in ((1.0, "a"), (2.0, "b"), (3.0, "bx"))))
    found = listed(client, f'metric.type = "{GOODPUT}" AND {filter_}')
    assert {one.points[0].value.double_value for one in found} == expected


@pytest.mark.parametrize(
    "filter_", ["", 'resource.type = "x"', 'metric.type = "a" OR metric.type = "b"', "metric.type"]
)
def test_a_filter_without_a_metric_or_that_cannot_be_read_is_refused(client: Any, filter_: str) -> None:
    with pytest.raises(exceptions.InvalidArgument):
        listed(client, filter_)


def test_a_listing_has_pages(server: Any, client: Any) -> None:
    write(client, *(series(kind=str(number)) for number in range(7)))
    assert len(listed(client, page_size=3)) == 7
    assert [record.entries for record in server.requests_for("list")] == [3, 3, 1]


def test_projects_do_not_see_each_other(client: Any) -> None:
    write(client, series(), project="other")
    assert listed(client) == []
    write(client, series())
    assert len(listed(client)) == 1


# --- What is refused ------------------------------------------------------------------------------------


def test_a_request_has_at_most_200_series(server: Any, client: Any) -> None:
    with pytest.raises(exceptions.InvalidArgument, match="maximum of 200"):
        write(client, *(series(kind=str(number)) for number in range(201)))
    assert server.series() == []
    write(client, *(series(kind=str(number)) for number in range(200)))
    assert len(server.series()) == 200


def test_a_series_is_written_once_a_request(server: Any, client: Any) -> None:
    with pytest.raises(exceptions.InvalidArgument, match=r"Duplicate TimeSeries.*timeSeries\[1\]"):
        write(client, series(1.0), series(2.0), series(3.0, kind="other"))
    assert [one["points"][0]["value"]["doubleValue"] for one in server.series()] == [1.0, 3.0]


@pytest.mark.parametrize(
    ("after", "why"), [(-1, "must be written in order"), (0, "more frequently"), (4, "more frequently"), (5, None)]
)
def test_points_are_in_order_and_five_seconds_apart(server: Any, client: Any, after: int, why: str | None) -> None:
    write(client, series(1.0, NOW - 100))
    if why is None:
        write(client, series(2.0, NOW - 100 + after))
    else:
        with pytest.raises(exceptions.InvalidArgument, match=why):
            write(client, series(2.0, NOW - 100 + after))
    assert len(server.series()[0]["points"]) == (2 if why is None else 1)


def test_one_refused_series_does_not_keep_the_others_from_being_written(server: Any, client: Any) -> None:
    write(client, series(kind="a"))
    with pytest.raises(exceptions.InvalidArgument, match=r"timeSeries\[1\]") as caught:
        write(client, series(kind="b"), series(kind="a"), series(kind="c"))
    summary = summary_of(caught.value)
    assert (summary.total_point_count, summary.success_point_count) == (3, 2)
    assert [(error.status.code, error.point_count) for error in summary.errors] == [(3, 1)]
    assert {one["metric"]["labels"]["kind"] for one in server.series()} == {"a", "b", "c"}


@pytest.mark.parametrize(
    "candidate",
    [
        series(end=NOW + 301),
        series(end=NOW - 25 * 3600 - 11),
        series(points=0),
        series(points=2),
        series(metric="no type"),
        series(resource={"location": "us-central2-b"}),
        series(kind="x" * 1025),
        series(1, field="int64_value"),
        series(**{"no-name": "x"}),  # type: ignore[arg-type]
    ],
)
def test_a_malformed_series_is_refused(server: Any, client: Any, candidate: Any) -> None:
    write(client, series(kind="the first, which decides on the type"))
    with pytest.raises(exceptions.InvalidArgument, match="could not be written: Field timeSeries"):
        write(client, candidate)
    assert len(server.series()) == 1


@pytest.mark.parametrize("end", [NOW + 300, NOW - 25 * 3600])
def test_a_point_may_be_a_little_ahead_or_a_day_old(server: Any, client: Any, end: Any) -> None:
    write(client, series(end=end))
    assert len(server.series()) == 1


def test_a_clock_that_is_wrong_decides_what_is_the_future(server: Any, client: Any) -> None:
    server.faults.always(Skew(-3600), on="write")
    with pytest.raises(exceptions.InvalidArgument, match="in the future"):
        write(client, series())


# --- Descriptors ----------------------------------------------------------------------------------------


def test_the_first_point_makes_the_metrics_descriptor(client: Any) -> None:
    write(client, series(1, field="int64_value", kind="a", other="b"))
    (found,) = client.list_metric_descriptors(name="projects/test-project")
    assert (found.type, found.value_type) == (GOODPUT, metric_pb2.MetricDescriptor.INT64)
    assert [label.key for label in found.labels] == ["kind", "other"]


def test_a_descriptor_may_be_made_first(client: Any) -> None:
    descriptor = {"type": GOODPUT, "metric_kind": "GAUGE", "value_type": "INT64"}
    client.create_metric_descriptor(name="projects/test-project", metric_descriptor=descriptor)
    with pytest.raises(exceptions.InvalidArgument, match="must be INT64, but is DOUBLE"):
        write(client, series())


# --- Faults, REST ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        (Status(429), exceptions.ResourceExhausted),
        (Status(503), exceptions.ServiceUnavailable),
        (Status(403), exceptions.PermissionDenied),
        (Reset(), exceptions.ServiceUnavailable),
    ],
)
def test_faults_happen_on_demand(server: Any, client: Any, fault: Any, expected: Any) -> None:
    server.faults.script([fault], on="write")
    with pytest.raises(expected):
        write(client, series())
    assert server.series() == []
    write(client, series())
    assert len(server.series()) == 1


def test_a_write_may_succeed_and_its_answer_be_lost(server: Any, client: Any) -> None:
    server.faults.script([Status(503, after_apply=True)], on="write")
    with pytest.raises(exceptions.ServiceUnavailable):
        write(client, series())
    assert len(server.series()) == 1


def test_a_hang_is_ended_by_the_clients_deadline(server: Any, client: Any) -> None:
    server.faults.script([Hang()])
    with pytest.raises(exceptions.DeadlineExceeded):
        client.create_time_series(name="projects/test-project", time_series=[series()], timeout=0.2)


def test_a_delay_holds_the_answer_up(server: Any, client: Any) -> None:
    server.faults.script([Delay(0.2)])
    before = time.monotonic()
    write(client, series())
    assert time.monotonic() - before >= 0.2


def test_rest_speaks_of_the_same_series(server: Any, client: Any) -> None:
    body = {
        "timeSeries": [
            {
                "metric": {"type": GOODPUT, "labels": {"goodput_source": "TOTAL"}},
                "resource": {"type": "compute.googleapis.com/Workload", "labels": WORKLOAD},
                "points": [{"interval": {"endTime": "2027-01-15T08:00:00Z"}, "value": {"doubleValue": 5}}],
            }
        ]
    }
    path = "/v3/projects/test-project/timeSeries"
    assert rest(server, "POST", path, body) == (200, {})
    status, answer = rest(server, "POST", path, body)
    assert status == 400
    assert answer["error"]["details"][0]["@type"].endswith("CreateTimeSeriesSummary")
    query = {"filter": f'metric.type="{GOODPUT}"', "interval.endTime": "2027-01-15T08:00:00Z"}
    status, answer = rest(server, "GET", f"{path}?{urllib.parse.urlencode(query)}")
    assert status == 200
    assert answer["timeSeries"][0]["points"][0]["value"] == {"doubleValue": 5.0}
    assert listed(client)[0].points[0].value.double_value == 5.0


@pytest.mark.parametrize(
    ("verb", "path", "body", "status"),
    [
        ("POST", "/v3/projects/p/timeSeries", {"junk": 1}, 400),
        ("POST", "/v3/projects/p/elsewhere", {}, 404),
        ("GET", "/v3/projects/p/timeSeries?filter=metric.type", None, 400),
        ("DELETE", "/v1/projects/p/dashboards", None, 400),
    ],
)
def test_rest_refuses_junk(server: Any, verb: str, path: str, body: Any, status: int) -> None:
    assert rest(server, verb, path, body)[0] == status


def test_dashboards_are_stored_unchanged(server: Any) -> None:
    path = "/v1/projects/test-project/dashboards"
    assert rest(server, "POST", f"{path}?validateOnly=true", {"displayName": "x"})[0] == 200
    assert server.dashboards == []
    _, made = rest(server, "POST", path, {"displayName": "x"})
    assert made == {"displayName": "x", "name": "projects/test-project/dashboards/1", "etag": "1"}
    assert rest(server, "GET", path) == (200, {"dashboards": [made]})


def test_the_environment_points_at_the_server(server: Any) -> None:
    assert server.environment() == {
        "CLOUDSDK_API_ENDPOINT_OVERRIDES_MONITORING": f"{server.rest_url}/",
        "CLOUDSDK_AUTH_DISABLE_CREDENTIALS": "1",
        "CLOUDSDK_CORE_PROJECT": "test-project",
        "GOOGLE_CLOUD_PROJECT": "test-project",
    }


def test_clear_forgets(server: Any, client: Any) -> None:
    write(client, series())
    server.clear()
    assert server.series() == []
    write(client, series(end=NOW - 60))
    assert len(server.series()) == 1
