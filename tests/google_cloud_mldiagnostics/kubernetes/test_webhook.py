"""The injection webhook, asked by a real API server: pods have their variables, and none waits for us."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ...kube_api import KubeApi
from ...waiting import wait_until
from .adding_webhook import adding_webhook
from .clusters import CONTAINER, Webhook, create, variables
from .dead_webhooks import dead_webhook

pytest.importorskip("starlette")  # It needs Python 3.11, as the images have.


def identity(pod: dict[str, Any]) -> tuple[dict[str, str], dict[str, str]]:
    found = variables(pod)
    return json.loads(found["GKE_DIAGON_IDENTIFIER"]), json.loads(found["GKE_DIAGON_METADATA"])


@pytest.mark.parametrize(
    "kinds",
    [
        ["Job"],
        ["JobSet", "Job"],
        ["TrainJob", "JobSet", "Job"],
        ["RayJob", "RayCluster"],
        ["RayJob", "Job"],
        ["LeaderWorkerSet", "StatefulSet"],
        ["LeaderWorkerSet", "StatefulSet", "Pod", "StatefulSet"],
    ],
    ids=" > ".join,
)
def test_a_pod_in_a_labelled_namespace_has_the_identity_of_its_top_workload(
    kube_api: KubeApi, labelled: str, webhook: Webhook, kinds: list[str]
) -> None:
    top = owner = create(kube_api, labelled, kinds[0], "top", labels={"team": "vision"})
    for index, kind in enumerate(kinds[1:]):
        owner = create(kube_api, labelled, kind, f"owner-{index}", owner)
    pod = create(kube_api, labelled, "Pod", "pod", owner)
    identifier, metadata = identity(pod)
    assert identifier == {
        "metadata.name": "top",
        "metadata.kind": kinds[0],
        "clustername": "projects/p/locations/l/clusters/c",
        "namespace": labelled,
    }
    assert metadata["uid"] == top["metadata"]["uid"]
    assert metadata["creation-timestamp"] == top["metadata"]["creationTimestamp"]
    assert "team=vision" in metadata["associated-labels"]


def test_a_label_on_the_workload_or_on_the_pod_is_enough(kube_api: KubeApi, namespace: str, webhook: Webhook) -> None:
    label = {"managed-mldiagnostics-gke": "true"}
    jobset = create(kube_api, namespace, "JobSet", "labelled", labels=label)
    job = create(kube_api, namespace, "Job", "of-jobset", jobset)
    of_jobset = {"jobset.sigs.k8s.io/jobset-name": "labelled"}  # The controllers of both kinds set such a label.
    assert identity(create(kube_api, namespace, "Pod", "a", job, labels=of_jobset))[0]["metadata.name"] == "labelled"
    other = create(kube_api, namespace, "Job", "other")
    assert variables(create(kube_api, namespace, "Pod", "b", other, labels={"job-name": "other"})) == {}
    assert identity(create(kube_api, namespace, "Pod", "c", other, labels=label))[0]["metadata.name"] == "other"


def test_variables_of_the_user_are_left_and_each_container_has_both(
    kube_api: KubeApi, labelled: str, webhook: Webhook
) -> None:
    job = create(kube_api, labelled, "Job", "job")
    own = {**CONTAINER, "env": [{"name": "GKE_DIAGON_METADATA", "value": "mine"}, {"name": "A", "value": "b"}]}
    spec = {"containers": [own, {**CONTAINER, "name": "second"}], "initContainers": [{**CONTAINER, "name": "init"}]}
    pod = create(kube_api, labelled, "Pod", "pod", job, spec=spec)
    assert list(variables(pod)) == ["GKE_DIAGON_METADATA", "A", "GKE_DIAGON_IDENTIFIER"]
    assert variables(pod)["GKE_DIAGON_METADATA"] == "mine"
    assert set(variables(pod, 1)) == {"GKE_DIAGON_METADATA", "GKE_DIAGON_IDENTIFIER"}
    assert len(pod["spec"]["initContainers"][0]["env"]) == 2


def test_a_pod_of_1000_containers_and_one_of_a_megabyte_are_patched(
    kube_api: KubeApi, labelled: str, webhook: Webhook
) -> None:
    job = create(kube_api, labelled, "Job", "job")
    many = [{**CONTAINER, "name": f"c-{number}"} for number in range(1000)]
    pod = create(kube_api, labelled, "Pod", "many", job, spec={"containers": many})
    assert all(len(variables(pod, index)) == 2 for index in range(1000))
    large = {**CONTAINER, "env": [{"name": f"A{number}", "value": "x" * 100_000} for number in range(10)]}
    pod = create(kube_api, labelled, "Pod", "large", job, spec={"containers": [large]})
    assert list(variables(pod))[10:] == ["GKE_DIAGON_IDENTIFIER", "GKE_DIAGON_METADATA"]


def test_containers_that_a_later_webhook_adds_have_both_variables_and_no_container_has_one_twice(
    kube_api: KubeApi, labelled: str, webhook: Webhook, tmp_path: Path
) -> None:
    job = create(kube_api, labelled, "Job", "job")
    with adding_webhook(kube_api, labelled, tmp_path) as is_asked:
        wait_until(is_asked)
        pod = create(kube_api, labelled, "Pod", "pod", job)
    assert [each["name"] for each in pod["spec"]["containers"]] == ["main", "added"]
    names = [[each["name"] for each in container["env"]] for container in pod["spec"]["containers"]]
    assert names == [["GKE_DIAGON_IDENTIFIER", "GKE_DIAGON_METADATA"]] * 2


def test_a_dry_run_is_answered_like_a_creation(kube_api: KubeApi, labelled: str, webhook: Webhook) -> None:
    job = create(kube_api, labelled, "Job", "job")
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "job", "uid": job["metadata"]["uid"], "controller": True}
    metadata = {"name": "dry", "ownerReferences": [owner]}
    document = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": [CONTAINER]}}
    pod = kube_api.call("POST", f"/api/v1/namespaces/{labelled}/pods?dryRun=All", document)
    assert identity(pod)[0]["metadata.name"] == "job"


def test_an_owner_of_the_same_name_and_another_uid_is_not_the_owner(
    kube_api: KubeApi, labelled: str, webhook: Webhook
) -> None:
    job = create(kube_api, labelled, "Job", "job")
    pod = create(kube_api, labelled, "Pod", "pod", job, uid="00000000-0000-4000-8000-000000000000")
    assert variables(pod) == {}
    assert f"Job {labelled}/job has another uid than the reference to it" in webhook.log
    assert 'reviews_total{result="lookup_failed"} 1.0' in webhook.metrics()


def test_an_account_without_rights_costs_the_variables_and_one_warning(
    kube_api: KubeApi, labelled: str, tmp_path: Path
) -> None:
    with Webhook(kube_api, tmp_path, account="stranger") as webhook:
        webhook.register(labelled)
        job = create(kube_api, labelled, "Job", "job")
        assert [variables(create(kube_api, labelled, "Pod", f"pod-{n}", job)) for n in range(3)] == [{}, {}, {}]
        assert webhook.log.count("WARNING A pod gets no variables: ") == 1
        assert "the API server refused with 403" in webhook.log
        assert 'lookups_total{kind="jobs",result="forbidden"}' in webhook.metrics()


@pytest.mark.parametrize("name", ["refused", "silent"])
def test_a_webhook_that_is_gone_or_silent_keeps_no_pod_from_starting(
    kube_api: KubeApi, labelled: str, tmp_path: Path, name: str
) -> None:
    """All other kinds of failures are in test_webhook_chaos.py, and how long they take in the benchmarks."""
    job = create(kube_api, labelled, "Job", "job")
    with dead_webhook(name, kube_api, labelled, tmp_path, timeout_seconds=1) as port:
        assert variables(create(kube_api, labelled, "Pod", "pod", job)) == {}
        wait_until(lambda: is_asked(kube_api, labelled, port))


def is_asked(server: KubeApi, namespace: str, port: int) -> bool:
    """Return True if the API server has asked the port in vain, or create another pod for it to ask."""
    if f'Post "https://localhost:{port}/mutate?timeout=1s"' in (server.folder / "apiserver.log").read_text():
        return True
    document = {"metadata": {"generateName": "probe-"}, "spec": {"containers": [CONTAINER]}}
    server.call("POST", f"/api/v1/namespaces/{namespace}/pods", document)
    return False


def test_after_sigterm_pods_are_patched_until_the_cluster_knows_and_then_the_server_ends(
    kube_api: KubeApi, labelled: str, tmp_path: Path
) -> None:
    with Webhook(kube_api, tmp_path, drain_seconds=6.0) as webhook:
        webhook.register(labelled)
        job = create(kube_api, labelled, "Job", "job")
        assert webhook.process is not None
        webhook.process.terminate()
        wait_until(lambda: not webhook.is_ready())
        assert identity(create(kube_api, labelled, "Pod", "pod", job))[0]["metadata.name"] == "job"
        assert webhook.process.wait(30) == 0
