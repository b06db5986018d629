"""Objects of Kubernetes as its API has them, for tests: of a Job `train` with pods for each index, and what fails."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

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

from .made_facts import after

Document = dict[str, Any]
TPU = "google.com/tpu"
IMAGE = "europe-docker.pkg.dev/p/train/train:v7"


def at(seconds: float) -> str:
    """Return a time so many seconds after the start of the job, as Kubernetes writes it."""
    return f"{format_timestamp(after(seconds))[:19]}Z"


def condition(kind: str, status: str, reason: str = "", message: str = "", seconds: float | None = 0.0) -> Document:
    """Return a condition of an object; without a time where the API server sets it."""
    known = {"type": kind, "status": status, "reason": reason, "message": message}
    return {
        **{key: value for key, value in known.items() if value},
        **({} if seconds is None else {"lastTransitionTime": at(seconds)}),
    }


def pod(index: int = 0, *, job: str = "train", namespace: str = "ml", chips: int = 4, **more: Any) -> Document:
    """Return a pod of an indexed Job that runs; `status`, `spec`, `labels` and `metadata` change that."""
    name = more.get("name", f"{job}-{index}-x7k{index}p")
    labels = {"job-name": job, "batch.kubernetes.io/job-name": job, **more.get("labels", {})}
    labels["batch.kubernetes.io/job-completion-index"] = str(index)
    container = {
        "name": "main",
        "image": IMAGE,
        "resources": {"requests": {TPU: str(chips), "cpu": "2"}, "limits": {TPU: str(chips)}},
    }
    spec = {"containers": [container], "hostname": f"{job}-{index}", "nodeName": f"n-{index}", **more.get("spec", {})}
    status = more.get("status", {"phase": "Running", "containerStatuses": [running()]})
    metadata = {"name": name, "namespace": namespace, "labels": labels, **more.get("metadata", {})}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": {key: value for key, value in spec.items() if value is not None},
        "status": status,
    }


def running() -> Document:
    """Return the status of a container that runs."""
    return {"name": "main", "ready": True, "restartCount": 0, "image": IMAGE, "imageID": "", "state": {"running": {}}}


def ended(reason: str, code: int, seconds: float = 60.0) -> Document:
    """Return the status of a container that has ended."""
    state = {"terminated": {"reason": reason, "exitCode": code, "finishedAt": at(seconds), "startedAt": at(0)}}
    return {**running(), "ready": False, "state": state}


def unscheduled(message: str, index: int = 0, **more: Any) -> Document:
    """Return a pod that the scheduler has no node for."""
    status = {"phase": "Pending", "conditions": [condition("PodScheduled", "False", "Unschedulable", message)]}
    spec = {"nodeName": None, **more.pop("spec", {})}
    return pod(index, status=status, spec=spec, **more)


def waiting(reason: str, message: str, index: int = 0, **more: Any) -> Document:
    """Return a pod with a container that waits."""
    state = {"waiting": {"reason": reason, "message": message}}
    status = {"phase": "Pending", "containerStatuses": [{**running(), "ready": False, "state": state}]}
    return pod(index, status=status, **more)


def event(about: Mapping[str, Any], reason: str, message: str = "", *, seconds: float = 60.0, **more: Any) -> Document:
    """Return an event on an object."""
    metadata = about["metadata"]
    known = {key: metadata[key] for key in ("name", "namespace", "uid") if key in metadata}
    namespace = metadata.get("namespace", "default")
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{metadata['name']}.{reason.lower()}", "namespace": namespace},
        "involvedObject": {"kind": about["kind"], "apiVersion": about.get("apiVersion", "v1"), **known},
        "reason": reason,
        "message": message,
        "type": more.get("type", "Warning"),
        "count": more.get("count", 3),
        "firstTimestamp": at(more.get("first", seconds)),
        "lastTimestamp": at(seconds),
        "source": {"component": more.get("source", "default-scheduler")},
    }


def node(name: str, chips: int = 4, *, labels: Mapping[str, str] | None = None, **more: Any) -> Document:
    """Return a node that is ready."""
    conditions = more.get("conditions", [condition("Ready", "True", "KubeletReady")])
    allocatable = {TPU: str(chips), "cpu": "16", "memory": "64Gi", "pods": "110"}
    spec = {"taints": more["taints"]} if "taints" in more else {}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": dict(labels or {})},
        "spec": {**spec, **({"unschedulable": True} if more.get("is_cordoned") else {})},
        "status": {"allocatable": allocatable, "capacity": allocatable, "conditions": conditions},
    }


def job(name: str = "train", pods: int = 4, *, namespace: str = "ml", chips: int = 4, **more: Any) -> Document:
    """Return an indexed Job."""
    template = pod(job=name, namespace=namespace, chips=chips)
    spec = {key: template["spec"][key] for key in ("containers",)}
    selector = {"nodeSelector": more["selector"]} if "selector" in more else {}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": namespace, "labels": more.get("labels", {})},
        "spec": {
            "completions": pods,
            "parallelism": pods,
            "completionMode": "Indexed",
            "template": {"spec": {**spec, **selector, "restartPolicy": "Never"}},
            **more.get("spec", {}),
        },
        "status": more.get("status", {}),
    }


def jobset(name: str = "train", jobs: int = 2, pods: int = 2, *, namespace: str = "ml", **spec: Any) -> Document:
    """Return a JobSet of one kind of Job."""
    template = job(name, pods, namespace=namespace)["spec"]
    replicated = {"name": "workers", "replicas": jobs, "template": {"spec": template}}
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"replicatedJobs": [replicated], **spec},
    }


def admission(*conditions: Document, owner: str = "train", namespace: str = "ml", **spec: Any) -> Document:
    """Return a Workload of Kueue."""
    reference = {"apiVersion": "batch/v1", "kind": "Job", "name": owner, "uid": "owner", "controller": True}
    return {
        "apiVersion": "kueue.x-k8s.io/v1beta1",
        "kind": "Workload",
        "metadata": {"name": f"job-{owner}-3fe2a", "namespace": namespace, "ownerReferences": [reference]},
        "spec": {"queueName": "research", **spec},
        "status": {"conditions": [*conditions]},
    }


def quota(hard: int, used: int, *, namespace: str = "ml") -> Document:
    """Return a ResourceQuota on chips."""
    key = f"requests.{TPU}"
    return {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "chips", "namespace": namespace},
        "spec": {"hard": {key: str(hard)}},
        "status": {"hard": {key: str(hard)}, "used": {key: str(used)}},
    }


def numbered(documents: Sequence[Document], *, created: float = 0.0) -> list[Document]:
    """Return objects with the id and the time of creation that the API server gives them."""
    for document in documents:
        metadata = document["metadata"]
        metadata.setdefault("uid", f"uid-{metadata['name']}")
        metadata.setdefault("creationTimestamp", at(created))
    return [*documents]


def cluster(
    *documents: Document, is_whole: bool = True, seconds: float = 720.0, **fields: Any
) -> Fact[KubernetesFacts]:
    """Return what is known of objects, after some seconds.

    Args:
        *documents: The objects.
        is_whole: True if the nodes are all of the cluster.
        seconds: The time of the reading.
        **fields: Fields of the facts.
    """
    objects: dict[str, list[Document]] = {}
    for document in json.loads(json.dumps(numbered(documents))):
        objects.setdefault(document["kind"], []).append(document)
    for found in objects.get("Event", ()):  # The API server's own ids of the objects that events are about.
        found["involvedObject"].setdefault("uid", f"uid-{found['involvedObject']['name']}")
    nodes = [*filter(None, map(parse_node, objects.get("Node", ())))]
    jobs = map(parse_job, (*objects.get("Job", ()), *objects.get("JobSet", ())))
    known: dict[str, Any] = {
        "context": "test-cluster",
        "namespace": "ml",
        "name": "train",
        "pods": tuple(filter(None, map(parse_pod, objects.get("Pod", ())))),
        "events": tuple(filter(None, map(parse_event, objects.get("Event", ())))),
        "nodes": add_usage(nodes, objects.get("Pod", ())) if is_whole else tuple(nodes),
        "has_all_nodes": is_whole and bool(nodes),
        "jobs": tuple(filter(None, jobs)),
        "admissions": tuple(filter(None, map(parse_admission, objects.get("Workload", ())))),
        "quotas": tuple(filter(None, map(parse_quota, objects.get("ResourceQuota", ())))),
    }
    return Fact(KubernetesFacts(**{**known, **fields}), (), after(seconds))
