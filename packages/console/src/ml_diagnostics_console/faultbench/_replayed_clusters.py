"""Faults that only Kubernetes sees, replayed: its objects as its API has them, beside a killed job or none at all.

There is no cluster: the objects are parsed as the answers of kubectl are. So these runs count apart.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from ml_diagnostics_common.entry import format_timestamp

from ml_diagnostics_console._facts.facts import Fact
from ml_diagnostics_console._facts.kubernetes_facts import KubernetesFacts
from ml_diagnostics_console._facts.kubernetes_objects import (
    add_usage,
    parse_admission,
    parse_event,
    parse_job,
    parse_node,
    parse_pod,
    parse_quota,
)
from ml_diagnostics_console.faultbench._plans import Plan

__all__ = ["CLUSTER", "CLUSTER_KINDS", "WITHOUT_JOB", "cluster_facts", "write_cluster"]

CLUSTER: Final = "cluster.json"
"""The name of the file of objects in a job's folder."""
_CHIP: Final = "google.com/tpu"
_IMAGE: Final = "europe-docker.pkg.dev/lab/train/train:v7"
_SECOND_NS: Final = 10**9
_WAITED_NS: Final = 900 * _SECOND_NS
"""How long a job that never started has waited when it is asked about."""
_NO_NODE: Final = f"0/4 nodes are available: 4 Insufficient {_CHIP}. preemption: 0/4 nodes are available: 4 No victims."

Document = dict[str, Any]


class _Cluster:
    """Builds the objects of one job.

    Args:
        plan: The plan: its culprit is the pod that has the fault.
        failed_ns: When the fault happened, in ns since 1970.
        now_ns: The time of the question.
    """

    def __init__(self, plan: Plan, failed_ns: int, now_ns: int) -> None:
        self.job, self.count, self.culprit = plan.name, plan.processes, plan.culprit
        self.failed_ns, self.now_ns = failed_ns, now_ns
        self.chips = 4

    def pod(self, index: int, status: Document, **spec: Any) -> Document:
        """Return a pod of the job."""
        labels = {"job-name": self.job, "batch.kubernetes.io/job-completion-index": str(index)}
        requests = {_CHIP: str(self.chips), "cpu": "2"}
        container = {"name": "main", "image": _IMAGE, "resources": {"requests": requests, "limits": requests}}
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": self.metadata(f"{self.job}-{index}-x7k{index}p", labels=labels),
            "spec": {"containers": [container], "hostname": f"worker-{index}", **spec},
            "status": status,
        }

    def running(self, index: int) -> Document:
        """Return a pod that runs."""
        return self.pod(
            index, {"phase": "Running", "containerStatuses": [_container(running={})]}, nodeName=f"n-{index}"
        )

    def unscheduled(self, index: int, message: str) -> Document:
        """Return a pod that no node has."""
        conditions = [self.condition("PodScheduled", "False", "Unschedulable", message)]
        return self.pod(index, {"phase": "Pending", "conditions": conditions})

    def waiting(self, index: int, reason: str, message: str, **spec: Any) -> Document:
        """Return a pod with a container that does not start."""
        status = _container(waiting={"reason": reason, "message": message})
        return self.pod(index, {"phase": "Pending", "containerStatuses": [status]}, nodeName=f"n-{index}", **spec)

    def failed(self, index: int, *conditions: Document, **status: Any) -> Document:
        """Return a pod that has failed."""
        end = {"reason": "Error", "exitCode": 137, "startedAt": self.time(0), "finishedAt": _stamp(self.failed_ns)}
        known = {"phase": "Failed", "containerStatuses": [_container(terminated=end)], "conditions": [*conditions]}
        return self.pod(index, {**known, **status}, nodeName=f"n-{index}")

    def event(self, about: Document, reason: str, message: str, source: str) -> Document:
        """Return an event that was last seen half a minute ago."""
        metadata = about["metadata"]
        subject = {name: metadata[name] for name in ("name", "namespace", "uid") if name in metadata}
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": self.metadata(f"{metadata['name']}.{reason.lower()}"),
            "involvedObject": {"kind": about["kind"], "apiVersion": about["apiVersion"], **subject},
            "reason": reason,
            "message": message,
            "type": "Warning",
            "count": 12,
            "firstTimestamp": self.time(20),
            "lastTimestamp": _stamp(self.now_ns - 30 * _SECOND_NS),
            "source": {"component": source},
        }

    def node(self, index: int, *conditions: Document, chips: int = 4) -> Document:
        """Return a node."""
        amounts = {_CHIP: str(chips), "cpu": "16", "memory": "64Gi", "pods": "110"}
        known = [*conditions] or [self.condition("Ready", "True", "KubeletReady")]
        return {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": self.metadata(f"n-{index}"),
            "spec": {},
            "status": {"allocatable": amounts, "capacity": amounts, "conditions": known},
        }

    def owner(self) -> Document:
        """Return the Job."""
        requests = {_CHIP: str(self.chips), "cpu": "2"}
        container = {"name": "main", "image": _IMAGE, "resources": {"requests": requests}}
        counts = {"completions": self.count, "parallelism": self.count, "completionMode": "Indexed"}
        spec = {**counts, "template": {"spec": {"containers": [container], "restartPolicy": "Never"}}}
        return {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": self.metadata(self.job),
            "spec": spec,
            "status": {},
        }

    def condition(self, kind: str, status: str, reason: str, message: str = "", at: str = "") -> Document:
        """Return a condition."""
        known = {"type": kind, "status": status, "reason": reason, "message": message}
        return {**known, "lastTransitionTime": at or self.time(5)}

    def time(self, seconds: float) -> str:
        """Return a time so many seconds after the job was created."""
        return _stamp(min(self.failed_ns, self.now_ns) - _WAITED_NS + round(seconds * _SECOND_NS))

    def pods(self, make: Callable[[int], Document]) -> list[Document]:
        """Return a pod for each index."""
        return [make(index) for index in range(self.count)]

    def metadata(self, name: str, **more: Any) -> Document:
        """Return the metadata of an object."""
        return {"name": name, "namespace": "ml", "uid": f"uid-{name}", "creationTimestamp": self.time(0), **more}


def _no_node(cluster: _Cluster) -> list[Document]:
    pods = cluster.pods(lambda index: cluster.unscheduled(index, _NO_NODE))
    event = cluster.event(pods[0], "FailedScheduling", _NO_NODE, "default-scheduler")
    return [*pods, event, *(cluster.node(index, chips=2) for index in range(4)), *_busy(cluster)]


def _busy(cluster: _Cluster) -> list[Document]:
    """Return another node that would do, with the pod of another job on it."""
    other = cluster.running(7)
    other["metadata"] |= {"name": "serve-7", "uid": "uid-serve-7", "labels": {"job-name": "serve"}}
    return [cluster.node(7), other]


def _quota(cluster: _Cluster) -> list[Document]:
    key = f"requests.{_CHIP}"
    text = (
        f'Error creating: pods "{cluster.job}-0-x" is forbidden: exceeded quota: chips, requested: {key}=4, '
        f"used: {key}=14, limited: {key}=16"
    )
    amounts = {"spec": {"hard": {key: "16"}}, "status": {"hard": {key: "16"}, "used": {key: "14"}}}
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": cluster.metadata("chips"), **amounts}
    return [quota, cluster.event(cluster.owner(), "FailedCreate", text, "job-controller")]


def _no_capacity(cluster: _Cluster) -> list[Document]:
    pods = cluster.pods(lambda index: cluster.unscheduled(index, _NO_NODE))
    text = "Node scale up in zones us-central1-a associated with this pod failed: GCE out of resources."
    return [*pods, cluster.event(pods[0], "FailedScaleUp", text, "cluster-autoscaler"), cluster.node(0, chips=2)]


def _image(cluster: _Cluster) -> list[Document]:
    pods = cluster.pods(lambda index: cluster.waiting(index, "ImagePullBackOff", f'Back-off pulling image "{_IMAGE}"'))
    text = f'Failed to pull image "{_IMAGE}": manifest for {_IMAGE} not found'
    return [*pods, cluster.event(pods[0], "Failed", text, "kubelet")]


def _mount(cluster: _Cluster) -> list[Document]:
    volumes = [{"name": "keys", "secret": {"secretName": "bucket-key"}}]
    pods = cluster.pods(lambda index: cluster.waiting(index, "ContainerCreating", "", volumes=volumes))
    text = 'MountVolume.SetUp failed for volume "keys" : secret "bucket-key" not found'
    return [*pods, cluster.event(pods[0], "FailedMount", text, "kubelet")]


def _too_large(cluster: _Cluster) -> list[Document]:
    cluster.chips = 16
    pods = cluster.pods(lambda index: cluster.unscheduled(index, _NO_NODE))
    event = cluster.event(pods[0], "FailedScheduling", _NO_NODE, "default-scheduler")
    return [*pods, event, *(cluster.node(index) for index in range(4))]


def _gang(cluster: _Cluster) -> list[Document]:
    def pod(index: int) -> Document:
        return cluster.unscheduled(index, _NO_NODE) if index == cluster.culprit else cluster.running(index)

    return [*cluster.pods(pod), *(cluster.node(index) for index in range(cluster.count) if index != cluster.culprit)]


def _eviction(cluster: _Cluster) -> list[Document]:
    message = "The node was low on resource: memory. Threshold quantity: 100Mi, available: 52Mi."
    return _one_failed(cluster, cluster.failed(cluster.culprit, reason="Evicted", message=message))


def _node_loss(cluster: _Cluster) -> list[Document]:
    lost = cluster.condition(
        "DisruptionTarget", "True", "DeletionByTaintManager", "Taint manager: deleting", _stamp(cluster.failed_ns)
    )
    silent = cluster.condition(
        "Ready", "Unknown", "NodeStatusUnknown", "Kubelet stopped posting node status.", _stamp(cluster.failed_ns)
    )
    objects = _one_failed(cluster, cluster.failed(cluster.culprit, lost))
    return [*objects, cluster.node(cluster.culprit, silent)]


def _one_failed(cluster: _Cluster, failed: Document) -> list[Document]:
    others = [cluster.running(index) for index in range(cluster.count) if index != cluster.culprit]
    return [*others, failed, *(cluster.node(index) for index in range(cluster.count) if index != cluster.culprit)]


CLUSTER_KINDS: Final[Mapping[str, Callable[[_Cluster], list[Document]]]] = {
    "replayed_no_node": _no_node,
    "replayed_quota": _quota,
    "replayed_no_capacity": _no_capacity,
    "replayed_image_pull": _image,
    "replayed_mount": _mount,
    "replayed_too_large": _too_large,
    "replayed_gang": _gang,
    "replayed_eviction": _eviction,
    "replayed_node_loss": _node_loss,
}
WITHOUT_JOB: Final = frozenset(CLUSTER_KINDS) - {"replayed_eviction", "replayed_node_loss"}
"""Kinds in which no process has ever started."""


def write_cluster(plan: Plan, folder: Path, *, failed_ns: int, now_ns: int) -> None:
    """Write the objects of a replayed fault into a job's folder.

    Args:
        plan: The plan.
        folder: The folder.
        failed_ns: When the fault happened, in ns since 1970.
        now_ns: The time of the question.
    """
    cluster = _Cluster(plan, failed_ns, now_ns)
    (folder / CLUSTER).write_text(json.dumps([*CLUSTER_KINDS[plan.kind](cluster), cluster.owner()], indent=1))


def cluster_facts(objects: Sequence[Document], now_ns: int) -> Fact[KubernetesFacts]:
    """Return what is known of a cluster with these objects."""
    by_kind: dict[str, list[Document]] = {}
    for each in objects:
        by_kind.setdefault(str(each.get("kind")), []).append(each)
    pods = by_kind.get("Pod", [])
    nodes = [*filter(None, map(parse_node, by_kind.get("Node", ())))]
    jobs = [*filter(None, map(parse_job, by_kind.get("Job", ())))]
    names = {job.name for job in jobs}
    value = KubernetesFacts(
        context="faultbench",
        namespace="ml",
        name=jobs[0].name if len(jobs) == 1 else "",
        pods=tuple(pod for pod in filter(None, map(parse_pod, pods)) if pod.job in names),
        events=tuple(filter(None, map(parse_event, by_kind.get("Event", ())))),
        nodes=tuple(add_usage(nodes, pods)),
        has_all_nodes=bool(nodes),
        jobs=tuple(jobs),
        admissions=tuple(filter(None, map(parse_admission, by_kind.get("Workload", ())))),
        quotas=tuple(filter(None, map(parse_quota, by_kind.get("ResourceQuota", ())))),
    )
    return Fact(value, (), now_ns)


def _container(**state: Any) -> Document:
    is_ready = "running" in state
    return {"name": "main", "ready": is_ready, "restartCount": 0, "image": _IMAGE, "imageID": "", "state": state}


def _stamp(time_ns: int) -> str:
    """Return a time as Kubernetes writes it."""
    return f"{format_timestamp(time_ns)[:19]}Z"
