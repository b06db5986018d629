"""Pods, events, nodes, jobs and quotas of one job, as Kubernetes reports them. Pure.

`kubernetes_objects` parses them from the answers of `kubectl get -o json`; `kubernetes` reads those.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

__all__ = [
    "AdmissionFacts",
    "Condition",
    "ContainerEnd",
    "ContainerFacts",
    "EventFacts",
    "FieldReference",
    "JobFacts",
    "KubernetesFacts",
    "NodeFacts",
    "PodFacts",
    "QuotaFacts",
    "Resources",
    "Taint",
]

Resources = Mapping[str, float]
"""Amounts by the name of a resource, in its base unit: bytes, cores, chips."""


class Condition(NamedTuple):
    """A condition of an object."""

    type: str
    status: str
    """True, False or Unknown."""
    reason: str = ""
    message: str = ""
    time_ns: int | None = None
    """When it changed last, in ns since 1970."""


class ContainerEnd(NamedTuple):
    """An end of a container."""

    reason: str
    """`OOMKilled`, `Error`, `Completed`, `ContainerStatusUnknown`, ..."""
    exit_code: int | None
    message: str = ""
    started_ns: int | None = None
    ended_ns: int | None = None


@dataclass(frozen=True, slots=True)
class ContainerFacts:
    """One container of a pod.

    Attributes:
        name: Its name.
        path: Its field in the pod: `spec.containers[0]`.
        image: Its image.
        is_running: True while it runs.
        waiting_reason: Why it does not run yet: `ImagePullBackOff`; empty if it does not wait.
        waiting_message: The runtime's message on that.
        restarts: How often it was restarted.
        ends: Its ends, the newest first: the current state, and the one before the last restart.
    """

    name: str
    path: str
    image: str = ""
    is_running: bool = False
    waiting_reason: str = ""
    waiting_message: str = ""
    restarts: int = 0
    ends: tuple[ContainerEnd, ...] = ()


class FieldReference(NamedTuple):
    """A field of a pod that names something outside of it."""

    path: str
    """`spec.containers[0].env[2].valueFrom.secretKeyRef`."""
    kind: str
    """`configmap`, `secret`, `persistentvolumeclaim` or `volume`."""
    name: str


@dataclass(frozen=True, slots=True)
class PodFacts:
    """One pod.

    Attributes:
        name: Its name.
        namespace: Its namespace.
        uid: Its id.
        host: The host name of its processes.
        phase: Pending, Running, Succeeded, Failed or Unknown.
        reason: Why it is in that phase, such as Evicted; mostly empty.
        message: The message on that.
        node: Its node; empty while it has none.
        index: Its completion index in its Job; None without one.
        job: Its Job; empty without one.
        workload: The workload that it belongs to: the JobSet, LeaderWorkerSet or Ray cluster, else its Job.
        created_ns: When it was created, in ns since 1970.
        deleting_ns: When it was asked to end by a deletion; None if it was not.
        conditions: Its conditions.
        containers: Its containers: those that run before the others first.
        requests: Its requests to a node, by resource.
        selector: The labels that its node must have, of `nodeSelector`.
        references: Its fields that name config maps, secrets and volumes.
        is_gone: True if it is only known from recorded facts: it does not exist any more.
    """

    name: str
    namespace: str
    uid: str
    host: str = ""
    phase: str = ""
    reason: str = ""
    message: str = ""
    node: str = ""
    index: int | None = None
    job: str = ""
    workload: str = ""
    created_ns: int | None = None
    deleting_ns: int | None = None
    conditions: tuple[Condition, ...] = ()
    containers: tuple[ContainerFacts, ...] = ()
    requests: Resources = field(default_factory=dict)
    selector: Mapping[str, str] = field(default_factory=dict)
    references: tuple[FieldReference, ...] = ()
    is_gone: bool = False

    @property
    def ref(self) -> str:
        """The id of evidence about it."""
        return f"pod/{self.uid}"

    @property
    def is_pending(self) -> bool:
        """True if it exists and its containers have never run."""
        has_run = any(container.is_running or container.ends for container in self.main_containers)
        return self.phase == "Pending" and not self.is_gone and self.deleting_ns is None and not has_run

    @property
    def main_containers(self) -> tuple[ContainerFacts, ...]:
        """Its containers without those that run before the others."""
        return tuple(container for container in self.containers if container.path.startswith("spec.containers"))

    def condition(self, kind: str) -> Condition | None:
        """Return its condition of a type."""
        return next((condition for condition in self.conditions if condition.type == kind), None)


class EventFacts(NamedTuple):
    """One event: Kubernetes drops it after an hour."""

    uid: str
    kind: str
    """The kind of its object: Pod, Job, Node."""
    name: str
    """The name of its object."""
    object_uid: str
    reason: str
    message: str
    is_warning: bool
    times: int
    """How often it happened."""
    first_ns: int | None
    last_ns: int | None
    source: str
    """The component that reports it: `default-scheduler`, `kubelet`."""

    @property
    def ref(self) -> str:
        """The id of evidence about it."""
        return f"event/{self.uid}"


class Taint(NamedTuple):
    """A taint of a node, which pods must tolerate."""

    key: str
    value: str
    effect: str


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """One node.

    Attributes:
        name: Its name.
        allocatable: The most that its pods can request together, by resource.
        used: The requests of its pods; None if they were not read.
        labels: Its labels.
        taints: Its taints.
        conditions: Its conditions.
        is_unschedulable: True if it is cordoned.
    """

    name: str
    allocatable: Resources = field(default_factory=dict)
    used: Resources | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Taint, ...] = ()
    conditions: tuple[Condition, ...] = ()
    is_unschedulable: bool = False

    @property
    def ref(self) -> str:
        """The id of evidence about it."""
        return f"node/{self.name}"

    def free(self, resource: str) -> float | None:
        """Return how much of a resource its pods have left; None if that was not read."""
        if self.used is None:
            return None
        return max(0.0, self.allocatable.get(resource, 0.0) - self.used.get(resource, 0.0))

    def has_labels(self, selector: Mapping[str, str]) -> bool:
        """Return True if it has all labels of a `nodeSelector`."""
        return all(self.labels.get(key) == value for key, value in selector.items())

    def condition(self, kind: str) -> Condition | None:
        """Return its condition of a type."""
        return next((condition for condition in self.conditions if condition.type == kind), None)


@dataclass(frozen=True, slots=True)
class JobFacts:
    """A Job, a JobSet, or another object that has pods.

    Attributes:
        kind: Job, JobSet, ...
        name: Its name.
        namespace: Its namespace.
        uid: Its id.
        owner: The JobSet of a Job; empty without one.
        pods: The number of pods that it should have at once; None if that is not known.
        is_suspended: True while it must not start, such as in a queue.
        restarts: How often a JobSet was restarted.
        conditions: Its conditions.
        queue: The queue of Kueue that it is in; empty without one.
        created_ns: When it was created.
        requests: The requests of its largest pod.
        selector: The `nodeSelector` of that pod.
    """

    kind: str
    name: str
    namespace: str
    uid: str
    owner: str = ""
    pods: int | None = None
    is_suspended: bool = False
    restarts: int = 0
    conditions: tuple[Condition, ...] = ()
    queue: str = ""
    created_ns: int | None = None
    requests: Resources = field(default_factory=dict)
    selector: Mapping[str, str] = field(default_factory=dict)

    @property
    def ref(self) -> str:
        """The id of evidence about it."""
        return f"{self.kind.lower()}/{self.uid}"

    def condition(self, kind: str) -> Condition | None:
        """Return its condition of a type."""
        return next((condition for condition in self.conditions if condition.type == kind), None)


@dataclass(frozen=True, slots=True)
class AdmissionFacts:
    """A Workload of Kueue: a job in a queue.

    Attributes:
        name: Its name.
        namespace: Its namespace.
        uid: Its id.
        queue: The LocalQueue.
        owner: The name of the job that it is for.
        is_active: False if Kueue must not admit it.
        conditions: Its conditions: QuotaReserved, Admitted, Evicted, Preempted, Finished.
        created_ns: When it was created.
    """

    name: str
    namespace: str
    uid: str
    queue: str = ""
    owner: str = ""
    is_active: bool = True
    conditions: tuple[Condition, ...] = ()
    created_ns: int | None = None

    @property
    def ref(self) -> str:
        """The id of evidence about it."""
        return f"workload/{self.uid}"

    def condition(self, kind: str) -> Condition | None:
        """Return its condition of a type."""
        return next((condition for condition in self.conditions if condition.type == kind), None)


class QuotaFacts(NamedTuple):
    """A ResourceQuota of the namespace."""

    name: str
    uid: str
    hard: Resources
    used: Resources


@dataclass(frozen=True, slots=True)
class KubernetesFacts:
    """Facts of one job in a cluster.

    Attributes:
        context: The context of kubectl; empty for facts that were only recorded.
        namespace: The namespace of the job.
        name: The workload: the JobSet, Job or other object that the pods belong to; empty if it is not known.
        pods: Its pods, by name.
        events: Events on its pods, jobs and nodes, the oldest first.
        nodes: Nodes: all of the cluster if a pod waits for one, else those of pods that have failed.
        has_all_nodes: True if `nodes` are all of the cluster.
        jobs: Its Jobs, and the JobSet or other object above them.
        admissions: Its Workloads of Kueue.
        quotas: The quotas of the namespace.
        unread: Reasons for which objects could not be read, with the remedy, by kind.
    """

    context: str
    namespace: str = ""
    name: str = ""
    pods: tuple[PodFacts, ...] = ()
    events: tuple[EventFacts, ...] = ()
    nodes: tuple[NodeFacts, ...] = ()
    has_all_nodes: bool = False
    jobs: tuple[JobFacts, ...] = ()
    admissions: tuple[AdmissionFacts, ...] = ()
    quotas: tuple[QuotaFacts, ...] = ()
    unread: Mapping[str, str] = field(default_factory=dict)

    @property
    def pending(self) -> tuple[PodFacts, ...]:
        """The pods that have not started."""
        return tuple(pod for pod in self.pods if pod.is_pending)

    @property
    def expected_pods(self) -> int | None:
        """The number of pods that the job should have at once; None if that is not known."""
        tops = [job for job in self.jobs if not job.owner]
        counts = [job.pods for job in tops if job.pods is not None]
        return sum(counts) if counts and len(counts) == len(tops) else None

    def node(self, name: str) -> NodeFacts | None:
        """Return a node by its name; None if it does not exist or was not read."""
        return next((node for node in self.nodes if node.name == name), None)

    def events_of(self, pods: Sequence[PodFacts], *reasons: str) -> tuple[EventFacts, ...]:
        """Return the events on some pods with one of some reasons, or with any, the oldest first."""
        uids, names = {pod.uid for pod in pods}, {pod.name for pod in pods}
        return tuple(
            event
            for event in self.events
            if (event.object_uid in uids if event.object_uid else event.kind == "Pod" and event.name in names)
            and (not reasons or event.reason in reasons)
        )

    def pod_of(self, host: str, index: int | None, started_ns: int, ended_ns: int | None) -> PodFacts | None:
        """Return the pod that a process ran in; None if it is not known.

        Several pods may have had the name of one host, each after the other: the one counts that was created last
        before the process started. Without a pod of that host name, as with the network of the node, the completion
        index decides if no other pod of the job has it.

        Args:
            host: The host of the process.
            index: The index of the process in the job; None if it is not known.
            started_ns: Its first event, in ns since 1970.
            ended_ns: Its end; None if none is known.
        """
        found = [pod for pod in self.pods if host in (pod.host, pod.name)]
        if not found and index is not None:
            of_index = [pod for pod in self.pods if pod.index == index]
            jobs = {pod.job for pod in self.pods if pod.index is not None}
            found = of_index if len(jobs) == 1 else []
        last_ns = started_ns if ended_ns is None else max(started_ns, ended_ns)
        known = [pod for pod in found if pod.created_ns is None or pod.created_ns <= last_ns + _CLOCKS_NS]
        before = [pod for pod in known if pod.created_ns is None or pod.created_ns <= started_ns + _CLOCKS_NS]
        candidates = before or known
        return max(candidates, key=lambda pod: pod.created_ns or 0) if candidates else None


_CLOCKS_NS = 5_000_000_000
"""The difference of the clocks of the API server and of a host, and the API server's times are whole seconds."""
