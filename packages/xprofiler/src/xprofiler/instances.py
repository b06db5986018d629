"""VMs of Compute Engine, and among them the viewers: those that host XProf for a log directory.

API: https://cloud.google.com/compute/docs/reference/rest/v1/instances
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from ml_diagnostics_common.backoff import Backoff

from xprofiler.exceptions import NotFoundError, TimedOutError, XprofilerError
from xprofiler.gcloud import checked_name
from xprofiler.google_api import GoogleApi
from xprofiler.google_errors import operation_error
from xprofiler.labels import BACKEND_LABEL, LOG_DIRECTORY_KEY, VERSION_LABEL, log_directory_of, viewer_url

__all__ = ["Instances", "Viewer", "as_viewer"]

_OURS: Final = f"(labels.{VERSION_LABEL}:*) OR (labels.{LOG_DIRECTORY_KEY}:*)"
_FIELDS: Final = ("name", "zone", "status", "labels", "metadata/items", "networkInterfaces/accessConfigs/natIP")
_PAGE_SIZE: Final = 500
_WAIT_SECONDS: Final = 150.0  # The API answers within 120.


@dataclass(frozen=True)
class Viewer:
    """A VM that hosts XProf for a log directory.

    Attributes:
        name: The VM's name.
        zone: Its zone.
        log_directory: `gs://bucket/path`.
        url: The proxy's link; None while the proxy does not know the VM.
        status: Of the VM: RUNNING, STAGING, TERMINATED, ...
        has_external_address: Whether ssh reaches it without the Identity-Aware Proxy.
        labels: All that it bears.
    """

    name: str
    zone: str
    log_directory: str
    url: str | None
    status: str
    has_external_address: bool = False
    labels: Mapping[str, str] = field(default_factory=dict)


def as_viewer(instance: Mapping[str, Any]) -> Viewer:
    """Reads a VM as Compute shows it."""
    labels = instance.get("labels", {})
    zone = str(instance.get("zone", "")).rpartition("/")[2]
    interfaces = instance.get("networkInterfaces", ())
    return Viewer(
        name=str(instance.get("name", "")),
        zone=zone,
        log_directory=log_directory_of(instance),
        url=viewer_url(labels.get(BACKEND_LABEL), zone),
        status=str(instance.get("status", "")),
        has_external_address=any(
            config.get("natIP") for interface in interfaces for config in interface.get("accessConfigs", ())
        ),
        labels=dict(labels),
    )


class Instances:
    """The VMs of a project.

    Args:
        api: Google's APIs.
        clock: Monotonic seconds.
        sleep: Waits a number of seconds.
    """

    def __init__(
        self,
        api: GoogleApi,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self._api = api
        self._clock = clock
        self._sleep = sleep

    # --- Viewers ---------------------------------------------------------------------------------------

    def list_viewers(
        self,
        zones: Collection[str] = (),
        log_directories: Collection[str] = (),
        names: Collection[str] = (),
        filters: Collection[str] = (),
    ) -> list[Viewer]:
        """Finds viewers, by one list of the API; sorted by log directory and name.

        Args:
            zones: Only in these; none means everywhere.
            log_directories: Only of these, as `LogDirectory.path` has them, or those in `names`.
            names: Only of these names, or those in `log_directories`.
            filters: What gcloud takes as `--filter`; each must hold.

        Raises:
            UsageError: A filter is not one.
            XprofilerError: They could not be listed.
        """
        found = map(as_viewer, self._list(zones, _OURS, _FIELDS))
        wanted = [
            viewer
            for viewer in found
            if viewer.log_directory
            and (not (log_directories or names) or viewer.log_directory in log_directories or viewer.name in names)
        ]
        return sorted(wanted, key=lambda viewer: (viewer.log_directory, viewer.name, viewer.zone))

    def _list(self, zones: Collection[str], filter_: str, fields: Sequence[str]) -> Iterator[dict[str, Any]]:
        of_one = f"instances({','.join(fields)})"
        instances = self._api.compute.instances()
        asked = {"project": self._api.project, "filter": filter_, "maxResults": _PAGE_SIZE}
        if len(zones) == 1:
            zone = checked_name(next(iter(zones)), "zone")
            shown = f"nextPageToken,items({','.join(fields)})"
            request = instances.list(zone=zone, fields=shown, **asked)
        else:
            request = instances.aggregatedList(
                fields=f"nextPageToken,items/*/{of_one}", returnPartialSuccess=True, **asked
            )
        while request is not None:
            answer = self._api.execute(request, "list the VMs")
            items = answer.get("items", {})
            if isinstance(items, list):
                yield from items
            else:
                for scope, part in items.items():
                    if not zones or scope.rpartition("/")[2] in zones:
                        yield from part.get("instances", ())
            again = instances.list_next if len(zones) == 1 else instances.aggregatedList_next
            request = again(request, answer)

    # --- One VM ----------------------------------------------------------------------------------------

    def get(self, zone: str, name: str, fields: str | None = None) -> dict[str, Any]:
        """Returns a VM as Compute shows it.

        Args:
            zone: Its zone.
            name: Its name.
            fields: Which of its fields; None is all.

        Raises:
            NotFoundError: There is none of that name.
            XprofilerError: It could not be asked for.
        """
        request = self._api.compute.instances().get(
            project=self._api.project,
            zone=checked_name(zone, "zone"),
            instance=checked_name(name, "VM"),
            **({"fields": fields} if fields else {}),
        )
        return self._api.execute(request, f"look for the VM {name} in zone {zone}")

    def insert(self, zone: str, body: Mapping[str, Any], *, timeout_seconds: float = 300.0) -> None:
        """Creates a VM, and waits until it is there.

        Args:
            zone: Where.
            body: The VM as Compute wants it, with its name.
            timeout_seconds: How long to wait.

        Raises:
            TimedOutError: It is not there yet; it may still come.
            XprofilerError: It could not be created.
        """
        doing = f"create the VM {body['name']} in zone {zone}"
        request = self._api.compute.instances().insert(
            project=self._api.project, zone=checked_name(zone, "zone"), body=dict(body), requestId=str(uuid.uuid4())
        )
        self._finish(zone, self._api.execute(request, doing), doing, timeout_seconds)

    def delete(self, zone: str, name: str, *, timeout_seconds: float = 300.0) -> None:
        """Deletes a VM, and waits until it is gone.

        Raises:
            NotFoundError: There is none of that name.
            TimedOutError: It is not gone yet.
            XprofilerError: It could not be deleted.
        """
        doing = f"delete the VM {name} in zone {zone}"
        request = self._api.compute.instances().delete(
            project=self._api.project,
            zone=checked_name(zone, "zone"),
            instance=checked_name(name, "VM"),
            requestId=str(uuid.uuid4()),
        )
        self._finish(zone, self._api.execute(request, doing), doing, timeout_seconds)

    def set_labels(self, zone: str, name: str, labels: Mapping[str, str], *, timeout_seconds: float = 60.0) -> None:
        """Adds labels to a VM; those that it has already are kept, unless they have another value here.

        Raises:
            NotFoundError: There is none of that name.
            XprofilerError: They could not be added.
        """
        doing = f"label the VM {name} in zone {zone}"
        kept = self.get(zone, name, "labels,labelFingerprint")
        body = {"labels": {**kept.get("labels", {}), **labels}, "labelFingerprint": kept.get("labelFingerprint", "")}
        request = self._api.compute.instances().setLabels(
            project=self._api.project, zone=zone, instance=name, body=body, requestId=str(uuid.uuid4())
        )
        self._finish(zone, self._api.execute(request, doing), doing, timeout_seconds)

    def _finish(self, zone: str, operation: dict[str, Any], doing: str, timeout_seconds: float) -> None:
        """Waits until an operation is done; the API answers when it is, or after two minutes."""
        deadline = self._clock() + timeout_seconds
        backoff = Backoff(0.1, 5.0)
        while operation.get("status") != "DONE":
            began = self._clock()
            if began >= deadline:
                raise TimedOutError(f"could not {doing} within {timeout_seconds:g} s; it may still be done")
            request = self._api.compute.zoneOperations().wait(
                project=self._api.project, zone=zone, operation=operation["name"]
            )
            operation = self._api.execute(
                request, doing, timeout_seconds=min(_WAIT_SECONDS, max(1.0, deadline - began)), is_repeatable=True
            )
            if operation.get("status") != "DONE" and self._clock() - began < 1.0:
                self._sleep(backoff.failed())
        error: XprofilerError | None = operation_error(operation, doing)
        if error is not None:
            raise error

    # --- Zones and machine types -----------------------------------------------------------------------

    def zone_exists(self, zone: str) -> bool:
        """Whether there is such a zone."""
        request = self._api.compute.zones().get(
            project=self._api.project, zone=checked_name(zone, "zone"), fields="name"
        )
        return self._exists(request, f"look for the zone {zone}")

    def machine_type_exists(self, zone: str, machine_type: str) -> bool:
        """Whether a zone, which exists, has such machines."""
        request = self._api.compute.machineTypes().get(
            project=self._api.project,
            zone=checked_name(zone, "zone"),
            machineType=checked_name(machine_type, "machine type"),
            fields="name",
        )
        return self._exists(request, f"look for the machine type {machine_type} in zone {zone}")

    def zones_with(self, machine_type: str) -> list[str]:
        """Returns the zones that have such machines, sorted."""
        machine_types = self._api.compute.machineTypes()
        request = machine_types.aggregatedList(
            project=self._api.project,
            filter=f"name = {checked_name(machine_type, 'machine type')}",
            fields="nextPageToken,items/*/machineTypes/name",
            returnPartialSuccess=True,
        )
        zones: set[str] = set()
        while request is not None:
            answer = self._api.execute(request, f"look for zones with {machine_type}")
            zones |= {
                scope.rpartition("/")[2] for scope, part in answer.get("items", {}).items() if part.get("machineTypes")
            }
            request = machine_types.aggregatedList_next(request, answer)
        return sorted(zones)

    def _exists(self, request: Any, doing: str) -> bool:
        try:
            self._api.execute(request, doing)
        except NotFoundError:
            return False
        return True
