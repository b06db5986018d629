"""The reason that Kubernetes has for the end of a process: for the rules on crashes. Pure.

Only what points to this pod and this time counts. A node that does not exist any more is not a reason by itself: the
autoscaler also removes the nodes of jobs that have ended.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from ml_diagnostics_common.texts import one_line

from ml_diagnostics_console._facts.facts import Fact, Facts, ProcessFacts
from ml_diagnostics_console._facts.kubernetes_facts import (
    ContainerEnd,
    ContainerFacts,
    EventFacts,
    KubernetesFacts,
    NodeFacts,
    PodFacts,
)
from ml_diagnostics_console._rules.rule import Threshold
from ml_diagnostics_console._rules.wording import clock, command_line
from ml_diagnostics_console.verdict import Blame, NextCommand, Ref

__all__ = [
    "OF_NODES",
    "PodReason",
    "describe_pod",
    "kubernetes_reason",
    "options_of",
    "pod_commands",
    "was_container_out_of_memory",
]

NODE_SECONDS: Final = 600.0
"""A node that stops answering is reported after 40 s, and its pods are deleted 5 min later: `node-monitor-grace-period`
and `default-unreachable-toleration-seconds`."""
DELETION_SECONDS: Final = 60.0
"""A deleted pod is killed after its grace period: 30 s, unless the pod has another."""
OF_NODES: Final = (
    Threshold(
        "time between an end and the state of its node, at most", f"{NODE_SECONDS:.0f} s", "Kubernetes' defaults"
    ),
    Threshold("time between an end and the deletion of its pod, at most", f"{DELETION_SECONDS:.0f} s", "grace periods"),
)
"""The numbers that join the end of a process with what its cluster reports."""
_LONGEST_MESSAGE: Final = 240
_SPOT_LABELS: Final = (
    "cloud.google.com/gke-spot",
    "cloud.google.com/gke-preemptible",
    "karpenter.sh/capacity-type",
    "eks.amazonaws.com/capacityType",
    "kubernetes.azure.com/scalesetpriority",
)
_SPOT_VALUES: Final = frozenset({"true", "spot", "SPOT"})
_MAINTENANCE: Final = "cloud.google.com/active-node-maintenance"
_TERMINATION_TAINTS: Final = frozenset(
    {
        "cloud.google.com/impending-node-termination",
        "node.cloudprovider.kubernetes.io/shutdown",
        "ToBeDeletedByClusterAutoscaler",
    }
)
_SHUTDOWN_REASONS: Final = frozenset({"NodeShutdown", "Terminated", "Shutdown"})


class PodReason(NamedTuple):
    """Why a pod has ended, as Kubernetes reports it."""

    text: str
    """A clause with its own subject, and without a full stop."""
    ref: Ref
    blame: Blame


def kubernetes_reason(facts: Facts, process: ProcessFacts) -> PodReason | None:
    """Return why a process was ended from outside; None if Kubernetes was not asked or has no reason.

    Args:
        facts: The facts of the job.
        process: One of its processes.
    """
    found = _pod_of(facts, process)
    if found is None:
        return None
    cluster, pod = found
    for find in _FINDERS:
        reason = find(cluster, pod, process)
        if reason is not None:
            return reason
    return None


def was_container_out_of_memory(facts: Facts, process: ProcessFacts) -> PodReason | None:
    """Return that the kernel killed the container of a process for its memory; None if it did not."""
    found = _pod_of(facts, process)
    return None if found is None else _out_of_memory(*found, process)


def pod_commands(facts: Facts, process: ProcessFacts) -> tuple[NextCommand, ...]:
    """Return the commands that show the pod of a process; none if it is not known."""
    found = _pod_of(facts, process)
    return () if found is None or found[1].is_gone else (describe_pod(*found),)


def describe_pod(cluster: KubernetesFacts, pod: PodFacts) -> NextCommand:
    """Return the command that shows a pod with its conditions and events."""
    command = f"{command_line('kubectl', 'describe', 'pod', pod.name)}{options_of(cluster, pod.namespace)}"
    return NextCommand(command, "shows the conditions and events of the pod")


def options_of(cluster: KubernetesFacts, namespace: str = "") -> str:
    """Return the options of kubectl for a namespace, or for none, and the context."""
    chosen = (("namespace", namespace), ("context", cluster.context))
    return "".join(f" --{option} {command_line(value)}" for option, value in chosen if value)


def _pod_of(facts: Facts, process: ProcessFacts) -> tuple[KubernetesFacts, PodFacts] | None:
    if not isinstance(facts.kubernetes, Fact):
        return None
    cluster = facts.kubernetes.value
    pod = cluster.pod_of(process.host, process.index, process.started_ns, process.end.ended_ns)
    return None if pod is None else (cluster, pod)


def _reason(pod: PodFacts, clause: str, time_ns: int | None, message: str, blame: Blame, ref: str = "") -> PodReason:
    """Return a reason with its time and the message of Kubernetes."""
    shown = one_line(message, _LONGEST_MESSAGE).strip().rstrip(".")
    text = clause + (f" at {clock(time_ns)}" if time_ns is not None else "") + (f": {shown}" if shown else "")
    return PodReason(text, Ref(ref or pod.ref, "kubernetes", time_ns, pod.host, text), blame)


def _named(pod: PodFacts) -> str:
    return f"pod {pod.namespace}/{pod.name}"


def _disrupted(cluster: KubernetesFacts, pod: PodFacts, process: ProcessFacts) -> PodReason | None:
    """Return the reason of the condition DisruptionTarget, which has what was about to end the pod."""
    condition = pod.condition("DisruptionTarget")
    if condition is None or condition.status != "True":
        return None
    node = cluster.node(pod.node)
    if condition.reason.startswith("PreemptionBy"):
        clause, blame = f"the scheduler preempted {_named(pod)} for a pod of higher priority", Blame.PREEMPTION
    elif condition.reason == "EvictionByEvictionAPI":
        clause, blame = f"{_named(pod)} was evicted by a client of the API{_drained(node)}", _blame_of(node)
    elif condition.reason in ("DeletionByTaintManager", "DeletionByPodGC"):
        clause, blame = f"{_named(pod)} was deleted since {_state_of(pod, node)}", _blame_of(node)
    elif condition.reason == "TerminationByKubelet":
        return _ended_by_kubelet(cluster, pod, process) or _reason(
            pod, f"the kubelet ended {_named(pod)}", condition.time_ns, condition.message, _blame_of(node)
        )
    else:
        clause, blame = f"Kubernetes disrupted {_named(pod)} ({condition.reason})", Blame.SYSTEM
    return _reason(pod, clause, condition.time_ns, condition.message, blame)


def _ended_by_kubelet(cluster: KubernetesFacts, pod: PodFacts, process: ProcessFacts) -> PodReason | None:
    """Return the reason that the kubelet or the node controller gave the pod."""
    node, time_ns = cluster.node(pod.node), _ended_ns(pod, process)
    if pod.reason == "Evicted":
        clause, blame = f"the kubelet of node {pod.node or '?'} evicted {_named(pod)}", Blame.SYSTEM
    elif pod.reason in _SHUTDOWN_REASONS:
        clause, blame = f"{_named(pod)} was ended since its {_kind(node)} {pod.node} shut down", _blame_of(node)
    elif pod.reason == "NodeLost":
        clause, blame = f"node {pod.node} of {_named(pod)} was lost", _blame_of(node)
    elif pod.reason == "Preempting":
        clause, blame = f"the kubelet preempted {_named(pod)} for a critical pod", Blame.PREEMPTION
    elif pod.reason == "DeadlineExceeded":
        clause, blame = f"{_named(pod)} reached its activeDeadlineSeconds", Blame.USER
    elif pod.reason in ("UnexpectedAdmissionError", "NodeAffinity", "OutOfcpu", "OutOfmemory", "OutOfpods"):
        clause, blame = f"node {pod.node} refused {_named(pod)} ({pod.reason})", Blame.SYSTEM
    else:
        return None
    return _reason(pod, clause, time_ns, pod.message, blame)


_EVENTS: Final = {
    "Preempted": ("the scheduler preempted {pod}", Blame.PREEMPTION),
    "Preempting": ("the kubelet preempted {pod} for a critical pod", Blame.PREEMPTION),
    "Evicted": ("{source} evicted {pod}", Blame.SYSTEM),
    "TaintManagerEviction": ("{pod} was deleted because of a taint of its node", Blame.SYSTEM),
    "NodeNotReady": ("the node of {pod} did not answer", Blame.SYSTEM),
    "Killing": ("{source} restarts {pod} since its liveness probe fails", Blame.USER),
    "ExceededGracePeriod": ("{pod} did not end within its grace period", Blame.USER),
}


def _reported(cluster: KubernetesFacts, pod: PodFacts, process: ProcessFacts) -> PodReason | None:
    """Return the reason of an event on the pod, the last one before the end."""
    end_ns = process.end.ended_ns or process.last_event_ns
    for event in reversed(cluster.events_of([pod], *_EVENTS)):
        if event.last_ns is not None and not _is_near(event.last_ns, end_ns, NODE_SECONDS):
            continue
        if event.reason == "Killing" and "liveness" not in event.message.lower():
            continue  # The kubelet writes it at every end.
        clause, blame = _EVENTS[event.reason]
        return _of_event(cluster, pod, event, clause, blame)
    return None


def _of_event(cluster: KubernetesFacts, pod: PodFacts, event: EventFacts, clause: str, blame: Blame) -> PodReason:
    named = clause.format(pod=_named(pod), source=f"the {event.source or 'kubelet'}")
    is_of_node = event.reason in ("TaintManagerEviction", "NodeNotReady")
    found = _blame_of(cluster.node(pod.node)) if is_of_node else blame
    return _reason(pod, named, event.last_ns, event.message, found, event.ref)


def _node_lost(cluster: KubernetesFacts, pod: PodFacts, process: ProcessFacts) -> PodReason | None:
    """Return that the node of the pod was lost, or is about to end, at about the time of the end."""
    node = cluster.node(pod.node)
    end_ns = process.end.ended_ns or process.last_event_ns
    if node is None:
        is_unknown = any(end.reason == "ContainerStatusUnknown" for _, end in _ends(pod))
        if pod.node and is_unknown and "nodes" not in cluster.unread:
            clause = f"node {pod.node} of {_named(pod)} was lost: it does not exist any more"
            return _reason(pod, clause, None, "", Blame.SYSTEM)
        return None
    ready = node.condition("Ready")
    if ready is not None and ready.status != "True" and _is_near(ready.time_ns, end_ns, NODE_SECONDS):
        message = ready.message or ready.reason
        clause = f"{_kind(node)} {node.name} of {_named(pod)} stopped being ready"
        return _reason(pod, clause, ready.time_ns, message, _blame_of(node), node.ref)
    taint = next((taint for taint in node.taints if taint.key in _TERMINATION_TAINTS), None)
    if taint is not None:
        clause = f"{_kind(node)} {node.name} of {_named(pod)} is about to be removed (taint {taint.key})"
        return _reason(pod, clause, None, "", Blame.PREEMPTION, node.ref)
    if _is_in_maintenance(node):
        clause = f"node {node.name} of {_named(pod)} is in maintenance"
        return _reason(pod, clause, None, "", Blame.PREEMPTION, node.ref)
    return None


def _out_of_memory(cluster: KubernetesFacts, pod: PodFacts, process: ProcessFacts) -> PodReason | None:
    for container, end in _ends(pod):
        is_of_process = end.ended_ns is None or end.ended_ns >= process.started_ns - 1_000_000_000
        if end.reason == "OOMKilled" and is_of_process:
            clause = f"the kernel killed container {container.name} of {_named(pod)} since it was out of memory"
            return _reason(pod, clause, end.ended_ns, "", Blame.USER)
    return None


def _unqueued(cluster: KubernetesFacts, pod: PodFacts, process: ProcessFacts) -> PodReason | None:
    """Return that Kueue evicted the whole job, or that the deadline of the Job has passed."""
    end_ns = process.end.ended_ns or process.last_event_ns
    for admission in cluster.admissions:
        evicted = admission.condition("Evicted")
        if evicted is not None and evicted.status == "True" and _is_near(evicted.time_ns, end_ns, NODE_SECONDS):
            clause = f"Kueue evicted the workload {admission.namespace}/{admission.name} ({evicted.reason})"
            blame = Blame.PREEMPTION if evicted.reason == "Preempted" else Blame.SYSTEM
            return _reason(pod, clause, evicted.time_ns, evicted.message, blame, admission.ref)
    for job in cluster.jobs:
        failed = job.condition("Failed")
        if failed is None or failed.status != "True" or failed.reason != "DeadlineExceeded":
            continue
        if job.name in (pod.job, pod.workload) and _is_near(failed.time_ns, end_ns, NODE_SECONDS):
            clause = f"{job.kind} {job.namespace}/{job.name} reached its activeDeadlineSeconds"
            return _reason(pod, clause, failed.time_ns, failed.message, Blame.USER, job.ref)
    return None


def _deleted(cluster: KubernetesFacts, pod: PodFacts, process: ProcessFacts) -> PodReason | None:
    end_ns = process.end.ended_ns
    if pod.deleting_ns is None or end_ns is None or not _is_near(pod.deleting_ns, end_ns, DELETION_SECONDS):
        return None
    if pod.deleting_ns > end_ns + 5_000_000_000:
        return None  # Its controller deletes a pod that has failed.
    clause = f"{_named(pod)} was deleted by a client of the API, which Kubernetes does not name,"
    return _reason(pod, clause, pod.deleting_ns, "", Blame.UNKNOWN)


_Finder = Callable[[KubernetesFacts, PodFacts, ProcessFacts], "PodReason | None"]
_FINDERS: Final[tuple[_Finder, ...]] = (
    _disrupted,
    _ended_by_kubelet,
    _unqueued,
    _reported,
    _out_of_memory,
    _node_lost,
    _deleted,
)
"""In this order: what names the reason in words first."""


def _ends(pod: PodFacts) -> list[tuple[ContainerFacts, ContainerEnd]]:
    return [(container, end) for container in pod.main_containers for end in container.ends]


def _ended_ns(pod: PodFacts, process: ProcessFacts) -> int | None:
    ended = [end.ended_ns for _, end in _ends(pod) if end.ended_ns is not None]
    return max(ended, default=process.end.ended_ns)


def _is_near(time_ns: int | None, end_ns: int, seconds: float) -> bool:
    return time_ns is not None and abs(time_ns - end_ns) <= seconds * 1e9


def _is_spot(node: NodeFacts) -> bool:
    return any(node.labels.get(label) in _SPOT_VALUES for label in _SPOT_LABELS)


def _is_in_maintenance(node: NodeFacts) -> bool:
    return node.labels.get(_MAINTENANCE, "").upper() in ("ONGOING", "TRUE")


def _blame_of(node: NodeFacts | None) -> Blame:
    """Return the side that ended a node: a preemption if it was only lent, or is in maintenance."""
    return Blame.PREEMPTION if node is not None and (_is_spot(node) or _is_in_maintenance(node)) else Blame.SYSTEM


def _kind(node: NodeFacts | None) -> str:
    return "spot node" if node is not None and _is_spot(node) else "node"


def _state_of(pod: PodFacts, node: NodeFacts | None) -> str:
    if node is None:
        return f"its node {pod.node} does not exist any more" if pod.node else "its node was lost"
    return f"its {_kind(node)} {node.name} " + ("is in maintenance" if _is_in_maintenance(node) else "was lost")


def _drained(node: NodeFacts | None) -> str:
    if node is None:
        return ""
    if _is_in_maintenance(node):
        return f": node {node.name} is in maintenance"
    return f" while {_kind(node)} {node.name} is drained" if node.is_unschedulable else ""
