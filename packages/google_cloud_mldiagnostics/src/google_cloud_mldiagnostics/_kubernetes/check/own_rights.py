"""The question whether the user has the rights to ask the other questions."""

from __future__ import annotations

import asyncio
from typing import Final

from google_cloud_mldiagnostics._kubernetes.api import KubernetesApi
from google_cloud_mldiagnostics._kubernetes.check.findings import Case, Finding, State
from google_cloud_mldiagnostics._kubernetes.names import NAMESPACE
from google_cloud_mldiagnostics._kubernetes.rights import STAND_DOWN_RIGHTS, Right

__all__ = ["QUESTION", "check"]

QUESTION: Final = "your rights"
_RIGHTS: Final = (
    Right("", "namespaces", "get"),
    Right("apiextensions.k8s.io", "customresourcedefinitions", "get"),
    Right("admissionregistration.k8s.io", "mutatingwebhookconfigurations", "get"),
    *STAND_DOWN_RIGHTS,
    Right("authorization.k8s.io", "subjectaccessreviews", "create"),
    *(Right("", resource, "get", NAMESPACE) for resource in ("secrets", "serviceaccounts")),
    Right("coordination.k8s.io", "leases", "get", NAMESPACE),
)


async def check(case: Case) -> Finding:
    """Return which rights the user lacks, so that other questions have no answer."""
    wanted = (*_RIGHTS, Right("", "pods", "create", case.namespace))
    answers = await asyncio.gather(*(_may(case.api, right) for right in wanted))
    missing = [str(right) for right, may in zip(wanted, answers, strict=True) if not may]
    if not missing:
        return Finding(QUESTION, State.OK, f"all {len(wanted)}")
    detail = f"you may not {', '.join(missing)}: what needs it cannot be told"
    return Finding(QUESTION, State.UNKNOWN, detail, "kubectl auth can-i --list")


async def _may(api: KubernetesApi, right: Right) -> bool:
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": right.attributes},
    }
    answer = await api.create("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", review)
    return bool(answer["status"]["allowed"])
