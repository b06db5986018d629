"""Pods as targets, by kubectl."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from xprofiler.capture.targets import Found, Target
from xprofiler.exceptions import XprofilerError
from xprofiler.programs import kubectl
from xprofiler.programs.processes import Programs

__all__ = ["PodAccess", "find_pods"]

_TIMEOUT_SECONDS: Final = 60.0


@dataclass(frozen=True)
class PodAccess:
    """The way to a pod: see `targets.Access`.

    Attributes:
        cluster: Where it is.
        pod: Its name.
        container: In which programs run; None is its default one.
    """

    cluster: kubectl.Cluster
    pod: str
    container: str | None = None

    def forward(self, local_port: int, port: int) -> list[str]:
        """The argv that brings a port of the pod here."""
        return kubectl.port_forward(self.cluster, self.pod, local_port, port)

    def execute(self, program: Sequence[str]) -> list[str]:
        """The argv that runs a program in the pod."""
        return kubectl.execute(self.cluster, self.pod, program, container=self.container)


def find_pods(
    names: Sequence[str], cluster: kubectl.Cluster, container: str | None, port: int, programs: Programs
) -> Found:
    """Finds pods by their names, with one question to the cluster.

    Args:
        names: Of the pods.
        cluster: Where they are.
        container: In which programs run; None is the default one.
        port: Of the profiler's server in each.
        programs: Where kubectl runs.

    Raises:
        UsageError: A name cannot be one.
        NotFoundError: kubectl or the context is not there.
        NotPermittedError: The cluster does not let us in.
        XprofilerError: The cluster cannot be asked.
    """
    wanted = list(dict.fromkeys(names))
    if container is not None:
        kubectl.checked_name(container, "container")
    ended = programs.run(kubectl.get(cluster, "pod", wanted), timeout_seconds=_TIMEOUT_SECONDS)
    if ended.exit_code:
        raise kubectl.complaint(ended.complaint, "look for the pods")
    pods = {str(pod.get("metadata", {}).get("name")): pod for pod in _read(ended.output)}
    missing = {name: _problem_of(name, pods.get(name), cluster, container) for name in wanted}
    targets = [
        Target(name, name, port, access=PodAccess(cluster, name, container), title=name)
        for name in wanted
        if not missing[name]
    ]
    return Found(tuple(targets), {name: problem for name, problem in missing.items() if problem})


def _read(output: bytes) -> list[Mapping[str, Any]]:
    """One object, a list of several, or nothing at all."""
    try:
        told = json.loads(output or b"{}")
    except ValueError as error:
        raise XprofilerError(f"kubectl's answer is no JSON ({error}): {output[:200]!r}") from error
    if told.get("kind") == "List":
        return list(told.get("items", ()))
    return [told] if told else []


def _problem_of(name: str, pod: Mapping[str, Any] | None, cluster: kubectl.Cluster, container: str | None) -> str:
    if pod is None:
        where = f"namespace {cluster.namespace}" if cluster.namespace else "the context's namespace"
        return f"Pod {name} does not exist in {where}; see `kubectl get pods`, and --namespace and --context."
    phase = pod.get("status", {}).get("phase")
    if phase != "Running":
        return f"Pod {name} does not run: it is {phase}."
    containers = [str(one.get("name")) for one in pod.get("spec", {}).get("containers", ())]
    if container is not None and container not in containers:
        return f"Pod {name} has no container {container}; it has {', '.join(containers)}."
    return ""
