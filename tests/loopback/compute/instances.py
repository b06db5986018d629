"""The VMs of the loopback Compute Engine: storage, and the fields that the service adds.

Format: https://cloud.google.com/compute/docs/reference/rest/v1/instances
"""

from __future__ import annotations

import base64
import hashlib
import itertools
import json
import threading
from collections.abc import Mapping
from typing import Any

from ml_diagnostics_testing.http_server import ApiError

from ..control_plane.store import timestamp
from .catalog import Catalog
from .checks import check_instance, check_labels, check_metadata, check_name

Resource = dict[str, Any]


class Instances:
    """The VMs of one project. Returned resources are never modified: a change creates a new one.

    Args:
        project_url: The URL of the project.
        catalog: The zones and machine types.
    """

    def __init__(self, project_url: str, catalog: Catalog) -> None:
        self._url = project_url
        self._project = project_url.rpartition("/projects/")[2]
        self._catalog = catalog
        self._kept: dict[tuple[str, str], Resource] = {}
        self._lock = threading.RLock()
        self._numbers = itertools.count(1)

    def create(self, zone: str, body: Mapping[str, Any], now: float, status: str = "PROVISIONING") -> Resource:
        """Create a VM, and return it.

        Raises:
            ApiError: The name exists, or the VM is invalid.
        """
        check_name(body.get("name") or "")
        return self.add(zone, body, now, status)

    def add(self, zone: str, body: Mapping[str, Any], now: float, status: str = "RUNNING") -> Resource:
        """Create a VM without checking its name, and return it. Examples in documents use names such as `vm_name1`.

        Raises:
            ApiError: See `create`.
        """
        self._catalog.check_zone(zone)
        check_instance(body)
        name = body["name"]
        machine_type = str(body.get("machineType", "")).rpartition("/")[2]
        self._catalog.check_machine_type(zone, machine_type)
        with self._lock:
            if (zone, name) in self._kept:
                message = f"The resource 'projects/{self._project}/zones/{zone}/instances/{name}' already exists"
                raise ApiError(409, message, name="ALREADY_EXISTS", reason="alreadyExists")
            number = next(self._numbers)
            url = f"{self._url}/zones/{zone}"
            resource = {
                **body,
                "kind": "compute#instance",
                "id": str(5_000_000_000_000_000_000 + number),
                "creationTimestamp": timestamp(now),
                "machineType": f"{url}/machineTypes/{machine_type}",
                "status": status,
                "zone": url,
                "networkInterfaces": _interfaces(body.get("networkInterfaces"), self._url, number),
                "disks": _disks(body.get("disks"), f"{url}/disks/{name}"),
                "tags": with_fingerprint(body.get("tags") or {}),
                "metadata": {"kind": "compute#metadata", **with_fingerprint(body.get("metadata") or {})},
                "labelFingerprint": _fingerprint(body.get("labels")),
                "scheduling": {
                    "onHostMaintenance": "MIGRATE",
                    "automaticRestart": True,
                    "preemptible": False,
                    "provisioningModel": "STANDARD",
                    **(body.get("scheduling") or {}),
                },
                "cpuPlatform": "Intel Emerald Rapids",
                "lastStartTimestamp": timestamp(now),
                "selfLink": f"{url}/instances/{name}",
                "fingerprint": _fingerprint([name, number]),
            }
            self._kept[zone, name] = resource
            return resource

    def get(self, zone: str, name: str) -> Resource:
        """Return a VM.

        Raises:
            ApiError: The zone or the VM does not exist.
        """
        self._catalog.check_zone(zone)
        found = self.find(zone, name)
        if found is None:
            message = f"The resource 'projects/{self._project}/zones/{zone}/instances/{name}' was not found"
            raise ApiError(404, message, reason="notFound")
        return found

    def find(self, zone: str, name: str) -> Resource | None:
        """Return a VM, or None if it does not exist."""
        with self._lock:
            return self._kept.get((zone, name))

    def change(self, zone: str, name: str, **fields: Any) -> Resource:
        """Change fields of a VM, and return it.

        Raises:
            ApiError: The VM does not exist.
        """
        with self._lock:
            changed = {**self.get(zone, name), **fields}
            if "labels" in fields:
                changed["labelFingerprint"] = _fingerprint(changed["labels"])
            if "metadata" in fields:
                changed["metadata"] = {"kind": "compute#metadata", **with_fingerprint(changed["metadata"])}
            self._kept[zone, name] = changed
            return changed

    def restore(self, zone: str, resource: Resource) -> None:
        """Restore an earlier state of a VM, unless it was deleted."""
        with self._lock:
            if (zone, resource["name"]) in self._kept:
                self._kept[zone, resource["name"]] = resource

    def set_labels(self, zone: str, name: str, labels: Mapping[str, str], fingerprint: str) -> Resource:
        """Replace a VM's labels, and return it.

        Raises:
            ApiError: The VM does not exist, the fingerprint is outdated, or labels are invalid.
        """
        check_labels(labels)
        with self._lock:
            if self.get(zone, name)["labelFingerprint"] != fingerprint:
                message = "Labels fingerprint either invalid or resource labels have changed"
                raise ApiError(412, message, reason="conditionNotMet")
            return self.change(zone, name, labels=dict(labels))

    def set_metadata(self, zone: str, name: str, metadata: Mapping[str, Any]) -> Resource:
        """Replace a VM's metadata, and return it.

        Raises:
            ApiError: The VM does not exist, the fingerprint is outdated, or the metadata is invalid.
        """
        check_metadata(metadata)
        with self._lock:
            if self.get(zone, name)["metadata"]["fingerprint"] != metadata.get("fingerprint"):
                message = "Supplied fingerprint does not match current metadata fingerprint."
                raise ApiError(412, message, reason="conditionNotMet")
            return self.change(zone, name, metadata={"items": metadata.get("items", [])})

    def remove(self, zone: str, name: str) -> None:
        """Delete a VM, if it exists."""
        with self._lock:
            self._kept.pop((zone, name), None)

    def all(self, zone: str | None = None) -> list[Resource]:
        """Return the VMs of one zone or of all zones, sorted by zone and name."""
        with self._lock:
            return [self._kept[key] for key in sorted(self._kept) if zone in (None, key[0])]


def metadata_of(instance: Mapping[str, Any]) -> dict[str, str]:
    """Return a VM's metadata as a mapping."""
    return {item["key"]: item.get("value", "") for item in instance["metadata"].get("items", [])}


def vm_addresses(instance: Mapping[str, Any]) -> str:
    """Return the addresses by which ssh can reach a VM, separated by spaces, for `ssh.write_ssh`."""
    interface = instance["networkInterfaces"][0]
    outside = [config["natIP"] for config in interface.get("accessConfigs", [])]
    return " ".join([*outside, interface["networkIP"], f"compute.{instance['id']}"])


def with_fingerprint(value: Mapping[str, Any]) -> Resource:
    """Return tags or metadata with the fingerprint of their items."""
    kept = {name: inner for name, inner in value.items() if name not in ("fingerprint", "kind")}
    return {**kept, "fingerprint": _fingerprint(kept.get("items"))}


def _fingerprint(value: Any) -> str:
    """Return a fingerprint that changes with the value. That of an empty value is the real service's."""
    if not value:
        return "42WmSpB8rSM="
    return base64.urlsafe_b64encode(hashlib.sha1(json.dumps(value, sort_keys=True).encode()).digest()[:8]).decode()


def _interfaces(given: Any, project_url: str, number: int) -> list[Resource]:
    """Return network interfaces with addresses. External ones are in a range for examples (RFC 5737)."""
    low = number % 254 + 1
    inside, outside = f"10.128.{number // 254 % 256}.{low}", f"203.0.113.{low}"
    interfaces = []
    for index, interface in enumerate(given or [{}]):
        configs = [
            {
                "kind": "compute#accessConfig",
                "type": "ONE_TO_ONE_NAT",
                "name": "external-nat",
                "natIP": outside,
                **config,
            }
            for config in interface.get("accessConfigs", [])
        ]
        interfaces.append(
            {
                "kind": "compute#networkInterface",
                "network": f"{project_url}/global/networks/default",
                "name": f"nic{index}",
                "stackType": "IPV4_ONLY",
                **interface,
                "networkIP": interface.get("networkIP", inside),
                **({"accessConfigs": configs} if configs else {}),
            }
        )
    return interfaces


def _disks(given: Any, url: str) -> list[Resource]:
    disks = []
    for index, disk in enumerate(given or [{"boot": True}]):
        kept = {name: value for name, value in disk.items() if name != "initializeParams"}
        kind = {"kind": "compute#attachedDisk", "type": "PERSISTENT", "mode": "READ_WRITE", "index": index}
        disks.append({**kind, **kept, "source": url if index == 0 else f"{url}-{index}", "diskSizeGb": "10"})
    return disks
