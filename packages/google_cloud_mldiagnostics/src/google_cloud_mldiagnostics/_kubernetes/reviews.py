"""Requests and answers of an admission webhook: `AdmissionReview` of admission.k8s.io/v1. No clock, no network.

An answer always allows the request: a pod never waits for its variables.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from google_cloud_mldiagnostics._kubernetes.patches import Operation

__all__ = ["PodRequest", "Review", "ReviewError", "answer", "read_review"]

_API_VERSION: Final = "admission.k8s.io/v1"
_NAMESPACE: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_POD: Final = {"group": "", "kind": "Pod"}


class ReviewError(Exception):
    """A body that is not a review, and has no uid to answer to; the message is for the caller."""


class PodRequest(NamedTuple):
    """A request to create a pod, or to add ephemeral containers to one.

    Attributes:
        namespace: The namespace of the pod.
        pod: The pod as it is to be.
        old_pod: The pod before an update; None if it is created.
    """

    namespace: str
    pod: Mapping[str, Any]
    old_pod: Mapping[str, Any] | None


class Review(NamedTuple):
    """A review that can be answered.

    Attributes:
        uid: The id of the request, which its answer repeats.
        request: The request; None if nothing in it can be patched.
        problem: Why nothing can be patched; empty if something can.
    """

    uid: str
    request: PodRequest | None
    problem: str = ""


def read_review(body: bytes) -> Review:
    """Return the review that a request's body has.

    Raises:
        ReviewError: It has none, or one without a uid.
    """
    try:
        review = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ReviewError(f"expected an AdmissionReview, got a body that is not valid JSON: {error}") from None
    request = review.get("request") if isinstance(review, dict) else None
    uid = request.get("uid") if isinstance(request, dict) else None
    if not isinstance(uid, str) or not uid:
        raise ReviewError(f"expected an AdmissionReview of {_API_VERSION} with request.uid, got JSON without it")
    assert isinstance(request, dict)
    try:
        return Review(uid, _pod_request(review, request))
    except ReviewError as error:
        return Review(uid, None, str(error))


def answer(uid: str, operations: Sequence[Operation] = ()) -> bytes:
    """Return the body of the answer that allows a request, with a patch if there are operations.

    Args:
        uid: The id of the request.
        operations: The operations of a JSON Patch.
    """
    response: dict[str, Any] = {"uid": uid, "allowed": True}
    if operations:
        patch = json.dumps(operations, separators=(",", ":")).encode()
        response |= {"patchType": "JSONPatch", "patch": base64.b64encode(patch).decode()}
    review = {"apiVersion": _API_VERSION, "kind": "AdmissionReview", "response": response}
    return json.dumps(review, separators=(",", ":")).encode()


def _pod_request(review: Mapping[str, Any], request: Mapping[str, Any]) -> PodRequest:
    if (review.get("apiVersion"), review.get("kind")) != (_API_VERSION, "AdmissionReview"):
        raise ReviewError(f"expected an AdmissionReview of {_API_VERSION}, got {review.get('apiVersion')!r:.100}")
    kind, namespace, pod = request.get("kind"), request.get("namespace"), request.get("object")
    if not isinstance(kind, Mapping) or any(kind.get(key, "") != text for key, text in _POD.items()):
        raise ReviewError(f"expected a Pod, got {kind!r:.100}")
    if not isinstance(pod, Mapping) or not isinstance(namespace, str) or not _NAMESPACE.fullmatch(namespace):
        raise ReviewError("expected a Pod in a namespace, got a request without one of both")
    old_pod = request.get("oldObject")
    return PodRequest(namespace, pod, old_pod if isinstance(old_pod, Mapping) else None)
