"""The documents of the policy, evaluated; and pods of which policy and webhook know the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import cel
from google_cloud_mldiagnostics._kubernetes.names import IDENTIFIER, LABEL, METADATA
from google_cloud_mldiagnostics._kubernetes.workloads import Workload
from hypothesis import strategies as st

from .pods import NAMES

CLUSTER = "projects/p/locations/l/clusters/c"
NAMESPACE = "ml"


class Policy:
    """A MutatingAdmissionPolicy as the API server evaluates it, for pods of one namespace."""

    def __init__(self, documents: Sequence[Mapping[str, Any]]) -> None:
        policy, _, self._parameters = documents
        spec = policy["spec"]
        self._conditions = [cel.compile(each["expression"]) for each in spec["matchConditions"]]
        self._variables = [(each["name"], cel.compile(each["expression"])) for each in spec["variables"]]
        # No implementation beside Kubernetes' own has the type of its operations.
        (mutation,) = spec["mutations"]
        expression = mutation["jsonPatch"]["expression"]
        for key in ("op", "path", "value"):
            expression = expression.replace(f"{key}: ", f"'{key}': ")
        self._patch = cel.compile(expression.replace("JSONPatch{", "{"))

    def operations(self, pod: Mapping[str, Any], namespace_labels: Mapping[str, str]) -> list[dict[str, Any]] | None:
        """Return the operations on a pod; None if a condition does not match it."""
        context: dict[str, Any] = {
            "object": pod,
            "namespaceObject": {"metadata": {"name": NAMESPACE, "labels": dict(namespace_labels)}},
            "request": {"namespace": NAMESPACE},
            "params": self._parameters,
        }
        if not all(condition.execute(context) for condition in self._conditions):
            return None
        context["variables"] = variables = dict[str, Any]()
        for name, expression in self._variables:
            variables[name] = expression.execute(context)
        return list(self._patch.execute(context))


class KnownPod(NamedTuple):
    """A pod, of which policy and webhook know the same.

    Attributes:
        pod: The pod.
        namespace_labels: The labels of its namespace.
        is_labelled: True if the pod or its namespace asks for the variables.
        workload: The workload as the policy knows it; None if it has none.
    """

    pod: dict[str, Any]
    namespace_labels: dict[str, str]
    is_labelled: bool
    workload: Workload | None


_UIDS = st.uuids().map(str)
_LABELS = st.sampled_from([{}, {LABEL: "true"}, {LABEL: "false"}, {"app": "x"}])
_VARIABLE = st.fixed_dictionaries(
    {"name": st.sampled_from([IDENTIFIER, METADATA, "PATH", "A"])},
    optional={"value": st.text(max_size=8), "valueFrom": st.just({"fieldRef": {"fieldPath": "metadata.name"}})},
)
_CONTAINER = st.fixed_dictionaries({"name": NAMES}, optional={"env": st.lists(_VARIABLE, max_size=4)})
_SPEC = st.fixed_dictionaries(
    {"containers": st.lists(_CONTAINER, min_size=1, max_size=4)},
    optional={"initContainers": st.lists(_CONTAINER, max_size=3)},
)


@st.composite
def known_pods(draw: st.DrawFn) -> KnownPod:
    """Pods of Jobs, JobSets, clusters of Ray, and of nothing; with and without the label."""
    kind = draw(st.sampled_from(["Job", "JobSet", "RayCluster", "RayJob", "ReplicaSet", ""]))
    name, uid, labels, namespace_labels = draw(NAMES), draw(_UIDS), draw(_LABELS), draw(_LABELS)
    version = {"Job": "batch/v1", "JobSet": "batch/v1", "ReplicaSet": "apps/v1"}.get(kind, "ray.io/v1")
    owner = {"apiVersion": version, "kind": kind, "name": name, "uid": uid, "controller": True}
    others = draw(st.lists(st.just({"apiVersion": "v1", "kind": "ConfigMap", "name": "x", "uid": "y"}), max_size=1))
    metadata: dict[str, Any] = {"generateName": "pod-", "labels": dict(labels)}
    workload = Workload(name, kind, uid, {LABEL: "true"}, "", "") if kind not in ("", "ReplicaSet") else None
    if kind == "JobSet":
        owner |= {"kind": "Job", "name": f"{name}-job", "uid": "uid-of-the-job"}
        metadata["labels"] |= {"jobset.sigs.k8s.io/jobset-name": name, "jobset.sigs.k8s.io/jobset-uid": uid}
    if kind:
        metadata["ownerReferences"] = [*others, owner]
    if not metadata["labels"]:
        del metadata["labels"]
    is_labelled = "true" in (labels.get(LABEL), namespace_labels.get(LABEL))
    return KnownPod({"metadata": metadata, "spec": draw(_SPEC)}, dict(namespace_labels), is_labelled, workload)
