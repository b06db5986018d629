"""What kubectl is asked, as argv, and what its complaints mean: pure functions.

A name comes as a positional argument, so it must be one that a cluster could have given; every other value comes as
`--flag=value`, and cannot be taken for a flag. What runs in a pod is started there by its argv, with no shell between.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from xprofiler.exceptions import NotFoundError, NotPermittedError, UsageError, XprofilerError

__all__ = ["Cluster", "checked_name", "complaint", "execute", "get", "port_forward"]

# https://kubernetes.io/docs/concepts/overview/working-with-objects/names, and the underscore, which some servers take.
_NAME: Final = re.compile(r"[A-Za-z0-9](?:[-A-Za-z0-9._]{0,251}[A-Za-z0-9])?", re.ASCII)
_KLOG: Final = re.compile(r"[EWI]\d{4} ")  # What its libraries log for themselves: E1121 21:02:04.335571 ...
_SET_UP: Final = "set the cluster up with `gcloud container clusters get-credentials CLUSTER --region=REGION`"


@dataclass(frozen=True)
class Cluster:
    """Where kubectl looks.

    Attributes:
        namespace: None is that of the context.
        context: Of the kubeconfig; None is its current one.
    """

    namespace: str | None = None
    context: str | None = None

    def __post_init__(self) -> None:
        """Refuses a namespace that cannot be one."""
        if self.namespace is not None:
            checked_name(self.namespace, "namespace")
        if self.context is not None and (not self.context or "\0" in self.context):
            raise UsageError(f"{self.context!r} is not the name of a context: see `kubectl config get-contexts`")

    def argv(self, verb: str) -> list[str]:
        """The beginning of each command."""
        chosen = (("context", self.context), ("namespace", self.namespace))
        return ["kubectl", *(f"--{flag}={value}" for flag, value in chosen if value is not None), verb]


def get(cluster: Cluster, kind: str, names: Sequence[str]) -> list[str]:
    """Returns the argv that prints objects by their names, as JSON; those that are missing are left out.

    Raises:
        UsageError: A name cannot be one.
    """
    return [*cluster.argv("get"), "--output=json", "--ignore-not-found", kind, *(checked_name(n, kind) for n in names)]


def port_forward(cluster: Cluster, pod: str, local_port: int, port: int) -> list[str]:
    """Returns the argv that brings a port of a pod to 127.0.0.1, for as long as it runs.

    Raises:
        UsageError: The name cannot be that of a pod.
    """
    return [
        *cluster.argv("port-forward"),
        "--address=127.0.0.1",
        f"pod/{checked_name(pod, 'pod')}",
        f"{local_port}:{port}",
    ]


def execute(cluster: Cluster, pod: str, program: Sequence[str], *, container: str | None = None) -> list[str]:
    """Returns the argv that runs a program in a pod, with our standard input, output and error.

    Args:
        cluster: Where.
        pod: The pod.
        program: The program and its arguments, as it gets them.
        container: None is the pod's default one.

    Raises:
        UsageError: A name cannot be one.
    """
    chosen = [] if container is None else [f"--container={checked_name(container, 'container')}"]
    return [*cluster.argv("exec"), "--stdin", "--quiet", *chosen, f"pod/{checked_name(pod, 'pod')}", "--", *program]


def checked_name(name: str, what: str) -> str:
    """Returns a name that a cluster could have given.

    Args:
        name: Any text.
        what: What has that name, for the message.

    Raises:
        UsageError: It could not.
    """
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"{name!r} is not the name of a {what}: one has letters, digits, '-' and '.', and begins and ends with a "
            "letter or digit"
        )
    return name


def complaint(said: str, what: str) -> XprofilerError:
    """Returns what a failure of kubectl means.

    Args:
        said: What it wrote to standard error.
        what: What was to be done, for the message: "look for pods".
    """
    told = "\n".join(line for line in said.splitlines() if not _KLOG.match(line))
    problem = f"kubectl could not {what}: {told or said}"
    if re.search(r"\(Forbidden\)|\(Unauthorized\)|must be logged in|executable gke-gcloud-auth-plugin", said):
        return NotPermittedError(f"{problem}\nLook who you are there with `kubectl auth whoami`; {_SET_UP}")
    if re.search(r"\(NotFound\)|context was not found|does not have a resource type", said):
        return NotFoundError(problem)
    if re.search(r"connection to the server \S+ was refused|Unable to connect|current-context is not set", said):
        return XprofilerError(
            f"{problem}\nIs it the right cluster (`kubectl config current-context`)? If none, {_SET_UP}"
        )
    return XprofilerError(problem)
