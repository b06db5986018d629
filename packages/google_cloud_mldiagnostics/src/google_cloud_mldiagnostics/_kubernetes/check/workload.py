"""The workload that a check is about, and a pod of it that is admitted and not kept."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from google_cloud_mldiagnostics._kubernetes.api import KubernetesApi, object_path
from google_cloud_mldiagnostics._kubernetes.names import (
    JOB_NAME_LABEL,
    JOBSET_NAME_LABEL,
    LABEL,
    LWS_NAME_LABEL,
    RAY_CLUSTER_LABEL,
    SUPPORTED,
)
from google_cloud_mldiagnostics.exceptions import KubernetesConfigurationError

__all__ = ["POD_LABELS", "admitted", "find_workload", "is_labelled"]

POD_LABELS: Final = {
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
    plurals = {found[2]: found for found in kinds.values()}
    chosen = kinds.get(given.lower()) or plurals.get(given.lower()) or (given == "lws" and kinds["leaderworkerset"])
    if not chosen or not name:
        raise KubernetesConfigurationError(f"expected KIND/NAME with a kind of {', '.join(sorted(kinds))}, got {text}")
    group, kind, resource = chosen
    served = await api.get(f"/apis/{group}")
    version = str(served["preferredVersion"]["version"])
    found = await api.get(object_path(group, version, resource, name, namespace))
    return {**found, "apiVersion": f"{group}/{version}", "kind": kind}


def is_labelled(metadata: Mapping[str, Any]) -> bool:
    """Return True if pods of an object are to get the variables, by its metadata.

    Args:
        metadata: The metadata.
    """
    return (metadata.get("labels") or {}).get(LABEL) == "true"


async def admitted(
    api: KubernetesApi, namespace: str, labels: Mapping[str, str], owner: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return a pod as the API server would start it; it is not kept.

    Args:
        api: The API of the cluster.
        namespace: The namespace.
        labels: Its labels.
        owner: The reference to its owner; None for none.

    Raises:
        KubernetesError: The API server refused, or did not answer.
    """
    metadata = {"generateName": "mldiagnostics-check-", "labels": dict(labels)}
    owners = {"ownerReferences": [owner]} if owner else {}
    container = {"name": "main", "image": "registry.k8s.io/pause:3.10"}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {**metadata, **owners}, "spec": {"containers": [container]}}
    return await api.create(f"/api/v1/namespaces/{namespace}/pods", pod, is_dry_run=True)
