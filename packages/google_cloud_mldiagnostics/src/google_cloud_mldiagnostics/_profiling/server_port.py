"""The port of this process's profiler server, which no other process of this machine has.

The server shares its port with another process's without an error (SO_REUSEPORT), and each would get some of the
requests. A probe shows the servers that listen; a reservation keeps two processes that start at the same time apart.
"""

from __future__ import annotations

import errno
import socket
import sys

from ml_diagnostics_common.descriptors import Descriptor, with_high_number

__all__ = ["ServerPort"]

_TRIES = 20
_TAKEN = "\0ml-diagnostics-profiler-port-{}"
"""An abstract name: of the same network namespace as the port, and free again when its process has ended."""


class ServerPort:
    """A port that is free, and reserved against our servers in other processes until `close`.

    Args:
        wanted: The port; if another process has it, or for 0, any that is free.

    Raises:
        OSError: There is none.
    """

    def __init__(self, wanted: int) -> None:
        for port in (wanted, *[0] * _TRIES):
            try:
                self.number = _free_port(port)
                self._reservation = _reservation(self.number)
                return
            except OSError:
                continue  # Another process has it, or it is one that only root may have.
        raise OSError(errno.EADDRINUSE, "no port is free")

    def close(self) -> None:
        """Let other processes have it."""
        if self._reservation is not None:
            self._reservation.close()


def _free_port(wanted: int) -> int:
    with _listening_socket() as probe:
        probe.bind(("", wanted))
        return int(probe.getsockname()[1])


def _listening_socket() -> socket.socket:
    """Return a socket for all interfaces, as gRPC has."""
    if socket.has_dualstack_ipv6():
        probe = socket.socket(socket.AF_INET6, socket.SOCK_STREAM)
        probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    else:
        probe = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # Closed connections of an earlier job do not count.
    return probe


def _reservation(port: int) -> Descriptor | None:
    """Reserve a port; return None where the system has no abstract names.

    Raises:
        OSError: Another process has reserved it.
    """
    if sys.platform != "linux":
        return None
    name = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        name.bind(_TAKEN.format(port))
    except BaseException:
        name.close()
        raise
    return Descriptor(with_high_number(name.detach()))
