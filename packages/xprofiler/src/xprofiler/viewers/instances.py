"""VMs of Compute Engine: read, create, label and delete one; and the contents of zones.

API: https://cloud.google.com/compute/docs/reference/rest/v1/instances
"""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any, Final

from ml_diagnostics_common.backoff import Backoff
from ml_diagnostics_common.command.errors import NotFoundError, TimedOutError

from xprofiler.gcloud.api import GoogleApi
from xprofiler.gcloud.command_lines import checked_name
from xprofiler.gcloud.errors import operation_error

__all__ = ["Instances"]

_WAIT_SECONDS: Final = 150.0  # The API answers within 120.


class Instances:
    """The VMs of a project.

    Args:
        api: Google's APIs.
        clock: Return monotonic seconds.
        sleep: Wait for a number of seconds.
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

    def get(self, zone: str, name: str, fields: str | None = None) -> dict[str, Any]:
        """Return a VM as a resource of Compute.

        Args:
            zone: Its zone.
            name: Its name.
            fields: The fields to return; None selects all.

        Raises:
            NotFoundError: The VM does not exist.
            CommandError: The request failed.
        """
        request = self._api.compute.instances().get(
            project=self._api.project,
            zone=checked_name(zone, "zone"),
            instance=checked_name(name, "VM"),
            **({"fields": fields} if fields else {}),
        )
        return self._api.execute(request, f"find the VM {name} in zone {zone}")

    def insert(self, zone: str, body: Mapping[str, Any], *, timeout_seconds: float = 300.0) -> None:
        """Create a VM, and wait until it exists.

        Args:
            zone: The VM's zone.
            body: The VM as a resource of Compute, with its name.
            timeout_seconds: The timeout.

        Raises:
            TimedOutError: The VM does not exist yet; it may still be created.
            CommandError: The VM could not be created.
        """
        doing = f"create the VM {body['name']} in zone {zone}"
        request = self._api.compute.instances().insert(
            project=self._api.project, zone=checked_name(zone, "zone"), body=dict(body), requestId=str(uuid.uuid4())
        )
        self._finish(zone, self._api.execute(request, doing), doing, timeout_seconds)

    def delete(self, zone: str, name: str, *, timeout_seconds: float = 300.0) -> None:
        """Delete a VM, and wait until it is gone.

        Raises:
            NotFoundError: The VM does not exist.
            TimedOutError: The VM still exists.
            CommandError: The VM could not be deleted.
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
        """Add labels to a VM. Existing labels are kept, except those with the same keys.

        Raises:
            NotFoundError: The VM does not exist.
            CommandError: The labels could not be added.
        """
        doing = f"label the VM {name} in zone {zone}"
        kept = self.get(zone, name, "labels,labelFingerprint")
        body = {"labels": {**kept.get("labels", {}), **labels}, "labelFingerprint": kept.get("labelFingerprint", "")}
        request = self._api.compute.instances().setLabels(
            project=self._api.project, zone=zone, instance=name, body=body, requestId=str(uuid.uuid4())
        )
        self._finish(zone, self._api.execute(request, doing), doing, timeout_seconds)

    def serial_output(self, zone: str, name: str, *, timeout_seconds: float = 20.0) -> str:
        """Return the output of a VM's first serial port, which has the log of its startup script.

        Raises:
            NotFoundError: The VM does not exist.
            CommandError: The request failed.
        """
        request = self._api.compute.instances().getSerialPortOutput(
            project=self._api.project, zone=checked_name(zone, "zone"), instance=checked_name(name, "VM")
        )
        doing = f"read the serial port of the VM {name} in zone {zone}"
        return str(self._api.execute(request, doing, timeout_seconds=timeout_seconds).get("contents", ""))

    def _finish(self, zone: str, operation: dict[str, Any], doing: str, timeout_seconds: float) -> None:
        """Wait until an operation is done. The API blocks until then, or for two minutes."""
        deadline = self._clock() + timeout_seconds
        backoff = Backoff(0.1, 5.0)
        while operation.get("status") != "DONE":
            start = self._clock()
            if start >= deadline:
                raise TimedOutError(f"could not {doing} within {timeout_seconds:g} s; it may still be done")
            with contextlib.suppress(TimedOutError):
                operation = self._wait(zone, operation["name"], doing, min(_WAIT_SECONDS, deadline - start))
            if self._clock() - start < 1.0 and operation.get("status") != "DONE":
                self._sleep(backoff.failed())
        error = operation_error(operation, doing)
        if error is not None:
            raise error

    def _wait(self, zone: str, operation: str, doing: str, seconds: float) -> dict[str, Any]:
        request = self._api.compute.zoneOperations().wait(project=self._api.project, zone=zone, operation=operation)
        return self._api.execute(request, doing, timeout_seconds=seconds, is_repeatable=True)

    def zone_exists(self, zone: str) -> bool:
        """Return whether a zone exists."""
        request = self._api.compute.zones().get(
            project=self._api.project, zone=checked_name(zone, "zone"), fields="name"
        )
        return self._exists(request, f"find the zone {zone}")

    def machine_type_exists(self, zone: str, machine_type: str) -> bool:
        """Return whether an existing zone has a machine type."""
        request = self._api.compute.machineTypes().get(
            project=self._api.project,
            zone=checked_name(zone, "zone"),
            machineType=checked_name(machine_type, "machine type"),
            fields="name",
        )
        return self._exists(request, f"find the machine type {machine_type} in zone {zone}")

    def zones_with(self, machine_type: str) -> list[str]:
        """Return the sorted zones that have a machine type."""
        machine_types = self._api.compute.machineTypes()
        request = machine_types.aggregatedList(
            project=self._api.project,
            filter=f"name = {checked_name(machine_type, 'machine type')}",
            fields="nextPageToken,items/*/machineTypes/name",
            returnPartialSuccess=True,
        )
        zones: set[str] = set()
        following, doing = machine_types.aggregatedList_next, f"find zones with {machine_type}"
        for answer in self._api.pages(request, following, doing):
            zones |= {
                scope.rpartition("/")[2] for scope, part in answer.get("items", {}).items() if part.get("machineTypes")
            }
        return sorted(zones)

    def _exists(self, request: Any, doing: str) -> bool:
        try:
            self._api.execute(request, doing)
        except NotFoundError:
            return False
        return True
