"""Admission reviews: every body has an answer that allows, or a sentence about what is wrong with it."""

from __future__ import annotations

import base64
import contextlib
import json
from typing import Any

import pytest
from google_cloud_mldiagnostics._kubernetes.reviews import ReviewError, answer, read_review
from hypothesis import given, settings
from hypothesis import strategies as st

REVIEW: dict[str, Any] = {
    "apiVersion": "admission.k8s.io/v1",
    "kind": "AdmissionReview",
    "request": {
        "uid": "u-1",
        "kind": {"group": "", "version": "v1", "kind": "Pod"},
        "namespace": "ml",
        "operation": "CREATE",
        "object": {"metadata": {"name": "a"}, "spec": {"containers": [{"name": "main"}]}},
        "oldObject": None,
    },
}
BODY = json.dumps(REVIEW).encode()


def changed(**request: Any) -> bytes:
    return json.dumps({**REVIEW, "request": {**REVIEW["request"], **request}}).encode()


def test_a_review_of_a_pod_is_read() -> None:
    review = read_review(BODY)
    assert (review.uid, review.problem) == ("u-1", "")
    assert review.request is not None
    assert (review.request.namespace, review.request.old_pod) == ("ml", None)
    assert review.request.pod["metadata"] == {"name": "a"}
    update = read_review(changed(oldObject={"spec": {}})).request
    assert update is not None
    assert update.old_pod == {"spec": {}}


def test_every_answer_allows_and_a_patch_is_in_base64() -> None:
    assert json.loads(answer("u-1"))["response"] == {"uid": "u-1", "allowed": True}
    operations = [{"op": "add", "path": "/spec/containers/0/env", "value": [{"name": "A", "value": "ü"}]}]
    response = json.loads(answer("u-1", operations))["response"]
    assert (response["allowed"], response["patchType"]) == (True, "JSONPatch")
    assert json.loads(base64.b64decode(response["patch"])) == operations


@pytest.mark.parametrize(
    "body",
    [b"", b"x", b"null", b"[]", b"{}", b'{"request":null}', b'{"request":{"uid":3}}', b"[" * 100_000, b"\xff\xfe"],
)
def test_a_body_without_a_uid_is_an_error_with_a_sentence(body: bytes) -> None:
    with pytest.raises(ReviewError, match="expected an AdmissionReview"):
        read_review(body)


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (json.dumps({**REVIEW, "apiVersion": "admission.k8s.io/v1beta1"}).encode(), "AdmissionReview"),
        (json.dumps({**REVIEW, "kind": "Other"}).encode(), "AdmissionReview"),
        (changed(kind={"group": "", "version": "v1", "kind": "EphemeralContainers"}), "expected a Pod"),
        (changed(kind={"group": "x", "version": "v1", "kind": "Pod"}), "expected a Pod"),
        (changed(kind=None), "expected a Pod"),
        (changed(object=None), "without one of both"),
        (changed(namespace=""), "without one of both"),
    ],
)
def test_a_review_with_a_uid_that_is_not_of_a_pod_can_be_answered(body: bytes, problem: str) -> None:
    review = read_review(body)
    assert (review.uid, review.request) == ("u-1", None)
    assert problem in review.problem


@settings(max_examples=300)
@given(st.integers(0, len(BODY) - 1), st.binary(max_size=3))
def test_a_body_that_is_damaged_anywhere_is_a_review_or_an_error(position: int, replacement: bytes) -> None:
    body = BODY[:position] + replacement + BODY[position + 1 :]
    with contextlib.suppress(ReviewError):  # Any other exception fails.
        review = read_review(body)
        assert review.uid
        assert (review.request is None) == bool(review.problem)
