"""Goodput reaches Cloud Monitoring by the real client, at its pace, up to the last point, with any clock."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest
from ml_diagnostics_common.credentials.instance_metadata import instance_metadata
from ml_diagnostics_testing.cloud_monitoring import CloudMonitoringServer
from ml_diagnostics_testing.faults import Status
from ml_diagnostics_testing.metadata import MetadataServer
from ml_goodput_measurement._export.cloud_monitoring import MOST_EVENT_TYPES
from ml_goodput_measurement.goodput_utils import GCPOptions

from ..waiting import LONG_SECONDS
from .exported_points import HOUR, OPTIONS, Clock, ends, exporters, of_type, only_goodput
from .snapshots import deviation, snapshot, window, with_events

WORKLOAD = {"location": "us-central2-b", "workload_id": "run-1", "replica_id": "0", "project_id": "test-project"}


@pytest.fixture(autouse=True)
def _off_google_cloud(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_GCE_CHECK", "true")


@pytest.fixture
def clock() -> Any:
    return Clock()


@pytest.fixture
def server(clock: Any) -> Iterator[Any]:
    with CloudMonitoringServer(clock=clock.server) as server:
        yield server


@pytest.fixture
def make(server: Any, clock: Any) -> Iterator[Any]:
    with exporters(server, clock) as make:
        yield make


# --- What is written ------------------------------------------------------------------------------------


def test_the_series_of_a_snapshot(server: Any, make: Any) -> None:
    make(include_slice_efficiency=True)(snapshot())
    (goodput,) = of_type(server, "goodput_time")
    assert goodput == {
        "metric": {
            "type": "compute.googleapis.com/workload/goodput_time",
            "labels": {"goodput_source": "TOTAL", "accelerator_type": "TPU-v5p", "cluster_name": "c"},
        },
        "resource": {"type": "compute.googleapis.com/Workload", "labels": WORKLOAD},
        "metricKind": "GAUGE",
        "valueType": "DOUBLE",
        "points": [{"interval": {"endTime": "2027-01-15T08:00:00Z"}, "value": {"doubleValue": 875.0}}],
    }
    counts: dict[Any, Any] = {}
    for series in server.series():
        name = series["metric"]["type"].rpartition("/")[2]
        counts[name] = counts.get(name, 0) + 1
        assert series["resource"] == {"type": "compute.googleapis.com/Workload", "labels": WORKLOAD}
    assert counts == {
        "goodput_time": 1,
        "badput_time": 11,
        "disruptions": 1,
        "max_productive_steps": 1,
        "step_time_deviation": 1,
        "total_elapsed_time": 1,
        "performance": 1,
        "interval_goodput": 1,
        "interval_badput": 2,
        "stepping_slice_efficiency": 2,
        "available_slice_efficiency": 2,
    }
    (step,) = of_type(server, "max_productive_steps")
    assert (step["valueType"], step["points"][0]["value"]) == ("INT64", {"int64Value": "41"})
    (ideal,) = of_type(server, "performance")
    assert (ideal["metric"].get("labels", {}), ideal["points"][0]["value"]) == ({}, {"doubleValue": 1.25})


def test_a_thousand_types_of_events_are_a_hundred_and_one_series(
    server: Any, make: Any, clock: Any, caplog: pytest.LogCaptureFixture
) -> None:
    exporter = make()
    for _ in range(2):
        exporter(snapshot(cumulative=with_events(1000)))
        clock.elapsed += 30
    found = {
        series["metric"]["labels"]["badput_source"]: series["points"][0]["value"]["doubleValue"]
        for series in of_type(server, "badput_time")
    }
    assert len(found) == MOST_EVENT_TYPES + 1
    assert found.pop("CUSTOM_BADPUT_EVENTS.ALL_OTHER_TYPES") == sum(range(1, 901))
    assert min(found.values()) == 901.0  # The heaviest have series of their own.
    (record,) = caplog.records
    assert "more than 100 types" in record.getMessage()


def test_a_type_of_events_keeps_its_series_when_heavier_ones_are_added(server: Any, make: Any, clock: Any) -> None:
    exporter = make()
    exporter(snapshot(cumulative=with_events(MOST_EVENT_TYPES)))
    clock.elapsed += 30
    exporter(snapshot(cumulative=with_events(MOST_EVENT_TYPES + 10)))
    points = [len(series["points"]) for series in of_type(server, "badput_time")]
    assert points == [2] * MOST_EVENT_TYPES + [1]


def test_at_most_200_series_go_in_a_request(server: Any, make: Any) -> None:
    make()(snapshot(cumulative=with_events(100), windows=tuple(window(size) for size in range(60, 160))))
    entries = [record.entries for record in server.requests_for("write")]
    assert sum(entries) == len(server.series()) > 400
    assert max(entries) == 200


@pytest.mark.parametrize(
    ("goodput", "steps", "expected"),
    [
        (True, False, {"goodput_time", "interval_goodput"}),
        (False, True, {"step_time_deviation"}),
        (False, False, set()),
    ],
)
def test_the_options_select_what_is_sent(server: Any, make: Any, goodput: bool, steps: bool, expected: Any) -> None:
    options = dataclasses.replace(OPTIONS, enable_gcp_goodput_metrics=goodput, enable_gcp_step_deviation_metrics=steps)
    make(options)(snapshot())
    found = {series["metric"]["type"].rpartition("/")[2] for series in server.series()}
    assert found & {"goodput_time", "interval_goodput", "step_time_deviation"} == expected


def test_the_options_are_not_changed_and_what_they_leave_open_is_found(server: Any, make: Any) -> None:
    options = GCPOptions(replica_id="3")
    make(options)(only_goodput())
    (goodput,) = of_type(server, "goodput_time")
    assert goodput["metric"]["labels"] == {"goodput_source": "TOTAL", "accelerator_type": "UNKNOWN"}
    assert goodput["resource"]["labels"] == {**WORKLOAD, "location": "global", "replica_id": "3"}
    assert options == GCPOptions(replica_id="3")


@pytest.fixture
def google_machine(metadata_server: MetadataServer, monkeypatch: pytest.MonkeyPatch) -> Any:
    metadata_server.attributes["cluster-name"] = "gke-1"
    metadata_server.machine_type = "ct5lp-hightpu-4t"
    monkeypatch.delenv("NO_GCE_CHECK")
    for name, value in metadata_server.environment().items():
        monkeypatch.setenv(name, value)
    assert instance_metadata(wait_seconds=LONG_SECONDS).cluster_name == "gke-1"  # The server is probed only once.
    return metadata_server


def test_a_google_machine_without_an_answer_of_its_metadata_server_waits_for_its_labels(
    server: Any, make: Any, clock: Any, caplog: pytest.LogCaptureFixture, google_machine: Any
) -> None:
    google_machine.faults.always(Status(503), on="metadata")
    exporter = make(GCPOptions())
    exporter(only_goodput())
    google_machine.faults.clear()
    clock.elapsed += 59
    exporter(only_goodput())
    assert server.requests == []
    (record,) = caplog.records
    assert "instance/zone" in record.getMessage()
    clock.elapsed += 1
    exporter(only_goodput())
    (goodput,) = of_type(server, "goodput_time")
    assert goodput["resource"]["labels"]["location"] == google_machine.zone
    assert goodput["metric"]["labels"]["cluster_name"] == "gke-1"


def test_a_google_machine_knows_where_and_what_it_is(server: Any, make: Any, google_machine: Any) -> None:
    make(GCPOptions())(only_goodput())
    (goodput,) = of_type(server, "goodput_time")
    assert goodput["resource"]["labels"]["location"] == google_machine.zone
    assert goodput["metric"]["labels"]["cluster_name"] == "gke-1"
    assert goodput["metric"]["labels"]["accelerator_type"] == "TPU-v5e"


# --- Pace and clocks ------------------------------------------------------------------------------------


def test_points_of_a_series_are_five_seconds_apart_however_often_it_is_called(
    server: Any, make: Any, clock: Any
) -> None:
    exporter = make()
    for _ in range(31):
        exporter(only_goodput(clock.elapsed))
        clock.elapsed += 1
    assert ends(server) == [0, 5, 10, 15, 20, 25, 30]
    assert not [reason for reason in exporter.counts if reason.startswith(("refused", "failed"))]


def test_different_parts_do_not_wait_for_each_other(server: Any, make: Any, clock: Any) -> None:
    exporter = make()
    exporter(only_goodput())
    clock.elapsed += 1
    exporter(snapshot(deviation=deviation()))
    assert ends(server, "step_time_deviation") == [1]


def test_a_flush_sends_the_last_point(server: Any, make: Any, clock: Any) -> None:
    exporter = make()
    exporter(only_goodput(1.0))
    clock.elapsed += 2
    exporter(only_goodput(2.0))
    exporter.flush(10.0)
    assert clock.waited == [3.0]
    (series,) = of_type(server, "goodput_time")
    assert [point["value"]["doubleValue"] for point in series["points"]] == [2.0, 1.0]
    exporter.flush(10.0)
    assert clock.waited == [3.0]  # There is nothing more to bring out.


def test_a_flush_waits_no_longer_than_it_may(server: Any, make: Any, clock: Any) -> None:
    exporter = make()
    exporter(only_goodput())
    clock.elapsed += 2
    exporter(only_goodput())
    exporter.flush(2.0)
    assert clock.waited == []
    assert ends(server) == [0]


def test_a_flush_tries_once_more_what_failed(server: Any, make: Any, clock: Any) -> None:
    exporter = make()
    server.faults.script([Status(503), Status(503)], on="write")
    exporter(only_goodput())
    exporter.flush(10.0)
    exporter.flush(10.0)
    assert len(server.requests) == 2  # And no third time: what failed twice is given up.
    clock.elapsed += 60
    server.faults.script([Status(503)], on="write")
    exporter(only_goodput(1.0))
    clock.elapsed += 1
    exporter(only_goodput(2.0))  # Not sent: it is too soon.
    exporter.flush(30.0)
    (series,) = of_type(server, "goodput_time")
    assert [point["value"]["doubleValue"] for point in series["points"]] == [2.0]


def after_failures(server: Any, make: Any, clock: Any, *faults: Any) -> Any:
    """An exporter that waits after failures, and its last snapshot."""
    exporter = make()
    for fault in faults:
        clock.elapsed += 1000
        server.faults.script([fault], on="write")
        exporter(only_goodput(1.0))
    clock.elapsed += 6
    exporter(only_goodput(2.0))
    assert of_type(server, "goodput_time") == []
    return exporter


@pytest.mark.parametrize("status", [503, 403])
def test_a_flush_does_not_wait_as_after_other_failures(server: Any, make: Any, clock: Any, status: int) -> None:
    after_failures(server, make, clock, *[Status(status)] * 6).flush(10.0)
    (series,) = of_type(server, "goodput_time")
    assert [point["value"]["doubleValue"] for point in series["points"]] == [2.0]
    assert clock.waited == []


def test_a_flush_waits_as_the_server_asked(server: Any, make: Any, clock: Any) -> None:
    after_failures(server, make, clock, Status(429, retry_after=20)).flush(10.0)
    assert len(server.requests) == 1
    after_failures(server, make, clock, Status(429, retry_after=20)).flush(30.0)
    assert clock.waited == [14.0]
    assert len(of_type(server, "goodput_time")) == 1


def test_a_flush_does_not_send_what_is_old(server: Any, make: Any, clock: Any) -> None:
    exporter = make()
    exporter(snapshot(windows=(window(60),)))
    clock.elapsed += 1
    exporter(snapshot(windows=(window(60),)))
    clock.elapsed += HOUR
    exporter.flush(10.0)
    assert ends(server, "interval_goodput") == [0]


def test_a_flush_does_not_send_what_a_later_point_has_overtaken(server: Any, make: Any, clock: Any) -> None:
    exporter = make()
    for value in (1.0, 2.0, 3.0):
        exporter(only_goodput(value))
        clock.elapsed += 4 if value == 1.0 else 1
    exporter.flush(10.0)
    (series,) = of_type(server, "goodput_time")
    assert [point["value"]["doubleValue"] for point in series["points"]] == [3.0, 1.0]
    assert clock.waited == []


@pytest.mark.parametrize("jump", [-HOUR, -240, -1, 1, 240])
def test_a_wall_clock_that_jumps_costs_no_point(server: Any, make: Any, clock: Any, jump: Any) -> None:
    exporter = make()
    for round_ in range(300):
        if round_ == 10:
            clock.wall_is_fast_by = jump
        exporter(only_goodput())
        clock.elapsed += 30
    found = ends(server)
    assert len(found) == 300
    assert found[-1] - found[0] == pytest.approx(299 * 30 + jump, abs=1)  # It follows the wall clock in the end.
    assert exporter.counts == {"written": exporter.counts["written"]}


def test_a_wall_clock_an_hour_fast_is_refused_without_a_flood_and_right_again_at_once(
    server: Any, make: Any, clock: Any, caplog: pytest.LogCaptureFixture
) -> None:
    exporter = make()
    exporter(only_goodput())
    clock.wall_is_fast_by = HOUR
    for _ in range(20):
        clock.elapsed += 30
        exporter(only_goodput())
    assert len(server.requests_for("write")) == 21
    assert ends(server) == [0]
    clock.wall_is_fast_by = 0.0
    clock.elapsed += 30
    exporter(only_goodput())
    assert ends(server) == [0, 630]
    assert len(caplog.records) == 1
