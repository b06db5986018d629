"""Fixtures for tests of Google's control plane, alone and with a run."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from google_cloud_mldiagnostics.control_plane.google import GoogleControlPlane
from google_cloud_mldiagnostics.core.global_manager import active_run
from ml_diagnostics_testing.cloud_logging import CloudLoggingServer

from ..loopback.control_plane import ControlPlaneServer
from .asked_control_planes import Time, connected


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def server(control_plane_server: ControlPlaneServer) -> ControlPlaneServer:
    return control_plane_server


@pytest.fixture
def cloud_of_a_run(
    monkeypatch: pytest.MonkeyPatch, control_plane_server: ControlPlaneServer, cloud_logging_server: CloudLoggingServer
) -> Iterator[ControlPlaneServer]:
    """Start a Google Cloud on loopback, and set a workload so that the id of its run is known."""
    for name, text in (cloud_logging_server.environment() | control_plane_server.environment()).items():
        monkeypatch.setenv(name, text)
    monkeypatch.setenv("ML_DIAGNOSTICS_BACKEND", "auto")
    monkeypatch.setenv("RUN_WORKLOAD_ID", "w")
    monkeypatch.setattr("google_cloud_mldiagnostics._run.start._occasions_of_this_process", {})
    yield control_plane_server
    active = active_run()
    if active is not None:
        active.run.finish()


@pytest.fixture
def google(server: ControlPlaneServer, time: Time) -> Iterator[GoogleControlPlane]:
    control_plane = connected(server, time)
    yield control_plane
    control_plane.close()
