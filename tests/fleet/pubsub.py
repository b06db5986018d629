"""A Pub/Sub subscription on loopback, for the real client: what is published is delivered at least once."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Mapping

from google.pubsub_v1 import types  # type: ignore[import-untyped]
from ml_diagnostics_testing._grpc_server import GrpcServer, Method
from ml_diagnostics_testing.http_server import RequestRecord, Service

SUBSCRIPTION = "projects/project/subscriptions/rows"
_WAIT_SECONDS = 0.1


class PubSubServer(Service):
    """Serve pulls of one subscription, without TLS, until `close`.

    Its requests and faults are "pull" and "acknowledge".
    """

    def __init__(self) -> None:
        super().__init__()
        self._waiting: dict[str, Mapping[str, str]] = {}
        self._lock, self._numbers = threading.Lock(), itertools.count(1)
        methods = {"Pull": Method("pull", self._pull), "Acknowledge": Method("acknowledge", self._acknowledge)}
        self._grpc = GrpcServer(self, "google.pubsub.v1.Subscriber", methods)

    def __enter__(self) -> PubSubServer:
        return self

    def __exit__(self, *error: object) -> None:
        self.faults.close()
        self._grpc.close()

    def environment(self) -> dict[str, str]:
        """Return the variables that redirect the client to this server."""
        return {"PUBSUB_EMULATOR_HOST": f"127.0.0.1:{self._grpc.port}"}

    def publish(self, attributes: Mapping[str, str]) -> None:
        """Publish a message."""
        with self._lock:
            self._waiting[f"{next(self._numbers)}"] = attributes

    def publish_object(self, path: str, event: str = "OBJECT_FINALIZE") -> None:
        """Publish what Cloud Storage publishes of an object, `gs://bucket/name`."""
        bucket, _, name = path.removeprefix("gs://").partition("/")
        self.publish({"eventType": event, "bucketId": bucket, "objectId": name, "payloadFormat": "JSON_API_V1"})

    def is_empty(self) -> bool:
        """Return True if all messages were acknowledged."""
        return not self._waiting

    def _pull(self, raw: bytes, _record: RequestRecord, now: float) -> bytes:
        request = types.PullRequest.deserialize(raw)
        assert request.subscription == SUBSCRIPTION
        if self.is_empty():
            time.sleep(_WAIT_SECONDS)  # The service waits for a message, too.
        with self._lock:
            chosen = list(self._waiting.items())[: request.max_messages]
        received = [
            types.ReceivedMessage(
                ack_id=number,
                message=types.PubsubMessage(
                    data=b"{}", attributes=dict(attributes), message_id=number, publish_time={"seconds": int(now)}
                ),
            )
            for number, attributes in chosen
        ]
        return bytes(types.PullResponse.serialize(types.PullResponse(received_messages=received)))

    def _acknowledge(self, raw: bytes, _record: RequestRecord, _now: float) -> bytes:
        with self._lock:
            for number in types.AcknowledgeRequest.deserialize(raw).ack_ids:
                self._waiting.pop(number, None)
        return b""
