"""Pods as targets, reached with kubectl."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ml_diagnostics_common.command.errors import CommandError

from xprofiler.capture.targets import Found, Target
from xprofiler.gcloud import kubectl
from xprofiler.gcloud.processes import Programs

__all__ = ["PodAccess", "find_pods"]

_TIMEOUT_SECONDS: Final = 60.0


@dataclass(frozen=True)
class PodAccess:
    """Access to a pod: see `targets.Access`.

    Attributes:
        cluster: The pod's cluster.
        pod: The pod's name.
        container: The container to run programs in; None selects the pod's default.
    """

    cluster: kubectl.Cluster
    pod: str
    container: str | None = None

    def forward(self, local_port: int, port: int) -> list[str]:
        """Return the argv that forwards a port of this machine to the pod."""
        return kubectl.port_forward(self.cluster, self.pod, local_port, port)

    def execute(self, program: Sequence[str]) -> list[str]:
        """Return the argv that runs a program in the pod."""
        return kubectl.execute(self.cluster, self.pod, program, container=self.container)


def find_pods(
    names: Sequence[str], cluster: kubectl.Cluster, container: str | None, port: int, programs: Programs
) -> Found:
    """Find pods by name, with one request to the cluster.

    Args:
        names: The pods' names.
        cluster: Their cluster.
        container: The container to run programs in; None selects each pod's default.
        port: The port of the profiler server in each.
        programs: Runs kubectl.

    Raises:
        UsageError: A name is not valid.
        NotFoundError: kubectl or the context does not exist.
        NotPermittedError: The cluster denies access.
        CommandError: The cluster does not answer.
    """
    wanted = list(dict.fromkeys(names))
    if container is not None:
        kubectl.checked_name(container, "container")
    ended = programs.run(kubectl.get(cluster, "pod", wanted), timeout_seconds=_TIMEOUT_SECONDS)
    if ended.exit_code:
        raise kubectl.error_of(ended, "find the pods")
    pods = {str(pod.get("metadata", {}).get("name")): pod for pod in _read(ended.output)}
    missing = {name: _problem_of(name, pods.get(name), cluster, container) for name in wanted}
    targets = [
        Target(name, name, port, access=PodAccess(cluster, name, container), title=name)
        for name in wanted
        if not missing[name]
    ]
    return Found(tuple(targets), {name: problem for name, problem in missing.items() if problem})


def _read(output: bytes) -> list[Mapping[str, Any]]:
    """Return the objects in kubectl's output: none for empty output, one, or those of a list."""
    try:
        answer = json.loads(output or b"{}")
    except ValueError as error:
        raise CommandError(f"kubectl's answer is not valid JSON ({error}): {output[:200]!r}") from error
    if answer.get("kind") == "List":
        return list(answer.get("items", ()))
    return [answer] if answer else []


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
