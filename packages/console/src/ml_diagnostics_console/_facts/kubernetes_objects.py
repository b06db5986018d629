"""Objects of Kubernetes, parsed from JSON: from answers of `kubectl get`, and from recorded facts. Pure.

Answers of a cluster are not trusted: whatever has another form than expected is left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from ml_diagnostics_common.entry import parse_timestamp
from ml_diagnostics_common.texts import one_line

from ml_diagnostics_console._facts.kubernetes_facts import (
    AdmissionFacts,
    Condition,
    ContainerEnd,
    ContainerFacts,
    EventFacts,
    FieldReference,
    JobFacts,
    NodeFacts,
    PodFacts,
    QuotaFacts,
    Taint,
)

__all__ = [
    "JOBSET_LABEL",
    "JOB_LABEL",
    "WORKLOAD_LABELS",
    "add_usage",
    "parse_admission",
    "parse_event",
    "parse_job",
    "parse_node",
    "parse_pod",
    "parse_quota",
    "quantity",
]

Document = Mapping[str, Any]

JOBSET_LABEL: Final = "jobset.sigs.k8s.io/jobset-name"
WORKLOAD_LABELS: Final = (JOBSET_LABEL, "leaderworkerset.sigs.k8s.io/name", "ray.io/cluster")
"""The labels of pods with the name of their workload, above Jobs."""
JOB_LABEL: Final = "job-name"
"""All versions of Kubernetes set it on the pods of a Job; newer ones also `batch.kubernetes.io/job-name`."""
_INDEXES: Final = (
    "batch.kubernetes.io/job-completion-index",
    "leaderworkerset.sigs.k8s.io/worker-index",
    "apps.kubernetes.io/pod-index",
)
_QUEUE_LABEL: Final = "kueue.x-k8s.io/queue-name"
_LONGEST_TEXT: Final = 2_000
_MOST_ITEMS: Final = 256
"""The most containers, conditions, variables or volumes of one object that are parsed."""
_QUANTITY: Final = re.compile(r"([+-]?[0-9.]+)(m|[kMGTPE]i?|Ki|[eE][+-]?[0-9]+|n|u)?")
_FACTORS: Final = {
    "n": 1e-9,
    "u": 1e-6,
    "m": 1e-3,
    "k": 1e3,
    "M": 1e6,
    "G": 1e9,
    "T": 1e12,
    "P": 1e15,
    "E": 1e18,
    "Ki": 2.0**10,
    "Mi": 2.0**20,
    "Gi": 2.0**30,
    "Ti": 2.0**40,
    "Pi": 2.0**50,
    "Ei": 2.0**60,
}


def quantity(value: object) -> float | None:
    """Return an amount of a resource, such as `500m` or `16Gi`; None if it is not valid."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    match = _QUANTITY.fullmatch(value) if isinstance(value, str) and len(value) <= 64 else None
    if match is None:
        return None
    number, suffix = match[1], match[2] or ""
    try:
        return float(number + suffix) if suffix[:1] in ("e", "E") and len(suffix) > 1 else _scaled(number, suffix)
    except ValueError:
        return None


def _scaled(number: str, suffix: str) -> float:
    return float(number) * _FACTORS.get(suffix, 1.0)


def parse_pod(document: Document) -> PodFacts | None:
    """Return a pod; None if the document is not a pod with a name and an id."""
    metadata, spec, status = (_mapping(document.get(key)) for key in ("metadata", "spec", "status"))
    name, uid = _text(metadata, "name"), _text(metadata, "uid")
    if not name or not uid:
        return None
    labels = _texts(metadata.get("labels"))
    notes = _texts(metadata.get("annotations"))
    job = labels.get(JOB_LABEL, "")
    node = _text(spec, "nodeName")
    index = next((_natural(each[key]) for key in _INDEXES for each in (labels, notes) if key in each), None)
    return PodFacts(
        name=name,
        namespace=_text(metadata, "namespace"),
        uid=uid,
        host=node if spec.get("hostNetwork") is True and node else _text(spec, "hostname") or name,
        phase=_text(status, "phase"),
        reason=_text(status, "reason"),
        message=_text(status, "message"),
        node=node,
        index=index,
        job=job,
        workload=_first(labels, WORKLOAD_LABELS) or job,
        created_ns=_time(metadata, "creationTimestamp"),
        deleting_ns=_time(metadata, "deletionTimestamp"),
        conditions=_conditions(status),
        containers=tuple(_containers(spec, status)),
        requests=pod_requests(spec),
        selector=_texts(spec.get("nodeSelector")),
        references=tuple(_references(spec)),
    )


def parse_event(document: Document) -> EventFacts | None:
    """Return an event, of the core API or of `events.k8s.io`; None if it has no object or no reason."""
    metadata = _mapping(document.get("metadata"))
    about = _mapping(document.get("involvedObject")) or _mapping(document.get("regarding"))
    uid, reason = _text(metadata, "uid"), _text(document, "reason")
    if not uid or not reason or not about:
        return None
    series = _mapping(document.get("series"))
    first_ns = _time(document, "firstTimestamp") or _time(document, "eventTime") or _time(metadata, "creationTimestamp")
    last_ns = _time(document, "lastTimestamp") or _time(series, "lastObservedTime") or first_ns
    source = _text(_mapping(document.get("source")), "component") or _text(document, "reportingComponent")
    return EventFacts(
        uid=uid,
        kind=_text(about, "kind"),
        name=_text(about, "name"),
        object_uid=_text(about, "uid"),
        reason=reason,
        message=_text(document, "message") or _text(document, "note"),
        is_warning=document.get("type") == "Warning",
        times=max(1, _natural(document.get("count")) or _natural(series.get("count")) or 1),
        first_ns=first_ns,
        last_ns=last_ns,
        source=source,
    )


def parse_node(document: Document) -> NodeFacts | None:
    """Return a node; None if the document has no name."""
    metadata, spec, status = (_mapping(document.get(key)) for key in ("metadata", "spec", "status"))
    name = _text(metadata, "name")
    if not name:
        return None
    taints = tuple(
        Taint(_text(taint, "key"), _text(taint, "value"), _text(taint, "effect"))
        for taint in _mappings(spec.get("taints"))
    )
    return NodeFacts(
        name=name,
        allocatable=_amounts(status.get("allocatable")),
        labels=_texts(metadata.get("labels")),
        taints=taints,
        conditions=_conditions(status),
        is_unschedulable=spec.get("unschedulable") is True,
    )


def parse_job(document: Document) -> JobFacts | None:
    """Return a Job, a JobSet, or another object with pods; None if the document has no name."""
    metadata, spec, status = (_mapping(document.get(key)) for key in ("metadata", "spec", "status"))
    kind, name = _text(document, "kind"), _text(metadata, "name")
    if not kind or not name:
        return None
    labels = _texts(metadata.get("labels"))
    templates = list(_templates(kind, spec))
    largest = max((template for template, _ in templates), key=_weight, default={})
    counts = [count for _, count in templates]
    return JobFacts(
        kind=kind,
        name=name,
        namespace=_text(metadata, "namespace"),
        uid=_text(metadata, "uid"),
        owner=labels.get(JOBSET_LABEL, "") if kind == "Job" else "",
        pods=sum(count or 0 for count in counts) if counts and None not in counts else None,
        is_suspended=spec.get("suspend") is True,
        restarts=_natural(status.get("restarts")) or 0,
        conditions=_conditions(status),
        queue=labels.get(_QUEUE_LABEL, ""),
        created_ns=_time(metadata, "creationTimestamp"),
        requests=pod_requests(largest),
        selector=_texts(largest.get("nodeSelector")),
    )


def parse_admission(document: Document) -> AdmissionFacts | None:
    """Return a Workload of Kueue; None if the document has no name."""
    metadata, spec, status = (_mapping(document.get(key)) for key in ("metadata", "spec", "status"))
    name = _text(metadata, "name")
    if not name:
        return None
    owner = next((_text(owner, "name") for owner in _mappings(metadata.get("ownerReferences"))), "")
    return AdmissionFacts(
        name=name,
        namespace=_text(metadata, "namespace"),
        uid=_text(metadata, "uid"),
        queue=_text(spec, "queueName"),
        owner=owner,
        is_active=spec.get("active") is not False,
        conditions=_conditions(status),
        created_ns=_time(metadata, "creationTimestamp"),
    )


def parse_quota(document: Document) -> QuotaFacts | None:
    """Return a ResourceQuota; None if the document has no name."""
    metadata, status = _mapping(document.get("metadata")), _mapping(document.get("status"))
    name = _text(metadata, "name")
    if not name:
        return None
    return QuotaFacts(name, _text(metadata, "uid"), _amounts(status.get("hard")), _amounts(status.get("used")))


def add_usage(nodes: Sequence[NodeFacts], pods: Iterable[Document]) -> tuple[NodeFacts, ...]:
    """Return nodes with what all pods of the cluster request of them."""
    used: dict[str, dict[str, float]] = {node.name: {} for node in nodes}
    for document in pods:
        spec, status = _mapping(document.get("spec")), _mapping(document.get("status"))
        of_node = used.get(_text(spec, "nodeName"))
        if of_node is not None and status.get("phase") not in ("Succeeded", "Failed"):
            for resource, amount in pod_requests(spec).items():
                of_node[resource] = of_node.get(resource, 0.0) + amount
    return tuple(replace(node, used=used[node.name]) for node in nodes)


def pod_requests(spec: Document) -> dict[str, float]:
    """Return what a pod requests of its node: the sum of its containers, or the largest of those that run before.

    A resource with a limit and without a request is requested as far as the limit, as the API server has it.
    """
    total: dict[str, float] = {}
    for container in _mappings(spec.get("containers")):
        for resource, amount in _requests(container).items():
            total[resource] = total.get(resource, 0.0) + amount
    for container in _mappings(spec.get("initContainers")):
        for resource, amount in _requests(container).items():
            total[resource] = max(total.get(resource, 0.0), amount)
    return total


def _requests(container: Document) -> dict[str, float]:
    resources = _mapping(container.get("resources"))
    return {**_amounts(resources.get("limits")), **_amounts(resources.get("requests"))}


def _weight(spec: Document) -> float:
    """Return a number by which pods are ordered: that of their chips first."""
    requests = pod_requests(spec)
    chips = sum(amount for resource, amount in requests.items() if "/" in resource)
    return chips * 1e6 + requests.get("cpu", 0.0)


def _templates(kind: str, spec: Document) -> Iterator[tuple[Document, int | None]]:
    """Yield the spec of each kind of pod of an object, and how many pods there are of it."""
    if kind == "JobSet":
        for replicated in _mappings(spec.get("replicatedJobs")):
            job = _mapping(_mapping(replicated.get("template")).get("spec"))
            replicas = _natural(replicated.get("replicas"))
            pods = _pods_of_job(job)
            yield _pod_spec(job), None if pods is None else pods * (1 if replicas is None else replicas)
    elif kind == "LeaderWorkerSet":
        template = _mapping(spec.get("leaderWorkerTemplate"))
        size, replicas = _natural(template.get("size")), _natural(spec.get("replicas"))
        count = None if size is None else size * (1 if replicas is None else replicas)
        yield _mapping(_mapping(template.get("workerTemplate")).get("spec")), count
    elif kind == "Job":
        yield _pod_spec(spec), _pods_of_job(spec)


def _pods_of_job(spec: Document) -> int | None:
    """Return how many pods of a Job run at once."""
    parallelism, completions = _natural(spec.get("parallelism")), _natural(spec.get("completions"))
    parallelism = 1 if parallelism is None and completions is None else parallelism
    known = [count for count in (parallelism, completions) if count is not None]
    return min(known) if known else None


def _pod_spec(job: Document) -> Document:
    return _mapping(_mapping(job.get("template")).get("spec"))


def _containers(spec: Document, status: Document) -> Iterator[ContainerFacts]:
    for field, statuses in (("initContainers", "initContainerStatuses"), ("containers", "containerStatuses")):
        by_name = {_text(each, "name"): each for each in _mappings(status.get(statuses))}
        for number, container in enumerate(_mappings(spec.get(field))):
            name = _text(container, "name")
            yield _container(f"spec.{field}[{number}]", name, container, by_name.get(name, {}))


def _container(path: str, name: str, container: Document, status: Document) -> ContainerFacts:
    state = _mapping(status.get("state"))
    waiting = _mapping(state.get("waiting"))
    ends = (state.get("terminated"), _mapping(status.get("lastState")).get("terminated"))
    return ContainerFacts(
        name=name,
        path=path,
        image=_text(container, "image") or _text(status, "image"),
        is_running="running" in state,
        waiting_reason=_text(waiting, "reason"),
        waiting_message=_text(waiting, "message"),
        restarts=_natural(status.get("restartCount")) or 0,
        ends=tuple(_end(end) for end in ends if isinstance(end, Mapping)),
    )


def _end(end: Document) -> ContainerEnd:
    reason, code, message = _text(end, "reason"), _natural(end.get("exitCode")), _text(end, "message")
    return ContainerEnd(reason, code, message, _time(end, "startedAt"), _time(end, "finishedAt"))


def _references(spec: Document) -> Iterator[FieldReference]:
    """Yield the fields of a pod that name config maps, secrets, claims and volumes."""
    for field in ("initContainers", "containers"):
        for number, container in enumerate(_mappings(spec.get(field))):
            yield from _references_of_container(f"spec.{field}[{number}]", container)
    for number, volume in enumerate(_mappings(spec.get("volumes"))):
        path = f"spec.volumes[{number}]"
        yield FieldReference(path, "volume", _text(volume, "name"))
        for source, kind, key in _VOLUME_SOURCES:
            name = _text(_mapping(volume.get(source)), key)
            if name:
                yield FieldReference(f"{path}.{source}.{key}", kind, name)


_VOLUME_SOURCES: Final = (
    ("configMap", "configmap", "name"),
    ("secret", "secret", "secretName"),
    ("persistentVolumeClaim", "persistentvolumeclaim", "claimName"),
)


def _references_of_container(path: str, container: Document) -> Iterator[FieldReference]:
    for number, variable in enumerate(_mappings(container.get("env"))):
        source = _mapping(variable.get("valueFrom"))
        for key, kind in (("configMapKeyRef", "configmap"), ("secretKeyRef", "secret")):
            name = _text(_mapping(source.get(key)), "name")
            if name:
                yield FieldReference(f"{path}.env[{number}].valueFrom.{key}", kind, name)
    for number, variables in enumerate(_mappings(container.get("envFrom"))):
        for key, kind in (("configMapRef", "configmap"), ("secretRef", "secret")):
            name = _text(_mapping(variables.get(key)), "name")
            if name:
                yield FieldReference(f"{path}.envFrom[{number}].{key}", kind, name)


def _conditions(status: Document) -> tuple[Condition, ...]:
    return tuple(
        Condition(
            _text(each, "type"),
            _text(each, "status"),
            _text(each, "reason"),
            _text(each, "message"),
            _time(each, "lastTransitionTime"),
        )
        for each in _mappings(status.get("conditions"))
    )


def _mapping(value: object) -> Document:
    return value if isinstance(value, Mapping) else {}


def _mappings(value: object) -> list[Document]:
    items = value[:_MOST_ITEMS] if isinstance(value, list) else ()
    return [item for item in items if isinstance(item, Mapping)]


def _text(mapping: Document, key: str) -> str:
    value = mapping.get(key)
    return one_line(value, _LONGEST_TEXT) if isinstance(value, str) else ""


def _texts(value: object) -> dict[str, str]:
    items = value.items() if isinstance(value, Mapping) else ()
    return {key: text for key, text in items if isinstance(key, str) and isinstance(text, str)}


def _first(labels: Mapping[str, str], names: Sequence[str]) -> str:
    return next((labels[name] for name in names if labels.get(name)), "")


def _amounts(value: object) -> dict[str, float]:
    items = value.items() if isinstance(value, Mapping) else ()
    amounts = {key: quantity(amount) for key, amount in items if isinstance(key, str)}
    return {key: amount for key, amount in amounts.items() if amount is not None}


def _natural(value: object) -> int | None:
    if isinstance(value, str):
        return int(value) if value.isascii() and value.isdigit() and len(value) <= 18 else None
    return value if type(value) is int and value >= 0 else None


def _time(mapping: Document, key: str) -> int | None:
    value = mapping.get(key)
    try:
        return parse_timestamp(value) if isinstance(value, str) else None
    except ValueError:
        return None
