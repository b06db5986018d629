"""Routes to the host of a process, and the reasons why there is none. Pure.

A host's name may be any text of an entry, so only valid names become arguments. Words of the user's command stay words:
kubectl starts the program by its arguments; through a shell, which ssh always starts, each is quoted.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from typing import Final, NamedTuple

from ml_diagnostics_common.command.errors import CommandError, NotFoundError, UsageError
from ml_diagnostics_common.texts import format_clock, one_line

from ml_diagnostics_console._facts.kubernetes_facts import PodFacts
from ml_diagnostics_console._facts.targets import Cluster, Target

__all__ = ["SHELL", "Machine", "Route", "route_to"]

SHELL: Final = "sh"
_KUBERNETES_NAME: Final = re.compile(r"[a-z0-9](?:[-a-z0-9.]{0,251}[a-z0-9])?", re.ASCII)
_HOST: Final = re.compile(r"[A-Za-z0-9](?:[-A-Za-z0-9._]{0,251}[A-Za-z0-9])?", re.ASCII)
_CLOUD_NAME: Final = re.compile(r"[a-z](?:[-_a-z0-9]{0,61}[a-z0-9])?", re.ASCII)
_PROJECT: Final = re.compile(r"(?:[a-z0-9][-a-z0-9.]*:)?[a-z0-9][-a-z0-9]{0,61}[a-z0-9]", re.ASCII)
_WORKER: Final = re.compile(r".*-w-?(\d{1,6})", re.ASCII)
"""TPU VMs are called `t1v-n-<id>-w-3`."""


class Machine(NamedTuple):
    """The location of a host in Google Cloud, as the user gives it; empty for what is recorded.

    Attributes:
        tpu: The TPU.
        zone: Its zone, or that of the VM.
        project: Its project.
    """

    tpu: str = ""
    zone: str = ""
    project: str = ""


class Route(NamedTuple):
    """A way to a host.

    Attributes:
        argv: The program to run; empty on this machine without a command.
        where: The host, for people.
        kind: kubectl, gcloud, ssh or here.
    """

    argv: list[str]
    where: str
    kind: str


def route_to(
    target: Target,
    program: Sequence[str],
    *,
    cluster: Cluster | None,
    machine: Machine,
    own_host: str,
    key: str = "",
    has_terminal: bool = True,
) -> Route:
    """Return how to get to a target.

    Args:
        target: The process or pod.
        program: The user's command; empty for a shell.
        cluster: The cluster of its pods; None without one.
        machine: Its location in Google Cloud.
        own_host: The name of this machine.
        key: The user's ssh key for gcloud; empty leaves the choice to ssh.
        has_terminal: True if the user types at a terminal.

    Raises:
        CommandError: It cannot be reached; the message has the reason and what to do.
    """
    if target.pod is not None and cluster is not None:
        return _in_pod(target.pod, program, cluster, has_terminal=has_terminal)
    if target.host == own_host and not (machine.tpu or machine.zone):
        return Route(list(program), f"{target.name} is this machine", "here")
    recorded = target.process.resource if target.process is not None else {}
    if machine.tpu or machine.zone or recorded.get("type") == "tpu_worker":
        return _on_cloud(target, program, machine, key)
    host = _checked(target.host, _HOST, "host")
    return Route(["ssh", *(["-t"] if has_terminal and program else []), "--", host, *_quoted(program)], host, "ssh")


def _in_pod(pod: PodFacts, program: Sequence[str], cluster: Cluster, *, has_terminal: bool) -> Route:
    if reason := _why_not(pod):
        raise CommandError(reason)
    name = _checked(pod.name, _KUBERNETES_NAME, "pod")
    containers = [container for container in pod.main_containers if container.is_running] or pod.main_containers
    chosen = [f"--container={_checked(containers[0].name, _KUBERNETES_NAME, 'container')}"] if containers else []
    streams = ["--stdin", "--tty"] if has_terminal else ["--stdin"]
    argv = cluster.argv("exec", *streams, *chosen, f"pod/{name}", "--", *(program or [SHELL]))
    return Route(argv, f"pod {pod.namespace}/{pod.name}", "kubectl")


def _why_not(pod: PodFacts) -> str:
    """Return why no program can be started in a pod; empty if one can."""
    name = f"pod {pod.namespace}/{pod.name}"
    hold = "keep it next time with `python -m cloud_tpu_diagnostics run --hold-on-failure 1h -- COMMAND`"
    if pod.is_gone:
        return f"{name} does not exist any more, and its files are gone with it: {hold}"
    if pod.is_pending:
        waiting = next((each for each in pod.containers if each.waiting_reason), None)
        if not pod.node:
            return f"{name} is not scheduled yet: `mldiagnostics doctor` shows what it waits for"
        reason = f": {waiting.waiting_reason}" if waiting is not None else ""
        return f"{name} has not started yet{reason}: `mldiagnostics doctor` shows what it waits for"
    ends = [each.ends[0] for each in pod.main_containers if each.ends and not each.is_running]
    if pod.phase in ("Succeeded", "Failed") or (ends and not any(each.is_running for each in pod.main_containers)):
        end = ends[0] if ends else None
        how = f" ({end.reason}, exit code {end.exit_code})" if end is not None else ""
        at = f" at {format_clock(end.ended_ns)}" if end is not None and end.ended_ns else ""
        return f"{name} has ended{at}{how}, and kubectl exec needs a container that runs: {hold}"
    return ""


def _on_cloud(target: Target, program: Sequence[str], machine: Machine, key: str) -> Route:
    """Return a route by gcloud, which looks the address up; `--plain` keeps it from adding a key to the machine."""
    recorded = target.process.resource if target.process is not None else {}
    tpu, zone = machine.tpu or recorded.get("node_id", ""), machine.zone or recorded.get("zone", "")
    project = machine.project or recorded.get("project_id", "")
    is_tpu = bool(tpu)
    if not zone:
        raise UsageError(f"the zone of {target.name} is not known: give --zone ZONE")
    name = _checked(tpu or target.host, _CLOUD_NAME, "TPU" if is_tpu else "VM")
    service = ["compute", "tpus", "tpu-vm"] if is_tpu else ["compute"]
    argv = ["gcloud", *service, "ssh", name, f"--zone={_checked(zone, _CLOUD_NAME, 'zone')}"]
    if project:
        argv.append(f"--project={_checked(project, _PROJECT, 'project')}")
    where = name
    if is_tpu:
        worker = _worker_of(target, machine)
        argv.append(f"--worker={worker}")
        where = f"{name}, worker {worker}"
    argv.append("--plain")
    if program:
        argv.append(f"--command={shlex.join(program)}")
    return Route([*argv, *(["--", "-i", key] if key else [])], where, "gcloud")


def _worker_of(target: Target, machine: Machine) -> int:
    """Return the number of a host in its TPU."""
    recorded = target.process.resource.get("worker_id", "") if target.process is not None else ""
    if not machine.tpu and recorded.isascii() and recorded.isdigit() and len(recorded) < 7:
        return int(recorded)
    if found := _WORKER.fullmatch(target.host):
        return int(found[1])
    index = target.process.index if target.process is not None else None
    if index is None:
        raise NotFoundError(f"the number of {target.name} in the TPU is not known: name it as HOST-w-NUMBER")
    return index


def _quoted(program: Sequence[str]) -> list[str]:
    """Return a command as one argument: ssh passes it to the shell of the host."""
    return [shlex.join(program)] if program else []


def _checked(name: str, pattern: re.Pattern[str], what: str) -> str:
    if not pattern.fullmatch(name):
        raise CommandError(f"{one_line(repr(name), 200)} is not a valid name of a {what}, so it cannot be connected to")
    return name
