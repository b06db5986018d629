"""The values of a pod's two variables, as compact JSON in a fixed order of keys. No clock, no network.

Names, label keys and label values of Kubernetes have no quotes, backslashes, `$` or parentheses. So neither JSON's
escaping nor the expansion of `$(NAME)` in a pod's variables can change them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Final

from google_cloud_mldiagnostics._kubernetes.names import IDENTIFIER, METADATA
from google_cloud_mldiagnostics._kubernetes.workloads import Workload

__all__ = ["is_cluster_name", "variables_of"]

_MOST_LABEL_BYTES: Final = 4096
_OMITTED: Final = frozenset(
    {"batch.kubernetes.io/controller-uid", "batch.kubernetes.io/job-name", "controller-uid", "job-name"}
)
"""Labels that the API server adds to each Job; its name and uid are in other values."""

_CLUSTER: Final = re.compile(r"projects/{0}/locations/{0}/clusters/{0}".format(r"[A-Za-z0-9][-A-Za-z0-9._:]*"))


def is_cluster_name(text: str) -> bool:
    """Return True if a text is `projects/P/locations/L/clusters/C`.

    Args:
        text: The text.
    """
    return _CLUSTER.fullmatch(text) is not None


def variables_of(workload: Workload, *, cluster: str, namespace: str) -> dict[str, str]:
    """Return the variables of all pods of a workload, by name.

    Args:
        workload: The workload.
        cluster: The cluster as `projects/P/locations/L/clusters/C`; empty if it is not known.
        namespace: The namespace of the pods.
    """
    identifier = {
        "metadata.name": workload.name,
        "metadata.kind": workload.kind,
        "clustername": cluster,
        "namespace": namespace,
    }
    metadata = {
        "associated-labels": _labels(workload.labels),
        "parent-workload": workload.parent,
        "creation-timestamp": workload.created,
        "uid": workload.uid,
    }
    if not workload.created:
        del metadata["creation-timestamp"]
    return {IDENTIFIER: _compact(identifier), METADATA: _compact(metadata)}


def _labels(labels: Mapping[str, str]) -> str:
    """Return `key=value` pairs, sorted by key; whole pairs only, up to the limit."""
    pairs: list[str] = []
    size_bytes = -1  # There is no comma before the first.
    for key in sorted(labels.keys() - _OMITTED):
        pair = f"{key}={labels[key]}"
        size_bytes += 1 + len(pair.encode())
        if size_bytes > _MOST_LABEL_BYTES:
            break
        pairs.append(pair)
    return ",".join(pairs)


def _compact(values: Mapping[str, str]) -> str:
    return json.dumps(values, separators=(",", ":"))
