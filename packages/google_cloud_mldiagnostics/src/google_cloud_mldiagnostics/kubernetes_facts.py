"""Entries of kind `kubernetes_fact`: pods, events and nodes of a job as they change, for readers of later days.

Kubernetes keeps events for an hour, and a pod until its job is started again. The operator, or a person's
`doctor --live`, records them into the log of the companions: each entry has the object with the fields that matter,
without its variables, and with secrets removed from its messages.
"""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ml_diagnostics_common.entry import COMPANION_LOG_ID
from ml_diagnostics_common.redaction import redact_text
from ml_diagnostics_common.texts import one_line

if TYPE_CHECKING:
    from ml_diagnostics_common.journal import Journal

__all__ = ["DELETED", "FACT", "OBJECT", "ChangedFacts", "FactLog", "fact_of", "workload_of_pod"]

FACT: Final = "kubernetes_fact"
"""The kind of the entries."""
OBJECT: Final = "object"
"""The key of the object in the payload."""
DELETED: Final = "deleted"
"""The key that is true once the object was deleted."""

_MOST_OBJECTS: Final = 20_000
_MOST_ITEMS: Final = 32
_LONGEST_MESSAGE: Final = 1_000
_JOBSET: Final = "jobset.sigs.k8s.io/jobset-name"
_WORKLOADS: Final = (
    _JOBSET,
    "leaderworkerset.sigs.k8s.io/name",
    "ray.io/cluster",
    "batch.kubernetes.io/job-name",
    "job-name",
)
_INDEXES: Final = (
    "batch.kubernetes.io/job-completion-index",
    "leaderworkerset.sigs.k8s.io/worker-index",
    "apps.kubernetes.io/pod-index",
)
_OF_NODES: Final = (
    "cloud.google.com/gke-spot",
    "cloud.google.com/gke-preemptible",
    "cloud.google.com/active-node-maintenance",
    "cloud.google.com/gke-nodepool",
    "karpenter.sh/capacity-type",
    "eks.amazonaws.com/capacityType",
    "kubernetes.azure.com/scalesetpriority",
    "node.kubernetes.io/instance-type",
)


def fact_of(document: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the fields of a Pod, an Event or a Node that are recorded; None for another object.

    Args:
        document: The object, as the API server returns it.
    """
    kind = document.get("kind")
    if kind == "Pod":
        return _pod(document)
    if kind == "Event":
        return _event(document)
    return _node(document) if kind == "Node" else None


def workload_of_pod(document: Mapping[str, Any]) -> str:
    """Return the name of the workload of a pod: its JobSet, LeaderWorkerSet, Ray cluster or Job; empty without one."""
    labels = _mapping(_mapping(document.get("metadata")).get("labels"))
    return next((str(labels[name]) for name in _WORKLOADS if labels.get(name)), "")


class ChangedFacts:
    """The payloads of objects that have changed, in bounded memory."""

    def __init__(self) -> None:
        self._digests: OrderedDict[str, tuple[str, int]] = OrderedDict()

    def payload_of(self, document: Mapping[str, Any], *, is_deleted: bool = False) -> dict[str, Any] | None:
        """Return the payload of an object's entry; None if nothing that matters has changed.

        An event that repeats is recorded each time that its count has doubled.

        Args:
            document: The object, as the API server returns it.
            is_deleted: True if it was deleted.
        """
        fact = fact_of(document)
        if fact is None:
            return None
        key = str(_mapping(fact.get("metadata")).get("uid") or "")
        if not key:
            return None
        count = fact.get("count") if isinstance(fact.get("count"), int) else 0
        assert isinstance(count, int)
        compared = {name: value for name, value in fact.items() if name not in ("count", "lastTimestamp", "series")}
        digest = hashlib.sha256(json.dumps([compared, is_deleted], sort_keys=True, default=str).encode()).hexdigest()
        known = self._digests.get(key)
        if known is not None and known[0] == digest and count < 2 * max(1, known[1]):
            self._digests.move_to_end(key)
            return None
        self._digests[key] = digest, count
        self._digests.move_to_end(key)
        if len(self._digests) > _MOST_OBJECTS:
            self._digests.popitem(last=False)
        deleted = {DELETED: True} if is_deleted else {}
        return {"kind": FACT, "message": _sentence(fact, is_deleted=is_deleted), OBJECT: fact, **deleted}


class FactLog:
    """Records facts of one job into the log of the companions, in the journal of this machine.

    Args:
        job: The name of the job, or of its workload.
        run: The id of its run; empty if it is not known.
        root: The diagnostics folder; None for the usual one.
        is_shipped: True if entries may be sent to Cloud Logging.
    """

    def __init__(self, job: str, run: str = "", *, root: Path | None = None, is_shipped: bool = False) -> None:
        from ml_diagnostics_common.environment import diagnostics_directory, identity
        from ml_diagnostics_common.journal import Journal

        labels = {**identity().labels(job), **({"run": run} if run else {})}
        self._facts = ChangedFacts()
        self._journal: Journal = Journal(
            COMPANION_LOG_ID, root=root or diagnostics_directory(), labels=labels, shippable=is_shipped
        )

    def add(self, documents: Iterable[Mapping[str, Any]], *, is_deleted: bool = False) -> int:
        """Record what has changed of some objects, and return the number of entries; other kinds are skipped.

        Args:
            documents: The objects, as the API server returns them.
            is_deleted: True if they were deleted.
        """
        written = 0
        for document in documents:
            payload = self._facts.payload_of(document, is_deleted=is_deleted)
            if payload is not None:
                self._journal.append(payload)
                written += 1
        return written

    def close(self, timeout_seconds: float = 5.0) -> None:
        """Write what is held in memory."""
        self._journal.flush(timeout_seconds)


# --- The fields of each kind --------------------------------------------------------------------------------


def _pod(document: Mapping[str, Any]) -> dict[str, Any]:
    spec, status = _mapping(document.get("spec")), _mapping(document.get("status"))
    return _filled(
        {
            "kind": "Pod",
            "metadata": _metadata(document, (*_WORKLOADS, *_INDEXES)),
            "spec": _filled(
                {
                    **_chosen(spec, "nodeName", "hostname", "hostNetwork"),
                    "containers": [_chosen(each, "name", "image") for each in _mappings(spec.get("containers"))],
                }
            ),
            "status": _filled(
                {
                    **_chosen(status, "phase", "reason"),
                    "message": _message(status),
                    "conditions": _conditions(status),
                    "initContainerStatuses": _container_statuses(status, "initContainerStatuses"),
                    "containerStatuses": _container_statuses(status, "containerStatuses"),
                }
            ),
        }
    )


def _container_statuses(status: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
    return [
        _filled(
            {
                **_chosen(each, "name", "restartCount"),
                "state": _state(each.get("state")),
                "lastState": _state(each.get("lastState")),
            }
        )
        for each in _mappings(status.get(key))
    ]


def _state(value: object) -> dict[str, Any]:
    """Return a state of a container: which one it is, and its details."""
    return {
        kind: _filled(
            {
                **_chosen(_mapping(details), "reason", "exitCode", "signal", "startedAt", "finishedAt"),
                "message": _message(_mapping(details)),
            }
        )
        for kind, details in _mapping(value).items()
        if kind in ("waiting", "running", "terminated")
    }


def _event(document: Mapping[str, Any]) -> dict[str, Any]:
    about = _mapping(document.get("involvedObject")) or _mapping(document.get("regarding"))
    source = _mapping(document.get("source")).get("component") or document.get("reportingComponent")
    return _filled(
        {
            "kind": "Event",
            "metadata": _metadata(document, ()),
            "involvedObject": _chosen(about, "kind", "name", "namespace", "uid"),
            **_chosen(document, "reason", "type", "count", "firstTimestamp", "lastTimestamp", "eventTime"),
            "series": _chosen(_mapping(document.get("series")), "count", "lastObservedTime"),
            "message": _message(document) or _message({"message": document.get("note")}),
            "source": {"component": str(source)} if source else {},
        }
    )


def _node(document: Mapping[str, Any]) -> dict[str, Any]:
    spec, status = _mapping(document.get("spec")), _mapping(document.get("status"))
    taints = [_chosen(taint, "key", "value", "effect") for taint in _mappings(spec.get("taints"))]
    ready = [condition for condition in _conditions(status) if condition.get("type") == "Ready"]
    for condition in ready:
        condition.pop("lastHeartbeatTime", None)
    return _filled(
        {
            "kind": "Node",
            "metadata": _metadata(document, _OF_NODES),
            "spec": _filled({**_chosen(spec, "unschedulable"), "taints": taints}),
            "status": {"conditions": ready},
        }
    )


def _metadata(document: Mapping[str, Any], labels: Iterable[str]) -> dict[str, Any]:
    metadata = _mapping(document.get("metadata"))
    known = _mapping(metadata.get("labels"))
    notes = _mapping(metadata.get("annotations"))
    return _filled(
        {
            **_chosen(metadata, "name", "namespace", "uid", "creationTimestamp", "deletionTimestamp"),
            "labels": {name: str(known[name]) for name in labels if name in known},
            "annotations": {name: str(notes[name]) for name in _INDEXES if name in notes},
        }
    )


def _conditions(status: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [
        _filled({**_chosen(each, "type", "status", "reason", "lastTransitionTime"), "message": _message(each)})
        for each in _mappings(status.get("conditions"))
    ]


def _message(mapping: Mapping[str, Any]) -> str:
    """Return a message without secrets: that of a container may be the end of its log."""
    value = mapping.get("message")
    return one_line(redact_text(value[: 2 * _LONGEST_MESSAGE]), _LONGEST_MESSAGE) if isinstance(value, str) else ""


def _sentence(fact: Mapping[str, Any], *, is_deleted: bool) -> str:
    metadata, kind = _mapping(fact.get("metadata")), str(fact.get("kind"))
    name = "/".join(str(metadata[key]) for key in ("namespace", "name") if metadata.get(key))
    if kind == "Event":
        about = _mapping(fact.get("involvedObject"))
        where = f"{str(about.get('kind', '')).lower()} {about.get('name')}"
        return f"{fact.get('reason')} on {where}: {fact.get('message', '')}"
    if is_deleted:
        return f"{kind.lower()} {name} was deleted"
    status = _mapping(fact.get("status"))
    reason = f" ({status['reason']})" if status.get("reason") else ""
    return f"pod {name} is {status.get('phase', 'unknown')}{reason}" if kind == "Pod" else f"node {name} has changed"


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _mappings(value: object) -> list[Mapping[str, Any]]:
    items = value[:_MOST_ITEMS] if isinstance(value, list) else ()
    return [item for item in items if isinstance(item, Mapping)]


def _chosen(mapping: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """Return some fields with plain values."""
    return {name: mapping[name] for name in names if isinstance(mapping.get(name), (str, int, bool))}


def _filled(mapping: dict[str, Any]) -> dict[str, Any]:
    """Return the fields that are not empty."""
    return {name: value for name, value in mapping.items() if value not in ("", None, {}, [])}
