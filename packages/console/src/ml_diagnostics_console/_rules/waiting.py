"""Pods that wait, and why: what the rules on waiting share. Pure.

The scheduler shows how many nodes are unfit for which reason; that text is the source of most of it:
`0/12 nodes are available: 4 Insufficient google.com/tpu, 8 node(s) didn't match Pod's node affinity/selector.`
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from ml_diagnostics_common.texts import format_bytes, format_duration, format_three_digits, one_line

from ml_diagnostics_console._facts.facts import Fact, Facts
from ml_diagnostics_console._facts.kubernetes_facts import EventFacts, KubernetesFacts, NodeFacts, PodFacts, Resources
from ml_diagnostics_console._rules.pod_reasons import options_of
from ml_diagnostics_console._rules.rule import Threshold
from ml_diagnostics_console._rules.wording import clock
from ml_diagnostics_console.verdict import Cost, NextCommand, NotChecked, Ref

__all__ = [
    "WAITS",
    "Obstacles",
    "Oversized",
    "SizeLimit",
    "Waiting",
    "amount",
    "cost_of",
    "event_ref",
    "get_nodes",
    "lacks_capacity",
    "largest_free",
    "obstacles_of",
    "oversized",
    "pod_ref",
    "pods_text",
    "refused_by_autoscaler",
    "scaling_up",
    "since_text",
    "unscheduled",
    "waiting_of",
]

_NO_CAPACITY: Final = re.compile(r"out of resources|stockout|not enough resources|exhausted|quota", re.IGNORECASE)
_LIMIT: Final = re.compile(r"max node group size|max cluster|limit", re.IGNORECASE)

WAIT_SECONDS: Final = 60.0
WAITS: Final = Threshold(
    "waiting", f"{WAIT_SECONDS:g} s", "a pod with a free node starts within seconds of its creation"
)
SCALE_UP_SECONDS: Final = 900.0
"""An autoscaler gives a new node up after 15 minutes: `max-node-provision-time`."""
_LONGEST_MESSAGE: Final = 240
_MOST_PODS_SHOWN: Final = 2


class Waiting(NamedTuple):
    """The pods of a job that have waited for long."""

    cluster: KubernetesFacts
    pods: tuple[PodFacts, ...]
    now_ns: int

    @property
    def since_ns(self) -> int:
        """When the first of them was created."""
        return min((pod.created_ns for pod in self.pods if pod.created_ns is not None), default=self.now_ns)


def waiting_of(facts: Facts, rule: str) -> Waiting | NotChecked | None:
    """Return the cluster and the pods that wait; None if an older attempt is judged; NotChecked without a cluster."""
    if not isinstance(facts.kubernetes, Fact):
        return NotChecked(rule, facts.kubernetes.why, facts.kubernetes.is_by_choice)
    if facts.judged is not None and facts.judged != len(facts.attempts) - 1:
        return None
    cluster = facts.kubernetes.value
    now_ns = facts.kubernetes.as_of_ns or facts.now_ns
    waits = tuple(pod for pod in cluster.pending if now_ns - (pod.created_ns or 0) >= WAIT_SECONDS * 1e9)
    return Waiting(cluster, waits, now_ns)


def cost_of(since_ns: int, now_ns: int) -> Cost:
    """Return the time that was waited so far."""
    return Cost(max(0.0, (now_ns - since_ns) / 1e9), shows="waited so far")


def pods_text(cluster: KubernetesFacts, pods: Sequence[PodFacts]) -> str:
    """Return the pods that a sentence is about: `pod train-0-x7k2p`, `3 of 4 pods of train`."""
    if len(pods) == 1 and len(cluster.pods) == 1:
        return f"pod {pods[0].name}"
    of_job = f" of {cluster.name}" if cluster.name else ""
    live = sum(not pod.is_gone for pod in cluster.pods)
    total = max(cluster.expected_pods or 0, live)
    if len(pods) == total > _MOST_PODS_SHOWN:
        return f"all {total} pods{of_job}"
    if len(pods) <= _MOST_PODS_SHOWN:
        return f"{' and '.join(pod.name for pod in pods)} ({len(pods)} of {total} pods{of_job})"
    return f"{len(pods)} of {total} pods{of_job}"


def pod_ref(pod: PodFacts, shows: str, time_ns: int | None = None) -> Ref:
    """Return the evidence of a pod."""
    return Ref(pod.ref, "kubernetes", time_ns or pod.created_ns, pod.host, one_line(shows, _LONGEST_MESSAGE))


def event_ref(event: EventFacts) -> Ref:
    """Return the evidence of an event."""
    times = f" ({event.times} times)" if event.times > 1 else ""
    shows = f"{event.reason} on {event.kind.lower()} {event.name}{times}: {one_line(event.message, _LONGEST_MESSAGE)}"
    return Ref(event.ref, "kubernetes", event.last_ns, event.name if event.kind == "Pod" else "", shows)


def unscheduled(pods: Sequence[PodFacts]) -> tuple[PodFacts, ...]:
    """Return those pods for which the scheduler has no node."""
    return tuple(
        pod
        for pod in pods
        if not pod.node
        and (condition := pod.condition("PodScheduled")) is not None
        and condition.status == "False"
        and condition.reason == "Unschedulable"
    )


def refused_by_autoscaler(cluster: KubernetesFacts, pods: Sequence[PodFacts]) -> tuple[EventFacts, ...]:
    """Return the events by which an autoscaler reports that it cannot add a node for some pods, the oldest first."""
    return cluster.events_of(pods, "NotTriggerScaleUp", "FailedScaleUp")


def lacks_capacity(event: EventFacts) -> bool:
    """Return True if an autoscaler has a node pool that would fit, and gets no machine for it or may add none."""
    return event.reason == "FailedScaleUp" or bool(_NO_CAPACITY.search(event.message) or _LIMIT.search(event.message))


def scaling_up(cluster: KubernetesFacts, pods: Sequence[PodFacts], now_ns: int) -> EventFacts | None:
    """Return the event by which an autoscaler reports that it adds nodes for some pods, unless it refused since."""
    events = cluster.events_of(pods, "TriggeredScaleUp", "NotTriggerScaleUp", "FailedScaleUp")
    last = events[-1] if events else None
    is_new = last is not None and now_ns - (last.last_ns or 0) <= SCALE_UP_SECONDS * 1e9
    return last if last is not None and is_new and last.reason == "TriggeredScaleUp" else None


# --- The scheduler's message --------------------------------------------------------------------------------


class Obstacles(NamedTuple):
    """Why no node takes a pod, by the number of nodes."""

    total: int
    """The number of nodes of the cluster."""
    lacking: tuple[tuple[str, int], ...] = ()
    """A resource, and how many nodes have too little of it left."""
    labels: int = 0
    """Nodes with labels that are not those that the pod asks for."""
    taints: tuple[tuple[str, int], ...] = ()
    """A taint that the pod does not tolerate, and on how many nodes."""
    cordoned: int = 0
    others: tuple[tuple[str, int], ...] = ()
    """Other reasons in the scheduler's words."""

    @property
    def is_of_user(self) -> bool:
        """True if no node lacks anything: the pod asks for nodes that do not exist."""
        return not self.lacking and not self.cordoned and bool(self.labels or self.taints or self.others)


_AVAILABLE: Final = re.compile(r"0/(\d{1,7}) nodes are available: (.*?)(?:\.? preemption: .*)?", re.DOTALL)
_PART: Final = re.compile(r"(\d{1,7}) (.+)", re.DOTALL)
_TAINT: Final = re.compile(r"(?:untolerated )?taint \{([^}]*)\}")


def obstacles_of(message: str) -> Obstacles | None:
    """Return the reasons in a message of the scheduler; None if it is of another form."""
    match = _AVAILABLE.fullmatch(message.strip())
    if match is None:
        return None
    lacking: dict[str, int] = {}
    taints: dict[str, int] = {}
    others: dict[str, int] = {}
    labels = cordoned = 0
    # Not at each comma: the text of a taint may have one.
    for part in re.split(r", (?=\d+ )", match[2].strip().rstrip(".")):
        counted = _PART.fullmatch(part)
        count, text = (int(counted[1]), counted[2]) if counted is not None else (int(match[1]), part)
        if text.startswith("Insufficient "):
            lacking[text.split(" ", 1)[1]] = count
        elif taint := _TAINT.search(text):
            taints[taint[1].strip().rstrip(":").strip()] = count
        elif re.search(r"affinity/selector|node selector|node affinity$", text):
            labels += count
        elif "unschedulable" in text:
            cordoned += count
        elif text:
            others[text.removeprefix("node(s) ")] = count
    return Obstacles(int(match[1]), (*lacking.items(),), labels, (*taints.items(),), cordoned, (*others.items(),))


# --- Amounts ------------------------------------------------------------------------------------------------


def amount(resource: str, number: float) -> str:
    """Return an amount of a resource with its name: `4 google.com/tpu`, `64.0 GB of memory`, `500 m of cpu`."""
    if resource in ("memory", "ephemeral-storage") or resource.startswith("hugepages-"):
        return f"{format_bytes(round(number))} of {resource}"
    if number == round(number):
        return f"{int(number):,} {resource}"
    return f"{format_three_digits(number)} {resource}"


class SizeLimit(NamedTuple):
    """A resource of which a pod requests more than any node has."""

    resource: str
    requested: float
    largest: float
    """The most that one node can give: 0 if no node has it."""
    node: NodeFacts | None


class Oversized(NamedTuple):
    """A pod that no existing node can ever take."""

    name: str
    """The pod, or the job without pods so far."""
    pod: PodFacts | None
    ref: str
    limits: tuple[SizeLimit, ...]


def oversized(cluster: KubernetesFacts, pods: Sequence[PodFacts]) -> Oversized | None:
    """Return the first pod that requests more of a resource than any node has; None if each has a node that fits.

    Only nodes with the labels that the pod asks for count, if there are any.
    """
    if not cluster.has_all_nodes or not cluster.nodes:
        return None
    asked: list[tuple[str, PodFacts | None, str, Resources, Mapping[str, str]]] = [
        (pod.name, pod, pod.ref, pod.requests, pod.selector) for pod in pods
    ]
    if not cluster.pods:  # A queue holds the job back: its template shows what its pods will request.
        asked += [(job.name, None, job.ref, job.requests, job.selector) for job in cluster.jobs if job.requests]
    for name, pod, ref, requests, selector in asked:
        fitting = [node for node in cluster.nodes if node.has_labels(selector)] or list(cluster.nodes)
        limits = [_limit(resource, number, fitting) for resource, number in requests.items() if number > 0]
        too_large = tuple(limit for limit in limits if limit.requested > limit.largest)
        if too_large:
            return Oversized(name, pod, ref, too_large)
    return None


def _limit(resource: str, requested: float, nodes: Sequence[NodeFacts]) -> SizeLimit:
    largest = max(nodes, key=lambda node: node.allocatable.get(resource, 0.0))
    most = largest.allocatable.get(resource, 0.0)
    return SizeLimit(resource, requested, most, largest if most else None)


def largest_free(cluster: KubernetesFacts, resource: str, selector: Mapping[str, str]) -> str:
    """Return what is free of a resource: on the node that has most of it, and on all together; empty if unknown."""
    nodes = [node for node in cluster.nodes if node.has_labels(selector)] or list(cluster.nodes)
    free = [(amount_free, node) for node in nodes if (amount_free := node.free(resource)) is not None]
    if not cluster.has_all_nodes or not free:
        return ""
    most, node = max(free, key=lambda pair: pair[0])
    together = sum(number for number, _ in free)
    if most == 0:
        return f"no node has any {resource} left"
    return (
        f"the largest free node, {node.name}, has {amount(resource, most)}, all together {amount(resource, together)}"
    )


def since_text(since_ns: int, now_ns: int) -> str:
    """Return since when something waits, and for how long."""
    return f"since {clock(since_ns)} ({format_duration(max(0, now_ns - since_ns) // 1_000_000_000)})"


def get_nodes(cluster: KubernetesFacts, resource: str) -> NextCommand:
    """Return the command that lists the nodes with what they have of a resource."""
    path = resource.replace(".", r"\.")
    command = (
        f"kubectl get nodes{options_of(cluster)} --output "
        f"'custom-columns=NODE:.metadata.name,HAS:.status.allocatable.{path}'"
    )
    return NextCommand(command, f"shows how much {resource} each node has")
