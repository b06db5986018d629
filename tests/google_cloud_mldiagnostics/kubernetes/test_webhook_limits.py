"""The webhook's routes: what they refuse, and that a bug of ours allows the pod."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from google_cloud_mldiagnostics._kubernetes.patches import Operation
from google_cloud_mldiagnostics._kubernetes.reviews import PodRequest
from google_cloud_mldiagnostics._kubernetes.webhook.injection import Injection, Result

from .test_reviews import BODY, changed

pytest.importorskip("starlette")  # It needs Python 3.11, as the images have.

from google_cloud_mldiagnostics._kubernetes.webhook.app import make_app
from google_cloud_mldiagnostics._kubernetes.webhook.metrics import WebhookMetrics

OPERATIONS = [{"op": "add", "path": "/spec/containers/0/env", "value": []}]


class Decisions(Injection):
    """Decides as a test wants, after a while."""

    def __init__(self, error: Exception | None = None, seconds: float = 0.0) -> None:
        self.error, self.seconds = error, seconds

    async def decide(self, request: PodRequest) -> tuple[Result, list[Operation]]:
        await asyncio.sleep(self.seconds)
        if self.error is not None:
            raise self.error
        return Result.PATCHED, OPERATIONS


class Server:
    """The application, called as uvicorn calls it."""

    def __init__(self, decisions: Decisions, *, is_ready: bool = True) -> None:
        self.metrics = WebhookMetrics()
        self.app = make_app(decisions, self.metrics, lambda: is_ready)

    async def post(self, chunks: Sequence[bytes], *, seconds: float = 0.0) -> tuple[int, bytes]:
        """Return status and body of the answer to a review whose chunks arrive one after the other."""
        messages = self._messages(chunks, seconds)
        return await self._call("POST", "/mutate", messages)

    async def get(self, path: str) -> tuple[int, bytes]:
        return await self._call("GET", path, self._messages([], 0.0))

    async def _messages(self, chunks: Sequence[bytes], seconds: float) -> AsyncIterator[dict[str, Any]]:
        for chunk in chunks:
            yield {"type": "http.request", "body": chunk, "more_body": True}
            await asyncio.sleep(seconds)
        yield {"type": "http.request", "body": b"", "more_body": False}

    async def _call(self, method: str, path: str, messages: AsyncIterator[dict[str, Any]]) -> tuple[int, bytes]:
        sent: list[Any] = []

        async def receive() -> Any:
            return await anext(messages)

        async def send(message: Any) -> None:
            sent.append(message)

        scope = {"type": "http", "method": method, "path": path, "headers": [], "query_string": b""}
        await self.app(scope, receive, send)
        return int(sent[0]["status"]), b"".join(message.get("body", b"") for message in sent[1:])

    def count(self, result: Result) -> float:
        return (
            self.metrics.registry.get_sample_value("mldiagnostics_webhook_reviews_total", {"result": result.value})
            or 0.0
        )


def test_a_review_is_answered_with_its_patch() -> None:
    server = Server(Decisions())
    status, body = asyncio.run(server.post([BODY[:100], BODY[100:]]))
    assert (status, json.loads(body)["response"]["patchType"]) == (200, "JSONPatch")
    assert server.count(Result.PATCHED) == 1


def test_a_bug_of_ours_allows_the_pod_without_a_patch(caplog: pytest.LogCaptureFixture) -> None:
    server = Server(Decisions(ZeroDivisionError("planted")))
    status, body = asyncio.run(server.post([BODY]))
    assert (status, json.loads(body)["response"]) == (200, {"uid": "u-1", "allowed": True})
    assert server.count(Result.ERROR) == 1
    assert "planted" in caplog.text


def test_a_review_of_something_else_is_allowed_and_a_body_without_a_uid_refused_with_a_sentence() -> None:
    server = Server(Decisions())
    status, body = asyncio.run(server.post([changed(kind={"group": "", "kind": "Service"})]))
    assert (status, json.loads(body)["response"]) == (200, {"uid": "u-1", "allowed": True})
    status, body = asyncio.run(server.post([b"no JSON"]))
    assert status == 400
    assert body.startswith(b"expected an AdmissionReview")
    assert server.count(Result.MALFORMED) == 2


def test_a_body_of_more_than_8_mib_is_not_read_to_its_end() -> None:
    chunks = [bytes(1 << 20)] * 100
    assert asyncio.run(Server(Decisions()).post(chunks))[0] == 413


def test_a_body_that_does_not_arrive_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("google_cloud_mldiagnostics._kubernetes.webhook.app._BODY_SECONDS", 0.1)
    assert asyncio.run(Server(Decisions()).post([BODY[:10], BODY[10:]], seconds=60))[0] == 408


def test_of_many_reviews_at_once_64_are_answered_and_later_ones_again() -> None:
    server = Server(Decisions(seconds=0.2))

    async def ask() -> tuple[list[int], int]:
        statuses = [status for status, _ in await asyncio.gather(*(server.post([BODY]) for _ in range(100)))]
        return statuses, (await server.post([BODY]))[0]

    statuses, later = asyncio.run(ask())
    assert (statuses.count(200), statuses.count(503), later) == (64, 36, 200)


def test_readiness_and_health() -> None:
    assert asyncio.run(Server(Decisions()).get("/readyz")) == (200, b"ok\n")
    assert asyncio.run(Server(Decisions(), is_ready=False).get("/readyz")) == (503, b"not ready\n")
    assert asyncio.run(Server(Decisions(), is_ready=False).get("/healthz")) == (200, b"ok\n")
