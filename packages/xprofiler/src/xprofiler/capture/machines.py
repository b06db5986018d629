"""VMs as targets: those of TPUs, each worker of a slice by itself, and others. By the APIs, and ssh through gcloud."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ml_diagnostics_common.exceptions import DiagnosticsError

from xprofiler.capture.targets import Found, Target, check_distinct
from xprofiler.cloud.api import GoogleApi
from xprofiler.exceptions import NotFoundError
from xprofiler.parallel import in_parallel
from xprofiler.programs import gcloud
from xprofiler.programs.processes import Programs

__all__ = ["MachineAccess", "find_machines", "make_ssh_key"]

_INTERNAL: Final = "--internal-ip"
_FIRST_LOGIN_SECONDS: Final = 180.0


@dataclass(frozen=True)
class MachineAccess:
    """The way to a VM: see `targets.Access`.

    Attributes:
        machine: As gcloud finds it.
        extra: The user's own flags for gcloud.
    """

    machine: gcloud.SshTarget
    extra: tuple[str, ...] = ()

    def forward(self, local_port: int, port: int) -> list[str]:
        """The argv that brings a port of the VM here."""
        tunnel = f"127.0.0.1:{local_port}:localhost:{port}"
        options = ("-N", "-L", tunnel, "-o", "ExitOnForwardFailure=yes")
        return gcloud.ssh(self.machine, options=options, extra=self._flags)

    def execute(self, program: Sequence[str]) -> list[str]:
        """The argv that runs a program on the VM."""
        return gcloud.ssh(self.machine, program=program, extra=self._flags)

    @property
    def _flags(self) -> list[str]:
        return ["--quiet", *self.extra]  # Nobody answers its questions.


def make_ssh_key(targets: Sequence[Target], programs: Programs) -> None:
    """Has gcloud make its ssh key, if there is none, before many of it would do so at the same time.

    Args:
        targets: The VMs; the first is logged in to.
        programs: Where gcloud runs.

    Raises:
        NotFoundError: There is no gcloud on this machine.
        TimedOutError: It did not end in time.
    """
    access = targets[0].access
    if access is not None and not Path("~/.ssh/google_compute_engine").expanduser().exists():
        programs.run(access.execute(["true"]), timeout_seconds=_FIRST_LOGIN_SECONDS)


def find_machines(
    names: Sequence[str],
    zone: str,
    port: int,
    api: GoogleApi,
    *,
    may_be_tpus: bool,
    uses_ssh_helper: bool = False,
    extra: Sequence[str] = (),
) -> Found:
    """Finds VMs by their names; one that cannot be looked for keeps no other from its profile.

    Args:
        names: Of TPU VMs, slices of them too, or of other VMs.
        zone: Where they are.
        port: Of the profiler's server on each.
        api: Google's APIs.
        may_be_tpus: Whether to look for TPU VMs first.
        uses_ssh_helper: Whether ssh goes through `corp-ssh-helper`.
        extra: The user's own flags for gcloud.

    Raises:
        UsageError: A name cannot be one, or is that of a worker of another.
        NotPermittedError: The credentials may look for none of them.
        XprofilerError: The APIs could be asked for none of them.
    """
    wanted = [gcloud.checked_host(name) for name in dict.fromkeys(names)]
    gcloud.checked_name(zone, "zone")
    kinds = "TPU VM, and no other VM," if may_be_tpus else "VM"
    targets: list[Target] = []
    missing: dict[str, str] = {}

    def find(name: str) -> list[Target]:
        way = _Way(name, zone, port, uses_ssh_helper, tuple(extra))
        return (_tpu_workers(way, api) if may_be_tpus else []) or _instance(way, api)

    looked = in_parallel(find, wanted)
    failures = [one for one in looked if isinstance(one, Exception)]
    for failure in failures:
        if len(failures) == len(wanted) or not isinstance(failure, DiagnosticsError):
            raise failure
    for name, found in zip(wanted, looked, strict=True):
        if isinstance(found, Exception):
            missing[name] = str(found)
            continue
        targets += found
        if not found:
            missing[name] = f"Host {name} does not exist: there is no {kinds} of that name in {zone} of {api.project}."
    check_distinct(targets)
    return Found(tuple(targets), missing)


@dataclass(frozen=True)
class _Way:
    """What all targets of one name share."""

    name: str
    zone: str
    port: int
    uses_ssh_helper: bool
    extra: tuple[str, ...]

    def to(self, target_name: str, worker: int | None, project: str, *, is_external: bool) -> Target:
        machine = gcloud.SshTarget(
            self.name,
            self.zone,
            project,
            worker,
            through_iap=not is_external and _INTERNAL not in self.extra and not self.uses_ssh_helper,
            proxy_through_ssh_helper=self.uses_ssh_helper,
        )
        access = MachineAccess(machine, self.extra)
        return Target(target_name, target_name, self.port, access=access, title=f"host {target_name}")


def _tpu_workers(way: _Way, api: GoogleApi) -> list[Target]:
    """The workers of a TPU, `NAME-w0` and so on; NAME itself where there is but one."""
    place = f"projects/{api.project}/locations/{way.zone}/nodes/{way.name}"
    request = api.tpu.projects().locations().nodes().get(name=place, fields="name,state,networkEndpoints")
    try:
        node = api.execute(request, f"look for the TPU VM {way.name}")
    except NotFoundError:
        return []
    workers: list[Mapping[str, Any]] = list(node.get("networkEndpoints", ())) or [{}]
    return [
        way.to(
            way.name if len(workers) == 1 else f"{way.name}-w{number}",
            number,
            api.project,
            is_external=bool(worker.get("accessConfig", {}).get("externalIp")),
        )
        for number, worker in enumerate(workers)
    ]


def _instance(way: _Way, api: GoogleApi) -> list[Target]:
    fields = "name,status,networkInterfaces/accessConfigs/natIP"
    request = api.compute.instances().get(project=api.project, zone=way.zone, instance=way.name, fields=fields)
    try:
        instance = api.execute(request, f"look for the VM {way.name}")
    except NotFoundError:
        return []
    interfaces = instance.get("networkInterfaces", ())
    is_external = any(config.get("natIP") for one in interfaces for config in one.get("accessConfigs", ()))
    return [way.to(way.name, None, api.project, is_external=is_external)]
