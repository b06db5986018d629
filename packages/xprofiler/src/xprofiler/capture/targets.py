"""The targets of a capture: processes with a profiler server, and access to their machines."""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from ml_diagnostics_common.command.errors import UsageError

__all__ = ["Access", "Found", "Target", "addresses", "check_distinct", "host_and_port", "is_this_machine"]

_ADDRESS: Final = re.compile(r"(?P<host>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9_.-]+)(?::(?P<port>\d{1,5}))?", re.ASCII)
_LAST_PORT: Final = 65535


class Access(Protocol):
    """Access to a machine that we can run programs on: a pod or a VM."""

    def forward(self, local_port: int, port: int) -> list[str]:
        """Return the argv that forwards a port of 127.0.0.1 to one of the machine, until it ends."""
        ...

    def execute(self, program: Sequence[str]) -> list[str]:
        """Return the argv that runs a program on the machine, with our standard input, output and error."""
        ...


@dataclass(frozen=True)
class Target:
    """One process to profile.

    Attributes:
        name: The typed name, or one with the worker of a TPU slice.
        file_name: The name of its file, without `.xplane.pb`.
        port: The port of its profiler server.
        address: `host:port` if it can be reached directly; otherwise empty.
        access: Access to its machine, if we can run programs there.
        title: The name in messages: "host vm_name1", or "pod_1".
    """

    name: str
    file_name: str
    port: int
    address: str = ""
    access: Access | None = None
    title: str = ""


@dataclass(frozen=True)
class Found:
    """The result of a search for hosts by name.

    Attributes:
        targets: The targets that were found.
        missing: The reason for each name that was not found.
    """

    targets: tuple[Target, ...] = ()
    missing: dict[str, str] = field(default_factory=dict)


def addresses(hosts: Sequence[str], port: int) -> Found:
    """Return targets for addresses.

    Args:
        hosts: `host` or `host:port` of each.
        port: The port if the address has none.

    Raises:
        UsageError: An address is not valid, or two lead to the same process.
    """
    from ml_diagnostics_common.profiler_service import file_name_of

    targets = []
    for host in dict.fromkeys(hosts):
        found = _ADDRESS.fullmatch(host)
        own_port = int(found["port"] or port) if found else 0
        if found is None or not 0 < own_port <= _LAST_PORT:
            raise UsageError(f"{host!r} is not an address: give host:port, such as localhost:9012")
        address = f"{found['host']}:{own_port}"
        targets.append(Target(host, file_name_of(address), own_port, address, title=f"host {host}"))
    check_distinct(targets)
    return Found(tuple(targets))


def check_distinct(targets: Sequence[Target]) -> None:
    """Reject two names for the same process, and two targets that would write the same file.

    Raises:
        UsageError: Two targets conflict.
    """
    seen: dict[tuple[str, str], str] = {}
    for target in targets:
        address = target.address.lower().replace("localhost:", "127.0.0.1:")
        for key, problem in (
            (("address", address), "lead to the same process: give one of them"),
            (("file", target.file_name.lower()), "would write to one file: capture them one after the other"),
        ):
            if key in seen:
                raise UsageError(f"{seen[key]} and {target.name} {problem}")
            if key[1]:
                seen[key] = target.name


def host_and_port(address: str) -> tuple[str, int]:
    """Split `host:port` or `[::1]:port`."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def is_this_machine(address: str) -> bool:
    """Return whether an address leads to this machine, so that its files are local."""
    host, _ = host_and_port(address)
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host in ("localhost", socket.gethostname())
