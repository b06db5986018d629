"""The routes of the webhook. Every review that has a uid is answered with 200, and allowed."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable
from typing import Final

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from google_cloud_mldiagnostics._kubernetes.patches import Operation
from google_cloud_mldiagnostics._kubernetes.reviews import Review, ReviewError, answer, read_review
from google_cloud_mldiagnostics._kubernetes.webhook.injection import Injection, Result
from google_cloud_mldiagnostics._kubernetes.webhook.metrics import WebhookMetrics

__all__ = ["make_app"]

_MOST_BYTES: Final = 8 << 20
"""An update carries two pods, each of at most 1.5 MB in etcd."""
_BODY_SECONDS: Final = 1.5
_MOST_REVIEWS: Final = 64
"""At once; the API server admits a pod without an answer."""

_log = logging.getLogger("ml_diagnostics.kubernetes")


def make_app(injection: Injection, metrics: WebhookMetrics, is_ready: Callable[[], bool]) -> Starlette:
    """Return the application that a server runs.

    Args:
        injection: Decides on pods.
        metrics: Counts reviews.
        is_ready: Returns True once reviews can be answered.
    """
    mutate = _Mutate(injection, metrics)
    return Starlette(
        routes=[
            Route("/mutate", mutate.respond, methods=["POST"]),
            Route("/healthz", lambda _: PlainTextResponse("ok\n")),
            Route("/readyz", lambda _: _readiness(is_ready=is_ready())),
        ]
    )


def _readiness(*, is_ready: bool) -> Response:
    return PlainTextResponse("ok\n") if is_ready else PlainTextResponse("not ready\n", 503)


class _Mutate:
    def __init__(self, injection: Injection, metrics: WebhookMetrics) -> None:
        self._injection = injection
        self._metrics = metrics
        self._reviews = 0

    async def respond(self, request: Request) -> Response:
        """Answer one review."""
        if self._reviews >= _MOST_REVIEWS:
            return PlainTextResponse("too many reviews at once\n", 503)
        self._reviews += 1
        started = time.perf_counter()
        try:
            return await self._answer(request)
        finally:
            self._reviews -= 1
            self._metrics.review_seconds.observe(time.perf_counter() - started)

    async def _answer(self, request: Request) -> Response:
        try:
            body = await asyncio.wait_for(_body(request), _BODY_SECONDS)
        except asyncio.TimeoutError:
            return PlainTextResponse("the body did not arrive in time\n", 408)
        except ClientDisconnect:
            return Response(status_code=400)
        if body is None:
            return PlainTextResponse(f"a body of more than {_MOST_BYTES} bytes\n", 413)
        try:
            review = read_review(body)
        except ReviewError as error:
            self._count(Result.MALFORMED)
            return PlainTextResponse(f"{error}\n", 400)
        return Response(answer(review.uid, await self._operations(review)), media_type="application/json")

    async def _operations(self, review: Review) -> list[Operation]:
        """Return the operations on a pod; none after any error, since no pod may wait for a bug of ours."""
        try:
            if review.request is None:
                result, operations = Result.MALFORMED, list[Operation]()
            else:
                result, operations = await self._injection.decide(review.request)
        except Exception:
            _log.exception("A pod gets no variables: a bug in the webhook")
            result, operations = Result.ERROR, []
        self._count(result)
        if review.request is not None and _log.isEnabledFor(logging.INFO):
            _log.info("%s", _line(review, result))
        return operations

    def _count(self, result: Result) -> None:
        self._metrics.reviews.labels(result.value).inc()


async def _body(request: Request) -> bytes | None:
    """Return the body of a request; None if it is too long, of which no more is read."""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > _MOST_BYTES:
            return None
    return bytes(body)


def _line(review: Review, result: Result) -> str:
    """Return what is logged of a decision: names, but neither labels nor variables."""
    assert review.request is not None
    metadata = review.request.pod.get("metadata")
    name = (metadata.get("name") or metadata.get("generateName")) if isinstance(metadata, dict) else None
    line = {"namespace": review.request.namespace, "pod": name, "result": result.value, "problem": review.problem}
    return json.dumps({key: text for key, text in line.items() if text})
