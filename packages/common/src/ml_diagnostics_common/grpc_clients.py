"""Channels of Google's clients over gRPC that take no response of any size. Imports grpc when it is used.

Google's clients switch gRPC's own limit off. gRPC counts a message before and after it is decompressed.
"""

from __future__ import annotations

import json
from typing import Any

from ml_diagnostics_common.authorized_requests import LIST_BYTES, RESPONSE_BYTES

__all__ = ["bounded_transport"]


def bounded_transport(transport: Any, *, write: str, target: str | None, credentials: Any = None) -> Any:
    """Make a transport of a Google client.

    Args:
        transport: Its class, such as `LoggingServiceV2GrpcTransport`.
        write: The full name of its method whose responses are small: "google.logging.v2.LoggingServiceV2/Write...".
        target: The server, `host:port`; None is Google's.
        credentials: For a server with TLS; None is one without TLS and credentials.

    Returns:
        A transport whose `close` closes the channel.
    """
    service, _, method = write.partition("/")
    limits = {
        "methodConfig": [{"name": [{"service": service, "method": method}], "maxResponseMessageBytes": RESPONSE_BYTES}]
    }
    options: list[tuple[str, Any]] = [
        ("grpc.max_receive_message_length", LIST_BYTES),
        ("grpc.service_config", json.dumps(limits)),
    ]
    if credentials is None:
        import grpc  # type: ignore[import-untyped]

        # One global connection pool would outlive close(), and be shared with the user's own clients.
        return transport(channel=grpc.insecure_channel(target, [*options, ("grpc.use_local_subchannel_pool", 1)]))

    class Bounded(transport):  # type: ignore[misc]  # A class is the one way to the options in all its releases.
        @classmethod
        def create_channel(cls, *args: Any, **kwargs: Any) -> Any:
            given = dict(kwargs.pop("options", None) or ())
            return super().create_channel(*args, options=list({**given, **dict(options)}.items()), **kwargs)

    return Bounded(credentials=credentials, **({"host": target} if target else {}))
