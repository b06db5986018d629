"""A monitor in a cloud, on loopback: the helper process finds it by itself, with the real clients."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from ml_diagnostics_testing.cloud_logging import CloudLoggingServer
from ml_diagnostics_testing.cloud_monitoring import CloudMonitoringServer
from ml_diagnostics_testing.cloud_storage import CloudStorageServer
from ml_diagnostics_testing.faults import Hang
from ml_goodput_measurement.goodput import GoodputCalculator, GoodputRecorder
from ml_goodput_measurement.monitoring import GCPOptions, GoodputMonitor

from ..waiting import wait_until
from .monitored_trainers import FLUSH_SECONDS, goodput_points
from .tensorboard_points import points


@pytest.fixture
def _job() -> None:
    """Record a job of ten steps that has ended, so that all queries return the same."""
    recorder = GoodputRecorder("job", "log", True)
    recorder.record_job_start_time(1_700_000_000.0)
    for step in range(10):
        recorder.record_step_start_time(step, 1_700_000_010.0 + step)
    recorder.record_job_end_time(1_700_000_020.0)


@pytest.fixture
def _cloud(
    monkeypatch: pytest.MonkeyPatch,
    _job: None,
    cloud_logging_server: CloudLoggingServer,
    cloud_monitoring_server: CloudMonitoringServer,
    cloud_storage_server: CloudStorageServer,
) -> None:
    monkeypatch.setenv("ML_DIAGNOSTICS_BACKEND", "auto")
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    for server in (cloud_storage_server, cloud_logging_server, cloud_monitoring_server):
        for name, value in server.environment().items():
            monkeypatch.setenv(name, value)


@pytest.mark.usefixtures("_cloud")
def test_goodput_deviation_and_windows_reach_cloud_monitoring(
    tmp_path: Path, cloud_monitoring_server: CloudMonitoringServer, caplog: pytest.LogCaptureFixture
) -> None:
    monitor = GoodputMonitor(
        "job",
        "log",
        tmp_path,
        1000,
        True,
        include_step_deviation=True,
        gcp_options=GCPOptions(location="us-central2-b", acc_type="TPU-v5p", replica_id="3"),
        final_flush_timeout_seconds=FLUSH_SECONDS,
    )
    monitor.start_rolling_window_goodput_uploader([5, 3600])
    monitor.start_step_deviation_uploader()
    monitor.start_goodput_uploader()
    monitor.stop_rolling_window_goodput_uploader()
    monitor.stop_step_deviation_uploader()
    monitor.stop_goodput_uploader()
    assert caplog.records == []
    found = cloud_monitoring_server.series("")
    types = {series["metric"]["type"].rpartition("/")[2] for series in found}
    assert {"goodput_time", "badput_time", "step_time_deviation", "interval_goodput", "max_productive_steps"} <= types
    assert {series["resource"]["labels"]["replica_id"] for series in found} == {"3"}
    by_size = {
        series["metric"]["labels"]["rolling_window_size"]: series["points"][0]["value"]["doubleValue"]
        for series in found
        if series["metric"]["type"].endswith("/interval_goodput")
    }
    assert by_size == {"5": 100, "3600": pytest.approx(GoodputCalculator("job", "log").get_job_goodput().goodput)}


@pytest.mark.usefixtures("_cloud")
def test_event_files_and_the_saved_state_reach_one_folder_of_the_bucket(
    tmp_path: Path, cloud_storage_server: CloudStorageServer
) -> None:
    options = GCPOptions(enable_gcp_goodput_metrics=False)
    monitor = GoodputMonitor(
        "job",
        "log",
        "gs://test-bucket/runs/job",
        1000,
        True,
        gcp_options=options,
        final_flush_timeout_seconds=FLUSH_SECONDS,
    )
    monitor.start_goodput_uploader()
    monitor.stop_goodput_uploader()
    names = cloud_storage_server.names("test-bucket")
    events = [name for name in names if name.startswith("runs/job/goodput/events.out.tfevents.")]
    assert len(names) > len(events) == 1
    assert all(name.startswith("runs/job/") for name in names)
    (tmp_path / Path(events[0]).name).write_bytes(cloud_storage_server.read("test-bucket", events[0]))
    goodput = GoodputCalculator("job", "log").get_job_goodput()
    assert [(p.step, p.value) for p in points(tmp_path)] == [(goodput.last_step, pytest.approx(goodput.goodput))]


@pytest.mark.usefixtures("_cloud")
def test_a_cloud_that_never_answers_costs_the_files_on_this_machine_nothing(
    tmp_path: Path,
    cloud_logging_server: CloudLoggingServer,
    cloud_monitoring_server: CloudMonitoringServer,
) -> None:
    servers = (cloud_logging_server, cloud_monitoring_server)
    for server in servers:
        server.faults.always(Hang())
    monitor = GoodputMonitor("job", "log", tmp_path / "runs", 1000, True, final_flush_timeout_seconds=FLUSH_SECONDS)
    monitor.start_goodput_uploader()
    stop = threading.Thread(target=monitor.stop_goodput_uploader)
    stop.start()
    wait_until(lambda: goodput_points(tmp_path / "runs"), FLUSH_SECONDS)
    wait_until(lambda: cloud_monitoring_server.requests, FLUSH_SECONDS)
    assert stop.is_alive()  # Nothing was answered, and it still waits for that.
    for server in servers:
        server.faults.clear()
        server.faults.release()
    stop.join(FLUSH_SECONDS)
    assert not stop.is_alive()
    assert [point.step for point in points(tmp_path / "runs" / "goodput")] == [9]


@pytest.mark.usefixtures("_job")
def test_a_backend_that_insists_on_a_cloud_which_is_not_found_costs_the_files_on_this_machine_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ML_DIAGNOSTICS_BACKEND", "cloud")
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    monitor = GoodputMonitor("job", "log", tmp_path / "runs", 1000, True, final_flush_timeout_seconds=FLUSH_SECONDS)
    monitor.start_goodput_uploader()
    monitor.stop_goodput_uploader()
    assert [point.step for point in points(tmp_path / "runs" / "goodput")] == [9]
