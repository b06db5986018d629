"""The question whether the account of the operator may read buckets."""

from __future__ import annotations

from typing import Final

from google_cloud_mldiagnostics._kubernetes.api import object_path
from google_cloud_mldiagnostics._kubernetes.check.findings import INSTALL_OPERATOR, Case, Finding, State, existing
from google_cloud_mldiagnostics._kubernetes.names import NAMESPACE, OPERATOR

__all__ = ["QUESTION", "check"]

QUESTION: Final = "identity of the operator"
_IDENTITY: Final = "iam.gke.io/gcp-service-account"
"""https://cloud.google.com/kubernetes-engine/docs/how-to/workload-identity"""


async def check(case: Case) -> Finding:
    """Return the Google Cloud account of the operator, by the annotation of its service account."""
    account = await existing(case.api, object_path("", "v1", "serviceaccounts", OPERATOR, NAMESPACE))
    if account is None:
        return Finding(QUESTION, State.MISSING, "its service account is not there", INSTALL_OPERATOR)
    identity = (account["metadata"].get("annotations") or {}).get(_IDENTITY)
    if identity:
        return Finding(QUESTION, State.OK, str(identity))
    detail = (
        "its service account has no Workload Identity annotation: it may not be able to read profiles. Name an account"
        " with roles/storage.objectViewer"
    )
    remedy = (
        f"kubectl -n {NAMESPACE} annotate serviceaccount {OPERATOR} {_IDENTITY}=NAME@PROJECT.iam.gserviceaccount.com"
    )
    return Finding(QUESTION, State.UNKNOWN, detail, remedy)
