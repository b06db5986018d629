"""The question whether the accounts of the webhook and the operator have the rights that they need."""

from __future__ import annotations

import asyncio
from typing import Final

from google_cloud_mldiagnostics._kubernetes.api import KubernetesApi
from google_cloud_mldiagnostics._kubernetes.check.findings import (
    INSTALL_OPERATOR,
    INSTALL_WEBHOOK,
    Case,
    Finding,
    State,
)
from google_cloud_mldiagnostics._kubernetes.names import NAMESPACE, OPERATOR, WEBHOOK
from google_cloud_mldiagnostics._kubernetes.rights import OPERATOR_RIGHTS, WEBHOOK_RIGHTS, Right

__all__ = ["QUESTION", "check"]

QUESTION: Final = "rights of both accounts"
_MOST_SHOWN: Final = 3


async def check(case: Case) -> Finding:
    """Return which rights the accounts lack."""
    wanted = [(WEBHOOK, right) for right in WEBHOOK_RIGHTS] + [(OPERATOR, right) for right in OPERATOR_RIGHTS]
    answers = await asyncio.gather(*(_may(case.api, account, right) for account, right in wanted))
    missing = [(account, right) for (account, right), may in zip(wanted, answers, strict=True) if not may]
    if not missing:
        return Finding(QUESTION, State.OK, f"all {len(wanted)}")
    shown = [f"{account} {right}" for account, right in missing[:_MOST_SHOWN]]
    more = f" and {len(missing) - _MOST_SHOWN} more" if len(missing) > _MOST_SHOWN else ""
    remedy = INSTALL_WEBHOOK if missing[0][0] == WEBHOOK else INSTALL_OPERATOR
    return Finding(QUESTION, State.MISSING, f"not allowed: {', '.join(shown)}{more}", remedy)


async def _may(api: KubernetesApi, account: str, right: Right) -> bool:
    user = f"system:serviceaccount:{NAMESPACE}:{account}"
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {"user": user, "resourceAttributes": right.attributes},
    }
    answer = await api.create("/apis/authorization.k8s.io/v1/subjectaccessreviews", review)
    return bool(answer["status"]["allowed"])
