"""The webhook's routes, called as uvicorn calls them, with real decisions and answers of an API server."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any

from google_cloud_mldiagnostics._kubernetes.owners import Owners
from google_cloud_mldiagnostics._kubernetes.webhook.app import make_app
from google_cloud_mldiagnostics._kubernetes.webhook.injection import Injection, Result
from google_cloud_mldiagnostics._kubernetes.webhook.metrics import WebhookMetrics
from google_cloud_mldiagnostics.exceptions import KubernetesApiError

JOB_UID = "a9889541-0000-4000-8000-000000000000"
JOB = {"uid": JOB_UID, "creationTimestamp": "2026-11-22T10:53:31Z", "labels": {"managed-mldiagnostics-gke": "true"}}
OF_JOB = {"apiVersion": "batch/v1", "kind": "Job", "name": "job", "uid": JOB_UID, "controller": True}
OBJECTS = {"/apis/batch/v1/namespaces/ml/jobs/job": JOB, "/api/v1/namespaces/ml": {}}


async def of_job(path: str) -> Mapping[str, Any]:
    """Return the metadata of a labelled Job and its namespace, and of nothing else."""
    try:
        return OBJECTS[path]
    except KeyError:
        raise KubernetesApiError(path, 404, "not found") from None


class Routes:
    """The routes of one server.

    Attributes:
        metrics: Its metrics.
    """

    def __init__(
        self,
        metadata: Callable[[str], Awaitable[Mapping[str, Any]]] = of_job,
        *,
        injection: Injection | None = None,
        is_ready: bool = True,
        is_draining: bool = False,
        body_seconds: float = 10.0,
    ) -> None:
        self.metrics = WebhookMetrics()
        decisions = injection or Injection(Owners(metadata), "projects/p/locations/l/clusters/c")
        self._app = make_app(decisions, self.metrics, lambda: is_ready, lambda: is_draining, body_seconds=body_seconds)

    async def post(self, chunks: Sequence[bytes] | AsyncIterator[bytes]) -> tuple[int, bytes]:
        """Return status and body of the answer to a review that arrives in chunks."""
        status, _, body = await self.call("POST", "/mutate", _messages(chunks))
        return status, body

    async def get(self, path: str) -> tuple[int, bytes]:
        """Return status and body of the answer to a GET."""
        status, _, body = await self.call("GET", path, _messages([]))
        return status, body

    async def call(
        self, method: str, path: str, messages: AsyncIterator[dict[str, Any]]
    ) -> tuple[int, dict[str, str], bytes]:
        """Return status, headers and body of an answer."""
        sent: list[Any] = []

        async def receive() -> Any:
            return await anext(messages)

        async def send(message: Any) -> None:
            sent.append(message)

        scope = {"type": "http", "method": method, "path": path, "headers": [], "query_string": b""}
        await self._app(scope, receive, send)
        headers = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
        return int(sent[0]["status"]), headers, b"".join(message.get("body", b"") for message in sent[1:])

    def count(self, result: Result) -> float:
        """Return the number of reviews with a result."""
        labels = {"result": result.value}
        return self.metrics.registry.get_sample_value("mldiagnostics_webhook_reviews_total", labels) or 0.0


async def _messages(chunks: Sequence[bytes] | AsyncIterator[bytes]) -> AsyncIterator[dict[str, Any]]:
    if isinstance(chunks, AsyncIterator):
        async for chunk in chunks:
            yield {"type": "http.request", "body": chunk, "more_body": True}
    else:
        for chunk in chunks:
            yield {"type": "http.request", "body": chunk, "more_body": True}
    yield {"type": "http.request", "body": b"", "more_body": False}


def pod_of_job(**spec: Any) -> dict[str, Any]:
    """Return a pod of the Job, with one container unless a test has others."""
    return {
        "metadata": {"generateName": "pod-", "ownerReferences": [OF_JOB]},
        "spec": {"containers": [{"name": "main"}], **spec},
    }


def review(pod: Mapping[str, Any], old_pod: Mapping[str, Any] | None = None, **request: Any) -> bytes:
    """Return the body of a review, as an API server sends it for a pod that is created, or changed from an old one."""
    kind = {"group": "", "version": "v1", "kind": "Pod"}
    asked = {"uid": "u-1", "kind": kind, "namespace": "ml", "object": pod, "oldObject": old_pod, **request}
    return json.dumps({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": asked}).encode()


def operations_of(body: bytes) -> list[dict[str, Any]]:
    """Return the operations of an answer, which must allow the pod."""
    answer = json.loads(body)
    response = answer["response"]
    assert (answer["apiVersion"], answer["kind"]) == ("admission.k8s.io/v1", "AdmissionReview")
    assert (response["uid"], response["allowed"]) == ("u-1", True)
    return list(json.loads(base64.b64decode(response["patch"]))) if "patch" in response else []
