"""The requests on VMs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ml_diagnostics_testing.http_server import ApiError, Request

from .catalog import Catalog
from .checks import FIELDS, check_parts
from .instances import Instances
from .listing import page_of, show_aggregated, show_list
from .operations import Change, Operations
from .routes import Parts, Route, route

Resource = dict[str, Any]
Callback = Callable[[Resource], None]

_LIST = "/compute/v1/projects/{project}/zones/{zone}/instances"
_VM = f"{_LIST}/{{name}}"


class Vms:
    """Answer the requests on the VMs of one project.

    Args:
        url: The URL of the project.
        catalog: The zones and machine types.
        instances: The VMs.
        operations: The operations of the project.
        created: Called with each created VM.
        deleted: Called with each deleted VM.

    Attributes:
        guest_attributes: The guest attributes of VMs, by zone and name; the values by "namespace/key".
        serial_output: The output of the first serial port of VMs, by zone and name.
    """

    def __init__(
        self,
        url: str,
        catalog: Catalog,
        instances: Instances,
        operations: Operations,
        created: Callback,
        deleted: Callback,
    ) -> None:
        self.guest_attributes: dict[tuple[str, str], Mapping[str, str]] = {}
        self.serial_output: dict[tuple[str, str], str] = {}
        self._url = url
        self._catalog = catalog
        self._instances = instances
        self._operations = operations
        self._created = created
        self._deleted = deleted

    def routes(self) -> list[Route]:
        """Return the routes of its requests."""
        return [
            route("list", "GET", "/compute/v1/projects/{project}/aggregated/instances", self._list_all),
            route("list", "GET", _LIST, self._list_zone),
            route("insert", "POST", _LIST, self._insert),
            route("get", "GET", _VM, self._get),
            route("delete", "DELETE", _VM, self._delete),
            route("set_labels", "POST", f"{_VM}/setLabels", self._set_labels),
            route("set_metadata", "POST", f"{_VM}/setMetadata", self._set_metadata),
            route("guest_attributes", "GET", f"{_VM}/getGuestAttributes", self._guest_attributes),
            route("serial_output", "GET", f"{_VM}/serialPort", self._serial_output),
        ]

    def _list_all(self, request: Request, parts: Parts) -> Resource:
        page, token = page_of(self._instances.all(), request.query, FIELDS)
        request.record.entries = len(page)
        scopes = [f"zones/{zone}" for zone in self._catalog.zones]
        return show_aggregated("instances", f"{self._url}/aggregated/instances", page, token, scopes)

    def _list_zone(self, request: Request, parts: Parts) -> Resource:
        self._catalog.check_zone(parts["zone"])
        page, token = page_of(self._instances.all(parts["zone"]), request.query, FIELDS)
        request.record.entries = len(page)
        return show_list("compute#instanceList", f"{self._url}/zones/{parts['zone']}/instances", page, token)

    def _get(self, request: Request, parts: Parts) -> Resource:
        return self._instances.get(parts["zone"], parts["name"])

    def _insert(self, request: Request, parts: Parts) -> Resource:
        zone, body = parts["zone"], request.json()
        self._catalog.check_zone(zone)
        check_parts(body)
        name = str(body.get("name"))

        def finish() -> None:
            if self._instances.find(zone, name):  # a client may have deleted it meanwhile
                self._created(self._instances.change(zone, name, status="RUNNING"))

        change = Change(
            kind="insert",
            scope=f"zones/{zone}",
            target=f"zones/{zone}/instances/{name}",
            start=lambda: str(self._instances.create(zone, body, request.time)["id"]),
            finish=finish,
            fail=lambda: self._instances.remove(zone, name),
        )
        return self._operations.start(change, request.query.get("requestId", ""))

    def _delete(self, request: Request, parts: Parts) -> Resource:
        zone, name = parts["zone"], parts["name"]

        def finish() -> None:
            instance = self._instances.find(zone, name)
            if instance:  # another operation may have deleted it
                self._instances.remove(zone, name)
                self._deleted(instance)

        return self._change(
            request, "delete", parts, lambda: self._instances.change(zone, name, status="STOPPING"), finish
        )

    def _set_labels(self, request: Request, parts: Parts) -> Resource:
        body = request.json()
        labels, fingerprint = body.get("labels") or {}, str(body.get("labelFingerprint"))
        return self._change(
            request,
            "setLabels",
            parts,
            lambda: self._instances.set_labels(parts["zone"], parts["name"], labels, fingerprint),
        )

    def _set_metadata(self, request: Request, parts: Parts) -> Resource:
        body = request.json()
        return self._change(
            request, "setMetadata", parts, lambda: self._instances.set_metadata(parts["zone"], parts["name"], body)
        )

    def _guest_attributes(self, request: Request, parts: Parts) -> Resource:
        self._instances.get(parts["zone"], parts["name"])
        path = request.query.get("queryPath", "")
        found = {
            key: value
            for key, value in self.guest_attributes.get((parts["zone"], parts["name"]), {}).items()
            if key == path or key.startswith(path.rstrip("/") + "/") or not path
        }
        if not found:
            raise ApiError(404, f"The resource '{path}' of type 'Guest Attribute' was not found.", reason="notFound")
        items = [
            {"namespace": key.partition("/")[0], "key": key.partition("/")[2], "value": value}
            for key, value in found.items()
        ]
        return {"kind": "compute#guestAttributes", "queryPath": path, "queryValue": {"items": items}}

    def _serial_output(self, request: Request, parts: Parts) -> Resource:
        self._instances.get(parts["zone"], parts["name"])
        contents = self.serial_output.get((parts["zone"], parts["name"]), "")
        start = int(request.query.get("start", "0"))
        shown = contents.encode()[start:].decode("utf-8", "replace")
        next_ = str(start + len(shown.encode()))
        return {"kind": "compute#serialPortOutput", "contents": shown, "start": str(start), "next": next_}

    def _change(
        self,
        request: Request,
        kind: str,
        parts: Parts,
        do: Callable[[], Resource],
        finish: Callable[[], None] = lambda: None,
    ) -> Resource:
        """Start a change of one VM. If the operation fails, restore the VM."""
        scope = f"zones/{parts['zone']}"
        before: list[Resource] = []

        def start() -> str:
            before.append(self._instances.get(parts["zone"], parts["name"]))
            return str(do()["id"])

        change = Change(
            kind=kind,
            scope=scope,
            target=f"{scope}/instances/{parts['name']}",
            start=start,
            finish=finish,
            fail=lambda: self._instances.restore(parts["zone"], before[0]),
        )
        return self._operations.start(change, request.query.get("requestId", ""))
