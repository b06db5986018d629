"""Jobs of a real Kubernetes API server that wait or were ended: what the doctor's rules say of them.

There is no kubelet and no scheduler: tests write the status of pods, events and nodes as those do.
"""

from __future__ import annotations

import itertools
import json
import os
import urllib.error
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from ml_diagnostics_console._facts.facts import Fact, Facts, Unknown
from ml_diagnostics_console._facts.kubernetes import read_kubernetes
from ml_diagnostics_console._facts.kubernetes_facts import KubernetesFacts
from ml_diagnostics_console._rules import (
    b1_too_large,
    w1_no_node,
    w2_quota,
    w3_autoscaler,
    w4_image_or_mount,
    w5_part_of_gang,
)
from ml_diagnostics_console._rules.pod_reasons import kubernetes_reason
from ml_diagnostics_console._rules.rule import Rule
from ml_diagnostics_console.verdict import Blame, Verdict

from ..kube_api import KubeApi
from ..testing.kubectl import needs_kubectl
from .made_clusters import (
    IMAGE,
    TPU,
    admission,
    condition,
    ended,
    event,
    job,
    jobset,
    node,
    pod,
    quota,
    unscheduled,
    waiting,
)
from .made_facts import facts, process

pytestmark = [needs_kubectl]

_RESOURCES = {
    "Pod": "/api/v1/namespaces/{}/pods",
    "Event": "/api/v1/namespaces/{}/events",
    "Node": "/api/v1/nodes",
    "Job": "/apis/batch/v1/namespaces/{}/jobs",
    "JobSet": "/apis/jobset.x-k8s.io/v1alpha2/namespaces/{}/jobsets",
    "Workload": "/apis/kueue.x-k8s.io/v1beta1/namespaces/{}/workloads",
    "ResourceQuota": "/api/v1/namespaces/{}/resourcequotas",
}
_WITH_STATUS = ("Pod", "Node", "ResourceQuota", "Job")
_LATER_NS = 600_000_000_000
_numbers = itertools.count()


class Cluster:
    """A namespace of the API server, with nodes of its own."""

    def __init__(self, api: KubeApi) -> None:
        self.api = api
        self.namespace = f"doctor-{os.getpid()}-{next(_numbers)}"
        self.pool = {"pool": self.namespace}
        api.apply("/api/v1/namespaces", {"metadata": {"name": self.namespace}})
        self._nodes: list[str] = []

    def put(self, document: dict[str, Any]) -> dict[str, Any]:
        """Create an object with its status, as the part of Kubernetes does that is not here."""
        document = json.loads(json.dumps(document).replace('"ml"', f'"{self.namespace}"'))
        kind = document["kind"]
        path = _RESOURCES[kind].format(self.namespace)
        created = self.api.apply(path, document)
        status = document.get("status")
        if kind in _WITH_STATUS and status:
            change = {"status": status}
            created = self.api.call(
                "PATCH", f"{path}/{created['metadata']['name']}/status", change, kind="application/merge-patch+json"
            )
        if kind == "Node":
            self._nodes.append(document["metadata"]["name"])
        return created

    def node(self, number: int, chips: int, **more: Any) -> str:
        """Create a node that only pods of this namespace ask for."""
        name = f"{self.namespace}-n{number}"
        self.put(node(name, chips, labels={**self.pool, **more.pop("labels", {})}, **more))
        return name

    def read(self, name: str = "train", **more: Any) -> Fact[KubernetesFacts]:
        """Return what the doctor knows of a job, ten minutes later."""
        found = read_kubernetes(name, context="loopback", namespace=self.namespace, **more)
        assert isinstance(found, Fact), found
        return replace(found, as_of_ns=found.as_of_ns + _LATER_NS)

    def judge(self, rule: Rule) -> Verdict:
        """Return the verdict of a rule on the job `train`, of which no process has recorded anything."""
        found = rule.judge(self.facts())
        assert isinstance(found, Verdict), found
        return found

    def facts(self, *attempts: Any) -> Facts:
        """Return the facts of the job."""
        known = self.read()
        return facts(*attempts, kubernetes=known, now_ns=known.as_of_ns)

    def close(self) -> None:
        """Delete the nodes, which are in no namespace."""
        for name in self._nodes:
            self.api.call("DELETE", f"/api/v1/nodes/{name}")


@pytest.fixture
def cluster(kube_api: KubeApi, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    monkeypatch.setenv("KUBECONFIG", str(kube_api.kubeconfig))
    found = Cluster(kube_api)
    yield found
    found.close()


def test_the_user_reads_that_no_node_fits(cluster: Cluster) -> None:
    message = f"0/2 nodes are available: 2 Insufficient {TPU}."
    cluster.put(job(pods=1))
    pending = cluster.put(unscheduled(message, spec={"nodeSelector": cluster.pool}))
    cluster.put(event(pending, "FailedScheduling", message))
    first = cluster.node(1, 4)
    cluster.put({**pod(7, job="other", chips=2), "spec": {**pod(7, job="other", chips=2)["spec"], "nodeName": first}})
    found = cluster.judge(w1_no_node.RULE)
    assert "No node fits pod train-0-x7k0p since" in found.sentence
    assert f"the largest free node, {first}, has 2 {TPU}" in found.sentence
    assert found.blame is Blame.SYSTEM
    assert [ref.id.partition("/")[0] for ref in found.evidence] == ["pod", "event"]


def test_the_user_reads_that_a_request_is_above_any_node(cluster: Cluster) -> None:
    message = f"0/1 nodes are available: 1 Insufficient {TPU}."
    cluster.put(job(pods=1, chips=8))
    cluster.put(unscheduled(message, chips=8, spec={"nodeSelector": cluster.pool}))
    name = cluster.node(1, 4)
    found = cluster.judge(b1_too_large.RULE)
    assert f"it requests 8 {TPU}, and the largest node that it may use, {name}, has 4 {TPU}" in found.sentence


def test_the_user_reads_that_kueue_holds_the_job(cluster: Cluster) -> None:
    cluster.put(job(spec={"suspend": True}))
    message = "couldn't assign flavors to pod set main: insufficient unused quota, 16 more needed"
    cluster.put(admission(condition("QuotaReserved", "False", "Pending", message)))
    found = cluster.judge(w2_quota.RULE)
    assert "Kueue holds train in queue research since" in found.sentence
    assert "16 more needed" in found.sentence


def test_the_user_reads_the_refusal_of_the_api_server_itself(cluster: Cluster) -> None:
    created = cluster.put(job(pods=2))
    cluster.put(quota(4, 4))
    with pytest.raises(urllib.error.HTTPError) as refused:
        cluster.api.call("POST", f"/api/v1/namespaces/{cluster.namespace}/pods", {**pod(1), "metadata": {"name": "x"}})
    with refused.value:
        message = json.loads(refused.value.read())["message"]
    assert "exceeded quota: chips" in message
    found = event(created, "FailedCreate", f"Error creating: {message}")
    now = cluster.read().as_of_ns
    found["lastTimestamp"] = found["firstTimestamp"] = _time(now - _LATER_NS)
    cluster.put(found)
    verdict = cluster.judge(w2_quota.RULE)
    assert f"a pod requests 4 {TPU}, and 4 {TPU} of 4 {TPU} are in use" in verdict.sentence


def test_the_user_reads_that_the_autoscaler_has_no_capacity(cluster: Cluster) -> None:
    cluster.put(job(pods=1))
    pending = cluster.put(unscheduled("0/1 nodes are available: 1 Insufficient cpu."))
    cluster.put(event(pending, "FailedScaleUp", "Node scale up in zone a failed: GCE out of resources."))
    assert "GCE out of resources" in cluster.judge(w3_autoscaler.RULE).sentence


def test_the_user_reads_which_field_of_the_pod_is_wrong(cluster: Cluster) -> None:
    cluster.put(job(pods=1))
    pending = cluster.put(waiting("ImagePullBackOff", f'Back-off pulling image "{IMAGE}"'))
    cluster.put(event(pending, "Failed", f'Failed to pull image "{IMAGE}": {IMAGE}: not found', source="kubelet"))
    found = cluster.judge(w4_image_or_mount.RULE)
    assert f"since it does not exist: spec.containers[0].image {IMAGE} is wrong" in found.sentence


def test_the_user_reads_which_volume_cannot_be_mounted(cluster: Cluster) -> None:
    cluster.put(job(pods=1))
    document = waiting("ContainerCreating", "the container is created")
    document["spec"]["volumes"] = [{"name": "data", "secret": {"secretName": "keys"}}]
    pending = cluster.put(document)
    cluster.put(event(pending, "FailedMount", 'MountVolume.SetUp failed for volume "data" : secret "keys" not found'))
    found = cluster.judge(w4_image_or_mount.RULE)
    assert "Secret keys does not exist: spec.volumes[0].secret.secretName is wrong" in found.sentence


def test_the_user_reads_which_pods_of_a_jobset_never_started(cluster: Cluster) -> None:
    labels = {"jobset.sigs.k8s.io/jobset-name": "train"}
    cluster.put(jobset())
    for number, index in ((0, 0), (0, 1), (1, 0)):
        cluster.put(pod(index, job=f"train-workers-{number}", labels=labels))
    cluster.put(unscheduled("0/1 nodes are available: 1 Too many pods.", 1, job="train-workers-1", labels=labels))
    found = cluster.judge(w5_part_of_gang.RULE)
    assert found.sentence.startswith("1 of 4 pods of train never started, and the 3 others wait for them")
    assert "train-workers-1-1-x7k1p is Pending (Unschedulable)" in found.sentence


def test_the_user_reads_that_the_kubelet_evicted_the_pod(cluster: Cluster) -> None:
    status = {"phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: memory. "}
    cluster.put(pod(0, status={**status, "containerStatuses": [ended("Error", 137)]}))
    # The creation is that of the API server: the process of this test started long before it.
    reason = killed_now(cluster)
    assert "the kubelet of node n-0 evicted pod" in reason.text
    assert "low on resource: memory" in reason.text
    assert reason.blame is Blame.SYSTEM


def killed_now(cluster: Cluster) -> Any:
    """Return the reason for the end of the process of pod 0, at the time of the reading."""
    known = cluster.read()
    now_ns = known.as_of_ns - _LATER_NS
    ended_now = process(0, host="train-0", end="signal: SIGKILL", started_ns=now_ns, last_event_ns=now_ns)
    ended_now = replace(ended_now, end=ended_now.end._replace(ended_ns=now_ns))
    asked = facts([ended_now], kubernetes=known, now_ns=now_ns)
    return kubernetes_reason(asked, ended_now)


def test_the_user_reads_that_the_node_was_lost(cluster: Cluster) -> None:
    now = _time(cluster_time(cluster))
    silent = {"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown", "lastTransitionTime": now}
    message = "Kubelet stopped posting node status."
    name = cluster.node(0, 4, labels={"cloud.google.com/gke-spot": "true"}, conditions=[{**silent, "message": message}])
    document = pod(0)
    document["spec"]["nodeName"] = name
    cluster.put(document)
    reason = killed_now(cluster)
    assert f"spot node {name} of pod" in reason.text
    assert message.rstrip(".") in reason.text
    assert reason.blame is Blame.PREEMPTION
    assert reason.ref.id == f"node/{name}"


def cluster_time(cluster: Cluster) -> int:
    cluster.put(job(pods=1))
    return cluster.read().as_of_ns - _LATER_NS


def test_a_user_without_rights_reads_which_role_is_missing(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    config = json.loads(cluster.api.kubeconfig.read_text())
    config["users"][0]["user"]["token"] = "stranger"
    path = cluster.api.folder / f"kubeconfig-stranger-{os.getpid()}"
    path.write_text(json.dumps(config))
    monkeypatch.setenv("KUBECONFIG", str(path))
    found = read_kubernetes("train", context="loopback", namespace=cluster.namespace)
    assert isinstance(found, Unknown)
    assert "ask for the role `view` there" in found.why
    assert f"kubectl auth can-i list pods --namespace {cluster.namespace} --context loopback" in found.why


def test_a_user_of_one_namespace_reads_the_job_there(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster.put(job(pods=1))
    cluster.put(pod(0))
    rbac = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{cluster.namespace}"
    rules = [{"apiGroups": [""], "resources": ["pods", "events"], "verbs": ["list"]}]
    cluster.api.apply(f"{rbac}/roles", {"metadata": {"name": "reader"}, "rules": rules})
    cluster.api.apply(
        f"{rbac}/rolebindings",
        {
            "metadata": {"name": "reader"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "reader"},
            "subjects": [{"kind": "User", "name": "system:serviceaccount:gke-mldiagnostics:stranger"}],
        },
    )
    config = json.loads(cluster.api.kubeconfig.read_text())
    config["users"][0]["user"]["token"] = "stranger"
    path = cluster.api.folder / f"kubeconfig-reader-{os.getpid()}"
    path.write_text(json.dumps(config))
    monkeypatch.setenv("KUBECONFIG", str(path))
    found = cluster.read().value
    assert [each.name for each in found.pods] == ["train-0-x7k0p"]
    assert {"nodes", "jobs", "resourcequotas"} <= found.unread.keys()


def _time(time_ns: int) -> str:
    from ml_diagnostics_common.entry import format_timestamp

    return f"{format_timestamp(time_ns)[:19]}Z"
