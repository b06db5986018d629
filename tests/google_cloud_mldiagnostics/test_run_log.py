"""A run's log, from the journal to Cloud Logging, also if the network or the service fails."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from google_cloud_mldiagnostics._entries import LOG_ID
from google_cloud_mldiagnostics._recording.run_log import RunLog
from google_cloud_mldiagnostics.metrics import record
from ml_diagnostics_common.cloud_logging import LoggingTransport, connect
from ml_diagnostics_common.log_source import Cloud, LogSource
from ml_diagnostics_testing.cloud_logging import CloudLoggingServer
from ml_diagnostics_testing.faults import Hang, Status

from ..waiting import run_program, wait_until
from .kept_entries import kept_entries
from .recorded_runs import RUN, active, metrics_of

LABELS = {"job": RUN, "attempt": "1", "host": "host-a", "process_index": "0", "pid": "0"}


@pytest.fixture
def connected(cloud_logging_server: CloudLoggingServer) -> Callable[[], LoggingTransport]:
    environ = cloud_logging_server.environment()
    return lambda: connect(environ=environ)


def google_client(server: CloudLoggingServer) -> Any:
    """Return a client of google-cloud-logging as a user has it; its own transport is gRPC."""
    import grpc  # type: ignore[import-untyped]
    from google.auth.credentials import AnonymousCredentials
    from google.cloud import logging as google_logging
    from google.cloud.logging_v2._gapic import _LoggingAPI
    from google.cloud.logging_v2.services.logging_service_v2 import LoggingServiceV2Client
    from google.cloud.logging_v2.services.logging_service_v2.transports import LoggingServiceV2GrpcTransport

    client = google_logging.Client(project=server.project, credentials=AnonymousCredentials(), _use_grpc=True)
    channel = grpc.insecure_channel(server.grpc_target)
    service = LoggingServiceV2Client(transport=LoggingServiceV2GrpcTransport(channel=channel))
    client._logging_api = _LoggingAPI(service, client)
    return client


def test_googles_own_client_finds_a_metric_where_the_console_does(
    tmp_path: Path, cloud_logging_server: CloudLoggingServer, connected: Callable[[], LoggingTransport]
) -> None:
    with active(tmp_path, is_shipped=True, connect=connected) as run:
        record("loss", 0.5, 1)
        record("step_time", float("nan"), 1)
        run.log.write("mlrun_configs", {"userConfigs": {"epochs": "100"}})
        assert run.log.flush(20)
    client = google_client(cloud_logging_server)
    of_run = f'resource.type="generic_node" AND resource.labels.node_id="{RUN}" AND timestamp>="2020-01-01T00:00:00Z"'
    [loss] = client.list_entries(filter_=f'{of_run} AND resource.labels.namespace="loss"')
    assert loss.log_name == f"projects/{cloud_logging_server.project}/logs/ml_diagnostics_metric"
    assert loss.payload == {"values": [0.5], "step_index": 1, "unit": "1"}
    assert loss.resource.labels == {
        "project_id": cloud_logging_server.project,
        "location": "us-central1",
        "namespace": "loss",
        "node_id": RUN,
    }
    [time_] = client.list_entries(filter_=f'{of_run} AND resource.labels.namespace="step_time"')
    assert time_.payload["values"] == ["NaN"]
    assert time_.payload["not_finite"] is True
    assert len(list(client.list_entries(filter_=of_run))) == 3


@pytest.fixture
def cloud(cloud_logging_server: CloudLoggingServer, monkeypatch: pytest.MonkeyPatch) -> Cloud:
    for name, value in cloud_logging_server.environment().items():
        monkeypatch.setenv(name, value)
    return Cloud()


def run_source(root: Path, cloud: Cloud) -> LogSource:
    return LogSource(LOG_ID, root=root, cloud=cloud, resource_labels={"node_id": {RUN}})


def test_a_run_reads_the_same_from_the_journal_and_from_the_cloud(
    tmp_path: Path, connected: Callable[[], LoggingTransport], cloud: Cloud
) -> None:
    with active(tmp_path, is_shipped=True, connect=connected) as run:
        for step in range(50):
            record("loss", step / 7, step)
        record("loss", 1.0, timestamp=1_763_710_310.5)
        run.log.write("mlrun_process", {"phase": "FAILED"}, severity="ERROR")
        assert run.log.flush(20)
    with active(tmp_path, run_id="another", is_shipped=True, connect=connected):
        record("loss", 1.0)
    here = kept_entries(run_id=RUN, root=tmp_path)
    there = [entry for batch in run_source(tmp_path / "elsewhere", cloud).read_new() for entry in batch]
    both = [entry for batch in run_source(tmp_path, cloud).read_new() for entry in batch]

    def shown(entries: list[Any]) -> list[Any]:
        return [
            (entry.insert_id, entry.timestamp_ns, entry.severity, entry.resource_label("namespace"), entry.payload)
            for entry in entries
        ]

    assert shown(here) == shown(there) == shown(both)
    assert len(here) == 52


def test_a_source_continues_from_a_position(
    tmp_path: Path, connected: Callable[[], LoggingTransport], cloud: Cloud
) -> None:
    with active(tmp_path, is_shipped=True, connect=connected) as run:
        record("loss", 1.0)
        assert run.log.flush(20)
        source = run_source(tmp_path, cloud)
        assert sum(map(len, source.read_new())) == 1
        record("loss", 2.0)
        assert run.log.flush(20)
        later = run_source(tmp_path, cloud)
        later.resume(source.position())
        assert [entry.payload["values"] for batch in later.read_new() for entry in batch] == [[2.0]]


def test_a_run_is_shipped_to_its_own_project(tmp_path: Path, cloud_logging_server: CloudLoggingServer) -> None:
    environ = cloud_logging_server.environment()
    for project in ("mine", "theirs"):
        with active(
            tmp_path, run_id=project, project=project, is_shipped=True, connect=lambda: connect(environ=environ)
        ):
            record("loss", 1.0)
    cloud_logging_server.clear()
    with active(
        tmp_path, run_id="last", project="mine", is_shipped=True, connect=lambda: connect("mine", environ=environ)
    ) as run:
        record("loss", 1.0)
        assert run.log.flush(20)
        wait_until(lambda: len(cloud_logging_server.entries()) >= 2)
    arrived = {
        (entry["resource"]["labels"]["node_id"], entry["logName"].split("/")[1])
        for entry in cloud_logging_server.entries()
    }
    assert arrived == {("last", "mine"), ("mine", "mine")}


def test_a_local_run_opens_no_connection_and_starts_no_thread(
    tmp_path: Path, cloud_logging_server: CloudLoggingServer
) -> None:
    threads = set(threading.enumerate())
    with active(tmp_path, is_shipped=False, connect=pytest.fail) as run:
        record("loss", 1.0)
        assert run.log.flush(5)
        assert set(threading.enumerate()) <= threads
        assert run.log.statistics().shipper is None
    assert len(metrics_of(tmp_path)) == 1


@pytest.mark.parametrize("fault", [Hang(), Status(503), Status(403)], ids=["hang", "503", "403"])
def test_a_failing_cloud_neither_delays_recording_nor_drops_entries(
    tmp_path: Path, cloud_logging_server: CloudLoggingServer, connected: Callable[[], LoggingTransport], fault: Any
) -> None:
    cloud_logging_server.faults.always(fault, on="write")
    log = RunLog(
        RUN,
        location="us-central1",
        project="",
        labels=LABELS,
        is_shipped=True,
        root=tmp_path,
        connect=connected,
        grace_period_seconds=0.1,
    )
    for number in range(1000):
        log.write("loss", {"values": [float(number)]})
    assert not log.flush(0.05)
    assert not log.close(0.05)
    assert len(kept_entries(root=tmp_path)) == 1000
    cloud_logging_server.faults.clear()
    with active(tmp_path, run_id="next", is_shipped=True, connect=connected) as run:
        run.log.flush(20)
        wait_until(lambda: len(cloud_logging_server.entries()) == 1000)


def test_a_closed_log_still_takes_entries(tmp_path: Path, connected: Callable[[], LoggingTransport]) -> None:
    with active(tmp_path, is_shipped=True, connect=connected) as run:
        record("loss", 1.0)
        assert run.log.close(20)
        record("loss", 2.0)
        run.log.write("mlrun_process", {"phase": "COMPLETED"})
    assert len(kept_entries(root=tmp_path)) == 3


def test_values_that_json_cannot_hold_become_text(tmp_path: Path) -> None:
    with active(tmp_path) as run:
        run.log.write("mlrun_configs", {"a": object, "b": {1: float("nan")}, "c": "\ud800"})
    [entry] = kept_entries(root=tmp_path)
    assert entry.payload["b"] == {"1": "NaN"}


def test_setup_logging_gets_one_line_of_ours_and_none_of_the_shippers(
    tmp_path: Path, cloud_logging_server: CloudLoggingServer
) -> None:
    """At DEBUG, with the real client: requests of our thread to Cloud Logging are not logged to Cloud Logging."""
    program = f"""
import logging, os, sys
from pathlib import Path
import grpc
from google.auth.credentials import AnonymousCredentials
from google.cloud import logging as google_logging
from google.cloud.logging_v2._gapic import _LoggingAPI
from google.cloud.logging_v2.services.logging_service_v2 import LoggingServiceV2Client
from google.cloud.logging_v2.services.logging_service_v2.transports import LoggingServiceV2GrpcTransport

client = google_logging.Client(project="p", credentials=AnonymousCredentials(), _use_grpc=True)
channel = grpc.insecure_channel({cloud_logging_server.grpc_target!r})
client._logging_api = _LoggingAPI(
    LoggingServiceV2Client(transport=LoggingServiceV2GrpcTransport(channel=channel)), client)
client.setup_logging()
logging.getLogger().setLevel(logging.DEBUG)
logging.basicConfig()
console = logging.StreamHandler(sys.stdout)
logging.getLogger().addHandler(console)

from google_cloud_mldiagnostics._run_state.active_run import ActiveRun, set_active_run
from google_cloud_mldiagnostics._entries import LOG_ID
from google_cloud_mldiagnostics.metrics import record
from google_cloud_mldiagnostics.mlrun_types import MLRun
from google_cloud_mldiagnostics._recording.run_log import RunLog
root = Path(sys.argv[1])
log = RunLog("run", location="here", project="", labels={{}}, is_shipped=True, root=root)
set_active_run(ActiveRun(MLRun("run"), log, root, "h", 0, 1, os.getpid(), False))
logging.getLogger("urllib3.connectionpool").debug("the user's own")
for step in range(10):
    record("loss", 1.0, step)
    assert log.flush(20)
logging.info("the user's")
for handler in logging.getLogger().handlers:
    if hasattr(handler, "transport"):
        handler.transport.flush()  # Google's transport waits only a few seconds at the end of a process.
set_active_run(None)
assert log.close(20)
"""
    environ = {**os.environ, **cloud_logging_server.environment()}
    environ["ML_DIAGNOSTICS_BACKEND"] = "auto"
    output = run_program(program, tmp_path, env=environ)
    found = [
        entry for entry in cloud_logging_server.entries() if not entry["logName"].endswith("ml_diagnostics_metric")
    ]
    messages = [str(entry.get("textPayload") or entry.get("jsonPayload", {}).get("message")) for entry in found]
    assert "the user's" in messages
    assert "the user's own" in messages
    assert [message for message in messages if "entries:write" in message] == []
    assert output.count("entries:write") >= 10  # The console shows them, as without this library.
    metrics = [entry for entry in cloud_logging_server.entries() if entry["logName"].endswith("ml_diagnostics_metric")]
    assert len(metrics) == 10


def test_without_a_cloud_one_warning_has_the_path_of_the_data(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def no_cloud() -> LoggingTransport:
        from ml_diagnostics_common.exceptions import CredentialsError

        raise CredentialsError("no credentials")

    with active(tmp_path, is_shipped=True, connect=no_cloud) as run:
        record("loss", 1.0)
        wait_until(lambda: caplog.records)
        assert not run.log.flush(0.1)
    [found] = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert str(tmp_path) in found.getMessage()
