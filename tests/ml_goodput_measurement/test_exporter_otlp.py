"""Gauges arrive at a real OTLP receiver: HTTP on loopback, decoded by opentelemetry-proto."""

from __future__ import annotations

import gzip
import http.server
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ml_diagnostics_common.credentials.instance_metadata import instance_metadata
from ml_diagnostics_testing.metadata import MetadataServer
from ml_goodput_measurement import cli
from ml_goodput_measurement.exporters import board as board_module
from ml_goodput_measurement.exporters.board import Board, Shown
from ml_goodput_measurement.goodput import GoodputRecorder

from ..waiting import LONG_SECONDS
from .simulated import JOB, record

pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="the extra [otlp] is not installed")

from ml_goodput_measurement.exporters.otlp import OtlpExporter, resource_attributes
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2

Points = list[tuple[dict[str, str], Any]]


class Receiver:
    """An OTLP receiver that keeps what it is sent."""

    def __init__(self) -> None:
        self.requests: list[Any] = []
        self.status = 200
        receiver = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                request: Any = metrics_service_pb2.ExportMetricsServiceRequest()
                request.ParseFromString(body)
                receiver.requests.append((self.path, request))
                self.send_response(receiver.status)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/v1/metrics"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def last(self) -> tuple[dict[str, str], dict[str, tuple[str, Points]]]:
        """Return the attributes of the last request's resource, and unit and points of each gauge."""
        (resource,) = self.requests[-1][1].resource_metrics
        (scope,) = resource.scope_metrics
        gauges: dict[str, tuple[str, Points]] = {}
        for metric in scope.metrics:
            assert metric.WhichOneof("data") == "gauge"
            points: Points = [(_text(point.attributes), _number(point)) for point in metric.gauge.data_points]
            gauges[metric.name] = metric.unit, points
        return _text(resource.resource.attributes), gauges


def _text(attributes: Any) -> dict[str, str]:
    return {attribute.key: attribute.value.string_value for attribute in attributes}


def _number(point: Any) -> float:
    return float(getattr(point, point.WhichOneof("value")))


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    receiver = Receiver()
    yield receiver
    receiver.server.shutdown()
    receiver.server.server_close()


def exporter_of(board: Board, receiver: Receiver) -> OtlpExporter:
    return OtlpExporter(
        board,
        endpoint=receiver.url,
        interval_seconds=3600,
        attributes=resource_attributes({}),
        timeout_seconds=LONG_SECONDS,
    )


def test_all_gauges_arrive_with_their_units_and_attributes(receiver: Receiver) -> None:
    record(JOB, "run-7", ends_at=time.time(), is_ended=False)
    board = Board(lambda: [("run-7", "goodput_run-7")])
    board.refresh()
    exporter = exporter_of(board, receiver)
    assert exporter.flush()
    exporter.stop()
    assert receiver.requests[0][0] == "/v1/metrics"
    resource, gauges = receiver.last()
    assert resource["service.name"] == "ml-diagnostics"
    assert resource["host.name"]
    (state,) = board.shown().states
    unit, times = gauges["ml.job.time"]
    assert unit == "s"
    assert {labels["ml.job.name"] for labels, _ in times} == {"run-7"}
    by_bucket = {labels["ml.job.bucket"]: value for labels, value in times}
    assert sum(by_bucket.values()) == pytest.approx(state.wall_ns / 1e9)
    assert by_bucket["wasted_progress"] > 0
    assert "elastic_slice_down" not in by_bucket
    job = {"ml.job.name": "run-7"}
    assert gauges["ml.job.goodput"] == ("1", [(job, pytest.approx(state.goodput_percent / 100))])
    assert gauges["ml.job.wall_time"] == ("s", [(job, pytest.approx(state.wall_ns / 1e9))])
    assert gauges["ml.job.step"] == ("{step}", [(job, state.last_step)])
    assert gauges["ml.job.attempts"][1] == [(job, 11.0)]
    assert gauges["ml.job.disruptions"][1] == [(job, 10.0)]
    assert gauges["ml.job.info"][1] == [({**job, "ml.job.attempt": "11"}, 1.0)]
    assert gauges["ml.diagnostics.entries_lost"][1] == [({"ml.diagnostics.log": "goodput_run-7"}, 0.0)]


def test_a_stale_job_is_gone_at_the_next_collection(receiver: Receiver) -> None:
    now = time.time()
    recorder = GoodputRecorder("run-7", "goodput_run-7", logging_enabled=True)
    recorder.record_job_start_time(now - 10)
    recorder.record_job_end_time(now)
    moments = [now + 5]
    board = Board(lambda: [("run-7", "goodput_run-7")], clock_ns=lambda: int(moments[-1] * 1e9))
    board.refresh()
    exporter = exporter_of(board, receiver)
    exporter.flush()
    assert "ml.job.step" in receiver.last()[1]
    moments.append(now + 700)
    exporter.flush()
    exporter.stop()
    assert set(receiver.last()[1]) == {"ml.job.hidden"}


def test_all_buckets_of_500_jobs_arrive(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    """The SDK has a limit of 2,000 values for each gauge, beyond which it would add them up."""
    import dataclasses

    record(JOB, "run-7", ends_at=time.time(), is_ended=False)
    board = Board(lambda: [("run-7", "goodput_run-7")])
    board.refresh()
    (state,) = board.shown().states
    many = [dataclasses.replace(state, job_name=f"run-{number}") for number in range(board_module.MOST_JOBS)]
    monkeypatch.setattr(board, "shown", lambda: Shown(many, 7))
    exporter = exporter_of(board, receiver)
    assert exporter.flush()
    exporter.stop()
    gauges = receiver.last()[1]
    buckets = sum(1 for ns in state.buckets.values() if ns)
    assert len(gauges["ml.job.time"][1]) == 500 * buckets > 2000
    assert all("ml.job.name" in labels for labels, _ in gauges["ml.job.time"][1])
    assert gauges["ml.job.hidden"][1] == [({}, 7.0)]


def test_the_resource_has_what_kubernetes_and_the_user_set() -> None:
    found = resource_attributes(
        {
            "KUBERNETES_SERVICE_HOST": "10.0.0.1",
            "POD_NAME": "exporter-0",
            "POD_NAMESPACE": "ml",
            "OTEL_RESOURCE_ATTRIBUTES": "host.name=mine,team=llm",
            "OTEL_SERVICE_NAME": "jobs",
        }
    )
    assert found == {"k8s.pod.name": "exporter-0", "k8s.namespace.name": "ml"}


def test_the_resource_has_what_the_machines_metadata_state(monkeypatch: pytest.MonkeyPatch) -> None:
    with MetadataServer(project="my-project", zone="us-east5-a", attributes={"cluster-name": "my-cluster"}) as server:
        monkeypatch.setenv("GCE_METADATA_HOST", server.host)
        assert instance_metadata(wait_seconds=LONG_SECONDS)  # Others wait a second for it.
        monkeypatch.setattr("ml_goodput_measurement.exporters.otlp.on_google_hardware", lambda: True)
        found = resource_attributes({})
    assert {name: value for name, value in found.items() if name != "host.name"} == {
        "service.name": "ml-diagnostics",
        "cloud.provider": "gcp",
        "cloud.account.id": "my-project",
        "cloud.availability_zone": "us-east5-a",
        "k8s.cluster.name": "my-cluster",
    }


def test_the_command_sends_once(receiver: Receiver, capsys: pytest.CaptureFixture[str]) -> None:
    record(JOB, "run-7", ends_at=time.time(), is_ended=False)
    assert cli.main(["export", "otlp", "--once", "--endpoint", receiver.url]) == 0
    assert capsys.readouterr().err == "sent 1 job\n"
    assert receiver.last()[1]["ml.job.disruptions"][1] == [({"ml.job.name": "run-7"}, 10.0)]


def test_a_receiver_that_refuses_is_an_error(receiver: Receiver, capsys: pytest.CaptureFixture[str]) -> None:
    receiver.status = 400
    record(JOB, "run-7", ends_at=time.time(), is_ended=False)
    assert cli.main(["export", "otlp", "run-7", "--once", "--endpoint", receiver.url]) == 1
    error = capsys.readouterr().err
    assert error == "goodput: the gauges could not be sent: check that the receiver of --endpoint runs\n"
    assert len(receiver.requests) == 1


@pytest.mark.parametrize("url", ["collector:4318", "ftp://collector", "http://", "http://[::1", "http://a:b", ""])
def test_what_is_no_address_is_a_usage_error(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        cli.main(["export", "otlp", "--once", f"--endpoint={url}"])
    assert exit_.value.code == 2
    assert "is not an address such as http://localhost:4318/v1/metrics" in capsys.readouterr().err


def test_a_receiver_that_is_not_there_is_an_error(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    record(JOB, "run-7", ends_at=time.time(), is_ended=False)
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}/v1/metrics"
        assert cli.main(["export", "otlp", "run-7", "--once", "--endpoint", url]) == 1
    assert capsys.readouterr().err == (
        "goodput: the gauges could not be sent: check that the receiver of --endpoint runs\n"
    )
    assert not [entry for entry in caplog.records if entry.name == "ml_diagnostics.goodput"]


def test_a_receiver_that_never_answers_is_given_up() -> None:
    record(JOB, "run-7", ends_at=time.time(), is_ended=False)
    board = Board(lambda: [("run-7", "goodput_run-7")])
    board.refresh()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        exporter = OtlpExporter(
            board,
            endpoint=f"http://127.0.0.1:{silent.getsockname()[1]}/v1/metrics",
            interval_seconds=3600,
            timeout_seconds=0.5,
            attributes={},
        )
        assert not exporter.flush(5.0)
        started = time.monotonic()
        exporter.stop(1.0)
        assert time.monotonic() - started < 20


def test_the_command_ends_on_sigterm_also_if_the_receiver_never_answers() -> None:
    record(JOB, "run-7", ends_at=time.time(), is_ended=False)
    command = str(Path(sys.executable).parent / "goodput")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/v1/metrics"
        argv = [command, "export", "otlp", "run-7", "--every", "1s", "--endpoint", url]
        with subprocess.Popen(argv, stderr=subprocess.PIPE, text=True) as process:
            try:
                assert process.stderr is not None
                assert process.stderr.readline() == "sending every 1 s\n"
                silent.settimeout(LONG_SECONDS)
                connection, _ = silent.accept()  # It waits for an answer now.
                with connection:
                    process.send_signal(signal.SIGTERM)
                    assert process.wait(LONG_SECONDS) == 0
            finally:
                process.kill()


def test_names_without_utf8_are_sent(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    import dataclasses

    record(JOB, "run-7", ends_at=time.time(), is_ended=False)
    board = Board(lambda: [("run-7", "goodput_run-7")])
    board.refresh()
    (state,) = board.shown().states
    odd = dataclasses.replace(state, job_name="a\ud800", labels={"team": "b\udfff"})
    monkeypatch.setattr(board, "shown", lambda: Shown([odd], 0))
    exporter = exporter_of(board, receiver)
    assert exporter.flush()
    exporter.stop()
    (info,) = (labels for labels, _ in receiver.last()[1]["ml.job.info"][1])
    assert (info["ml.job.name"], info["ml.job.team"]) == ("a\\ud800", "b\\udfff")


def test_a_failure_is_logged_once_until_it_is_over(receiver: Receiver, caplog: pytest.LogCaptureFixture) -> None:
    record(JOB, "run-7", ends_at=time.time(), is_ended=False)
    board = Board(lambda: [("run-7", "goodput_run-7")])
    board.refresh()
    exporter = exporter_of(board, receiver)
    receiver.status = 400
    assert not exporter.flush()
    assert not exporter.flush()
    receiver.status = 200
    assert exporter.flush()
    exporter.stop()
    ours = [entry.getMessage() for entry in caplog.records if entry.name == "ml_diagnostics.goodput"]
    assert ours == ["the gauges could not be sent; they are sent again each 3600 s"]


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.metrics", None)
    assert cli.main(["export", "otlp"]) == 1
    assert "ml-goodput-measurement[otlp]" in capsys.readouterr().err
