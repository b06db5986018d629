"""A companion with Cloud Logging on loopback: the real client, and failures of the server."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from cloud_tpu_diagnostics._companion.log import CONTAINER_NAME, monitored_resource
from cloud_tpu_diagnostics._companion.main import LONGEST_END_SECONDS
from cloud_tpu_diagnostics.entries import DUMP, JOB_ENDED
from ml_diagnostics_testing.cloud_logging import CloudLoggingServer
from ml_diagnostics_testing.faults import Hang, Reset, Status
from ml_diagnostics_testing.metadata import MetadataServer

from ..waiting import is_alive, wait_until
from .accompanied_jobs import Job, of_kind, payloads

_CRASH = """
companion = start({settings})
faulthandler.dump_traceback_later(0.2, file=companion.timer_descriptor)
report(companion.pid)
input()
ctypes.string_at(0)
"""


@pytest.fixture(autouse=True)
def _cloud(monkeypatch: pytest.MonkeyPatch, cloud_logging_server: CloudLoggingServer) -> None:
    monkeypatch.setenv("ML_DIAGNOSTICS_BACKEND", "auto")
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    for name, value in cloud_logging_server.environment().items():
        monkeypatch.setenv(name, value)


def documented_query(server: CloudLoggingServer) -> str:
    """Return the query of the README."""
    return (
        f'logName="projects/{server.project}/logs/tpu.googleapis.com%2Fruntime_monitor"\n'
        'jsonPayload.verb="stacktraceanalyzer"'
    )


def crash(trace: Path, settings: str = "") -> int:
    """Run a job to its crash; return the pid of its companion."""
    before = len(of_kind(DUMP))
    job = Job(_CRASH.format(settings=settings), trace)
    pid = int(job.line())
    wait_until(lambda: len(of_kind(DUMP)) > before)
    job.go_on()
    job.end()
    return pid


def test_the_documented_query_finds_the_last_traces_of_a_job_that_crashed(
    tmp_path: Path, cloud_logging_server: CloudLoggingServer
) -> None:
    cloud_logging_server.faults.script([Reset(after_apply=True), Status(429, retry_after=0.1)], on="write")
    pid = crash(tmp_path / "trace")
    wait_until(lambda: not is_alive(pid))
    found = cloud_logging_server.entries(documented_query(cloud_logging_server))
    # Cloud Logging has doubles for all numbers, such as the nanoseconds of the end.
    assert [entry["jsonPayload"] for entry in found] == json.loads(json.dumps(payloads()), parse_int=float)
    assert [(entry["jsonPayload"]["kind"], entry["severity"]) for entry in found] == [
        ("dump", "INFO"),
        ("dump", "ERROR"),
        ("job_ended", "ERROR"),
    ]
    assert found[0]["labels"]["pid"] != str(pid)
    assert len(cloud_logging_server.faults.injected) == 2


@pytest.mark.timing
def test_a_cloud_that_never_answers_does_not_keep_the_companion_and_the_next_one_ships_the_rest(
    tmp_path: Path, cloud_logging_server: CloudLoggingServer
) -> None:
    cloud_logging_server.faults.always(Hang(), on="write")
    pid = crash(tmp_path / "trace")
    started = time.monotonic()
    wait_until(lambda: bool(of_kind(JOB_ENDED)))
    wait_until(lambda: not is_alive(pid))
    assert time.monotonic() - started < LONGEST_END_SECONDS
    assert cloud_logging_server.entries(documented_query(cloud_logging_server)) == []
    cloud_logging_server.faults.clear()
    crash(tmp_path / "trace_of_next")
    query = documented_query(cloud_logging_server)
    wait_until(lambda: len(cloud_logging_server.entries(query)) == 6)


def test_entries_that_are_not_shipped_stay_in_the_journal(
    tmp_path: Path, cloud_logging_server: CloudLoggingServer
) -> None:
    pid = crash(tmp_path / "trace", "is_shipped=False")
    wait_until(lambda: not is_alive(pid))
    assert len(payloads()) == 3
    assert cloud_logging_server.requests == []


def test_a_tpu_vm_and_a_pod_are_the_resources_that_dashboards_select(
    monkeypatch: pytest.MonkeyPatch, metadata_server: MetadataServer
) -> None:
    assert monitored_resource() == {}  # Outside of Google's machines nothing is requested.
    for name, value in metadata_server.environment().items():
        monkeypatch.setenv(name, value)
    metadata_server.attributes["tpu-env"] = "ZONE: 'us-central2-b'\nNODE_ID: 'my-tpu'\nWORKER_ID: '3'\n"
    metadata_server.attributes["cluster-name"] = "cluster"
    metadata_server.attributes["cluster-location"] = "us-central2"
    location = {"project_id": "test-project", "zone": "us-central2-b"}
    assert monitored_resource() == {
        "type": "tpu_worker",
        "labels": {**location, "node_id": "my-tpu", "worker_id": "3"},
    }
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("POD_NAME", "train-0-0-abcde")
    monkeypatch.setenv("POD_NAMESPACE", "research")
    assert monitored_resource() == {
        "type": "k8s_container",
        "labels": {
            "project_id": "test-project",
            "location": "us-central2",
            "cluster_name": "cluster",
            "namespace_name": "research",
            "pod_name": "train-0-0-abcde",
            "container_name": CONTAINER_NAME,
        },
    }
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST")
    del metadata_server.attributes["tpu-env"]
    monkeypatch.delenv("TPU_NAME", raising=False)
    assert monitored_resource() == {}  # A machine without a TPU: Cloud Logging uses "global".


def test_entries_of_a_tpu_vm_have_its_resource(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    cloud_logging_server: CloudLoggingServer,
    metadata_server: MetadataServer,
) -> None:
    for name, value in metadata_server.environment().items():
        monkeypatch.setenv(name, value)
    metadata_server.attributes["tpu-env"] = "NODE_ID: 'my-tpu'\n"
    pid = crash(tmp_path / "trace")
    wait_until(lambda: not is_alive(pid))
    query = 'resource.type="tpu_worker" log_id("tpu.googleapis.com/runtime_monitor") resource.labels.node_id="my-tpu"'
    assert len(cloud_logging_server.entries(query)) == 3
