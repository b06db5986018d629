"""The question whether pods of the namespace, or of the workload, are to get the variables."""

from __future__ import annotations

from typing import Final

from google_cloud_mldiagnostics._kubernetes.api import object_path
from google_cloud_mldiagnostics._kubernetes.check.findings import Case, Finding, State
from google_cloud_mldiagnostics._kubernetes.check.workload import is_labelled
from google_cloud_mldiagnostics._kubernetes.names import LABEL

__all__ = ["QUESTION", "check"]

QUESTION: Final = "labels"


async def check(case: Case) -> Finding:
    """Return which object has the label."""
    path = object_path("", "v1", "namespaces", case.namespace)
    if is_labelled(await case.api.metadata(path, timeout_seconds=10.0)):
        return Finding(QUESTION, State.OK, f"namespace {case.namespace}")
    workload = case.workload
    if workload is not None and is_labelled(workload["metadata"]):
        return Finding(QUESTION, State.OK, f"{workload['kind']} {workload['metadata']['name']}")
    asked = f"nor {workload['kind']} {workload['metadata']['name']}" if workload else "nor a workload"
    remedy = f"kubectl label namespace {case.namespace} {LABEL}=true"
    return Finding(QUESTION, State.MISSING, f"neither namespace {case.namespace} {asked} has {LABEL}=true", remedy)
