"""Goodput reaches Cloud Monitoring by the real client, at its pace, through its errors, with any clock."""

import dataclasses
import logging
import subprocess
import sys
import time

import pytest
from ml_diagnostics_common.credentials.instance_metadata import instance_metadata
from ml_diagnostics_common.exceptions import ConfigurationError
from ml_diagnostics_testing.cloud_monitoring import CloudMonitoringServer
from ml_diagnostics_testing.faults import Hang, Reset, Skew, Status
from ml_goodput_measurement.exporters.cloud_monitoring import MOST_EVENT_TYPES, cloud_monitoring_exporter
from ml_goodput_measurement.gcp_metrics import REQUEST_SECONDS
from ml_goodput_measurement.goodput_utils import BadputType, GCPOptions

from .snapshots import cumulative, deviation, snapshot, window, with_events

NOW = 1_800_000_000
HOUR = 3600
OPTIONS = GCPOptions(location="us-central2-b", acc_type="TPU-v5p", cluster_name="c", project_id="test-project")
WORKLOAD = {"location": "us-central2-b", "workload_id": "run-1", "replica_id": "0", "project_id": "test-project"}


class Clock:
    """The time as the server has it, and as this machine's wall clock and monotonic clock tell it."""

    def __init__(self):
        self.elapsed = 0.0
        self.wall_is_fast_by = 0.0
        self.waited = []

    def server(self):
        return NOW + self.elapsed

    def wall_ns(self):
        return int((self.server() + self.wall_is_fast_by) * 1e9)

    def monotonic(self):
        return self.elapsed

    def wait(self, seconds):
        self.waited.append(seconds)
        self.elapsed += seconds


@pytest.fixture(autouse=True)
def _off_google_cloud(monkeypatch):
    monkeypatch.setenv("NO_GCE_CHECK", "true")


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def server(clock):
    with CloudMonitoringServer(clock=clock.server) as server:
        yield server


@pytest.fixture
def make(server, clock):
    made = []

    def exporter(options=OPTIONS, environ=None, **arguments):
        new = cloud_monitoring_exporter(
            "run-1",
            options,
            environ=server.environment() if environ is None else environ,
            clock_ns=clock.wall_ns,
            monotonic=clock.monotonic,
            wait=clock.wait,
            **arguments,
        )
        made.append(new)
        return new

    yield exporter
    for exporter in made:
        exporter.close()


def of_type(server, name):
    return server.series(f'metric.type = "compute.googleapis.com/workload/{name}"')


def ends(server, name="goodput_time"):
    """Ends of the points of the one series of that type, in seconds from the beginning, oldest first."""
    from google.protobuf.timestamp_pb2 import Timestamp

    (series,) = of_type(server, name)
    found = []
    for point in reversed(series["points"]):
        end = Timestamp()
        end.FromJsonString(point["interval"]["endTime"])
        found.append(end.ToNanoseconds() / 1e9 - NOW)
    return found


def only_goodput(seconds=875.0):
    return snapshot(cumulative=cumulative(goodput_seconds=seconds))


# --- What is written ------------------------------------------------------------------------------------


def test_the_series_of_a_snapshot(server, make):
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
    counts = {}
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


def test_a_thousand_types_of_events_are_a_hundred_and_one_series(server, make, clock, caplog):
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


def test_a_type_of_events_keeps_its_series_when_heavier_ones_come(server, make, clock):
    exporter = make()
    exporter(snapshot(cumulative=with_events(MOST_EVENT_TYPES)))
    clock.elapsed += 30
    exporter(snapshot(cumulative=with_events(MOST_EVENT_TYPES + 10)))
    points = [len(series["points"]) for series in of_type(server, "badput_time")]
    assert points == [2] * MOST_EVENT_TYPES + [1]


def test_at_most_200_series_go_in_a_request(server, make):
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
def test_the_options_say_what_is_sent(server, make, goodput, steps, expected):
    options = dataclasses.replace(OPTIONS, enable_gcp_goodput_metrics=goodput, enable_gcp_step_deviation_metrics=steps)
    make(options)(snapshot())
    found = {series["metric"]["type"].rpartition("/")[2] for series in server.series()}
    assert found & {"goodput_time", "interval_goodput", "step_time_deviation"} == expected


def test_the_options_are_not_changed_and_what_they_leave_open_is_found(server, make):
    options = GCPOptions(replica_id="3")
    make(options)(only_goodput())
    (goodput,) = of_type(server, "goodput_time")
    assert goodput["metric"]["labels"] == {"goodput_source": "TOTAL", "accelerator_type": "UNKNOWN"}
    assert goodput["resource"]["labels"] == {**WORKLOAD, "location": "global", "replica_id": "3"}
    assert options == GCPOptions(replica_id="3")


@pytest.fixture
def google_machine(metadata_server, monkeypatch):
    metadata_server.attributes["cluster-name"] = "gke-1"
    metadata_server.machine_type = "ct5lp-hightpu-4t"
    monkeypatch.delenv("NO_GCE_CHECK")
    for name, value in metadata_server.environment().items():
        monkeypatch.setenv(name, value)
    assert instance_metadata().cluster_name == "gke-1"  # The one look for a server is over.
    return metadata_server


def test_a_google_machine_whose_metadata_server_is_in_trouble_waits_for_its_labels(
    server, make, clock, caplog, google_machine
):
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


def test_a_google_machine_knows_where_and_what_it_is(server, make, google_machine):
    make(GCPOptions())(only_goodput())
    (goodput,) = of_type(server, "goodput_time")
    assert goodput["resource"]["labels"]["location"] == google_machine.zone
    assert goodput["metric"]["labels"]["cluster_name"] == "gke-1"
    assert goodput["metric"]["labels"]["accelerator_type"] == "TPU-v5e"


# --- Pace and clocks ------------------------------------------------------------------------------------


def test_points_of_a_series_are_five_seconds_apart_however_often_it_is_called(server, make, clock):
    exporter = make()
    for _ in range(31):
        exporter(only_goodput(clock.elapsed))
        clock.elapsed += 1
    assert ends(server) == [0, 5, 10, 15, 20, 25, 30]
    assert not [reason for reason in exporter.counts if reason.startswith(("refused", "failed"))]


def test_different_parts_do_not_wait_for_each_other(server, make, clock):
    exporter = make()
    exporter(only_goodput())
    clock.elapsed += 1
    exporter(snapshot(deviation=deviation()))
    assert ends(server, "step_time_deviation") == [1]


def test_a_flush_brings_out_the_last_word(server, make, clock):
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


def test_a_flush_waits_no_longer_than_it_may(server, make, clock):
    exporter = make()
    exporter(only_goodput())
    clock.elapsed += 2
    exporter(only_goodput())
    exporter.flush(2.0)
    assert clock.waited == []
    assert ends(server) == [0]


def test_a_flush_tries_once_more_what_failed(server, make, clock):
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


def after_failures(server, make, clock, *faults):
    """An exporter that waits after failures, and what it was told last."""
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
def test_a_flush_does_not_wait_as_after_other_failures(server, make, clock, status):
    after_failures(server, make, clock, *[Status(status)] * 6).flush(10.0)
    (series,) = of_type(server, "goodput_time")
    assert [point["value"]["doubleValue"] for point in series["points"]] == [2.0]
    assert clock.waited == []


def test_a_flush_waits_as_the_server_asked(server, make, clock):
    after_failures(server, make, clock, Status(429, retry_after=20)).flush(10.0)
    assert len(server.requests) == 1
    after_failures(server, make, clock, Status(429, retry_after=20)).flush(30.0)
    assert clock.waited == [14.0]
    assert len(of_type(server, "goodput_time")) == 1


def test_a_flush_does_not_send_what_is_old(server, make, clock):
    exporter = make()
    exporter(snapshot(windows=(window(60),)))
    clock.elapsed += 1
    exporter(snapshot(windows=(window(60),)))
    clock.elapsed += HOUR
    exporter.flush(10.0)
    assert ends(server, "interval_goodput") == [0]


def test_a_flush_does_not_send_what_a_later_point_has_overtaken(server, make, clock):
    exporter = make()
    for value in (1.0, 2.0, 3.0):
        exporter(only_goodput(value))
        clock.elapsed += 4 if value == 1.0 else 1
    exporter.flush(10.0)
    (series,) = of_type(server, "goodput_time")
    assert [point["value"]["doubleValue"] for point in series["points"]] == [3.0, 1.0]
    assert clock.waited == []


@pytest.mark.parametrize("jump", [-HOUR, -240, -1, 1, 240])
def test_a_wall_clock_that_jumps_costs_no_point(server, make, clock, jump):
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


def test_a_wall_clock_an_hour_fast_is_refused_without_a_flood_and_right_again_at_once(server, make, clock, caplog):
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


# --- Errors ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", [Status(503), Status(429), Status(500), Reset(), Status(503, after_apply=True)])
def test_an_hour_of_errors_is_survived_gently(server, make, clock, caplog, fault):
    exporter = make()
    exporter(only_goodput())
    server.faults.always(fault, on="write")
    for _ in range(HOUR // 10):
        clock.elapsed += 10
        exporter(only_goodput())
    assert 50 <= len(server.requests_for("write")) <= 130  # Once or twice a minute, not at each of 360 calls.
    assert len(caplog.records) == 1
    assert "The job goes on" in caplog.text
    server.faults.clear()
    clock.elapsed += 60
    exporter(only_goodput(9.0))
    (series,) = of_type(server, "goodput_time")
    assert series["points"][0]["value"] == {"doubleValue": 9.0}
    assert exporter.counts["skipped"] > 0


def test_what_went_well_ends_the_long_waits(server, make, clock):
    exporter = make()
    for fault in ([Status(503)] * 4, [None], [Status(503)], [None]):
        server.faults.script(fault, on="write")
        for _ in fault:
            clock.elapsed += 60
            exporter(only_goodput())
    assert len(server.requests) == 7
    server.faults.script([Status(503)], on="write")
    for _ in range(2):
        clock.elapsed += 6  # As after the first failure ever.
        exporter(only_goodput())
    assert len(server.requests) == 9


@pytest.mark.parametrize(("status", "code"), [(401, "UNAUTHENTICATED"), (403, "PERMISSION_DENIED"), (404, "NOT_FOUND")])
def test_who_may_not_write_is_told_the_role_once_and_asked_again_every_ten_minutes(
    server, make, clock, caplog, status, code
):
    server.faults.always(Status(status), on="write")
    exporter = make()
    for _ in range(4 * HOUR // 30):
        exporter(only_goodput())
        clock.elapsed += 30
    assert 24 <= len(server.requests) <= 60
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    for said in (code, "anonymous", "roles/monitoring.metricWriter", "test-project", "run-1"):
        assert said in record.getMessage()
    server.faults.clear()
    clock.elapsed += 660
    exporter(only_goodput())
    assert len(of_type(server, "goodput_time")) == 1


def test_how_long_the_server_asks_us_to_wait_is_kept(server, make, clock):
    server.faults.script([Status(429, retry_after=300)], on="write")
    exporter = make()
    exporter(only_goodput())
    for _ in range(29):
        clock.elapsed += 10
        exporter(only_goodput())
    assert len(server.requests) == 1


def test_a_server_that_hangs_holds_up_a_flush_no_longer_than_it_may(server, make, clock):
    exporter = make()
    exporter(only_goodput())
    clock.elapsed += 1
    exporter(only_goodput())
    server.faults.always(Hang(), on="write")
    before = time.monotonic()
    exporter.flush(4.2)  # Four seconds of waiting, by our clock, and 0.2 for the server.
    assert time.monotonic() - before < REQUEST_SECONDS / 2
    assert exporter.counts["failed_DEADLINE_EXCEEDED"] == len(of_type(server, "badput_time")) + 5
    clock.elapsed += 1
    exporter(only_goodput())
    assert len(server.requests) == 2  # It is left alone for a while.


def test_one_refused_series_does_not_lose_the_others(server, make, clock, caplog):
    other = make()
    other(snapshot(deviation=deviation()))
    exporter = make()
    clock.elapsed += 1
    exporter(snapshot())
    assert exporter.counts["refused_INVALID_ARGUMENT"] == 1
    assert exporter.counts["written"] == len(server.series()) - 1
    assert "another monitor" in caplog.text


@pytest.mark.parametrize(
    ("fault", "requests", "written"),
    [(Status(400), 3, 250), (Status(500), 3, 250), (Status(503), 1, 0), (Status(429), 1, 0)],
)
def test_a_refused_request_does_not_keep_the_next_ones_from_being_made(
    server, make, clock, caplog, fault, requests, written
):
    kinds = {BadputType.OTHER: 1.0}
    windows = tuple(window(size, badput_percent=kinds, slice_efficiency=None) for size in range(60, 285))
    exporter = make()
    for rounds in (1, 2):
        server.faults.script([fault], on="write")
        exporter(snapshot(windows=windows))
        assert len(server.requests) == requests * rounds
        assert len(server.series()) == written
        clock.elapsed += 60
    (failed,) = (count for reason, count in exporter.counts.items() if reason.startswith("failed"))
    assert failed == 2 * (450 - written)
    assert len(caplog.records) == 1


def test_many_refused_requests_are_one_failure_to_the_wait(server, make, clock):
    server.faults.always(Status(400), on="write")
    exporter = make()
    windows = tuple(window(size) for size in range(60, 360))
    exporter(snapshot(windows=windows))
    made = len(server.requests)
    assert made > 3
    clock.elapsed += 6  # As after one failure.
    exporter(snapshot(windows=windows))
    assert len(server.requests) == 2 * made


@pytest.mark.parametrize(
    ("changes", "missing"),
    [
        ({"badput_seconds": {BadputType.CUSTOM_BADPUT_EVENTS: {"A\ud800B": 3.0, "EVAL": 2.0}}}, "badput_time"),
        ({"max_productive_step": 2**63}, "max_productive_steps"),
    ],
)
def test_a_series_that_cannot_be_encoded_does_not_keep_the_others(server, make, clock, caplog, changes, missing):
    exporter = make()
    for _ in range(2):
        exporter(snapshot(cumulative=cumulative(**changes)))
        clock.elapsed += 30
    exporter.flush(1.0)
    assert exporter.counts == {"malformed": 2, "written": 2 * len(server.series())}
    assert len(ends(server)) == 2
    assert len(of_type(server, missing)) == (1 if missing == "badput_time" else 0)
    (record,) = caplog.records
    assert missing in record.getMessage()
    record.getMessage().encode()


def test_nothing_is_asked_where_no_series_can_be_encoded(server, make):
    options = dataclasses.replace(OPTIONS, replica_id="\ud800")
    exporter = make(options)
    exporter(only_goodput())
    assert server.requests == []
    assert set(exporter.counts) == {"malformed"}


def test_two_exporters_of_one_job_survive_each_other(server, make, clock, caplog):
    both = make(), make()
    for _ in range(100):
        for exporter in both:
            exporter(snapshot())
            clock.elapsed += 2
        clock.elapsed += 6
    assert len(ends(server)) == 100
    assert len(caplog.records) == 1
    assert both[0].counts["written"] > 0
    assert both[1].counts["refused_INVALID_ARGUMENT"] > 0


def test_a_restarted_exporter_goes_on_where_the_last_one_stopped(server, make, clock, caplog):
    make()(only_goodput())
    clock.elapsed += 2
    again = make()
    for _ in range(3):
        again(only_goodput())
        clock.elapsed += 10
    assert ends(server) == [0, 12, 22]
    assert "this job was restarted just now" in caplog.text


def test_a_server_whose_clock_is_wrong_is_survived(server, make, clock):
    server.faults.always(Skew(-HOUR), on="write")
    exporter = make()
    exporter(only_goodput())
    server.faults.clear()
    clock.elapsed += 10
    exporter(only_goodput())
    assert ends(server) == [10]


# --- Without a cloud ------------------------------------------------------------------------------------


def test_the_local_backend_never_looks_for_a_cloud(server, make, clock, caplog):
    exporter = make(environ={**server.environment(), "ML_DIAGNOSTICS_BACKEND": "local"})
    for _ in range(20):
        exporter(snapshot())
        clock.elapsed += 60
    exporter.flush(1.0)
    assert server.requests == []
    assert caplog.records == []


def test_a_backend_that_there_is_not_is_an_error_at_construction(make):
    with pytest.raises(ConfigurationError, match="ML_DIAGNOSTICS_BACKEND"):
        make(environ={"ML_DIAGNOSTICS_BACKEND": "clowd"})


@pytest.mark.parametrize(
    ("interval", "expected"),
    [
        (10, [*range(0, 600, 60), *range(600, 2 * HOUR, 600)]),
        (900, list(range(0, 2 * HOUR, 900))),  # Seldom uploads look as often as they can.
    ],
)
def test_a_cloud_is_looked_for_ever_more_seldom_and_its_lack_told_once(
    make, clock, caplog, monkeypatch, tmp_path, interval, expected
):
    from ml_goodput_measurement.exporters import cloud_monitoring

    looks = []
    find = cloud_monitoring.find_cloud
    monkeypatch.setattr(cloud_monitoring, "find_cloud", lambda *a, **k: looks.append(clock.elapsed) or find(*a, **k))
    exporter = make(GCPOptions(), environ={"HOME": str(tmp_path), "NO_GCE_CHECK": "true"})
    for _ in range(2 * HOUR // interval):
        exporter(snapshot())
        clock.elapsed += interval
    assert looks == expected
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "gcloud auth application-default login" in record.getMessage()


def test_a_cloud_that_is_found_later_is_used(server, make, clock, tmp_path):
    environ = {"HOME": str(tmp_path), "NO_GCE_CHECK": "true"}
    exporter = make(environ=environ)
    exporter(only_goodput())
    environ.update(server.environment())
    for _ in range(7):
        clock.elapsed += 10
        exporter(only_goodput())
    assert ends(server) == [60, 70]


def test_importing_it_imports_no_client():
    script = "import sys, ml_goodput_measurement.exporters.cloud_monitoring; print(*sys.modules)"
    modules = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout.split()
    assert "ml_goodput_measurement.exporters.cloud_monitoring" in modules
    assert not {"google.auth", "google.protobuf", "grpc", "numpy", "multiprocessing"} & set(modules)
