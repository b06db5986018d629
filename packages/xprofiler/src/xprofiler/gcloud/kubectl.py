"""Command lines of kubectl, and errors for its messages. Pure functions.

A name is a positional argument, so it must be valid in Kubernetes; every other value is passed as `--flag=value`, so
that it cannot be parsed as a flag. A program in a pod is started by its argv, without a shell.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ml_diagnostics_common.command.errors import CommandError, UsageError, class_of_kind
from ml_diagnostics_common.failures import Kind

from xprofiler.gcloud.processes import Finished

__all__ = ["Cluster", "checked_name", "error_of", "execute", "get", "port_forward"]

# https://kubernetes.io/docs/concepts/overview/working-with-objects/names; some servers accept underscores.
_NAME: Final = re.compile(r"[A-Za-z0-9](?:[-A-Za-z0-9._]{0,251}[A-Za-z0-9])?", re.ASCII)
_KLOG: Final = re.compile(r"[EWI]\d{4} ")  # Lines that its libraries log: E1121 21:02:04.335571 ...
_SET_UP: Final = "set the cluster up with `gcloud container clusters get-credentials CLUSTER --region=REGION`"


_ADVICE: Final[Mapping[Kind | None, str]] = {
    Kind.REFUSED: f"\nCheck your identity there with `kubectl auth whoami`; {_SET_UP}",
    Kind.UNREACHABLE: f"\nIs it the right cluster (`kubectl config current-context`)? If none, {_SET_UP}",
}


@dataclass(frozen=True)
class Cluster:
    """The cluster and namespace that kubectl uses.

    Attributes:
        namespace: The namespace; None selects the context's.
        context: The context in the kubeconfig; None selects the current one.
    """

    namespace: str | None = None
    context: str | None = None

    def __post_init__(self) -> None:
        """Raise UsageError if a name is not valid."""
        if self.namespace is not None:
            checked_name(self.namespace, "namespace")
        if self.context is not None and (not self.context or "\0" in self.context):
            raise UsageError(f"{self.context!r} is not a valid context: see `kubectl config get-contexts`")

    def argv(self, verb: str) -> list[str]:
        """Return the first arguments of a command."""
        chosen = (("context", self.context), ("namespace", self.namespace))
        return ["kubectl", *(f"--{flag}={value}" for flag, value in chosen if value is not None), verb]


def get(cluster: Cluster, kind: str, names: Sequence[str]) -> list[str]:
    """Return the argv that prints objects by name, as JSON; missing objects are left out.

    Raises:
        UsageError: A name is not valid.
    """
    return [*cluster.argv("get"), "--output=json", "--ignore-not-found", kind, *(checked_name(n, kind) for n in names)]


def port_forward(cluster: Cluster, pod: str, local_port: int, port: int) -> list[str]:
    """Return the argv that forwards a port of 127.0.0.1 to a pod, until it ends.

    Raises:
        UsageError: The name is not valid for a pod.
    """
    return [
        *cluster.argv("port-forward"),
        "--address=127.0.0.1",
        f"pod/{checked_name(pod, 'pod')}",
        f"{local_port}:{port}",
    ]


def execute(cluster: Cluster, pod: str, program: Sequence[str], *, container: str | None = None) -> list[str]:
    """Return the argv that runs a program in a pod, with our standard input, output and error.

    Args:
        cluster: The pod's cluster.
        pod: The pod's name.
        program: The program and its arguments.
        container: The container; None selects the pod's default.

    Raises:
        UsageError: A name is not valid.
    """
    chosen = [] if container is None else [f"--container={checked_name(container, 'container')}"]
    return [*cluster.argv("exec"), "--stdin", "--quiet", *chosen, f"pod/{checked_name(pod, 'pod')}", "--", *program]


def checked_name(name: str, what: str) -> str:
    """Return a name if it is valid in Kubernetes.

    Args:
        name: Any text.
        what: The kind of object, for the message.

    Raises:
        UsageError: The name is not valid.
    """
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"{name!r} is not a valid name of a {what}: use letters, digits, '-' and '.'; start and end with a "
            "letter or digit"
        )
    return name


def error_of(ended: Finished, what: str) -> CommandError:
    """Return the error for a failed command of kubectl.

    Args:
        ended: The command.
        what: The purpose of the command, for the message: "find the pods".
    """
    lines = ended.complaint.splitlines()
    message = "\n".join(line for line in lines if not _KLOG.match(line)) or ended.complaint
    failure = ended.failure("kubectl")
    advice = _ADVICE.get(failure, "")
    return class_of_kind(failure)(f"kubectl could not {what}: {message}{advice}")
