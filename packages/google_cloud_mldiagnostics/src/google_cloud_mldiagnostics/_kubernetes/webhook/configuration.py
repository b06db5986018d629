"""The MutatingWebhookConfiguration: for which pods the API server asks the webhook. No clock, no network.

A label on a JobSet is not on its pods, so pods that seem to belong to a workload are asked for, too. The selectors of
an entry are joined by AND, and each entry that matches costs a call with a timeout of its own. So the entries are
disjoint: whatever labels a pod has, there is one call at most.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, TypeAlias

from google_cloud_mldiagnostics._kubernetes.names import (
    EXEMPT_LABEL,
    EXEMPT_NAMESPACES,
    JOB_NAME_LABEL,
    JOBSET_NAME_LABEL,
    LABEL,
    LWS_NAME_LABEL,
    NAMESPACE,
    NAMESPACE_NAME_LABEL,
    RAY_CLUSTER_LABEL,
    WEBHOOK,
    WEBHOOK_CONFIGURATION,
)

__all__ = ["PATH", "webhook_configuration"]

PATH: Final = "/mutate"
"""The path of reviews, on the port 443 of the Service."""
_TIMEOUT_SECONDS: Final = 2
_WORKLOADS: Final = {
    "jobset": JOBSET_NAME_LABEL,
    "lws": LWS_NAME_LABEL,
    "ray": RAY_CLUSTER_LABEL,
    "job": JOB_NAME_LABEL,
}
"""The label that controllers set on the pods of each kind of workload, by the name of the entry."""

_Expressions: TypeAlias = list[dict[str, Any]]


def webhook_configuration(
    *,
    namespace: str = NAMESPACE,
    ca_bundle: str = "",
    exempt_namespaces: Sequence[str] = EXEMPT_NAMESPACES,
    has_workload_entries: bool = True,
) -> dict[str, Any]:
    """Return the configuration, as it is applied.

    Args:
        namespace: The namespace of the webhook, whose own pods are never asked for.
        ca_bundle: The certificates that the API server trusts, in base64; empty if another program sets them.
        exempt_namespaces: Namespaces whose pods are never asked for.
        has_workload_entries: If False, a label on a workload is not enough: its namespace or its pods need one.
    """
    exempt = [*exempt_namespaces, namespace]
    client = {"service": {"name": WEBHOOK, "namespace": namespace, "path": PATH, "port": 443}}
    bundle = {"caBundle": ca_bundle} if ca_bundle else {}
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingWebhookConfiguration",
        "metadata": {"name": WEBHOOK_CONFIGURATION},
        "webhooks": [
            {
                "name": f"{name}.injection.mldiagnostics.dev",
                "admissionReviewVersions": ["v1"],
                "clientConfig": {**client, **bundle},
                "failurePolicy": "Ignore",
                "matchPolicy": "Equivalent",
                "reinvocationPolicy": "IfNeeded",
                "sideEffects": "None",
                "timeoutSeconds": _TIMEOUT_SECONDS,
                "namespaceSelector": {"matchExpressions": [*_not_exempt(exempt), *of_namespace]},
                "objectSelector": {"matchExpressions": [_is_not(EXEMPT_LABEL), *of_pod]},
                "rules": [_rule("pods", "CREATE"), _rule("pods/ephemeralcontainers", "UPDATE")],
            }
            for name, of_namespace, of_pod in _entries(has_workload_entries=has_workload_entries)
        ],
    }


def _entries(*, has_workload_entries: bool) -> Iterator[tuple[str, _Expressions, _Expressions]]:
    """Yield the name of each entry, and what it requires of namespaces and of pods; no two match the same pod."""
    yield "namespace", [_is(LABEL)], []
    yield "pod", [_is_not(LABEL)], [_is(LABEL)]
    labels_before: _Expressions = [_is_not(LABEL)]
    for name, label in _WORKLOADS.items() if has_workload_entries else ():
        yield name, [_is_not(LABEL)], [*labels_before, {"key": label, "operator": "Exists"}]
        labels_before.append({"key": label, "operator": "DoesNotExist"})


def _not_exempt(namespaces: Sequence[str]) -> _Expressions:
    return [{"key": NAMESPACE_NAME_LABEL, "operator": "NotIn", "values": list(namespaces)}, _is_not(EXEMPT_LABEL)]


def _is(label: str) -> dict[str, Any]:
    return {"key": label, "operator": "In", "values": ["true"]}


def _is_not(label: str) -> dict[str, Any]:
    """Return the expression that a label is missing, or has another value than `true`."""
    return {"key": label, "operator": "NotIn", "values": ["true"]}


def _rule(resource: str, operation: str) -> dict[str, Any]:
    return {
        "apiGroups": [""],
        "apiVersions": ["v1"],
        "operations": [operation],
        "resources": [resource],
        "scope": "Namespaced",
    }
