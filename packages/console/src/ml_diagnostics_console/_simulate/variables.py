"""Variables, command and arguments of a pod, as Kubernetes makes them from the manifest. Pure.

Differences to a cluster are texts in `notes`: sources of variables that are not known here.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from ml_diagnostics_console._facts.kubernetes_objects import quantity
from ml_diagnostics_console._simulate.fields import Fields
from ml_diagnostics_console._simulate.manifest import Job, Workload

__all__ = ["Pod", "expanded", "pods_of", "variables_of"]

_REFERENCE: Final = re.compile(r"\$(?:\$|\(([^()]*)\))")
_KEY: Final = re.compile(r"metadata\.(labels|annotations)\['([^']+)'\]")
_LOOPBACK: Final = "127.0.0.1"


@dataclass(frozen=True)
class Pod:
    """One pod.

    Attributes:
        job: Its job.
        index: Its completion index, or its number where the job has none.
        rank: Its number among all pods of the workload, from 0.
    """

    job: Job
    index: int
    rank: int

    @property
    def name(self) -> str:
        """The name for people, which is also the hostname of a pod with an index."""
        return f"{self.job.name}-{self.index}"

    def full_name(self, attempt: int) -> str:
        """Return the pod's name, of which Kubernetes invents the last part."""
        return f"{self.name}-{hashlib.sha256(f'{self.name}/{attempt}'.encode()).hexdigest()[:5]}"


@dataclass
class Sources:
    """Sources of a pod's variables.

    Attributes:
        workload: The workload.
        pod: The pod.
        attempt: How often the pod has been started before.
        restarts: How often the whole JobSet has been restarted.
        given: Variables from `--env`, which win.
        notes: Sources that are not known here, for the user.
    """

    workload: Workload
    pod: Pod
    attempt: int = 0
    restarts: int = 0
    given: Mapping[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def pods_of(workload: Workload, hosts: int | None = None) -> tuple[Pod, ...]:
    """Return the pods that run at once.

    Args:
        workload: The workload.
        hosts: The most pods of each job; None for all.
    """
    pods: list[Pod] = []
    for job in workload.jobs:
        count = job.parallelism if hosts is None else min(hosts, job.parallelism)
        pods += [Pod(job, index, len(pods) + index) for index in range(count)]
    return tuple(pods)


def expanded(text: str, variables: Mapping[str, str]) -> str:
    """Return a text with `$(NAME)` replaced; names that are not known stay, and `$$` is `$`."""

    def replace(found: re.Match[str]) -> str:
        if found[1] is None:
            return "$"
        return variables.get(found[1], found[0])

    return _REFERENCE.sub(replace, text)


def variables_of(sources: Sources, base: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of the pod's container: those of the manifest, in its order.

    Args:
        sources: Their sources; `notes` get what is not known.
        base: Variables that the cluster sets: those of the manifest may refer to them, and win.
    """
    container = sources.pod.job.template.container
    found: dict[str, str] = dict(base)
    for each in container.each("envFrom"):
        prefix = each.text("prefix")
        found |= {f"{prefix}{name}": value for name, value in _config_map(each.fields("configMapRef"), sources).items()}
        if "secretRef" in each:
            name = each.fields("secretRef").text("name")
            sources.notes.append(f"secret {name}: its variables are not set; give them with --env NAME=VALUE")
    for each in container.each("env"):
        name = each.text("name")
        if name in sources.given:
            continue
        if "valueFrom" in each:
            value = _from(each.fields("valueFrom"), name, sources)
            if value is not None:
                found[name] = value
        else:
            found[name] = expanded(each.text("value"), found)
    return {**found, **sources.given}


def _from(source: Fields, name: str, sources: Sources) -> str | None:
    if "fieldRef" in source:
        path = source.fields("fieldRef").text("fieldPath")
        value = _field(path, sources)
        if value is None:
            sources.notes.append(f"variable {name}: {path} is not known here; give it with --env {name}=VALUE")
        return value
    if "resourceFieldRef" in source:
        reference = source.fields("resourceFieldRef")
        value = _resource(reference, sources.pod.job.template.resources)
        if value is None:
            resource = reference.text("resource")
            sources.notes.append(f"variable {name}: {resource} is not set; give it with --env {name}=VALUE")
        return value
    if "configMapKeyRef" in source:
        reference = source.fields("configMapKeyRef")
        known = sources.workload.config_maps.get(reference.text("name"), {}).get(reference.text("key"))
        if known is None:
            kind = f"config map {reference.text('name')} is not in the file"
            sources.notes.append(f"variable {name}: {kind}; give it with --env {name}=VALUE")
        return known
    if "secretKeyRef" in source:
        secret = source.fields("secretKeyRef").text("name")
        sources.notes.append(f"variable {name}: secret {secret} is not read; give it with --env {name}=VALUE")
    return None


def _config_map(reference: Fields, sources: Sources) -> Mapping[str, str]:
    name = reference.text("name")
    if not name:
        return {}
    if name not in sources.workload.config_maps:
        sources.notes.append(f"config map {name}: it is not in the file; give its variables with --env NAME=VALUE")
    return sources.workload.config_maps.get(name, {})


def _field(path: str, sources: Sources) -> str | None:
    pod, template = sources.pod, sources.pod.job.template
    found = _KEY.fullmatch(path)
    if found:
        labels = _labels(sources)
        return (labels if found[1] == "labels" else {**template.annotations, **labels}).get(found[2], "")
    identity = hashlib.sha256(pod.full_name(sources.attempt).encode()).hexdigest()
    fields = {
        "metadata.name": pod.full_name(sources.attempt),
        "metadata.namespace": sources.workload.namespace,
        "metadata.uid": "-".join((identity[:8], identity[8:12], identity[12:16], identity[16:20], identity[20:32])),
        "spec.nodeName": f"simulated-node-{pod.rank}",
        "spec.serviceAccountName": template.spec.text("serviceAccountName", "default"),
        "status.hostIP": _LOOPBACK,
        "status.hostIPs": _LOOPBACK,
        "status.podIP": _LOOPBACK,
        "status.podIPs": _LOOPBACK,
    }
    return fields.get(path)


def _labels(sources: Sources) -> dict[str, str]:
    """Return the labels of the pod: those of the template, and those that Job and JobSet add."""
    pod, job, workload = sources.pod, sources.pod.job, sources.workload
    labels = {**job.template.labels, "batch.kubernetes.io/job-name": job.name, "job-name": job.name}
    if job.is_indexed:
        labels["batch.kubernetes.io/job-completion-index"] = str(pod.index)
    if job.replicated_job:
        coordinator = workload.spec.fields("coordinator")
        key = hashlib.sha1(f"{workload.namespace}/{job.name}".encode(), usedforsecurity=False).hexdigest()
        added = {
            "jobset-name": workload.name,
            "replicatedjob-name": job.replicated_job,
            "replicatedjob-replicas": str(job.replicas),
            "job-index": str(job.job_index),
            "job-global-index": str(job.global_index),
            "global-replicas": str(len(workload.jobs)),
            "job-key": key,
            "restart-attempt": str(sources.restarts),
        }
        if "replicatedJob" in coordinator:
            parts = (coordinator.number("jobIndex", 0), coordinator.number("podIndex", 0))
            host = "-".join((workload.name, coordinator.text("replicatedJob"), *map(str, parts)))
            added["coordinator"] = f"{host}.{workload.subdomain}"
        labels |= {f"jobset.sigs.k8s.io/{name}": value for name, value in added.items()}
    return labels


def _resource(reference: Fields, resources: Fields) -> str | None:
    """Return an amount in units of the divisor, rounded up, as the kubelet does; the limit stands for the request."""
    kind, _, name = reference.text("resource").partition(".")
    asked = {**resources.pairs("limits"), **resources.pairs("requests" if kind == "requests" else "limits")}
    value, divisor = quantity(asked.get(name, "")), quantity(reference.text("divisor", "1"))
    return None if value is None or not divisor else str(math.ceil(value / divisor))
