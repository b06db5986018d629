"""Pods as the API server has them: which can be asked for a profile, and why others cannot. No clock, no network."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

__all__ = ["Pod", "read_pod"]


class Pod(NamedTuple):
    """One pod.

    Attributes:
        name: Its name.
        uid: Its id.
        ip: Its address; empty if it cannot be asked.
        problem: Why it cannot be asked; empty if it can.
    """

    name: str
    uid: str = ""
    ip: str = ""
    problem: str = ""

    def address(self, port: int) -> str:
        """Return `host:port` of a server in it.

        Args:
            port: The port.
        """
        return f"[{self.ip}]:{port}" if ":" in self.ip else f"{self.ip}:{port}"


def read_pod(name: str, document: Mapping[str, Any], *, allows_host_network: bool) -> Pod:
    """Return a pod.

    Args:
        name: Its name.
        document: The pod, as the API server returns it.
        allows_host_network: True if a pod may use the network of its node.
    """
    metadata, spec, status = (_mapping(document, key) for key in ("metadata", "spec", "status"))
    uid, phase, ip = str(metadata.get("uid", "")), str(status.get("phase", "Unknown")), str(status.get("podIP") or "")
    problem = ""
    if metadata.get("deletionTimestamp"):
        problem = "it is being deleted"
    elif phase != "Running":
        problem = f"it is {phase}, not Running"
    elif spec.get("hostNetwork") and not allows_host_network:
        problem = "it uses the network of its node, which this operator does not profile: see --host-network"
    elif not ip:
        problem = "it has no IP address yet"
    return Pod(name, uid, "" if problem else ip, problem)


def _mapping(document: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = document.get(key)
    return value if isinstance(value, Mapping) else {}
