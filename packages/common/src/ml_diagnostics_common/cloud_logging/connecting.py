"""Which transport: the one that the environment asks for."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from ml_diagnostics_common.client_imports import import_clients, import_undisturbed
from ml_diagnostics_common.cloud_logging.transport import LoggingTransport
from ml_diagnostics_common.credentials import CloudEnvironment, find_cloud
from ml_diagnostics_common.environment import endpoint, logging_grpc_target

__all__ = ["connect", "make_transport"]


def make_transport(cloud: CloudEnvironment, environ: Mapping[str, str] = os.environ) -> LoggingTransport:
    """Chooses the protocol: REST, unless `ML_DIAGNOSTICS_LOGGING_GRPC` names a gRPC server.

    REST reads faster (typed JSON needs no wrapper objects), and holds no threads, so that a process may fork.

    Args:
        cloud: The project and credentials.
        environ: The environment variables; `CLOUDSDK_API_ENDPOINT_OVERRIDES_LOGGING` redirects REST.

    Returns:
        A transport; no request was made yet.

    Raises:
        ConfigurationError: One of the variables cannot be an address.
        MissingExtraError: google-cloud-logging is not installed.
    """
    target = logging_grpc_target(environ)
    if target:
        import_undisturbed("ml_diagnostics_common.cloud_logging.grpc_transport")
        from ml_diagnostics_common.cloud_logging.grpc_transport import GrpcTransport

        return GrpcTransport(cloud, target=target)
    import_undisturbed("ml_diagnostics_common.cloud_logging.rest_transport")
    from ml_diagnostics_common.cloud_logging.rest_transport import RestTransport

    return RestTransport(cloud, base_url=endpoint("logging", environ))


def connect(
    project: str | None = None, credentials: Any = None, *, environ: Mapping[str, str] = os.environ
) -> LoggingTransport:
    """Finds a cloud and speaks to it: what a `Shipper` is given to do in its own thread. May block a second.

    Args:
        project: The project's id, if the caller knows it.
        credentials: A `google.auth.credentials.Credentials`, if the caller has one.
        environ: The environment variables.

    Raises:
        CredentialsError: No project or no credentials were found.
        MissingExtraError: google-cloud-logging is not installed.
        ConfigurationError: A variable of the environment cannot be an address.
    """
    import_clients()
    return make_transport(find_cloud(project, credentials, environ=environ), environ)
