"""Objects as tables: the server, and not kubectl, selects the columns of `kubectl get`.

Source: https://kubernetes.io/docs/reference/using-api/api-concepts/#receiving-resources-as-tables
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from ml_diagnostics_testing.http_server import Request

Resource = Mapping[str, Any]
_Column = tuple[str, bool, Callable[[Resource, float], str]]


def wants_table(request: Request) -> bool:
    """Return True if a client requests a table."""
    return "as=Table" in (request.headers.get("Accept") or "")


def table(plural: str, resources: Sequence[Resource], version: str, now: float) -> dict[str, Any]:
    """Return objects of one kind as a meta.k8s.io/v1 Table.

    Args:
        plural: The plural name of the kind.
        resources: The objects.
        version: The list's resourceVersion.
        now: The time in seconds since the epoch, for the ages of objects.
    """
    columns = _COLUMNS.get(plural, (_NAME, _AGE))
    return {
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": {"resourceVersion": version},
        "columnDefinitions": [
            {
                "name": name,
                "type": "string",
                "format": "name" if name == "Name" else "",
                "description": name,
                "priority": int(is_wide),
            }
            for name, is_wide, _ in columns
        ],
        "rows": [
            {
                "cells": [cell(resource, now) for _, _, cell in columns],
                "object": {
                    "kind": "PartialObjectMetadata",
                    "apiVersion": "meta.k8s.io/v1",
                    "metadata": resource["metadata"],
                },
            }
            for resource in resources
        ],
    }


def _age(resource: Resource, now: float) -> str:
    created = datetime.strptime(resource["metadata"]["creationTimestamp"], "%Y-%m-%dT%H:%M:%S%z").timestamp()
    seconds = max(0, int(now - created))
    if seconds < 120:
        return f"{seconds}s"
    minutes = seconds // 60
    return f"{minutes}m" if minutes < 180 else f"{minutes // 60}h"


def _ready(pod: Resource, now: float) -> str:
    statuses = pod["status"].get("containerStatuses", [])
    return f"{sum(status['ready'] for status in statuses)}/{len(pod['spec']['containers'])}"


def _ports(service: Resource, now: float) -> str:
    ports = service.get("spec", {}).get("ports", [])
    return ",".join(f"{port['port']}/{port.get('protocol', 'TCP')}" for port in ports) or "<none>"


def _at(*path: str, otherwise: str = "<none>") -> Callable[[Resource, float], str]:
    def cell(resource: Resource, now: float) -> str:
        value: Any = resource
        for part in path:
            value = value.get(part, {})
        return str(value or otherwise)

    return cell


_NAME: Final[_Column] = ("Name", False, _at("metadata", "name"))
_AGE: Final[_Column] = ("Age", False, _age)
_COLUMNS: Final[Mapping[str, tuple[_Column, ...]]] = {
    "pods": (
        _NAME,
        ("Ready", False, _ready),
        ("Status", False, _at("status", "phase", otherwise="Pending")),
        ("Restarts", False, lambda *_: "0"),
        _AGE,
        ("IP", True, _at("status", "podIP")),
        ("Node", True, _at("spec", "nodeName")),
        ("Nominated Node", True, lambda *_: "<none>"),
        ("Readiness Gates", True, lambda *_: "<none>"),
    ),
    "services": (
        _NAME,
        ("Type", False, _at("spec", "type", otherwise="ClusterIP")),
        ("Cluster-IP", False, _at("spec", "clusterIP")),
        ("External-IP", False, lambda *_: "<none>"),
        ("Port(s)", False, _ports),
        _AGE,
    ),
}
