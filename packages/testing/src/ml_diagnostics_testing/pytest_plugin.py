"""Fixtures: each gives one test a server of its own, and ends it after the test.

pytest finds them by the entry point `ml_diagnostics_testing`; nothing is imported until a test asks for a fixture.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from ml_diagnostics_testing.cloud_logging import CloudLoggingServer
    from ml_diagnostics_testing.cloud_monitoring import CloudMonitoringServer
    from ml_diagnostics_testing.cloud_storage import CloudStorageServer
    from ml_diagnostics_testing.compute import ComputeServer
    from ml_diagnostics_testing.control_plane import ControlPlaneServer
    from ml_diagnostics_testing.kubernetes import KubernetesServer
    from ml_diagnostics_testing.metadata import MetadataServer
    from ml_diagnostics_testing.oauth import OAuthServer
    from ml_diagnostics_testing.profiler_service import ProfilerServiceServer


@pytest.fixture
def cloud_logging_server() -> Iterator[CloudLoggingServer]:
    """A Cloud Logging on loopback; `.environment()` redirects clients to it."""
    from ml_diagnostics_testing.cloud_logging import CloudLoggingServer

    with CloudLoggingServer() as server:
        yield server


@pytest.fixture
def cloud_monitoring_server() -> Iterator[CloudMonitoringServer]:
    """A Cloud Monitoring on loopback; `.environment()` redirects clients to it."""
    from ml_diagnostics_testing.cloud_monitoring import CloudMonitoringServer

    with CloudMonitoringServer() as server:
        yield server


@pytest.fixture
def cloud_storage_server() -> Iterator[CloudStorageServer]:
    """A Cloud Storage on loopback; `.environment()` redirects clients to it."""
    from ml_diagnostics_testing.cloud_storage import CloudStorageServer

    with CloudStorageServer() as server:
        yield server


@pytest.fixture
def compute_server() -> Iterator[ComputeServer]:
    """A Compute on loopback, with a Cloud Storage beside it; `.environment()` redirects clients to both."""
    from ml_diagnostics_testing.compute import ComputeServer

    with ComputeServer() as server:
        yield server


@pytest.fixture
def control_plane_server() -> Iterator[ControlPlaneServer]:
    """The keeper of machine learning runs on loopback; `.environment()` redirects clients to it."""
    from ml_diagnostics_testing.control_plane import ControlPlaneServer

    with ControlPlaneServer() as server:
        yield server


@pytest.fixture
def kubernetes_server() -> Iterator[KubernetesServer]:
    """A Kubernetes cluster on loopback; `.environment()` leads kubectl to it."""
    from ml_diagnostics_testing.kubernetes import KubernetesServer

    with KubernetesServer() as server:
        yield server


@pytest.fixture
def metadata_server() -> Iterator[MetadataServer]:
    """A metadata server on loopback; `.environment()` makes this machine look like one of Google's."""
    from ml_diagnostics_testing.metadata import MetadataServer

    with MetadataServer() as server:
        yield server


@pytest.fixture
def oauth_server() -> Iterator[OAuthServer]:
    """Google's token endpoint on loopback; `.write_key(path)` makes a service account's key that leads there."""
    from ml_diagnostics_testing.oauth import OAuthServer

    with OAuthServer() as server:
        yield server


@pytest.fixture
def profiler_service_server() -> Iterator[ProfilerServiceServer]:
    """The ProfilerService of a job on loopback; `.address` is where it is asked."""
    from ml_diagnostics_testing.profiler_service import ProfilerServiceServer

    with ProfilerServiceServer() as server:
        yield server
