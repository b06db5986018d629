"""The webhook's routes: what they refuse, and that a bug of ours allows the pod."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import pytest
from google_cloud_mldiagnostics._kubernetes.patches import Operation
from google_cloud_mldiagnostics._kubernetes.reviews import PodRequest
from google_cloud_mldiagnostics._kubernetes.webhook.injection import Injection, Result

from .test_reviews import BODY, changed

pytest.importorskip("starlette")  # It needs Python 3.11, as the images have.

from .routes import Routes

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


def test_a_review_is_answered_with_its_patch() -> None:
    server = Routes(injection=Decisions())
    status, body = asyncio.run(server.post([BODY[:100], BODY[100:]]))
    assert (status, json.loads(body)["response"]["patchType"]) == (200, "JSONPatch")
    assert server.count(Result.PATCHED) == 1


def test_a_bug_of_ours_allows_the_pod_without_a_patch(caplog: pytest.LogCaptureFixture) -> None:
    server = Routes(injection=Decisions(ZeroDivisionError("planted")))
    status, body = asyncio.run(server.post([BODY]))
    assert (status, json.loads(body)["response"]) == (200, {"uid": "u-1", "allowed": True})
    assert server.count(Result.ERROR) == 1
    assert "planted" in caplog.text


def test_a_review_of_something_else_is_allowed_and_a_body_without_a_uid_refused_with_a_sentence() -> None:
    server = Routes(injection=Decisions())
    status, body = asyncio.run(server.post([changed(kind={"group": "", "kind": "Service"})]))
    assert (status, json.loads(body)["response"]) == (200, {"uid": "u-1", "allowed": True})
    status, body = asyncio.run(server.post([b"no JSON"]))
    assert status == 400
    assert body.startswith(b"expected an AdmissionReview")
    assert server.count(Result.MALFORMED) == 2


def test_a_body_of_more_than_8_mib_is_not_read_to_its_end() -> None:
    chunks = [bytes(1 << 20)] * 100
    assert asyncio.run(Routes(injection=Decisions()).post(chunks))[0] == 413


def test_a_body_that_does_not_arrive_is_given_up() -> None:
    async def chunks() -> AsyncIterator[bytes]:
        yield BODY[:10]
        await asyncio.sleep(60)

    assert asyncio.run(Routes(injection=Decisions(), body_seconds=0.05).post(chunks()))[0] == 408


def test_of_many_reviews_at_once_64_are_answered_and_later_ones_again() -> None:
    server = Routes(injection=Decisions(seconds=0.2))

    async def ask() -> tuple[list[int], int]:
        statuses = [status for status, _ in await asyncio.gather(*(server.post([BODY]) for _ in range(100)))]
        return statuses, (await server.post([BODY]))[0]

    statuses, later = asyncio.run(ask())
    assert (statuses.count(200), statuses.count(503), later) == (64, 36, 200)


def test_readiness_and_health() -> None:
    assert asyncio.run(Routes(injection=Decisions()).get("/readyz")) == (200, b"ok\n")
    assert asyncio.run(Routes(injection=Decisions(), is_ready=False).get("/readyz")) == (503, b"not ready\n")
    assert asyncio.run(Routes(injection=Decisions(), is_ready=False).get("/healthz")) == (200, b"ok\n")


def test_a_server_that_drains_asks_its_clients_to_connect_to_another() -> None:
    async def ask(*, is_draining: bool) -> tuple[int, str | None, int]:
        routes = Routes(injection=Decisions(), is_draining=is_draining)
        messages = [{"type": "http.request", "body": BODY, "more_body": False}]

        async def arrive() -> AsyncIterator[dict[str, object]]:
            for message in messages:
                yield message

        status, headers, _ = await routes.call("POST", "/mutate", arrive())
        return status, headers.get("connection"), (await routes.get("/readyz"))[0]

    assert asyncio.run(ask(is_draining=True)) == (200, "close", 503)
    assert asyncio.run(ask(is_draining=False)) == (200, None, 200)
