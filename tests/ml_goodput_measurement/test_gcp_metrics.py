"""Points go to Cloud Monitoring by the real client; what fails is logged and counted, never raised."""

import logging
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from google.auth.credentials import Credentials
from google.cloud import monitoring_v3
from ml_diagnostics_testing.certificates import CertificateAuthority
from ml_diagnostics_testing.cloud_monitoring import CloudMonitoringServer
from ml_diagnostics_testing.faults import Hang, Status
from ml_goodput_measurement.exceptions import CloudMonitoringError
from ml_goodput_measurement.gcp_metrics import GCPMetrics, ValueType

TYPE = "compute.googleapis.com/workload/goodput_time"
RESOURCE = {"location": "us-central2-b", "workload_id": "run-1", "replica_id": "0"}


@pytest.fixture
def metrics(cloud_monitoring_server: CloudMonitoringServer) -> Iterator[Any]:
    metrics = GCPMetrics("test-project", environ=cloud_monitoring_server.environment())
    yield metrics
    metrics.close()


def metric(value: float = 1.5, **labels: Any) -> Any:
    return {
        "metric_type": TYPE,
        "value": value,
        "value_type": ValueType.DOUBLE,
        "metric_labels": labels,
        "resource_type": "compute.googleapis.com/Workload",
        "resource_labels": RESOURCE,
    }


def made(metrics: Any, seconds: Any = None, **labels: Any) -> Any:
    seconds = int(time.time()) if seconds is None else seconds
    return metrics.create_time_series(seconds=seconds, nanos=0, **metric(**labels))


@pytest.mark.parametrize(
    ("kind", "value"), [("BOOL", True), ("INT", 3), ("DOUBLE", 1.5), ("STRING", "s"), ("DISTRIBUTION", {"count": 2})]
)
def test_a_time_series_has_one_point_with_an_end_and_no_start(kind: str, value: Any) -> None:
    series = GCPMetrics("p").create_time_series(
        TYPE, value, ValueType[kind], {"a": "b"}, "compute.googleapis.com/Workload", RESOURCE, 5, 6
    )
    assert series == monitoring_v3.TimeSeries(
        metric={"type": TYPE, "labels": {"a": "b"}},
        resource={"type": "compute.googleapis.com/Workload", "labels": RESOURCE},
        points=[{"interval": {"end_time": {"seconds": 5, "nanos": 6}}, "value": {ValueType[kind].value: value}}],
    )


def test_the_names_of_value_types_are_those_of_the_api() -> None:
    assert {member.name: member.value for member in ValueType} == {
        "BOOL": "bool_value",
        "INT": "int64_value",
        "DOUBLE": "double_value",
        "STRING": "string_value",
        "DISTRIBUTION": "distribution_value",
    }


def test_time_series_and_descriptions_of_metrics_are_sent(
    cloud_monitoring_server: CloudMonitoringServer, metrics: Any
) -> None:
    metrics.send_metrics([made(metrics, kind="a"), metric(kind="b")], "a test")
    found = cloud_monitoring_server.series()
    assert [series["metric"] for series in found] == [{"type": TYPE, "labels": {"kind": kind}} for kind in "ab"]
    assert not metrics.failures


def test_at_most_200_series_go_in_a_request(cloud_monitoring_server: CloudMonitoringServer, metrics: Any) -> None:
    metrics.send_metrics([metric(kind=str(number)) for number in range(401)])
    assert [record.entries for record in cloud_monitoring_server.requests_for("write")] == [200, 200, 1]
    assert len(cloud_monitoring_server.series()) == 401


def test_nothing_to_send_is_not_sent(cloud_monitoring_server: CloudMonitoringServer, metrics: Any) -> None:
    metrics.send_metrics([])
    assert cloud_monitoring_server.requests == []


def test_a_description_that_is_malformed_costs_only_itself(
    cloud_monitoring_server: CloudMonitoringServer, metrics: Any, caplog: pytest.LogCaptureFixture
) -> None:
    metrics.send_metrics([{"metric_type": TYPE, "value": 1.0}, metric("no number", kind="a"), metric(kind="b")])  # type: ignore[arg-type]
    (found,) = cloud_monitoring_server.series()
    assert found["metric"]["labels"] == {"kind": "b"}
    assert metrics.failures == {"malformed": 2}
    assert len(caplog.records) == 1


def test_series_that_are_refused_are_counted_and_the_others_written(
    cloud_monitoring_server: CloudMonitoringServer, metrics: Any, caplog: pytest.LogCaptureFixture
) -> None:
    now = int(time.time())
    metrics.send_metrics([made(metrics, now, kind="a")])
    metrics.send_metrics([made(metrics, now, kind="a"), made(metrics, now, kind="b")])
    assert len(cloud_monitoring_server.series()) == 2
    assert metrics.failures == {"INVALID_ARGUMENT": 1}
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "more frequently" in record.getMessage()


@pytest.mark.parametrize(
    ("status", "code"), [(403, "PERMISSION_DENIED"), (429, "RESOURCE_EXHAUSTED"), (503, "UNAVAILABLE")]
)
def test_an_error_of_the_api_is_logged_once_counted_and_not_raised(
    cloud_monitoring_server: CloudMonitoringServer,
    metrics: Any,
    caplog: pytest.LogCaptureFixture,
    status: int,
    code: str,
) -> None:
    cloud_monitoring_server.faults.script([Status(status)] * 2)
    for _ in range(2):
        metrics.send_metrics([metric(kind=str(number)) for number in range(201)])
    assert metrics.failures == {code: 402}
    assert len(cloud_monitoring_server.requests) == 2  # What one request meets, the next one would.
    (record,) = caplog.records
    assert code in record.getMessage()
    metrics.send_metrics([metric()])
    assert len(cloud_monitoring_server.series()) == 1


def test_without_credentials_nothing_is_raised(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    environ = {"HOME": str(tmp_path), "NO_GCE_CHECK": "true"}
    metrics = GCPMetrics("p", environ=environ)
    metrics.send_metrics([metric()])
    assert metrics.failures == {"CredentialsError": 1}
    assert "gcloud auth application-default login" in caplog.text


def test_a_server_that_hangs_is_left_at_the_deadline(
    cloud_monitoring_server: CloudMonitoringServer, metrics: Any
) -> None:
    cloud_monitoring_server.faults.script([Hang()])
    with pytest.raises(CloudMonitoringError) as caught:
        metrics.write([made(metrics)], timeout_seconds=0.2)
    assert (caught.value.code, caught.value.access) == ("DEADLINE_EXCEEDED", False)


def test_the_requested_delay_of_the_server_is_returned(
    cloud_monitoring_server: CloudMonitoringServer, metrics: Any
) -> None:
    cloud_monitoring_server.faults.script([Status(429, retry_after=7)])
    with pytest.raises(CloudMonitoringError) as caught:
        metrics.write([made(metrics)])
    assert caught.value.retry_after_seconds == 7.0


def test_a_variable_redirects_the_client(cloud_monitoring_server: CloudMonitoringServer) -> None:
    environ = {"CLOUDSDK_API_ENDPOINT_OVERRIDES_MONITORING": f"http://{cloud_monitoring_server.grpc_target}/"}
    metrics = GCPMetrics("test-project", environ=environ)
    metrics.send_metrics([metric()])
    metrics.close()
    assert len(cloud_monitoring_server.series()) == 1


def test_points_are_written_over_tls_with_a_token(certificate_authority: CertificateAuthority) -> None:
    class Token(Credentials):
        def refresh(self, request: Any) -> None:
            self.token = "secret-token"

    with CloudMonitoringServer(tls=certificate_authority) as server:
        metrics = GCPMetrics("test-project", credentials=Token(), environ=server.environment())  # type: ignore[no-untyped-call]
        metrics.send_metrics([metric()])
        metrics.close()
        assert len(server.series()) == 1
        assert server.requests[0].headers["authorization"] == "Bearer secret-token"


def test_importing_it_imports_no_client() -> None:
    script = "import sys, ml_goodput_measurement.gcp_metrics; print(*sys.modules)"
    modules = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout.split()
    assert "ml_goodput_measurement.gcp_metrics" in modules
    assert not {"google.auth", "google.cloud.monitoring_v3", "google.protobuf", "grpc"} & set(modules)
