"""The question whether this cluster can have a policy instead of the webhook, and what the policy would not know."""

from __future__ import annotations

import re
from typing import Final

from google_cloud_mldiagnostics._kubernetes.api import object_path
from google_cloud_mldiagnostics._kubernetes.check.findings import Case, Finding, State
from google_cloud_mldiagnostics._kubernetes.check.workload import is_labelled
from google_cloud_mldiagnostics._kubernetes.names import LABEL

__all__ = ["QUESTION", "check"]

QUESTION: Final = "policy instead of the webhook"
_VERSION: Final = (1, 36)
_REMEDY: Final = "mldiagnostics kubernetes policy --cluster C | kubectl apply -f -"
_BELOW: Final = {"TrainJob": "JobSet", "RayJob": "RayCluster"}
"""The kind that the policy names instead."""


async def check(case: Case) -> Finding:
    """Return whether a policy is possible, and enough for the workload."""
    if tuple(map(int, re.findall(r"\d+", case.version)[:2])) < _VERSION:
        return Finding(QUESTION, State.OK, f"not possible: it needs Kubernetes 1.36, this is {case.version}")
    unknown = ["labels of workloads", "when they were created"]
    kind = str(case.workload["kind"]) if case.workload else ""
    for above, below in _BELOW.items():
        if kind in ("", above):
            unknown.append(f"a {above} above its {below}")
    namespace = await case.api.metadata(object_path("", "v1", "namespaces", case.namespace), timeout_seconds=10.0)
    detail = f"possible, without a server to run. It does not know {', '.join(unknown)}"
    if not is_labelled(namespace):
        detail += f". It needs {LABEL}=true on the namespace or in the template of the pods"
    return Finding(QUESTION, State.OK, detail, _REMEDY)
