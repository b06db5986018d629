"""Cloud Logging: writing and reading entries, over REST or gRPC.

`connect` finds a cloud and returns a transport; `CloudLoggingReader` reads a log as an `EntryReader`, `QueryReader` a
query. Google's client libraries are imported when a transport is made, not before.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from ml_diagnostics_common.cloud_logging._filters import any_of, full_log_name, query_filter, quoted
from ml_diagnostics_common.cloud_logging._queries import PageReader, QueryReader
from ml_diagnostics_common.cloud_logging._reader import CloudLoggingReader
from ml_diagnostics_common.cloud_logging._transport import (
    BatchWriter,
    LoggingTransport,
    Page,
    TransportError,
    cut_to_fit,
)
from ml_diagnostics_common.credentials import CloudEnvironment, find_cloud
from ml_diagnostics_common.endpoints import endpoint, logging_over_grpc
from ml_diagnostics_common.process_hooks import import_clients, import_undisturbed

__all__ = [
    "BatchWriter",
    "CloudLoggingReader",
    "LoggingTransport",
    "Page",
    "PageReader",
    "QueryReader",
    "TransportError",
    "any_of",
    "connect",
    "cut_to_fit",
    "full_log_name",
    "make_transport",
    "query_filter",
    "quoted",
]


def make_transport(cloud: CloudEnvironment, environ: Mapping[str, str] = os.environ) -> LoggingTransport:
    """Return a transport that has made no request yet: REST, or gRPC for writing if the environment selects it.

    Args:
        cloud: The project and credentials.
        environ: The environment variables: `ML_DIAGNOSTICS_LOGGING_TRANSPORT`, and
            `CLOUDSDK_API_ENDPOINT_OVERRIDES_LOGGING` redirects both.

    Raises:
        ConfigurationError: One of the variables has an invalid value.
        MissingExtraError: google-auth or requests is not installed. For gRPC, the first write raises it if
            google-cloud-logging is not installed.
    """
    url = endpoint("logging", environ)
    import_undisturbed("ml_diagnostics_common.cloud_logging._rest")
    from ml_diagnostics_common.cloud_logging._rest import RestTransport

    rest = RestTransport(cloud, url=url)
    if not logging_over_grpc(environ):
        return rest
    import_undisturbed("ml_diagnostics_common.cloud_logging._grpc")
    from ml_diagnostics_common.cloud_logging._grpc import GrpcTransport

    return GrpcTransport(cloud, rest, url=url)


def connect(
    project: str | None = None, credentials: Any = None, *, environ: Mapping[str, str] = os.environ
) -> LoggingTransport:
    """Find a cloud and return a transport for it. A `Shipper` calls this in its own thread; it may take a second.

    Args:
        project: The project's id, if the caller knows it.
        credentials: A `google.auth.credentials.Credentials`, if the caller has one.
        environ: The environment variables.

    Raises:
        CredentialsError: No project or no credentials were found.
        MissingExtraError: See `make_transport`.
        ConfigurationError: See `make_transport`.
    """
    import_clients()
    return make_transport(find_cloud(project, credentials, environ=environ), environ)
