"""The question whether an operator acts."""

from __future__ import annotations

import asyncio
from typing import Final

from google_cloud_mldiagnostics._kubernetes.api import object_path
from google_cloud_mldiagnostics._kubernetes.check.findings import INSTALL_OPERATOR, Case, Finding, State, existing
from google_cloud_mldiagnostics._kubernetes.connections.election import LEASE_NAME
from google_cloud_mldiagnostics._kubernetes.names import NAMESPACE, OPERATOR

__all__ = ["QUESTION", "check"]

QUESTION: Final = "operator"
_LEASE_SECONDS: Final = 3.0
"""The operator renews its lease every 2 s. Two reads need no clock of another machine."""


async def check(case: Case) -> Finding:
    """Return whether the lease of the operator is renewed."""
    path = object_path("coordination.k8s.io", "v1", "leases", LEASE_NAME, NAMESPACE)
    first = await existing(case.api, path)
    if first is None:
        return Finding(QUESTION, State.MISSING, "no operator has ever run", INSTALL_OPERATOR)
    await asyncio.sleep(_LEASE_SECONDS)
    second = await case.api.get(path)
    holder = second["spec"].get("holderIdentity")
    if holder and first["metadata"]["resourceVersion"] != second["metadata"]["resourceVersion"]:
        return Finding(QUESTION, State.OK, f"{holder} acts")
    remedy = f"kubectl -n {NAMESPACE} logs deployment/{OPERATOR}"
    return Finding(QUESTION, State.MISSING, "its lease is not renewed: it does not run", remedy)
