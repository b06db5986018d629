"""The routes of the webhook. Every review that has a uid is answered with 200, and allowed, whatever fails here."""

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

from google_cloud_mldiagnostics._kubernetes.reviews import PodRequest, ReviewError, answer, read_review
from google_cloud_mldiagnostics._kubernetes.webhook.configuration import PATH
from google_cloud_mldiagnostics._kubernetes.webhook.injection import Injection, Result
from google_cloud_mldiagnostics._kubernetes.webhook.metrics import WebhookMetrics

__all__ = ["make_app"]

_MOST_BYTES: Final = 8 << 20
"""An update carries two pods, each of at most 1.5 MB in etcd."""
_MOST_REVIEWS: Final = 64
"""At once; the API server admits a pod without an answer."""

_log = logging.getLogger("ml_diagnostics.kubernetes")


def make_app(
    injection: Injection,
    metrics: WebhookMetrics,
    is_ready: Callable[[], bool],
    is_draining: Callable[[], bool] = lambda: False,
    *,
    body_seconds: float = 1.5,
) -> Starlette:
    """Return the application that a server runs.

    Args:
        injection: Decides on pods.
        metrics: Counts reviews.
        is_ready: Returns True once reviews can be answered.
        is_draining: Returns True when the server is about to end: clients are asked to connect to another one.
        body_seconds: The most time in which the body of a review may arrive.
    """
    mutate = _Mutate(injection, metrics, is_draining, body_seconds)
    return Starlette(
        routes=[
            Route(PATH, mutate.respond, methods=["POST"]),
            Route("/healthz", lambda _: PlainTextResponse("ok\n")),
            Route("/readyz", lambda _: _readiness(is_ready=is_ready() and not is_draining())),
        ]
    )


def _readiness(*, is_ready: bool) -> Response:
    return PlainTextResponse("ok\n") if is_ready else PlainTextResponse("not ready\n", 503)


class _Mutate:
    def __init__(
        self, injection: Injection, metrics: WebhookMetrics, is_draining: Callable[[], bool], body_seconds: float
    ) -> None:
        self._injection = injection
        self._metrics = metrics
        self._is_draining = is_draining
        self._body_seconds = body_seconds
        self._reviews = 0

    async def respond(self, request: Request) -> Response:
        """Answer one review."""
        body = bytearray()
        self._reviews += 1
        started = time.perf_counter()
        try:
            response = await self._answer(request, body)
        except ClientDisconnect:
            response = Response(status_code=400)
        except Exception:
            _log.exception("A pod gets no variables: a bug in the webhook")
            self._metrics.reviews.labels(Result.ERROR.value).inc()
            response = _allowed(bytes(body))
        finally:
            self._reviews -= 1
            self._metrics.review_seconds.observe(time.perf_counter() - started)
        if self._is_draining():
            response.headers["Connection"] = "close"
        return response

    async def _answer(self, request: Request, body: bytearray) -> Response:
        if self._reviews > _MOST_REVIEWS:
            return PlainTextResponse("too many reviews at once\n", 503)
        try:
            is_whole = await asyncio.wait_for(_read(request, body), self._body_seconds)
        except asyncio.TimeoutError:
            return PlainTextResponse("the body did not arrive in time\n", 408)
        if not is_whole:
            return PlainTextResponse(f"a body of more than {_MOST_BYTES} bytes\n", 413)
        try:
            review = read_review(bytes(body))
        except ReviewError as error:
            self._count(Result.MALFORMED)
            return PlainTextResponse(f"{error}\n", 400)
        if review.request is None:
            self._count(Result.MALFORMED)
            return _json(answer(review.uid))
        result, operations = await self._injection.decide(review.request)
        content = answer(review.uid, operations)
        self._count(result)
        if _log.isEnabledFor(logging.INFO):
            _log.info("%s", _line(review.request, result))
        return _json(content)

    def _count(self, result: Result) -> None:
        self._metrics.reviews.labels(result.value).inc()


def _allowed(body: bytes) -> Response:
    """Return the answer after a bug of ours. It uses no other function of ours, any of which may have the bug."""
    try:
        uid = json.loads(body)["request"]["uid"]
    except (ValueError, LookupError, TypeError, RecursionError):
        return PlainTextResponse("a bug in the webhook\n", 500)  # The API server ignores it, too.
    response = {"uid": uid, "allowed": True}
    review = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response}
    return Response(json.dumps(review), media_type="application/json")


def _json(content: bytes) -> Response:
    return Response(content, media_type="application/json")


async def _read(request: Request, body: bytearray) -> bool:
    """Read the body of a request; return False if it is too long, of which no more is read."""
    async for chunk in request.stream():
        body += chunk
        if len(body) > _MOST_BYTES:
            return False
    return True


def _line(request: PodRequest, result: Result) -> str:
    """Return what is logged of a decision: names, but neither labels nor variables."""
    metadata = request.pod.get("metadata")
    name = (metadata.get("name") or metadata.get("generateName")) if isinstance(metadata, dict) else None
    line = {"namespace": request.namespace, "pod": name, "result": result.value}
    return json.dumps({key: text for key, text in line.items() if text})
