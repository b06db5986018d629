"""A network of its own for each process of a job: a namespace, an address, and a link that can be cut.

Only Linux, as root. The collectives of JAX on CPUs bind to the address of the host's name: each namespace has a host
name and a file of hosts of its own.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

__all__ = ["Network", "network", "why_no_network"]

_SECONDS: Final = 10.0
_HOSTS: Final = Path("/etc/netns")
"""`ip netns exec` mounts the files of a namespace's folder here over those of /etc."""
_PORT: Final = 21_937
_NARROW: Final = ("tbf", "rate", "6kbit", "burst", "1600", "limit", "3000")
"""Fewer bytes than a collective sends: what does not fit into the queue is dropped."""


_numbers = itertools.count()


class Network:
    """The namespaces of one job."""

    def __init__(self, hosts: list[str]) -> None:
        self._hosts = hosts
        # A namespace outlives its name by a moment, and with it the names of its links.
        self._id = f"fb{os.getpid() % 100_000}-{next(_numbers)}"

    @property
    def coordinator(self) -> str:
        """The address for `jax.distributed.initialize`."""
        return f"{_address(0)}:{_PORT}"

    def prefix(self, slot: int) -> list[str]:
        """Return the command that starts a process in its namespace."""
        named = f'hostname {self._hosts[slot]} && exec "$@"'
        return ["ip", "netns", "exec", self._name(slot), "unshare", "--uts", "sh", "-c", named, "sh"]

    def cut(self, slot: int) -> None:
        """Take the link of a process down."""
        _ip("link", "set", self._link(slot), "down")

    def narrow(self, slot: int) -> None:
        """Have the link to a process drop most packets."""
        _run("tc", "qdisc", "add", "dev", self._link(slot), "root", *_NARROW)

    def open(self) -> None:
        """Make the namespaces and the links between them."""
        _ip("link", "add", self._id, "type", "bridge")
        _ip("link", "set", self._id, "up")
        lines = [f"{_address(slot)} {host}\n" for slot, host in enumerate(self._hosts)]
        for slot in range(len(self._hosts)):
            name, link = self._name(slot), self._link(slot)
            folder = _HOSTS / name
            folder.mkdir(parents=True)
            (folder / "hosts").write_text("".join(["127.0.0.1 localhost\n", *lines]))
            _ip("netns", "add", name)
            _ip("link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", name)
            _ip("link", "set", link, "master", self._id, "up")
            _ip("-n", name, "address", "add", f"{_address(slot)}/24", "dev", "eth0")
            _ip("-n", name, "link", "set", "eth0", "up")
            _ip("-n", name, "link", "set", "lo", "up")

    def close(self) -> None:
        """Remove all of it."""
        for slot in range(len(self._hosts)):
            with contextlib.suppress(subprocess.CalledProcessError):
                _ip("link", "delete", self._link(slot))
            with contextlib.suppress(subprocess.CalledProcessError):
                _ip("netns", "delete", self._name(slot))
            shutil.rmtree(_HOSTS / self._name(slot), ignore_errors=True)
        with contextlib.suppress(subprocess.CalledProcessError):
            _ip("link", "delete", self._id)

    def _name(self, slot: int) -> str:
        return f"{self._id}-{slot}"

    def _link(self, slot: int) -> str:
        return f"{self._id}v{slot}"


@contextlib.contextmanager
def network(hosts: list[str]) -> Iterator[Network]:
    """Make the network of a job for as long as the block runs.

    Raises:
        subprocess.CalledProcessError: The machine does not allow it.
    """
    made = Network(hosts)
    try:
        made.open()
        yield made
    finally:
        made.close()


def why_no_network() -> str:
    """Return why this machine allows no namespaces; empty if it does."""
    if os.geteuid() != 0 or shutil.which("ip") is None or shutil.which("tc") is None:
        return "network namespaces need the rights of root, and the programs ip and tc"
    try:
        with network(["probe-0", "probe-1"]) as made:
            made.narrow(0)
            made.cut(0)
    except (OSError, subprocess.CalledProcessError) as error:
        return f"network namespaces cannot be made here: {error}"
    return ""


def _address(slot: int) -> str:
    return f"10.91.37.{slot + 1}"


def _ip(*arguments: str) -> None:
    _run("ip", *arguments)


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, timeout=_SECONDS)
