"""The processes and pods of a job, by the names that users give. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from ml_diagnostics_common.command.errors import NotFoundError

from ml_diagnostics_console._facts.facts import Fact, Facts, ProcessFacts
from ml_diagnostics_console._facts.kubernetes_facts import PodFacts

__all__ = ["Cluster", "Target", "cluster_of", "targets_of"]

_NAMES_SHOWN: Final = 10


class Cluster(NamedTuple):
    """The context and namespace in which kubectl reaches the pods of a job."""

    context: str
    namespace: str

    def argv(self, *words: str) -> list[str]:
        """Return the command line; names are valid ones of Kubernetes."""
        chosen = [f"--context={self.context}"] if self.context else []
        return ["kubectl", *chosen, f"--namespace={self.namespace}", *words]


@dataclass(frozen=True, slots=True)
class Target:
    """A process, or a pod of which no process is known.

    Attributes:
        name: Its name for people.
        host: The host's name.
        process: The process; None if none has recorded anything.
        pod: Its pod; None outside of a cluster, or if it is not known.
        offset_ns: The clock of its host less the common one.
    """

    name: str
    host: str
    process: ProcessFacts | None = None
    pod: PodFacts | None = None
    offset_ns: int = 0

    @property
    def key(self) -> str:
        """Its identity: names may be equal where indexes are not known."""
        if self.process is not None:
            return f"{self.host}/{self.process.pid}"
        return self.pod.uid if self.pod is not None else self.host


def cluster_of(facts: Facts) -> Cluster | None:
    """Return how kubectl reaches the pods of a job; None if no cluster was asked."""
    cluster = facts.kubernetes.value if isinstance(facts.kubernetes, Fact) else None
    return None if cluster is None or not cluster.context else Cluster(cluster.context, cluster.namespace)


def targets_of(facts: Facts, host: str = "", index: int | None = None) -> list[Target]:
    """Return the processes and pods of a job.

    Args:
        facts: The job.
        host: Only of this host: its name, that of the pod, or the name of the process for people.
        index: Only the process with this index.

    Raises:
        NotFoundError: There is no such host or process.
    """
    targets = _all_targets(facts)
    found = [
        target
        for target in targets
        if host in ("", target.host, target.name, target.pod.name if target.pod is not None else "")
        and index in (None, _index_of(target))
    ]
    if targets and not found:
        names = [target.name for target in targets]
        more = f" and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else ""
        wanted = " and ".join(
            text
            for text in (
                f"host {host!r}" if host else "",
                f"index {index}" if index is not None else "",
            )
            if text
        )
        raise NotFoundError(
            f"{facts.name} has no process with {wanted}; it has {', '.join(names[:_NAMES_SHOWN])}{more}"
        )
    return found


def _all_targets(facts: Facts) -> list[Target]:
    cluster = facts.kubernetes.value if isinstance(facts.kubernetes, Fact) else None
    offsets = facts.attempt.clock_offsets_ns if facts.attempt is not None else {}
    targets, used = [], set()
    for process in facts.processes:
        pod = None
        if cluster is not None:
            pod = cluster.pod_of(process.host, process.index, process.started_ns, process.end.ended_ns)
        if pod is not None:
            used.add(pod.uid)
        targets.append(Target(process.name, process.host, process, pod, offsets.get(process.host, 0)))
    if cluster is not None and not targets:
        targets += [Target(pod.name, pod.host or pod.name, None, pod) for pod in cluster.pods if not pod.is_gone]
    return targets


def _index_of(target: Target) -> int | None:
    if target.process is not None:
        return target.process.index
    return target.pod.index if target.pod is not None else None
