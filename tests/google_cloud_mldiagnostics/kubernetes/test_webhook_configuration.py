"""The entries of the webhook's configuration, as a real API server selects them: one call a pod, and none if exempt."""

from __future__ import annotations

import itertools

import pytest
from google_cloud_mldiagnostics._kubernetes.names import (
    EXEMPT_LABEL,
    JOB_NAME_LABEL,
    JOBSET_NAME_LABEL,
    LABEL,
    LWS_NAME_LABEL,
    NAMESPACE_NAME_LABEL,
    RAY_CLUSTER_LABEL,
)
from google_cloud_mldiagnostics._kubernetes.webhook.configuration import webhook_configuration

from ...kube_api import KubeApi
from .clusters import CONTAINER, Webhook

pytest.importorskip("starlette")  # It needs Python 3.11, as the images have.

_LABELS = [LABEL, JOBSET_NAME_LABEL, LWS_NAME_LABEL, RAY_CLUSTER_LABEL, JOB_NAME_LABEL]


def calls(webhook: Webhook, namespace: str, *labels: str) -> int:
    """Return how often the API server asks for a pod with labels of the value true."""
    before = webhook.reviews()
    metadata = {"generateName": "pod-", "labels": dict.fromkeys(labels, "true")}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": [CONTAINER]}}
    webhook.server.call("POST", f"/api/v1/namespaces/{namespace}/pods?dryRun=All", pod)
    return webhook.reviews() - before


def test_a_pod_with_any_labels_makes_one_call(webhook: Webhook, namespace: str) -> None:
    assert calls(webhook, namespace) == 0
    for number in range(1, len(_LABELS) + 1):
        for labels in itertools.combinations(_LABELS, number):
            assert calls(webhook, namespace, *labels) == 1, labels


def test_a_pod_of_a_labelled_namespace_makes_one_call(labelled: str, webhook: Webhook) -> None:
    assert [calls(webhook, labelled, *labels) for labels in ([], [LABEL], [JOB_NAME_LABEL], _LABELS)] == [1] * 4


@pytest.mark.parametrize(
    "labels",
    [{EXEMPT_LABEL: "true"}, {NAMESPACE_NAME_LABEL: "kube-system"}, {NAMESPACE_NAME_LABEL: "gke-mldiagnostics"}],
    ids=["exempt", "system", "own"],
)
def test_pods_of_an_exempt_namespace_make_none(
    kube_api: KubeApi, webhook: Webhook, namespace: str, labels: dict[str, str]
) -> None:
    name = f"{namespace}-exempt"
    metadata = {"name": name, "labels": {"test": namespace, LABEL: "true", **labels}}
    kube_api.apply("/api/v1/namespaces", {"metadata": metadata})
    assert calls(webhook, name, *_LABELS) == 0


def test_a_pod_that_is_exempt_makes_none(webhook: Webhook, namespace: str) -> None:
    assert calls(webhook, namespace, *_LABELS, EXEMPT_LABEL) == 0


def test_every_entry_lets_pods_start_whatever_the_webhook_does() -> None:
    for entry in webhook_configuration()["webhooks"]:
        assert (entry["failurePolicy"], entry["timeoutSeconds"], entry["sideEffects"]) == ("Ignore", 2, "None")
        assert {"pods", "pods/ephemeralcontainers"} == {rule["resources"][0] for rule in entry["rules"]}


def test_without_entries_for_workloads_only_labels_on_namespaces_and_pods_count() -> None:
    document = webhook_configuration(has_workload_entries=False, namespace="ours", exempt_namespaces=["theirs"])
    assert [entry["name"].partition(".")[0] for entry in document["webhooks"]] == ["namespace", "pod"]
    first = document["webhooks"][0]
    assert first["namespaceSelector"]["matchExpressions"][0]["values"] == ["theirs", "ours"]
    assert first["clientConfig"] == {
        "service": {"name": "mldiagnostics-injection-webhook", "namespace": "ours", "path": "/mutate", "port": 443}
    }
