"""`mldiagnostics doctor --project`: the same answer from Google Cloud, on a machine that has nothing of the job."""

from __future__ import annotations

from pathlib import Path

import pytest
from google_cloud_mldiagnostics.cli import main
from ml_diagnostics_console._facts.reading import JobReader, Question
from ml_diagnostics_console.doctor import judge
from ml_diagnostics_testing.cloud_logging import CloudLoggingServer
from ml_diagnostics_testing.faults import Status

from ..loopback.control_plane import ControlPlaneServer
from .real_jobs import run_job

Captured = pytest.CaptureFixture[str]
PROJECT = ("--project", "test-project", "--kubernetes", "off")


@pytest.fixture
def failed_in_the_cloud(
    control_plane_server: ControlPlaneServer,
    cloud_logging_server: CloudLoggingServer,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> str:
    for server in (control_plane_server, cloud_logging_server):
        for name, value in server.environment().items():
            monkeypatch.setenv(name, value)
    monkeypatch.setenv("ML_DIAGNOSTICS_BACKEND", "auto")
    ended = run_job(tmp_path, "raise ValueError('batch 30 is empty')")
    assert ended.code == 1, ended.output
    (run,) = control_plane_server.runs()
    return str(run["name"]).rpartition("/")[2]


def test_a_run_that_exists_only_in_the_cloud_has_the_same_verdict_read_twice_or_in_part(
    failed_in_the_cloud: str, cloud_logging_server: CloudLoggingServer, capsys: Captured
) -> None:
    assert main(["doctor", failed_in_the_cloud, *PROJECT]) == 12
    out = " ".join(capsys.readouterr().out.split())
    assert "ValueError: batch 30 is empty" in out
    assert "at step 30" in out

    # A watched job: no entry counts twice.
    reader = JobReader(Question(failed_in_the_cloud, project="test-project", kubernetes="off"), pytest.fail)
    first, second = judge(reader.read()), judge(reader.read())
    assert first.facts.entry_count == second.facts.entry_count
    assert first.to_json()["headline"] == second.to_json()["headline"]

    # A log that fails is reported, and the answer is what the control plane knows.
    cloud_logging_server.faults.always(Status(403))
    code = main(["doctor", failed_in_the_cloud, *PROJECT])
    printed = capsys.readouterr()
    assert code in (12, 19), printed
    assert "Cloud Logging" in printed.err
