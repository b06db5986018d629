"""The question whether a pod of the workload gets its variables."""

from __future__ import annotations

from typing import Final

from google_cloud_mldiagnostics._kubernetes.check.findings import Case, Finding, State
from google_cloud_mldiagnostics._kubernetes.check.workload import POD_LABELS, admitted
from google_cloud_mldiagnostics._kubernetes.names import IDENTIFIER, METADATA, NAMESPACE, WEBHOOK

__all__ = ["QUESTION", "check"]

QUESTION: Final = "variables of a pod"


async def check(case: Case) -> Finding:
    """Return whether a pod, which is not kept, has both variables."""
    if case.workload is None:
        return Finding(QUESTION, State.UNKNOWN, "no workload was given: add --workload KIND/NAME")
    kind, name = str(case.workload["kind"]), str(case.workload["metadata"]["name"])
    owner = {
        "apiVersion": case.workload["apiVersion"],
        "kind": kind,
        "name": name,
        "uid": case.workload["metadata"]["uid"],
        "controller": True,
    }
    pod = await admitted(case.api, case.namespace, {POD_LABELS[kind]: name}, owner)
    found = {each["name"] for each in pod["spec"]["containers"][0].get("env", ())}
    missing = {IDENTIFIER, METADATA} - found
    if missing:
        remedy = f"kubectl -n {NAMESPACE} logs deployment/{WEBHOOK}"
        return Finding(QUESTION, State.MISSING, f"it has no {' and no '.join(sorted(missing))}", remedy)
    return Finding(QUESTION, State.OK, f"a pod of {kind} {name} has both")
