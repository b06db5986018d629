"""Read what a cluster reports of a job, by the user's own kubectl: read only, bounded in time and size.

A job is found by the labels that Job, JobSet, LeaderWorkerSet and Ray put on their pods, or by the host names of the
run's processes: those of an indexed Job are its name and the index. Then all pods of that workload are read, also
those that never recorded anything.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final, TypeVar

from ml_diagnostics_console._facts.facts import Fact, Unknown
from ml_diagnostics_console._facts.kubectl import ALL_NAMESPACES, Kubectl, KubectlError, Reason
from ml_diagnostics_console._facts.kubernetes_facts import EventFacts, JobFacts, KubernetesFacts, NodeFacts, PodFacts
from ml_diagnostics_console._facts.kubernetes_objects import (
    JOB_LABEL,
    JOBSET_LABEL,
    WORKLOAD_LABELS,
    add_usage,
    parse_admission,
    parse_event,
    parse_job,
    parse_node,
    parse_pod,
    parse_quota,
)

__all__ = ["read_kubernetes"]

_TIMEOUT_SECONDS: Final = 20.0
_AT_ONCE: Final = 4
_MOST_NAMES: Final = 200
"""The most names in one command line or selector."""
_MOST_EVENTS: Final = 5_000
_NAME: Final = re.compile(r"[a-z0-9](?:[-a-z0-9.]{0,61}[a-z0-9])?")
_INDEXED: Final = re.compile(r"(.+)-\d+")
_POD_OF_JOB: Final = re.compile(r"(.+?)(?:-\d+)?-[a-z0-9]{5}")
"""The name of a pod of a Job: that of the Job, the completion index if it has one, and five characters."""
_KINDS_ABOVE: Final = {
    JOBSET_LABEL: "jobsets.jobset.x-k8s.io",
    "leaderworkerset.sigs.k8s.io/name": "leaderworkersets.leaderworkerset.x-k8s.io",
}
_USAGE: Final = "usage"
_ADMISSIONS: Final = "workloads.kueue.x-k8s.io"

_Item = TypeVar("_Item")


def read_kubernetes(
    name: str,
    *,
    context: str | None,
    hosts: Collection[str] = (),
    run_id: str = "",
    namespace: str = "",
    timeout_seconds: float = _TIMEOUT_SECONDS,
    record: Callable[[Sequence[Mapping[str, Any]]], object] | None = None,
) -> Fact[KubernetesFacts] | Unknown:
    """Return what a cluster reports of a job.

    Args:
        name: The name of the job: that of its Job, JobSet, LeaderWorkerSet or Ray cluster.
        context: The context of kubectl; None is the current one.
        hosts: The host names of the run's processes; empty if none has recorded anything.
        run_id: The id of the run.
        namespace: The namespace of the job; empty for that of the context, then for all.
        timeout_seconds: The most time for everything.
        record: Takes the pods, events and nodes of the job as the cluster returns them, to be recorded.
    """
    deadline = time.monotonic() + timeout_seconds
    try:
        kubectl = Kubectl.connect(context, namespace, deadline)
        with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="ml-diagnostics-kubectl") as threads:
            reading = _Reading(kubectl, threads, {name, run_id}, set(hosts))
            facts = reading.read()
    except KubectlError as error:
        return Unknown(str(error))
    if not facts.pods and not facts.jobs and not facts.admissions:
        where = kubectl.namespace or "any namespace"
        shown = f"context {kubectl.context}" if kubectl.context else "this cluster"
        return Unknown(
            f"{shown} has no pod, Job or JobSet of {name} ({where}; all namespaces as far as you may list them): "
            "if it runs in another cluster, give --kubernetes CONTEXT (see `kubectl config get-contexts`)"
        )
    if record is not None:
        record(reading.documents(facts))
    return Fact(facts, (), time.time_ns())


class _Reading:
    """One reading of a cluster."""

    def __init__(self, kubectl: Kubectl, threads: ThreadPoolExecutor, names: set[str], hosts: set[str]) -> None:
        self._kubectl = kubectl
        self._threads = threads
        self._names = sorted(filter(_NAME.fullmatch, names))
        self._hosts = sorted(host for host in hosts if _NAME.fullmatch(host))[:_MOST_NAMES]
        of_hosts = {found[1] for host in self._hosts if (found := _INDEXED.fullmatch(host))}
        self._job_names = sorted({*self._names, *of_hosts})[:_MOST_NAMES]
        self._unread: dict[str, str] = {}
        self._documents: dict[str, Mapping[str, Any]] = {}
        """Pods, events and nodes by their ids, also those of other jobs."""

    def documents(self, facts: KubernetesFacts) -> list[Mapping[str, Any]]:
        """Return the pods, events and nodes of facts as the cluster returned them."""
        uids = {*(pod.uid for pod in facts.pods), *(event.uid for event in facts.events)}
        nodes = {pod.node for pod in facts.pods if pod.node}
        return [
            document
            for uid, document in self._documents.items()
            if uid in uids or (document.get("kind") == "Node" and document["metadata"].get("name") in nodes)
        ]

    def read(self) -> KubernetesFacts:
        """Return what there is of the job; facts without pods and jobs if there is nothing.

        Raises:
            KubectlError: Pods cannot be read at all.
        """
        scope = self._kubectl.namespace
        pods, jobs = self._find(scope)
        if not pods and not jobs:
            pods, jobs = self._find_anywhere()
        namespaces = Counter([*(pod.namespace for pod in pods), *(job.namespace for job in jobs)])
        namespace = namespaces.most_common(1)[0][0] if namespaces else scope
        pods = self._complete(pods, namespace)
        pods = [pod for pod in pods if pod.namespace == namespace]
        jobs = [job for job in jobs if job.namespace == namespace]
        workloads = sorted({pod.workload for pod in pods if pod.workload} | {job.name for job in jobs})
        job_names = sorted({pod.job for pod in pods if pod.job} | set(workloads))
        kinds = ("jobs.batch", *_KINDS_ABOVE.values())
        unasked = [name for name in workloads if name not in self._names]  # `_find` has asked for the others.
        asked = [self._start(kind, namespace, names=unasked) for kind in kinds if unasked]
        asked.append(self._start("jobs.batch", namespace, selector=_any(JOBSET_LABEL, workloads)))
        of_namespace = (_ADMISSIONS, "resourcequotas", "events")
        admissions, quotas, events = (self._start(kind, namespace) for kind in of_namespace)
        nodes, has_all_nodes = self._nodes(pods, jobs)
        jobs = _unique([*jobs, *(job for answer in asked for job in _parsed(parse_job, answer()))])
        owners = {*job_names, *(job.name for job in jobs)}
        queued = [each for each in _parsed(parse_admission, admissions()) if each.owner in owners]
        names = {*workloads, *job_names, *(each.name for each in queued)}
        return KubernetesFacts(
            context=self._kubectl.context,
            namespace=namespace,
            name=workloads[0] if len(workloads) == 1 else "",
            pods=tuple(sorted(pods, key=lambda pod: (pod.name, pod.uid))),
            events=_relevant(_parsed(parse_event, events()), pods, names) + self._node_events(pods),
            nodes=tuple(nodes),
            has_all_nodes=has_all_nodes,
            jobs=tuple(sorted(jobs, key=lambda job: (bool(job.owner), job.name))),
            admissions=tuple(queued),
            quotas=tuple(_parsed(parse_quota, quotas())),
            unread=self._unread,
        )

    def _find(self, namespace: str) -> tuple[list[PodFacts], list[JobFacts]]:
        """Return the pods and objects of the job's name, and the pods of the run's hosts."""
        selectors = [_any(label, self._names) for label in WORKLOAD_LABELS]
        selectors.append(_any(JOB_LABEL, self._job_names))
        # The first alone: a cluster that does not answer is asked once.
        found = self._kubectl.get("pods", namespace, selector=selectors[0])
        calls = [partial(self._kubectl.get, "pods", namespace, selector=selector) for selector in selectors[1:]]
        if namespace != ALL_NAMESPACES and self._hosts:
            calls.append(partial(self._kubectl.get, "pods", namespace, names=self._hosts))
        pods = [*found, *(pod for answer in self._threads.map(_call, calls) for pod in answer)]
        self._keep(pods)
        kinds = ("jobs.batch", *_KINDS_ABOVE.values())
        waiting = [
            self._start(kind, namespace, fields=f"metadata.name={name}") for kind in kinds for name in self._names
        ]
        jobs = [job for answer in waiting for job in _parsed(parse_job, answer())]
        return _unique(_parsed(parse_pod, pods)), _unique(jobs)

    def _find_anywhere(self) -> tuple[list[PodFacts], list[JobFacts]]:
        try:
            return self._find(ALL_NAMESPACES)
        except KubectlError as error:
            if error.reason is not Reason.FORBIDDEN:
                raise
            return [], []

    def _complete(self, pods: list[PodFacts], namespace: str) -> list[PodFacts]:
        """Return all pods of the workloads of some pods, which were found by the hosts of some."""
        known = set(self._names)
        workloads = {pod.workload for pod in pods} - known - {""}
        if not workloads:
            return pods
        waiting = [self._start("pods", namespace, selector=_any(label, workloads)) for label in WORKLOAD_LABELS]
        waiting.append(self._start("pods", namespace, selector=_any(JOB_LABEL, workloads)))
        return _unique([*pods, *(pod for answer in waiting for pod in _parsed(parse_pod, answer()))])

    def _nodes(self, pods: Sequence[PodFacts], jobs: Sequence[JobFacts]) -> tuple[Sequence[NodeFacts], bool]:
        """Return all nodes if a pod has none yet, else those of the pods; and True if they are all."""
        waits = any(pod.is_pending and not pod.node for pod in pods) or (not pods and bool(jobs))
        if not waits:
            names = sorted({pod.node for pod in pods if pod.node and _NAME.fullmatch(pod.node)})[:_MOST_NAMES]
            return _parsed(parse_node, self._start("nodes", "", names=names)()) if names else [], False
        answer, everything = self._start("nodes", ""), self._start("pods", ALL_NAMESPACES, key=_USAGE)
        nodes = _parsed(parse_node, answer())
        used = everything()
        return (add_usage(nodes, used) if _USAGE not in self._unread else nodes), "nodes" not in self._unread

    def _node_events(self, pods: Sequence[PodFacts]) -> tuple[EventFacts, ...]:
        names = {pod.node for pod in pods if pod.node}
        if not names or self._kubectl.namespace == "default":
            return ()
        # The events of nodes, which are in no namespace, are in that of the name `default`.
        found = self._start("events", "default", fields="involvedObject.kind=Node", key="events of nodes")()
        return tuple(event for event in _parsed(parse_event, found) if event.name in names)

    def _start(
        self,
        kind: str,
        namespace: str,
        *,
        names: Iterable[str] = (),
        selector: str = "",
        fields: str = "",
        key: str = "",
    ) -> Callable[[], list[Any]]:
        """Ask in a thread; the result waits for the answer. What cannot be read is noted, and empty."""
        named = [name for name in names if _NAME.fullmatch(name)][:_MOST_NAMES]
        get = partial(self._kubectl.get, kind, namespace, names=named, selector=selector, fields=fields)
        future = self._threads.submit(get)

        def answer() -> list[Any]:
            try:
                found = future.result()
                if kind in ("pods", "events", "nodes") and key != _USAGE:
                    self._keep(found)
                return found
            except KubectlError as error:
                if error.reason is not Reason.NO_SUCH_KIND:
                    self._unread.setdefault(key or kind.partition(".")[0], str(error))
                return []

        return answer

    def _keep(self, documents: Iterable[Mapping[str, Any]]) -> None:
        for document in documents:
            metadata = document.get("metadata")
            if isinstance(metadata, dict) and isinstance(metadata.get("uid"), str):
                self._documents[metadata["uid"]] = document


def _call(call: Callable[[], list[Any]]) -> list[Any]:
    return call()


def _any(label: str, names: Iterable[str]) -> str:
    """Return a selector of objects with one of some values of a label; of none without a value."""
    values = ",".join(name for name in sorted(names)[:_MOST_NAMES] if _NAME.fullmatch(name))
    return f"{label} in ({values})" if values else f"{label}=,{label}"


def _parsed(parse: Callable[[Any], _Item | None], documents: Iterable[Any]) -> list[_Item]:
    return [item for document in documents if (item := parse(document)) is not None]


_Object = TypeVar("_Object", PodFacts, JobFacts)


def _unique(objects: Iterable[_Object]) -> list[_Object]:
    return list({each.uid: each for each in objects}.values())


def _relevant(events: Sequence[EventFacts], pods: Sequence[PodFacts], names: set[str]) -> tuple[EventFacts, ...]:
    """Return the events on a job and its pods, also on pods that were deleted, the oldest first."""
    uids = {pod.uid for pod in pods}
    found = [
        event
        for event in events
        if event.object_uid in uids
        or event.name in names
        or (event.kind == "Pod" and (parts := _POD_OF_JOB.fullmatch(event.name)) and parts[1] in names)
    ]
    return tuple(sorted(found, key=lambda event: event.last_ns or 0)[-_MOST_EVENTS:])
