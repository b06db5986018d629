"""With any answer of Cloud Monitoring, or none: valid points are sent at a low rate, and failures are logged once."""

import dataclasses
import logging
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ml_diagnostics_common.exceptions import ConfigurationError
from ml_diagnostics_testing.cloud_monitoring import CloudMonitoringServer
from ml_diagnostics_testing.faults import Hang, Reset, Skew, Status
from ml_goodput_measurement.gcp_metrics import REQUEST_SECONDS
from ml_goodput_measurement.goodput_utils import BadputType, GCPOptions

from .exported_points import HOUR, OPTIONS, Clock, ends, exporters, of_type, only_goodput
from .snapshots import cumulative, deviation, snapshot, window


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


# --- Errors ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", [Status(503), Status(429), Status(500), Reset(), Status(503, after_apply=True)])
def test_an_hour_of_errors_is_survived_gently(
    server: Any, make: Any, clock: Any, caplog: pytest.LogCaptureFixture, fault: Any
) -> None:
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


def test_what_went_well_ends_the_long_waits(server: Any, make: Any, clock: Any) -> None:
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
def test_a_missing_role_is_logged_once_and_writing_is_retried_every_ten_minutes(
    server: Any, make: Any, clock: Any, caplog: pytest.LogCaptureFixture, status: int, code: str
) -> None:
    server.faults.always(Status(status), on="write")
    exporter = make()
    for _ in range(4 * HOUR // 30):
        exporter(only_goodput())
        clock.elapsed += 30
    assert 24 <= len(server.requests) <= 60
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    for part in (code, "anonymous", "roles/monitoring.metricWriter", "test-project", "run-1"):
        assert part in record.getMessage()
    server.faults.clear()
    clock.elapsed += 660
    exporter(only_goodput())
    assert len(of_type(server, "goodput_time")) == 1


def test_how_long_the_server_asks_us_to_wait_is_kept(server: Any, make: Any, clock: Any) -> None:
    server.faults.script([Status(429, retry_after=300)], on="write")
    exporter = make()
    exporter(only_goodput())
    for _ in range(29):
        clock.elapsed += 10
        exporter(only_goodput())
    assert len(server.requests) == 1


@pytest.mark.timing
def test_a_server_that_hangs_holds_up_a_flush_no_longer_than_it_may(server: Any, make: Any, clock: Any) -> None:
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


def test_one_refused_series_does_not_lose_the_others(
    server: Any, make: Any, clock: Any, caplog: pytest.LogCaptureFixture
) -> None:
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
    server: Any, make: Any, clock: Any, caplog: pytest.LogCaptureFixture, fault: Any, requests: Any, written: Any
) -> None:
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


def test_many_refused_requests_are_one_failure_to_the_wait(server: Any, make: Any, clock: Any) -> None:
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
def test_a_series_that_cannot_be_encoded_does_not_keep_the_others(
    server: Any, make: Any, clock: Any, caplog: pytest.LogCaptureFixture, changes: Any, missing: Any
) -> None:
    exporter = make()
    for _ in range(2):
        exporter(snapshot(cumulative=cumulative(**changes)))
        clock.elapsed += 30
    assert exporter.counts == {"malformed": 2, "written": 2 * len(server.series())}
    assert len(ends(server)) == 2
    assert len(of_type(server, missing)) == (1 if missing == "badput_time" else 0)
    (record,) = caplog.records
    assert missing in record.getMessage()
    record.getMessage().encode()


def test_nothing_is_asked_where_no_series_can_be_encoded(server: Any, make: Any, clock: Any) -> None:
    options = dataclasses.replace(OPTIONS, replica_id="\ud800")
    exporter = make(options)
    exporter(only_goodput())
    exporter.flush(10.0)
    assert server.requests == []
    assert set(exporter.counts) == {"malformed"}
    assert clock.waited == []  # There is nothing to try again.


def test_two_exporters_of_one_job_survive_each_other(
    server: Any, make: Any, clock: Any, caplog: pytest.LogCaptureFixture
) -> None:
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


def test_a_restarted_exporter_goes_on_where_the_last_one_stopped(
    server: Any, make: Any, clock: Any, caplog: pytest.LogCaptureFixture
) -> None:
    make()(only_goodput())
    clock.elapsed += 2
    again = make()
    for _ in range(3):
        again(only_goodput())
        clock.elapsed += 10
    assert ends(server) == [0, 12, 22]
    assert "this job was restarted just now" in caplog.text


def test_a_server_with_a_wrong_clock_is_not_a_failure(server: Any, make: Any, clock: Any) -> None:
    server.faults.always(Skew(-HOUR), on="write")
    exporter = make()
    exporter(only_goodput())
    server.faults.clear()
    clock.elapsed += 10
    exporter(only_goodput())
    assert ends(server) == [10]


# --- Without a cloud ------------------------------------------------------------------------------------


def test_the_local_backend_never_searches_for_a_cloud(
    server: Any, make: Any, clock: Any, caplog: pytest.LogCaptureFixture
) -> None:
    exporter = make(environ={**server.environment(), "ML_DIAGNOSTICS_BACKEND": "local"})
    for _ in range(20):
        exporter(snapshot())
        clock.elapsed += 60
    exporter.flush(1.0)
    assert server.requests == []
    assert caplog.records == []


def test_a_backend_that_there_is_not_is_an_error_at_construction(make: Any) -> None:
    with pytest.raises(ConfigurationError, match="ML_DIAGNOSTICS_BACKEND"):
        make(environ={"ML_DIAGNOSTICS_BACKEND": "clowd"})


@pytest.mark.parametrize(
    ("interval", "expected"),
    [
        (10, [*range(0, 600, 60), *range(600, 2 * HOUR, 600)]),
        (900, list(range(0, 2 * HOUR, 900))),  # Rare uploads probe each time.
    ],
)
def test_the_search_for_a_cloud_backs_off_and_its_absence_is_logged_once(
    make: Any,
    clock: Any,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    interval: Any,
    expected: Any,
) -> None:
    from ml_goodput_measurement._export import cloud_monitoring

    probes = []
    find = cloud_monitoring.find_cloud  # type: ignore[attr-defined]
    monkeypatch.setattr(cloud_monitoring, "find_cloud", lambda *a, **k: probes.append(clock.elapsed) or find(*a, **k))
    caplog.set_level(logging.INFO)
    environ = {"HOME": str(tmp_path), "NO_GCE_CHECK": "true", "GOOGLE_CLOUD_PROJECT": "my-project"}
    exporter = make(GCPOptions(), environ=environ)
    for _ in range(2 * HOUR // interval):
        exporter(snapshot())
        clock.elapsed += interval
    assert probes == expected
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "gcloud auth application-default login" in record.getMessage()


def test_no_cloud_is_no_warning_where_nothing_points_to_one(
    make: Any, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    caplog.set_level(logging.INFO)
    make(GCPOptions(), environ={"HOME": str(tmp_path), "NO_GCE_CHECK": "true"})(snapshot())
    (record,) = caplog.records
    assert record.levelno == logging.INFO
    assert "gcloud auth application-default login" in record.getMessage()


def test_a_cloud_that_is_found_later_is_used(server: Any, make: Any, clock: Any, tmp_path: Path) -> None:
    environ = {"HOME": str(tmp_path), "NO_GCE_CHECK": "true"}
    exporter = make(environ=environ)
    exporter(only_goodput())
    environ.update(server.environment())
    for _ in range(7):
        clock.elapsed += 10
        exporter(only_goodput())
    assert ends(server) == [60, 70]


def test_importing_it_imports_no_client() -> None:
    script = "import sys, ml_goodput_measurement._export.cloud_monitoring; print(*sys.modules)"
    modules = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout.split()
    assert "ml_goodput_measurement._export.cloud_monitoring" in modules
    assert not {"google.auth", "google.protobuf", "grpc", "numpy", "multiprocessing"} & set(modules)
