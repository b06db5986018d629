"""Cloud TPU: nodes with one or more VMs, for gcloud and other clients.

Format: https://cloud.google.com/tpu/docs/reference/rest/v2/projects.locations.nodes
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Mapping
from typing import Any

from ml_diagnostics_testing.http_server import ApiError, Request

from ..control_plane.store import timestamp
from .routes import Parts, Route, route

Resource = dict[str, Any]

_NODES = "/{version}/projects/{project}/locations/{zone}/nodes"
_NODE = f"{_NODES}/{{name}}"


class Tpus:
    """Serve the TPU nodes of one project.

    Args:
        project: The project.
    """

    def __init__(self, project: str) -> None:
        self._project = project
        self._nodes: dict[str, Resource] = {}
        self._operations: dict[str, Resource] = {}
        self._numbers = itertools.count(1)
        self._addresses = itertools.count(1)
        self._lock = threading.RLock()

    def routes(self) -> list[Route]:
        """Return the routes of its requests."""
        return [
            route("tpu", "GET", _NODES, self._list),
            route("tpu", "GET", _NODE, self._get),
            route("update_tpu", "PATCH", _NODE, self._update),
            route("guest_attributes", "POST", f"{_NODE}:getGuestAttributes", self._guest_attributes),
            route("operation", "GET", "/{version}/projects/{project}/locations/{zone}/operations/{name}", self._poll),
        ]

    def add(self, name: str, zone: str, workers: int, now: float, fields: Mapping[str, Any]) -> Resource:
        """Create a node, and return it."""
        number, addresses = next(self._numbers), [next(self._addresses) for _ in range(workers)]
        node = {
            "name": f"projects/{self._project}/locations/{zone}/nodes/{name}",
            "acceleratorType": f"v5litepod-{4 * workers}",
            "acceleratorConfig": {"type": "V5LITE_POD", "topology": f"{workers}x4"},
            "runtimeVersion": "v2-alpha-tpuv5-lite",
            "state": "READY",
            "health": "HEALTHY",
            "apiVersion": "V2",
            "createTime": timestamp(now),
            "id": str(7_000_000_000_000_000_000 + number),
            "metadata": {},
            "networkConfig": {
                "network": f"projects/{self._project}/global/networks/default",
                "enableExternalIps": True,
            },
            "networkEndpoints": [
                {
                    "ipAddress": f"10.130.{address // 254}.{address % 254 + 1}",
                    "port": 8470,
                    "accessConfig": {"externalIp": f"198.51.100.{address % 254 + 1}"},  # a range for examples: RFC 5737
                }
                for address in addresses
            ],
            **fields,
        }
        with self._lock:
            self._nodes[node["name"]] = node
        return node

    def find(self, name: str, zone: str) -> Resource:
        """Return a node.

        Raises:
            ApiError: The node does not exist.
        """
        full_name = f"projects/{self._project}/locations/{zone}/nodes/{name}"
        with self._lock:
            if full_name not in self._nodes:
                raise ApiError(404, f"Resource '{full_name}' was not found", reason="notFound")
            return self._nodes[full_name]

    def _list(self, request: Request, parts: Parts) -> Resource:
        parent = f"projects/{self._project}/locations/{parts['zone']}/"
        with self._lock:
            found = [node for name, node in self._nodes.items() if parts["zone"] == "-" or name.startswith(parent)]
        size = int(request.query.get("pageSize") or 1000)
        first = int(request.query.get("pageToken") or 0)
        page = found[first : first + size]
        request.record.entries = len(page)
        more = {"nextPageToken": str(first + size)} if first + size < len(found) else {}
        return {**({"nodes": page} if page else {}), **more}

    def _get(self, request: Request, parts: Parts) -> Resource:
        return self.find(parts["name"], parts["zone"])

    def _update(self, request: Request, parts: Parts) -> Resource:
        body = request.json()
        fields = _names(request.query.get("updateMask", ""))
        if not fields <= {"metadata", "labels", "description", "tags"}:
            raise ApiError(400, f"updateMask is {request.query.get('updateMask')!r}")
        with self._lock:
            node = {**self.find(parts["name"], parts["zone"]), **{field: body.get(field) for field in fields}}
            self._nodes[node["name"]] = node
            name = f"projects/{self._project}/locations/{parts['zone']}/operations/operation-{next(self._numbers)}"
            kind = f"type.googleapis.com/google.cloud.tpu.{parts['version']}.Node"
            metadata = {"target": node["name"], "verb": "update", "apiVersion": parts["version"]}
            done = {"name": name, "done": True, "metadata": metadata, "response": {"@type": kind, **node}}
            self._operations[name] = done
            return done

    def _poll(self, request: Request, parts: Parts) -> Resource:
        name = f"projects/{self._project}/locations/{parts['zone']}/operations/{parts['name']}"
        with self._lock:
            if name not in self._operations:
                raise ApiError(404, f"Operation '{name}' was not found", reason="notFound")
            return self._operations[name]

    def _guest_attributes(self, request: Request, parts: Parts) -> Resource:
        node = self.find(parts["name"], parts["zone"])
        count = len(node["networkEndpoints"])
        asked = [str(worker) for worker in request.json().get("workerIds") or [] if worker != ""]
        if not all(worker.isdecimal() and int(worker) < count for worker in asked):
            raise ApiError(400, f"workerIds are {asked}; the node has {count}")
        workers = [int(worker) for worker in asked] or range(count)
        return {"guestAttributes": [_attributes_of(parts["name"], worker) for worker in workers]}


def worker_name(node: str, worker: int) -> str:
    """Return the name of a worker's VM in the Identity-Aware Proxy."""
    return f"t1v-n-{node}-w-{worker}"


def _attributes_of(node: str, worker: int) -> Resource:
    items = [
        {"namespace": "hostkeys", "key": "hostname", "value": worker_name(node, worker)},
        {"namespace": "hostkeys", "key": "ssh-ed25519", "value": f"AAAAC3NzaC1lZDI1NTE5AAAAIworker{worker:02}"},
        {"namespace": "tpu", "key": "worker-id", "value": str(worker)},
    ]
    return {"queryPath": "", "queryValue": {"items": items}}


def _names(mask: str) -> set[str]:
    return {name for name in mask.split(",") if name}
