"""Facts of Kubernetes that were recorded as they changed, and the union with what the cluster reports now. Pure.

Kubernetes drops events after an hour, and pods when their job is started again. Entries of kind `kubernetes_fact` keep
both: each has the object as it was, with the fields that matter.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Protocol, TypeVar

from google_cloud_mldiagnostics.kubernetes_facts import DELETED, FACT, OBJECT
from ml_diagnostics_common.entry import LogEntry

from ml_diagnostics_console._facts.facts import Fact, Unknown
from ml_diagnostics_console._facts.kubernetes_facts import EventFacts, KubernetesFacts, NodeFacts, PodFacts
from ml_diagnostics_console._facts.kubernetes_objects import parse_event, parse_node, parse_pod

__all__ = ["key_of_object", "merged", "recorded_kubernetes"]


def key_of_object(entry: LogEntry) -> str:
    """Return the identity of the object that an entry has the state of."""
    document = entry.payload.get(OBJECT)
    metadata = document.get("metadata") if isinstance(document, dict) else None
    if not isinstance(document, dict) or not isinstance(metadata, dict):
        return entry.insert_id
    return f"{document.get('kind')}/{metadata.get('uid') or metadata.get('name')}"


def recorded_kubernetes(entries: Iterable[LogEntry]) -> KubernetesFacts | None:
    """Return what was recorded of the pods, events and nodes of a job; None if nothing was.

    Args:
        entries: Entries of the companions' log; those of other kinds are skipped.
    """
    pods: dict[str, PodFacts] = {}
    events: dict[str, EventFacts] = {}
    nodes: dict[str, NodeFacts] = {}
    for entry in sorted(entries, key=lambda entry: entry.timestamp_ns):
        document = entry.payload.get(OBJECT)
        if entry.payload.get("kind") != FACT or not isinstance(document, dict):
            continue
        kind = document.get("kind")
        if kind == "Pod" and (pod := parse_pod(document)) is not None:
            pods[pod.uid] = replace(pod, is_gone=bool(entry.payload.get(DELETED)))
        elif kind == "Event" and (event := parse_event(document)) is not None:
            events[event.uid] = event
        elif kind == "Node" and (node := parse_node(document)) is not None:
            nodes[node.name] = node
    if not pods and not events:
        return None
    workloads = {pod.workload for pod in pods.values() if pod.workload}
    return KubernetesFacts(
        context="",
        namespace=next((pod.namespace for pod in pods.values()), ""),
        name=workloads.pop() if len(workloads) == 1 else "",
        pods=_by_name(pods.values()),
        events=_by_time(events.values()),
        nodes=tuple(nodes.values()),
    )


def merged(live: Fact[KubernetesFacts] | Unknown, before: KubernetesFacts) -> Fact[KubernetesFacts] | Unknown:
    """Return what a cluster reports now together with what was recorded of it before.

    Of an object that is in both, the live one counts. A pod that is only recorded does not exist any more. Without a
    live cluster, only pods that have ended are known for sure: the others may have changed since.

    Args:
        live: The facts that the cluster reports.
        before: The recorded facts.
    """
    if isinstance(live, Unknown):
        pods = tuple(replace(pod, is_gone=True) for pod in before.pods)
        last_ns = max((event.last_ns or 0 for event in before.events), default=0)
        unread = {"cluster": live.why, "nodes": live.why}
        return Fact(replace(before, pods=pods, unread=unread), (), last_ns)
    now = live.value
    uids = {pod.uid for pod in now.pods}
    gone = [replace(pod, is_gone=True) for pod in before.pods if pod.uid not in uids]
    events = {event.uid: event for event in (*before.events, *now.events)}
    nodes = _unknown_to(now.nodes, before.nodes) if not now.has_all_nodes else []
    value = replace(
        now,
        pods=_by_name((*now.pods, *gone)),
        events=_by_time(events.values()),
        nodes=(*now.nodes, *nodes),
    )
    return Fact(value, live.refs, live.as_of_ns)


class _Named(Protocol):
    @property
    def name(self) -> str: ...


_AnyNamed = TypeVar("_AnyNamed", bound=_Named)


def _unknown_to(known: Sequence[_AnyNamed], others: Sequence[_AnyNamed]) -> list[_AnyNamed]:
    names = {each.name for each in known}
    return [each for each in others if each.name not in names]


def _by_name(pods: Iterable[PodFacts]) -> tuple[PodFacts, ...]:
    return tuple(sorted(pods, key=lambda pod: (pod.name, pod.created_ns or 0, pod.uid)))


def _by_time(events: Iterable[EventFacts]) -> tuple[EventFacts, ...]:
    return tuple(sorted(events, key=lambda event: event.last_ns or 0))
