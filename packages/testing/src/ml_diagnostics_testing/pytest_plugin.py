"""pytest fixtures: each starts a new server for one test, and closes it after the test.

pytest finds this module by the entry point `ml_diagnostics_testing`. Servers are imported inside the fixtures, so that
pytest runs that use none do not pay for the imports.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from ml_diagnostics_testing.cloud_logging import CloudLoggingServer
    from ml_diagnostics_testing.cloud_monitoring import CloudMonitoringServer
    from ml_diagnostics_testing.cloud_storage import CloudStorageServer
    from ml_diagnostics_testing.metadata import MetadataServer
    from ml_diagnostics_testing.oauth import OAuthServer
    from ml_diagnostics_testing.profiler_service import ProfilerServiceServer


@pytest.fixture
def cloud_logging_server() -> Iterator[CloudLoggingServer]:
    """Cloud Logging on loopback; `.environment()` redirects clients to it."""
    from ml_diagnostics_testing.cloud_logging import CloudLoggingServer

    with CloudLoggingServer() as server:
        yield server


@pytest.fixture
def cloud_monitoring_server() -> Iterator[CloudMonitoringServer]:
    """Cloud Monitoring on loopback; `.environment()` redirects clients to it."""
    from ml_diagnostics_testing.cloud_monitoring import CloudMonitoringServer

    with CloudMonitoringServer() as server:
        yield server


@pytest.fixture
def cloud_storage_server() -> Iterator[CloudStorageServer]:
    """Cloud Storage on loopback; `.environment()` redirects clients to it."""
    from ml_diagnostics_testing.cloud_storage import CloudStorageServer

    with CloudStorageServer() as server:
        yield server


@pytest.fixture
def metadata_server() -> Iterator[MetadataServer]:
    """A metadata server on loopback; `.environment()` makes this machine appear to be a Google Cloud VM."""
    from ml_diagnostics_testing.metadata import MetadataServer

    with MetadataServer() as server:
        yield server


@pytest.fixture
def oauth_server() -> Iterator[OAuthServer]:
    """Google's token endpoint on loopback; `.write_key(path)` writes a service account key that points to it."""
    from ml_diagnostics_testing.oauth import OAuthServer

    with OAuthServer() as server:
        yield server


@pytest.fixture
def profiler_service_server() -> Iterator[ProfilerServiceServer]:
    """The ProfilerService of a job on loopback; clients connect to `.address`."""
    from ml_diagnostics_testing.profiler_service import ProfilerServiceServer

    with ProfilerServiceServer() as server:
        yield server
