"""A bug of ours at any line of a review, and a review that is damaged at any byte, keep no pod from starting."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import jsonpatch
import pytest

pytest.importorskip("starlette")  # It needs Python 3.11, as the images have.

from google_cloud_mldiagnostics import _kubernetes
from google_cloud_mldiagnostics._kubernetes.webhook.injection import Result
from hypothesis import given, settings
from hypothesis import strategies as st

from .pods import JSON, pods
from .routes import Routes, operations_of, pod_of_job, review

_OURS = str(Path(_kubernetes.__file__).parent)
_GUARD = {"respond", "_allowed"}
"""A bug in the guard itself is an answer with 500, which the API server ignores, too."""
BODY = review(pod_of_job(initContainers=[{"name": "init", "env": [{"name": "A", "value": "b"}]}]))


class PlantedError(Exception):
    """A bug."""


@contextmanager
def bug_at(line: int) -> Iterator[list[str]]:
    """Raise at the n-th line of ours that runs, and yield a list of all lines up to it."""
    lines: list[str] = []

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        code = frame.f_code
        if not code.co_filename.startswith(_OURS) or code.co_name in _GUARD:
            return None
        if event == "line":
            lines.append(f"{Path(code.co_filename).name}:{frame.f_lineno}")
            if len(lines) == line:
                raise PlantedError(lines[-1])
        return trace

    previous = sys.gettrace()
    sys.settrace(trace)
    try:
        yield lines
    finally:
        sys.settrace(previous)


def answer_with_bug_at(line: int) -> tuple[list[dict[str, Any]], list[str], Routes]:
    routes = Routes()

    async def post() -> tuple[int, bytes]:
        with bug_at(line) as lines:
            status, body = await routes.post([BODY])
        ran.extend(lines)
        return status, body

    ran: list[str] = []
    status, body = asyncio.run(post())
    if status == 500:  # The API server ignores it: there is no uid to answer to before the body is read.
        assert not any(line.startswith("reviews.py") for line in ran), ran[-1]
        return [], ran, routes
    assert status == 200, ran[-1]
    return operations_of(body), ran, routes


def test_a_bug_at_any_line_of_a_review_allows_the_pod(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "ml_diagnostics.kubernetes")
    whole, all_lines, _ = answer_with_bug_at(0)
    assert whole
    assert len(all_lines) > 150
    for line in range(1, len(all_lines) + 1):
        caplog.clear()
        operations, lines, routes = answer_with_bug_at(line)
        assert len(lines) >= line, "the bug was not reached"
        assert operations in ([], whole), lines[line - 1]  # A callback is outside of the review.
        assert routes.count(Result.ERROR) == (not operations), lines[line - 1]
        assert "PlantedError" in caplog.text


def test_after_a_bug_the_next_review_is_answered_with_its_patch() -> None:
    routes = Routes()

    async def post() -> list[list[dict[str, Any]]]:
        with bug_at(20):
            first = await routes.post([BODY])
        return [operations_of(body) for _, body in (first, await routes.post([BODY]))]

    first, second = asyncio.run(post())
    assert (first, bool(second)) == ([], True)


# --- Damaged reviews -----------------------------------------------------------------------------------


def test_a_review_that_is_damaged_at_any_byte_is_allowed_or_refused_with_a_sentence() -> None:
    routes = Routes()

    async def post_all() -> None:
        for position in range(len(BODY)):
            for replacement in (b"", b"\x00", b'"', b"}"):
                status, body = await routes.post([BODY[:position] + replacement + BODY[position + 1 :]])
                if status == 200:
                    assert json.loads(body)["response"]["allowed"] is True
                else:
                    assert (status, body[:27]) == (400, b"expected an AdmissionReview")

    asyncio.run(post_all())
    assert routes.count(Result.ERROR) == 0


def test_a_review_that_is_cut_off_anywhere_is_refused_with_a_sentence() -> None:
    routes = Routes()

    async def post_all() -> set[int]:
        return {(await routes.post([BODY[:length]]))[0] for length in range(len(BODY))}

    assert asyncio.run(post_all()) == {400}
    assert routes.count(Result.ERROR) == 0


_PATHS = st.sampled_from(
    [
        ["request", "object"],
        ["request", "object", "metadata"],
        ["request", "object", "metadata", "ownerReferences"],
        ["request", "object", "metadata", "ownerReferences", 0],
        ["request", "object", "metadata", "ownerReferences", 0, "apiVersion"],
        ["request", "object", "metadata", "ownerReferences", 0, "kind"],
        ["request", "object", "metadata", "ownerReferences", 0, "name"],
        ["request", "object", "metadata", "ownerReferences", 0, "uid"],
        ["request", "object", "spec"],
        ["request", "object", "spec", "containers"],
        ["request", "object", "spec", "containers", 0],
        ["request", "kind"],
        ["request", "namespace"],
        ["request", "oldObject"],
        ["kind"],
    ]
)


@settings(max_examples=200)
@given(_PATHS, JSON | st.sampled_from(["..", "a/b", "\ud800", "v1?x", "x" * 10_000]))
def test_a_field_of_any_type_is_not_a_bug(path: list[Any], value: Any) -> None:
    document = json.loads(BODY)
    target = document
    for key in path[:-1]:
        target = target[key]
    target[path[-1]] = value
    routes = Routes()
    status, body = asyncio.run(routes.post([json.dumps(document).encode()]))
    assert status == 200
    operations_of(body)
    assert routes.count(Result.ERROR) == 0


@given(pods(["GKE_DIAGON_IDENTIFIER", "GKE_DIAGON_METADATA"]))
def test_any_pod_is_patched_once_and_the_patched_pod_not_again(pod: dict[str, Any]) -> None:
    owned = {**pod, "metadata": pod_of_job()["metadata"]}

    async def post_twice() -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        routes = Routes()
        first = operations_of((await routes.post([review(owned)]))[1])
        return first, operations_of((await routes.post([review(jsonpatch.apply_patch(owned, first))]))[1])

    first, second = asyncio.run(post_twice())
    lists = (owned["spec"].get(kind) or [] for kind in ("initContainers", "containers"))
    names = [{each["name"] for each in container.get("env") or []} for some in lists for container in some]
    assert bool(first) == any(not {"GKE_DIAGON_IDENTIFIER", "GKE_DIAGON_METADATA"} <= each for each in names)
    assert second == []
