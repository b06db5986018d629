"""Fixtures for tests of the command: a Google Cloud on loopback, and the command in this process."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import pytest
from ml_diagnostics_common.command.console import Console
from xprofiler.gcloud.api import GoogleApi
from xprofiler.gcloud.settings import GcloudSettings

from ..loopback.compute import ComputeServer
from .typed_commands import Ended, in_this_process

Run = Callable[..., Ended]


@pytest.fixture
def cloud(compute_server: ComputeServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ComputeServer:
    """A Compute and a Cloud Storage; gcloud, its settings and all clients of this test are redirected to them."""
    settings = tmp_path / "gcloud"
    settings.mkdir()
    for name, value in {**compute_server.environment(), "CLOUDSDK_CONFIG": str(settings)}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    return compute_server


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run the command in this process: `run("list", "-z", zone)`; `answers` is the input of the user."""

    def run_once(*arguments: str, answers: str = "") -> Ended:
        monkeypatch.setattr("sys.stdin", io.StringIO(answers))
        return in_this_process(capsys, *arguments)

    return run_once


@pytest.fixture
def api(cloud: ComputeServer) -> GoogleApi:
    """Google's APIs, as the command uses them, without pauses between tries."""
    return GoogleApi(GcloudSettings.load(), Console(), sleep=lambda seconds: None)
