"""Questions about pods: how long their admission takes, and whether those of a workload get their variables."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping
from typing import Any, Final

from google_cloud_mldiagnostics._kubernetes.api import KubernetesApi, object_path
from google_cloud_mldiagnostics._kubernetes.check.findings import Finding, State
from google_cloud_mldiagnostics._kubernetes.names import (
    EXEMPT_LABEL,
    IDENTIFIER,
    JOB_NAME_LABEL,
    JOBSET_NAME_LABEL,
    LABEL,
    LWS_NAME_LABEL,
    METADATA,
    RAY_CLUSTER_LABEL,
    SUPPORTED,
)
from google_cloud_mldiagnostics.exceptions import KubernetesConfigurationError

__all__ = ["check_admission_time", "check_labels", "check_variables", "find_workload"]

_PODS: Final = 5
_SLOW_SECONDS: Final = 0.5
_POD_LABELS: Final = {
    "Job": JOB_NAME_LABEL,
    "JobSet": JOBSET_NAME_LABEL,
    "LeaderWorkerSet": LWS_NAME_LABEL,
    "RayCluster": RAY_CLUSTER_LABEL,
    "RayJob": RAY_CLUSTER_LABEL,
    "TrainJob": JOBSET_NAME_LABEL,
}
"""The label that the controller of each kind sets on its pods."""


async def find_workload(api: KubernetesApi, namespace: str, text: str) -> dict[str, Any]:
    """Return a workload with its metadata.

    Args:
        api: The API of the cluster.
        namespace: The namespace.
        text: KIND/NAME, such as jobset/train.

    Raises:
        KubernetesConfigurationError: The text names no supported kind.
        KubernetesApiError: There is no such workload, or it may not be read.
    """
    given, _, name = text.partition("/")
    kinds = {kind.lower(): (group, kind, resource) for (group, kind), resource in SUPPORTED.items()}
    plurals = {resource: found for found in kinds.values() for resource in (found[2],)}
    chosen = kinds.get(given.lower()) or plurals.get(given.lower()) or (given == "lws" and kinds["leaderworkerset"])
    if not chosen or not name:
        raise KubernetesConfigurationError(f"expected KIND/NAME with a kind of {', '.join(sorted(kinds))}, got {text}")
    group, kind, resource = chosen
    served = await api.get(f"/apis/{group}")
    version = str(served["preferredVersion"]["version"])
    found = await api.get(object_path(group, version, resource, name, namespace))
    return {**found, "apiVersion": f"{group}/{version}", "kind": kind}


async def check_labels(api: KubernetesApi, namespace: str, workload: Mapping[str, Any] | None) -> Finding:
    """Return whether pods of the namespace, or of the workload, are to get variables.

    Args:
        api: The API of the cluster.
        namespace: The namespace.
        workload: The workload; None for any.
    """
    question = "labels"
    metadata = await api.metadata(object_path("", "v1", "namespaces", namespace), timeout_seconds=10.0)
    if _is_labelled(metadata):
        return Finding(question, State.OK, f"namespace {namespace}")
    if workload is not None and _is_labelled(workload["metadata"]):
        return Finding(question, State.OK, f"{workload['kind']} {workload['metadata']['name']}")
    remedy = f"kubectl label namespace {namespace} {LABEL}=true"
    return Finding(question, State.MISSING, f"neither namespace {namespace} nor a workload has {LABEL}=true", remedy)


async def check_admission_time(api: KubernetesApi, namespace: str) -> Finding:
    """Return how long the creation of a pod takes with and without the webhook; none is kept.

    Args:
        api: The API of the cluster.
        namespace: The namespace.
    """
    question = "time to admit a pod"
    with_us: list[float] = []
    without: list[float] = []
    for _ in range(_PODS):  # By turns: the load of the API server changes.
        for found, label in ((with_us, {LABEL: "true"}), (without, {EXEMPT_LABEL: "true"})):
            started = time.perf_counter()
            await _admitted(api, namespace, label)
            found.append(time.perf_counter() - started)
    longer = statistics.median(with_us) - statistics.median(without)
    detail = f"{statistics.median(without) * 1e3:.1f} ms without the webhook, {longer * 1e3:+.1f} ms with it"
    if longer > _SLOW_SECONDS:
        remedy = (
            "kubectl -n gke-mldiagnostics get pods,endpoints; a firewall must let the control plane reach port 8443"
        )
        return Finding(question, State.MISSING, f"{detail}: the webhook does not answer", remedy)
    return Finding(question, State.OK, detail)


async def check_variables(api: KubernetesApi, namespace: str, workload: Mapping[str, Any] | None) -> Finding:
    """Return whether a pod of a workload gets its variables; it is not kept.

    Args:
        api: The API of the cluster.
        namespace: The namespace.
        workload: The workload; None if there is none to try.
    """
    question = "variables of a pod"
    if workload is None:
        return Finding(question, State.UNKNOWN, "no workload was given: add --workload KIND/NAME")
    name = str(workload["metadata"]["name"])
    owner = {key: workload[key] for key in ("apiVersion", "kind")} | {"name": name, "controller": True}
    owner["uid"] = workload["metadata"]["uid"]
    pod = await _admitted(api, namespace, {_POD_LABELS[workload["kind"]]: name}, owner)
    found = {each["name"] for each in pod["spec"]["containers"][0].get("env", ())}
    missing = {IDENTIFIER, METADATA} - found
    if missing:
        remedy = "kubectl -n gke-mldiagnostics logs deployment/mldiagnostics-injection-webhook"
        return Finding(question, State.MISSING, f"it has no {' and no '.join(sorted(missing))}", remedy)
    return Finding(question, State.OK, f"a pod of {workload['kind']} {name} has both")


async def _admitted(
    api: KubernetesApi, namespace: str, labels: Mapping[str, str], owner: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    metadata = {"generateName": "mldiagnostics-check-", "labels": dict(labels)}
    owners = {"ownerReferences": [owner]} if owner else {}
    container = {"name": "main", "image": "registry.k8s.io/pause:3.10"}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {**metadata, **owners}, "spec": {"containers": [container]}}
    return await api.create(f"/api/v1/namespaces/{namespace}/pods", pod, is_dry_run=True)


def _is_labelled(metadata: Mapping[str, Any]) -> bool:
    return (metadata.get("labels") or {}).get(LABEL) == "true"
