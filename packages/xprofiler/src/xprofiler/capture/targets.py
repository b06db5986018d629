"""Whom a capture asks: processes with a profiler's server, and the ways to the machines that they run on."""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from xprofiler.exceptions import UsageError

__all__ = ["Access", "Found", "Target", "addresses", "check_distinct", "host_and_port", "is_this_machine"]

_ADDRESS: Final = re.compile(r"(?P<host>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9_.-]+)(?::(?P<port>\d{1,5}))?", re.ASCII)
_LAST_PORT: Final = 65535


class Access(Protocol):
    """The way to a machine on which we may start programs: a pod's, or a VM's."""

    def forward(self, local_port: int, port: int) -> list[str]:
        """The argv that brings its port to one of 127.0.0.1, for as long as it runs."""
        ...

    def execute(self, program: Sequence[str]) -> list[str]:
        """The argv that runs a program there, with our standard input, output and error."""
        ...


@dataclass(frozen=True)
class Target:
    """One process that is to profile itself.

    Attributes:
        name: For people; as it was typed, or with the worker of a TPU slice.
        file_name: What its file is called, without `.xplane.pb`.
        port: Of its profiler's server.
        address: `host:port`, where it can be asked directly; else empty.
        access: The way to its machine, where there is one.
        title: What a person calls it: "host vm_name1", or "pod_1".
    """

    name: str
    file_name: str
    port: int
    address: str = ""
    access: Access | None = None
    title: str = ""


@dataclass(frozen=True)
class Found:
    """What came of the names that were typed.

    Attributes:
        targets: Whom to ask.
        missing: For each name of whom there is nobody to ask: why not.
    """

    targets: tuple[Target, ...] = ()
    missing: dict[str, str] = field(default_factory=dict)


def addresses(hosts: Sequence[str], port: int) -> Found:
    """Returns the targets that are named by their addresses.

    Args:
        hosts: `host` or `host:port` of each.
        port: For those without.

    Raises:
        UsageError: One cannot be an address, or two lead to one process.
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
    """Refuses names that mean one process, or of which one's file would overwrite the other's.

    Raises:
        UsageError: There are such.
    """
    seen: dict[tuple[str, str], str] = {}
    for target in targets:
        place = target.address.lower().replace("localhost:", "127.0.0.1:")
        for key, problem in (
            (("address", place), "lead to the same process: give one of them"),
            (("file", target.file_name.lower()), "would write to one file: capture them one after the other"),
        ):
            if key in seen:
                raise UsageError(f"{seen[key]} and {target.name} {problem}")
            if key[1]:
                seen[key] = target.name


def host_and_port(address: str) -> tuple[str, int]:
    """Splits `host:port`, `[::1]:port` too."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def is_this_machine(address: str) -> bool:
    """Whether an address leads to this machine, so that its files are ours."""
    host, _ = host_and_port(address)
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host in ("localhost", socket.gethostname())
