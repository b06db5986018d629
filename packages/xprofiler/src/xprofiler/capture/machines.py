"""VMs as targets: other VMs, TPU VMs, and each worker of a TPU slice. Uses the APIs, and ssh through gcloud."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ml_diagnostics_common.command.errors import NotFoundError
from ml_diagnostics_common.exceptions import DiagnosticsError
from ml_diagnostics_common.worker import in_parallel

from xprofiler.capture.targets import Found, Target, check_distinct
from xprofiler.gcloud import command_lines
from xprofiler.gcloud.api import GoogleApi
from xprofiler.gcloud.processes import Programs

__all__ = ["MachineAccess", "find_machines", "make_ssh_key"]

_INTERNAL: Final = "--internal-ip"
_FIRST_LOGIN_SECONDS: Final = 180.0


@dataclass(frozen=True)
class MachineAccess:
    """Access to a VM: see `targets.Access`.

    Attributes:
        machine: The VM in gcloud's terms.
        extra: The user's own flags for gcloud.
    """

    machine: command_lines.SshTarget
    extra: tuple[str, ...] = ()

    def forward(self, local_port: int, port: int) -> list[str]:
        """Return the argv that forwards a port of this machine to the VM."""
        tunnel = f"127.0.0.1:{local_port}:localhost:{port}"
        options = ("-N", "-L", tunnel, "-o", "ExitOnForwardFailure=yes")
        return command_lines.ssh(self.machine, options=options, extra=self._flags)

    def execute(self, program: Sequence[str]) -> list[str]:
        """Return the argv that runs a program on the VM."""
        return command_lines.ssh(self.machine, program=program, extra=self._flags)

    @property
    def _flags(self) -> list[str]:
        return ["--quiet", *self.extra]  # No one can answer its prompts.


def make_ssh_key(targets: Sequence[Target], programs: Programs) -> None:
    """Log in once if gcloud has no ssh key, since parallel gcloud processes would each create one.

    Args:
        targets: The VMs; the login is to the first.
        programs: Runs gcloud.

    Raises:
        NotFoundError: gcloud is not installed on this machine.
        TimedOutError: gcloud did not end in time.
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
    """Find VMs by name. If the search for one fails, the others are still captured.

    Args:
        names: Names of TPU VMs, TPU slices or other VMs.
        zone: The zone of all.
        port: The port of the profiler server on each.
        api: Google's APIs.
        may_be_tpus: True to search TPU VMs first.
        uses_ssh_helper: True if ssh goes through `corp-ssh-helper`.
        extra: The user's own flags for gcloud.

    Raises:
        UsageError: A name is not valid, or is also the name of another's worker.
        NotPermittedError: The credentials permit reading none of them.
        CommandError: The requests for all of them failed.
    """
    wanted = [command_lines.checked_host(name) for name in dict.fromkeys(names)]
    command_lines.checked_name(zone, "zone")
    kinds = "TPU VM, and no other VM," if may_be_tpus else "VM"
    targets: list[Target] = []
    missing: dict[str, str] = {}

    def find(name: str) -> list[Target]:
        lookup = _Lookup(name, zone, port, uses_ssh_helper, tuple(extra))
        return (_tpu_workers(lookup, api) if may_be_tpus else []) or _instance(lookup, api)

    results = in_parallel(find, wanted)
    failures = [one for one in results if isinstance(one, Exception)]
    for failure in failures:
        if len(failures) == len(wanted) or not isinstance(failure, DiagnosticsError):
            raise failure
    for name, found in zip(wanted, results, strict=True):
        if isinstance(found, Exception):
            missing[name] = str(found)
            continue
        targets += found
        if not found:
            missing[name] = f"Host {name} does not exist: there is no {kinds} of that name in {zone} of {api.project}."
    check_distinct(targets)
    return Found(tuple(targets), missing)


@dataclass(frozen=True)
class _Lookup:
    """The search for one name; its targets share these values."""

    name: str
    zone: str
    port: int
    uses_ssh_helper: bool
    extra: tuple[str, ...]

    def target(self, target_name: str, worker: int | None, project: str, *, is_external: bool) -> Target:
        machine = command_lines.SshTarget(
            self.name,
            self.zone,
            project,
            worker,
            through_iap=not is_external and _INTERNAL not in self.extra and not self.uses_ssh_helper,
            proxy_through_ssh_helper=self.uses_ssh_helper,
        )
        access = MachineAccess(machine, self.extra)
        return Target(target_name, target_name, self.port, access=access, title=f"host {target_name}")


def _tpu_workers(lookup: _Lookup, api: GoogleApi) -> list[Target]:
    """Return the workers of a TPU, named `NAME-w0` and so on; just NAME if there is only one."""
    path = f"projects/{api.project}/locations/{lookup.zone}/nodes/{lookup.name}"
    request = api.tpu.projects().locations().nodes().get(name=path, fields="name,state,networkEndpoints")
    try:
        node = api.execute(request, f"find the TPU VM {lookup.name}")
    except NotFoundError:
        return []
    workers: list[Mapping[str, Any]] = list(node.get("networkEndpoints", ())) or [{}]
    return [
        lookup.target(
            lookup.name if len(workers) == 1 else f"{lookup.name}-w{number}",
            number,
            api.project,
            is_external=bool(worker.get("accessConfig", {}).get("externalIp")),
        )
        for number, worker in enumerate(workers)
    ]


def _instance(lookup: _Lookup, api: GoogleApi) -> list[Target]:
    fields = "name,status,networkInterfaces/accessConfigs/natIP"
    request = api.compute.instances().get(project=api.project, zone=lookup.zone, instance=lookup.name, fields=fields)
    try:
        instance = api.execute(request, f"find the VM {lookup.name}")
    except NotFoundError:
        return []
    interfaces = instance.get("networkInterfaces", ())
    is_external = any(config.get("natIP") for one in interfaces for config in one.get("accessConfigs", ()))
    return [lookup.target(lookup.name, None, api.project, is_external=is_external)]
