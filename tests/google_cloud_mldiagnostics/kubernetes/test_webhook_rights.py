"""Rights of the webhook: with each single one removed, pods start without variables, and a message names it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

pytest.importorskip("starlette")  # It needs Python 3.11, as the images have.

from google_cloud_mldiagnostics._kubernetes.api import Connection, KubernetesApi
from google_cloud_mldiagnostics._kubernetes.webhook import injection
from google_cloud_mldiagnostics._kubernetes.webhook.injection import Result

from ...kube_api import KubeApi
from ...waiting import wait_until
from .clusters import create
from .routes import Routes, operations_of, review

CHAINS = {
    ("", "namespaces"): ["Job"],
    ("", "pods"): ["LeaderWorkerSet", "StatefulSet", "Pod", "StatefulSet"],
    ("apps", "statefulsets"): ["LeaderWorkerSet", "StatefulSet"],
    ("batch", "jobs"): ["Job"],
    ("jobset.x-k8s.io", "jobsets"): ["JobSet", "Job"],
    ("leaderworkerset.x-k8s.io", "leaderworkersets"): ["LeaderWorkerSet", "StatefulSet"],
    ("ray.io", "rayclusters"): ["RayJob", "RayCluster"],
    ("ray.io", "rayjobs"): ["RayJob", "RayCluster"],
    ("trainer.kubeflow.org", "trainjobs"): ["TrainJob", "JobSet", "Job"],
}
"""The rights that the webhook needs, and for each the owners of a pod that need it, the top one first."""
_ROLES = "/apis/rbac.authorization.k8s.io/v1/namespaces/{}/role"


@pytest.fixture
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for the API server of a busy machine: a review without its answer is not one without a right."""
    monkeypatch.setattr(injection, "_LOOKUPS_SECONDS", 60.0)


def allow(server: KubeApi, namespace: str, *, without: tuple[str, str] | None = None) -> None:
    """Give an account that has no rights all of these in one namespace, but for one of them."""
    rules = [
        {"apiGroups": [group], "resources": [resource], "verbs": ["get"]}
        for group, resource in CHAINS
        if (group, resource) != without
    ]
    path = _ROLES.format(namespace)
    server.apply(f"{path}s", {"metadata": {"name": "webhook"}, "rules": rules})
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "webhook"}
    subject = {"kind": "ServiceAccount", "name": "stranger", "namespace": "gke-mldiagnostics"}
    server.apply(f"{path}bindings", {"metadata": {"name": "webhook"}, "roleRef": reference, "subjects": [subject]})
    change = {"rules": rules}
    server.call("PATCH", f"{path}s/webhook", change, kind="application/merge-patch+json")


def result_of(server: KubeApi, namespace: str, pod: dict[str, Any]) -> Result:
    """Return the result of a review that a new webhook answers with the rights of the account."""

    async def ask() -> Result:
        connection = Connection(server.url, server.context(), server.token_file("stranger"))
        async with KubernetesApi(connection) as api:
            routes = Routes(lambda path: api.metadata(path, timeout_seconds=30.0))
            status, body = await routes.post([review(pod, namespace=namespace)])
            assert status == 200
            (result,) = (each for each in Result if routes.count(each))
            assert bool(operations_of(body)) == (result is Result.PATCHED)
            return result

    return asyncio.run(ask())


@pytest.mark.usefixtures("patience")
@pytest.mark.parametrize(("right", "kinds"), CHAINS.items(), ids=[resource for _, resource in CHAINS])
def test_without_a_single_right_pods_are_allowed_and_the_message_names_it(
    kube_api: KubeApi, labelled: str, caplog: pytest.LogCaptureFixture, right: tuple[str, str], kinds: list[str]
) -> None:
    owner = create(kube_api, labelled, kinds[0], "top")
    for index, kind in enumerate(kinds[1:]):
        owner = create(kube_api, labelled, kind, f"owner-{index}", owner)
    pod = create(kube_api, labelled, "Pod", "pod", owner)
    allow(kube_api, labelled)
    wait_until(lambda: result_of(kube_api, labelled, pod) is Result.PATCHED)
    allow(kube_api, labelled, without=right)
    wait_until(lambda: result_of(kube_api, labelled, pod) is Result.LOOKUP_FAILED)
    group, resource = right
    message = f'cannot get resource "{resource}" in API group "{group}"'
    assert message in caplog.messages[-1]
    assert caplog.messages[-1].startswith("A pod gets no variables: ")
