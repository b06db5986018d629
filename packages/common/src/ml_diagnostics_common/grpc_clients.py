"""Google's generated clients over gRPC, with a limit for the size of a response. Imports grpc when it is used.

Google's clients remove gRPC's own limit. gRPC checks a message before and after it is decompressed.
"""

from __future__ import annotations

import functools
import json
import logging
import os
from typing import Any
from urllib.parse import urlsplit

from ml_diagnostics_common.authorized_requests import LIST_BYTES, RESPONSE_BYTES
from ml_diagnostics_common.endpoints import universe_domain
from ml_diagnostics_common.process_hooks import import_undisturbed

__all__ = ["import_grpc_modules", "open_client"]

_FORK_VARIABLE = "GRPC_ENABLE_FORK_SUPPORT"


def open_client(client: Any, transport: Any, *, write: str, url: str | None, credentials: Any) -> Any:
    """Return a Google client. It makes no request yet; `client.transport.close()` closes its connections.

    The client itself chooses the endpoint by the universe domain and by a client certificate (mTLS), and adds token
    and quota project to each request: see https://google.aip.dev/auth/4114.

    Args:
        client: Its class, such as `LoggingServiceV2Client`.
        transport: The class of its transport, such as `LoggingServiceV2GrpcTransport`.
        write: The full name of the method that writes: "google.logging.v2.LoggingServiceV2/Write...". Its responses are
            small.
        url: The server in place of the service's endpoint, `https://host`; `http://host:port` is a server without TLS,
            to which no credentials are sent. None for the service's endpoint.
        credentials: A `google.auth.credentials.Credentials`.
    """
    service, _, method = write.partition("/")
    limits = {
        "methodConfig": [{"name": [{"service": service, "method": method}], "maxResponseMessageBytes": RESPONSE_BYTES}]
    }
    bounds: dict[str, Any] = {
        "grpc.max_receive_message_length": LIST_BYTES,
        "grpc.service_config": json.dumps(limits),
        # The global connection pool would outlive close(), and be shared with the user's own clients.
        "grpc.use_local_subchannel_pool": 1,
    }

    def make_channel(target: str, *, options: Any = (), **arguments: Any) -> Any:
        bounded = list({**dict(options), **bounds}.items())
        if url is not None and url.startswith("http:"):
            import grpc  # type: ignore[import-untyped]

            return grpc.insecure_channel(target, bounded)
        return transport.create_channel(target, options=bounded, **arguments)

    settings = {"universe_domain": universe_domain(credentials)}
    if url is not None:
        settings["api_endpoint"] = _target(url)
    google = logging.getLogger("google")
    propagates = google.propagate
    try:
        return client(
            credentials=credentials,
            transport=functools.partial(transport, channel=make_channel),
            client_options=settings,
        )
    finally:
        google.propagate = propagates  # google-api-core sets it to False, for the job's own logging too.


def import_grpc_modules(*names: str) -> None:
    """Import modules of Google's clients over gRPC in a job that may fork; those that cannot be imported are left out.

    gRPC reads its setting for forks when it is imported. With its handlers, a fork prints to stderr and can deadlock
    while another thread makes a call (grpcio 1.85). Without them, only a child that calls gRPC itself fails. What the
    user has set stays.

    Args:
        *names: The modules' full names.
    """
    given = os.environ.get(_FORK_VARIABLE)
    os.environ.setdefault(_FORK_VARIABLE, "0")
    try:
        import_undisturbed(*names)
    finally:
        if given is None:
            os.environ.pop(_FORK_VARIABLE, None)


def _target(url: str) -> str:
    """Return `host:port` of a URL."""
    parts = urlsplit(url)
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    return f"{host}:{parts.port or (443 if parts.scheme == 'https' else 80)}"
