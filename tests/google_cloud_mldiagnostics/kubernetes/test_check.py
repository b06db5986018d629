"""Questions about clusters that the API server of the tests is not: newer ones, and ones with strange objects."""

from __future__ import annotations

import asyncio
import ssl
from typing import Any

import pytest
from google_cloud_mldiagnostics._kubernetes.api import Connection, KubernetesApi
from google_cloud_mldiagnostics._kubernetes.check import policy
from google_cloud_mldiagnostics._kubernetes.check.findings import Case, Finding, State, asked

from ...kube_api import KubeApi


def answer(server: KubeApi, question: Any, version: str, namespace: str, kind: str = "") -> Finding:
    """Return the answer to one question about a cluster of some version, and a workload of some kind."""
    workload = {"kind": kind, "metadata": {"name": "train"}} if kind else None

    async def ask() -> Finding:
        context = ssl.create_default_context(cafile=str(server.authority))
        async with KubernetesApi(Connection(server.url, context, server.token_file())) as api:
            return await asked(question, Case(api, version, namespace, workload))

    return asyncio.run(ask())


@pytest.mark.parametrize(
    ("kind", "unknown"),
    [
        ("JobSet", "It does not know labels of workloads, when they were created"),
        ("TrainJob", "when they were created, a TrainJob above its JobSet"),
        ("", "a TrainJob above its JobSet, a RayJob above its RayCluster"),
    ],
)
def test_on_a_newer_cluster_a_policy_is_recommended_with_what_it_does_not_know(
    kube_api: KubeApi, labelled: str, kind: str, unknown: str
) -> None:
    found = answer(kube_api, policy, "v1.36.1-gke.100", labelled, kind)
    assert found.state is State.OK
    assert found.detail.startswith("possible, without a server to run")
    assert found.detail.endswith(unknown)
    assert found.remedy == "mldiagnostics kubernetes policy --cluster C | kubectl apply -f -"


def test_a_policy_needs_the_label_where_it_can_see_it(kube_api: KubeApi, namespace: str) -> None:
    found = answer(kube_api, policy, "v1.36.0", namespace)
    assert found.detail.endswith("managed-mldiagnostics-gke=true on the namespace or in the template of the pods")


class Strange:
    """A question about an object without the expected form."""

    QUESTION = "strange"

    async def check(self, case: Case) -> Finding:
        raise KeyError("spec")


def test_an_object_of_an_unexpected_form_leaves_its_question_open(kube_api: KubeApi, namespace: str) -> None:
    found = answer(kube_api, Strange(), "v1.20.2", namespace)
    assert found == Finding("strange", State.UNKNOWN, "an object has an unexpected form (KeyError('spec'))")
