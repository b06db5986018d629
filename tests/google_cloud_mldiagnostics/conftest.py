"""What tests of Google's control plane share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from google_cloud_mldiagnostics.control_plane.google import GoogleControlPlane
from ml_diagnostics_testing.control_plane import ControlPlaneServer

from .asked_control_planes import Time, connected


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def server(control_plane_server: ControlPlaneServer) -> ControlPlaneServer:
    return control_plane_server


@pytest.fixture
def google(server: ControlPlaneServer, time: Time) -> Iterator[GoogleControlPlane]:
    control_plane = connected(server, time)
    yield control_plane
    control_plane.close()
