"""The MutatingAdmissionPolicy: the injection without a server, for Kubernetes 1.36 and later. No clock, no network.

The expressions use only what every implementation of CEL has: `has`, `in`, `filter`, `map`, `exists`, `startsWith`,
`string` and operators. The patch is a JSON Patch, since an apply configuration would replace a user's variable, and
refuse an `env` that has a name twice.

A policy sees the pod and its namespace, and cannot look up owners. So it needs the label on one of both; it has neither
the labels nor the creation time of the workload; it names the JobSet below a TrainJob, and the RayCluster below a
RayJob; and it does not know the uid of a LeaderWorkerSet.
"""

from __future__ import annotations

from typing import Any, Final

from google_cloud_mldiagnostics._kubernetes.names import (
    EXEMPT_LABEL,
    EXEMPT_NAMESPACES,
    IDENTIFIER,
    JOBSET_NAME_LABEL,
    JOBSET_UID_LABEL,
    LABEL,
    LWS_NAME_LABEL,
    METADATA,
    NAMESPACE,
    NAMESPACE_NAME_LABEL,
    POLICY,
    POLICY_PARAMETERS,
)
from google_cloud_mldiagnostics._kubernetes.values import is_cluster_name

__all__ = ["policy_documents"]

_VERSION: Final = "admissionregistration.k8s.io/v1"
_MOST_CONTAINERS: Final = 64
"""The limit of each kind: `map` has no index in CEL, so the indices are written out."""

_LABELLED: Final = (
    "[object, namespaceObject].exists(o, has(o.metadata.labels) &&"
    f" '{LABEL}' in o.metadata.labels && o.metadata.labels['{LABEL}'] == 'true')"
)
_OF_WORKLOAD: Final = (
    f"(has(object.metadata.labels) && ['{JOBSET_NAME_LABEL}', '{LWS_NAME_LABEL}']"
    ".exists(k, k in object.metadata.labels)) ||"
    " (has(object.metadata.ownerReferences) && object.metadata.ownerReferences.exists(r,"
    " has(r.controller) && r.controller && ((r.kind == 'Job' && r.apiVersion.startsWith('batch/')) ||"
    " (r.kind in ['RayCluster', 'RayJob'] && r.apiVersion.startsWith('ray.io/')))))"
)
_VARIABLES: Final = {
    "index": f"[{','.join(map(str, range(_MOST_CONTAINERS)))}]",
    "initContainers": "has(object.spec.initContainers) ? object.spec.initContainers : []",
    "containers": "object.spec.containers",
    "labels": "has(object.metadata.labels) ? object.metadata.labels : {}",
    "owner": (
        "has(object.metadata.ownerReferences)"
        " ? object.metadata.ownerReferences.filter(r, has(r.controller) && r.controller) : []"
    ),
    "kind": (
        f"'{JOBSET_NAME_LABEL}' in variables.labels ? 'JobSet'"
        f" : '{LWS_NAME_LABEL}' in variables.labels ? 'LeaderWorkerSet' : variables.owner[0].kind"
    ),
    "name": (
        f"variables.kind == 'JobSet' ? variables.labels['{JOBSET_NAME_LABEL}']"
        f" : variables.kind == 'LeaderWorkerSet' ? variables.labels['{LWS_NAME_LABEL}'] : variables.owner[0].name"
    ),
    "uid": (
        f"variables.kind == 'JobSet' ? ('{JOBSET_UID_LABEL}' in variables.labels"
        f" ? variables.labels['{JOBSET_UID_LABEL}'] : '')"
        " : variables.kind == 'LeaderWorkerSet' ? '' : variables.owner[0].uid"
    ),
    "identifier": (
        """'{"metadata.name":"' + variables.name + '","metadata.kind":"' + variables.kind"""
        """ + '","clustername":"' + params.data['cluster'] + '","namespace":"' + request.namespace + '"}'"""
    ),
    "metadata": (
        f"""'{{"associated-labels":"{LABEL}=true","parent-workload":""'"""
        """ + (variables.uid == '' ? '' : ',"uid":"' + variables.uid + '"') + '}'"""
    ),
}
"""In the order in which they are evaluated: each may use those before it."""


def policy_documents(cluster: str = "") -> list[dict[str, Any]]:
    """Return the policy, its binding, and the ConfigMap with its parameter, as they are applied.

    Args:
        cluster: The cluster as `projects/P/locations/L/clusters/C`; empty if it is not known.

    Raises:
        ValueError: The cluster has another format.
    """
    if cluster and not is_cluster_name(cluster):
        raise ValueError(f"expected the cluster as projects/P/locations/L/clusters/C, got {cluster!r:.200}")
    return [_policy(), _binding(), _parameters(cluster)]


def _policy() -> dict[str, Any]:
    exempt_namespaces = [*EXEMPT_NAMESPACES, NAMESPACE]
    return {
        "apiVersion": _VERSION,
        "kind": "MutatingAdmissionPolicy",
        "metadata": {"name": POLICY},
        "spec": {
            "failurePolicy": "Ignore",
            "reinvocationPolicy": "IfNeeded",
            "paramKind": {"apiVersion": "v1", "kind": "ConfigMap"},
            "matchConstraints": {
                "namespaceSelector": {
                    "matchExpressions": [
                        {"key": NAMESPACE_NAME_LABEL, "operator": "NotIn", "values": exempt_namespaces},
                        {"key": EXEMPT_LABEL, "operator": "NotIn", "values": ["true"]},
                    ]
                },
                "objectSelector": {
                    "matchExpressions": [{"key": EXEMPT_LABEL, "operator": "NotIn", "values": ["true"]}]
                },
                "resourceRules": [
                    {
                        "apiGroups": [""],
                        "apiVersions": ["v1"],
                        "operations": ["CREATE"],
                        "resources": ["pods"],
                        "scope": "Namespaced",
                    }
                ],
            },
            "matchConditions": [
                {"name": "labelled", "expression": _LABELLED},
                {"name": "workload", "expression": _OF_WORKLOAD},
            ],
            "variables": [{"name": name, "expression": expression} for name, expression in _VARIABLES.items()],
            "mutations": [{"patchType": "JSONPatch", "jsonPatch": {"expression": _patch()}}],
        },
    }


def _binding() -> dict[str, Any]:
    # Without the ConfigMap pods get no variables, and start.
    parameters = {"name": POLICY_PARAMETERS, "namespace": NAMESPACE, "parameterNotFoundAction": "Allow"}
    return {
        "apiVersion": _VERSION,
        "kind": "MutatingAdmissionPolicyBinding",
        "metadata": {"name": POLICY},
        "spec": {"policyName": POLICY, "paramRef": parameters},
    }


def _parameters(cluster: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": POLICY_PARAMETERS, "namespace": NAMESPACE},
        "data": {"cluster": cluster},
    }


def _patch() -> str:
    """Return the expression of the operations: an empty `env` where there is none, then each variable that lacks."""
    return " + ".join(
        part
        for kind in ("initContainers", "containers")
        for part in (
            _add(kind, "!has(variables.{kind}[i].env)", "", "[]"),
            _add_variable(kind, IDENTIFIER, "identifier"),
            _add_variable(kind, METADATA, "metadata"),
        )
    )


def _add_variable(kind: str, name: str, variable: str) -> str:
    is_lacking = f"!(has(variables.{{kind}}[i].env) && variables.{{kind}}[i].env.exists(e, e.name == '{name}'))"
    return _add(kind, is_lacking, "/-", f"{{'name': '{name}', 'value': variables.{variable}}}")


def _add(kind: str, condition: str, position: str, value: str) -> str:
    """Return the operations for the containers of a kind that meet a condition."""
    return (
        f"variables.index.filter(i, i < size(variables.{kind}) && {condition.format(kind=kind)})"
        f".map(i, JSONPatch{{op: 'add', path: '/spec/{kind}/' + string(i) + '/env{position}', value: {value}}})"
    )
