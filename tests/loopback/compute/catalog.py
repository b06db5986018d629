"""Zones, their regions, and the machine types of each zone."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from ml_diagnostics_testing.http_server import ApiError

Resource = dict[str, Any]

DEFAULT_ZONES: Final = (
    "us-central1-a",
    "us-central1-b",
    "us-central1-c",
    "us-central2-b",
    "us-east5-a",
    "us-east5-b",
    "europe-west4-a",
    "europe-west4-b",
)
# us-central2 offers TPUs and few other machine types.
_GENERAL: Final = tuple(zone for zone in DEFAULT_ZONES if not zone.startswith("us-central2"))
DEFAULT_MACHINE_TYPES: Final[Mapping[str, tuple[str, ...]]] = {
    "c4-highmem-8": _GENERAL,
    "e2-standard-2": _GENERAL,
    "n2-standard-8": DEFAULT_ZONES,
    "a3-highgpu-8g": ("us-central1-a", "us-central1-c", "us-east5-a"),
    "ct5lp-hightpu-4t": ("us-central1-a", "us-east5-b", "europe-west4-b"),
}
# The creation time that Compute Engine reports for zones and other built-in resources.
_CREATED: Final = "1969-12-31T16:00:00.000-08:00"


def region_of(zone: str) -> str:
    """Return a zone's region."""
    return zone.rpartition("-")[0]


class Catalog:
    """Zones and machine types, in the form of the API.

    Args:
        project_url: The URL of the project.
        zones: The names of the zones.
        machine_types: The zones of each machine type; unknown zones are ignored.
    """

    def __init__(self, project_url: str, zones: Iterable[str], machine_types: Mapping[str, Iterable[str]]) -> None:
        self._url = project_url
        self._project = project_url.rpartition("/projects/")[2]
        self.zones = list(zones)
        self.machine_types = {name: set(where) for name, where in machine_types.items()}

    def check_zone(self, name: str) -> None:
        """Reject an unknown zone.

        Raises:
            ApiError: The zone does not exist.
        """
        if name not in self.zones:
            raise self._missing("zones", name)

    def check_machine_type(self, zone: str, name: str) -> None:
        """Reject a new VM with a machine type that its zone does not have.

        Raises:
            ApiError: The zone does not have the machine type.
        """
        if zone not in self.machine_types.get(name, ()):
            url = f"{self._url}/zones/{zone}/machineTypes/{name}"
            message = (
                f"Invalid value for field 'resource.machineType': '{url}'. "
                f"Machine type with name '{name}' does not exist in zone '{zone}'."
            )
            raise ApiError(400, message, reason="invalid")

    def zone(self, name: str) -> Resource:
        """Return a zone.

        Raises:
            ApiError: The zone does not exist.
        """
        self.check_zone(name)
        return {
            "kind": "compute#zone",
            "id": str(2000 + self.zones.index(name)),
            "creationTimestamp": _CREATED,
            "name": name,
            "description": name,
            "status": "UP",
            "region": f"{self._url}/regions/{region_of(name)}",
            "selfLink": f"{self._url}/zones/{name}",
            "availableCpuPlatforms": ["Intel Skylake", "Intel Emerald Rapids"],
        }

    def regions(self) -> list[Resource]:
        """Return all regions."""
        return [self.region(name) for name in sorted({region_of(zone) for zone in self.zones})]

    def region(self, name: str) -> Resource:
        """Return a region.

        Raises:
            ApiError: The region does not exist.
        """
        zones = [zone for zone in self.zones if region_of(zone) == name]
        if not zones:
            raise self._missing("regions", name)
        return {
            "kind": "compute#region",
            "id": "1000",
            "creationTimestamp": _CREATED,
            "name": name,
            "description": name,
            "status": "UP",
            "zones": [f"{self._url}/zones/{zone}" for zone in zones],
            "quotas": [{"metric": "CPUS", "limit": 2400.0, "usage": 0.0}],
            "selfLink": f"{self._url}/regions/{name}",
        }

    def machine_types_in(self, zone: str) -> list[Resource]:
        """Return the machine types of a zone, sorted by name."""
        return [self._machine_type(zone, name) for name, where in sorted(self.machine_types.items()) if zone in where]

    def machine_type(self, zone: str, name: str) -> Resource:
        """Return a machine type.

        Raises:
            ApiError: The zone or the machine type does not exist.
        """
        self.check_zone(zone)
        if zone not in self.machine_types.get(name, ()):
            raise self._missing(f"zones/{zone}/machineTypes", name)
        return self._machine_type(zone, name)

    def _machine_type(self, zone: str, name: str) -> Resource:
        digits = re.findall(r"\d+", name.rpartition("-")[2])
        cpus = int(digits[0]) if digits else 2
        return {
            "kind": "compute#machineType",
            "id": "3000",
            "creationTimestamp": _CREATED,
            "name": name,
            "description": f"{cpus} vCPUs",
            "guestCpus": cpus,
            "memoryMb": cpus * 8192,
            "isSharedCpu": False,
            "zone": zone,
            "selfLink": f"{self._url}/zones/{zone}/machineTypes/{name}",
        }

    def _missing(self, kind: str, name: str) -> ApiError:
        message = f"The resource 'projects/{self._project}/{kind}/{name}' was not found"
        return ApiError(404, message, reason="notFound")
