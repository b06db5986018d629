"""The real google client, over both transports, before a loopback Cloud Logging."""

from collections.abc import Iterator
from typing import Any

import google.cloud.logging
import grpc  # type: ignore[import-untyped]
import pytest
from google.auth.credentials import AnonymousCredentials
from google.cloud.logging_v2._gapic import _LoggingAPI
from google.cloud.logging_v2.services.logging_service_v2 import LoggingServiceV2Client
from google.cloud.logging_v2.services.logging_service_v2.transports import LoggingServiceV2GrpcTransport
from ml_diagnostics_testing.cloud_logging import CloudLoggingServer


@pytest.fixture(params=["rest", "grpc"])
def google_client(request: pytest.FixtureRequest, cloud_logging_server: CloudLoggingServer) -> Iterator[Any]:
    """google.cloud.logging.Client, unmodified; only where it connects to is ours."""
    over_grpc = request.param == "grpc"
    client = google.cloud.logging.Client(
        project=cloud_logging_server.project,
        credentials=AnonymousCredentials(),
        client_options={"api_endpoint": cloud_logging_server.rest_url},
        _use_grpc=over_grpc,
    )
    if not over_grpc:
        yield client
        client._http.close()
        return
    with grpc.insecure_channel(cloud_logging_server.grpc_target) as channel:
        transport = LoggingServiceV2GrpcTransport(channel=channel)
        client._logging_api = _LoggingAPI(LoggingServiceV2Client(transport=transport), client)
        yield client
