"""Ephemeral containers, and an API server that is slow, refuses or answers nonsense: pods start, without variables."""

from __future__ import annotations

import asyncio
import json
import time

import pytest

pytest.importorskip("starlette")  # It needs Python 3.11, as the images have.

from google_cloud_mldiagnostics._kubernetes.api import Connection, KubernetesApi
from google_cloud_mldiagnostics._kubernetes.webhook import injection
from google_cloud_mldiagnostics._kubernetes.webhook.injection import Result
from ml_diagnostics_testing.faults import Drip, Fault, Hang, Oversize, Reset, Status, Truncate
from ml_diagnostics_testing.http_server import LoopbackServer, Request, Response

from .pods import patched
from .routes import JOB, OBJECTS, Routes, of_job, operations_of, pod_of_job, review

NAMES = ["GKE_DIAGON_IDENTIFIER", "GKE_DIAGON_METADATA"]


class ApiServer(LoopbackServer):
    """Answers look-ups with the objects of `routes`, or with a text that a test gives."""

    def __init__(self, answer: bytes | None = None) -> None:
        super().__init__()
        self.answer = answer

    def handle(self, request: Request) -> Response:
        document = {"metadata": OBJECTS[request.path]}
        return Response(body=json.dumps(document).encode() if self.answer is None else self.answer)


def result_with(server: ApiServer, *, lookup_seconds: float = 60.0) -> tuple[Result, float]:
    """Return the result of a review of a labelled Job's pod, and how long it took."""

    async def ask() -> tuple[Result, float]:
        async with KubernetesApi(Connection(server.url, None)) as api:
            routes = Routes(lambda path: api.metadata(path, timeout_seconds=lookup_seconds))
            started = time.monotonic()
            status, body = await routes.post([review(pod_of_job())])
            seconds = time.monotonic() - started
            (result,) = (each for each in Result if routes.count(each))
            assert status == 200
            assert bool(operations_of(body)) == (result is Result.PATCHED)
            return result, seconds

    with server, pytest.MonkeyPatch.context() as patch:
        patch.setattr(injection, "_LOOKUPS_SECONDS", lookup_seconds)
        return asyncio.run(ask())


def test_an_api_server_without_faults_answers() -> None:
    assert result_with(ApiServer())[0] is Result.PATCHED


@pytest.mark.parametrize(
    "fault",
    [Status(401), Status(403), Status(404), Status(429), Status(500), Status(503), Reset(), Truncate()],
    ids=repr,
)
def test_a_pod_is_allowed_if_the_api_server_refuses_or_breaks_off(fault: Fault) -> None:
    server = ApiServer()
    server.faults.always(fault)
    assert result_with(server)[0] is Result.LOOKUP_FAILED


@pytest.mark.parametrize(
    "answer",
    [b"", b"no JSON", b"[]", b"null", b"{}", b'{"metadata":[]}', b'{"metadata":{}}', b'{"metadata":{"uid":3}}'],
)
def test_a_pod_is_allowed_if_the_api_server_answers_nonsense(answer: bytes) -> None:
    assert result_with(ApiServer(answer))[0] is Result.LOOKUP_FAILED


@pytest.mark.parametrize("metadata", [{"labels": 3}, {"ownerReferences": {"a": 1}}, {"creationTimestamp": []}])
def test_fields_of_an_owner_that_are_not_valid_are_left_out(metadata: dict[str, object]) -> None:
    document = {"metadata": {**JOB, **metadata}}
    assert result_with(ApiServer(json.dumps(document).encode()))[0] in (Result.PATCHED, Result.UNLABELLED)


@pytest.mark.timing
@pytest.mark.parametrize("fault", [Hang(), Drip(), Oversize(1 << 26)], ids=["silent", "slow", "endless"])
@pytest.mark.slow
def test_a_pod_is_allowed_within_two_seconds_if_the_api_server_is_slow(fault: Fault) -> None:
    server = ApiServer()
    server.faults.always(fault)
    result, seconds = result_with(server, lookup_seconds=1.0)
    assert result is Result.LOOKUP_FAILED
    assert seconds < 2


# --- Ephemeral containers ------------------------------------------------------------------------------


def ephemeral(*names: str) -> list[dict[str, str]]:
    return [{"name": name, "image": "busybox"} for name in names]


def test_new_ephemeral_containers_get_the_variables_and_nothing_else_changes() -> None:
    """Kubernetes 1.23 and later send the whole pod; the API server of these tests is older."""
    old = pod_of_job(ephemeralContainers=ephemeral("first"))
    new = pod_of_job(ephemeralContainers=ephemeral("first", "second"))
    _, body = asyncio.run(Routes().post([review(new, old, operation="UPDATE", subResource="ephemeralcontainers")]))
    after = patched(new, operations_of(body))
    assert [each["name"] for each in after["spec"]["ephemeralContainers"][1].pop("env")] == NAMES
    assert after == new


def test_ephemeral_containers_of_before_1_23_are_allowed_without_variables() -> None:
    """Its reviews have the containers alone, and no pod that has owners."""
    kind = {"group": "", "version": "v1", "kind": "EphemeralContainers"}
    document = {"metadata": {"name": "pod"}, "ephemeralContainers": ephemeral("first")}
    routes = Routes(of_job)
    _, body = asyncio.run(routes.post([review(document, document, kind=kind, operation="UPDATE")]))
    assert operations_of(body) == []
    assert routes.count(Result.MALFORMED) == 1
