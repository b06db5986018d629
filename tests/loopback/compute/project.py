"""The requests on a project except for VMs: zones, regions, machine types, project metadata, operations."""

from __future__ import annotations

from typing import Any

from ml_diagnostics_testing.http_server import ApiError, Request

from .catalog import Catalog
from .checks import check_metadata
from .instances import with_fingerprint
from .listing import page_of, show_aggregated, show_list
from .operations import Change, Operations
from .routes import Parts, Route, route

Resource = dict[str, Any]

_PROJECT = "/compute/v1/projects/{project}"
_ZONE = f"{_PROJECT}/zones/{{zone}}"
_LOCATION_FIELDS = frozenset(("id", "name", "description", "status", "region"))
_MACHINE_TYPE_FIELDS = frozenset(("id", "name", "description", "guestCpus", "memoryMb", "isSharedCpu", "zone"))
_OPERATION_FIELDS = frozenset(("id", "name", "operationType", "status", "targetId", "targetLink", "user"))


class Project:
    """Answer the requests on one project.

    Args:
        url: The URL of the project.
        catalog: The zones and machine types.
        operations: Its operations.

    Attributes:
        metadata: The metadata that all VMs of the project share, in the form of the API.
    """

    def __init__(self, url: str, catalog: Catalog, operations: Operations) -> None:
        self.metadata = with_fingerprint({})
        self._url = url
        self._name = url.rpartition("/")[2]
        self._catalog = catalog
        self._operations = operations

    def routes(self) -> list[Route]:
        """Return the routes of its requests."""
        operations, aggregated = f"{_ZONE}/operations", f"{_PROJECT}/aggregated/machineTypes"
        return [
            route("project", "GET", _PROJECT, self._get),
            route("set_project_metadata", "POST", f"{_PROJECT}/setCommonInstanceMetadata", self._set_metadata),
            route("zone", "GET", f"{_PROJECT}/zones", self._zones),
            route("zone", "GET", _ZONE, lambda request, parts: self._catalog.zone(parts["zone"])),
            route("region", "GET", f"{_PROJECT}/regions", self._regions),
            route("region", "GET", f"{_PROJECT}/regions/{{region}}", self._region),
            route("machine_type", "GET", aggregated, self._all_machine_types),
            route("machine_type", "GET", f"{_ZONE}/machineTypes", self._machine_types),
            route("machine_type", "GET", f"{_ZONE}/machineTypes/{{name}}", self._machine_type),
            route("operation", "GET", operations, self._list_operations),
            route("operation", "GET", f"{operations}/{{name}}", self._operation),
            route("wait", "POST", f"{operations}/{{name}}/wait", self._wait),
            route("operation", "GET", f"{_PROJECT}/global/operations", self._list_operations),
            route("operation", "GET", f"{_PROJECT}/global/operations/{{name}}", self._operation),
            route("wait", "POST", f"{_PROJECT}/global/operations/{{name}}/wait", self._wait),
        ]

    def _get(self, request: Request, parts: Parts) -> Resource:
        return {
            "kind": "compute#project",
            "id": "123456789012",
            "name": self._name,
            "creationTimestamp": "2025-01-01T00:00:00.000-08:00",
            "commonInstanceMetadata": {"kind": "compute#metadata", **self.metadata},
            "defaultServiceAccount": "123456789012-compute@developer.gserviceaccount.com",
            "defaultNetworkTier": "PREMIUM",
            "xpnProjectStatus": "UNSPECIFIED_XPN_PROJECT_STATUS",
            "selfLink": self._url,
        }

    def _set_metadata(self, request: Request, parts: Parts) -> Resource:
        body, before = request.json(), self.metadata
        check_metadata(body)

        def start() -> str:
            if body.get("fingerprint") != before["fingerprint"]:
                message = "Supplied fingerprint does not match current metadata fingerprint."
                raise ApiError(412, message, reason="conditionNotMet")
            self.metadata = with_fingerprint(body)
            return "123456789012"

        def fail() -> None:
            self.metadata = before

        change = Change("compute.projects.setCommonInstanceMetadata", "global", "", start, fail=fail)
        return self._operations.start(change, request.query.get("requestId", ""))

    def _zones(self, request: Request, parts: Parts) -> Resource:
        zones = [self._catalog.zone(name) for name in self._catalog.zones]
        page, token = page_of(zones, request.query, _LOCATION_FIELDS)
        return show_list("compute#zoneList", f"{self._url}/zones", page, token)

    def _regions(self, request: Request, parts: Parts) -> Resource:
        page, token = page_of(self._catalog.regions(), request.query, _LOCATION_FIELDS)
        return show_list("compute#regionList", f"{self._url}/regions", page, token)

    def _region(self, request: Request, parts: Parts) -> Resource:
        return self._catalog.region(parts["region"])

    def _all_machine_types(self, request: Request, parts: Parts) -> Resource:
        found = [kind for zone in self._catalog.zones for kind in self._catalog.machine_types_in(zone)]
        page, token = page_of(found, request.query, _MACHINE_TYPE_FIELDS)
        scopes = [f"zones/{zone}" for zone in self._catalog.zones]
        return show_aggregated("machineTypes", f"{self._url}/aggregated/machineTypes", page, token, scopes)

    def _machine_types(self, request: Request, parts: Parts) -> Resource:
        self._catalog.check_zone(parts["zone"])
        found = self._catalog.machine_types_in(parts["zone"])
        page, token = page_of(found, request.query, _MACHINE_TYPE_FIELDS)
        return show_list("compute#machineTypeList", f"{self._url}/zones/{parts['zone']}/machineTypes", page, token)

    def _machine_type(self, request: Request, parts: Parts) -> Resource:
        return self._catalog.machine_type(parts["zone"], parts["name"])

    def _list_operations(self, request: Request, parts: Parts) -> Resource:
        page, token = page_of(self._operations.all(_scope(parts)), request.query, _OPERATION_FIELDS)
        return show_list("compute#operationList", f"{self._url}/{_scope(parts)}/operations", page, token)

    def _operation(self, request: Request, parts: Parts) -> Resource:
        return self._operations.get(_scope(parts), parts["name"])

    def _wait(self, request: Request, parts: Parts) -> Resource:
        return self._operations.wait(_scope(parts), parts["name"])


def _scope(parts: Parts) -> str:
    return f"zones/{parts['zone']}" if "zone" in parts else "global"
