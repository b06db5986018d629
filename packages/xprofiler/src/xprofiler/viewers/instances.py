"""VMs of Compute Engine: one is looked at, made, labelled or deleted; and what zones have.

API: https://cloud.google.com/compute/docs/reference/rest/v1/instances
"""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any, Final

from ml_diagnostics_common.backoff import Backoff

from xprofiler.cloud.api import GoogleApi
from xprofiler.cloud.errors import operation_error
from xprofiler.exceptions import NotFoundError, TimedOutError
from xprofiler.programs.gcloud import checked_name

__all__ = ["Instances"]

_WAIT_SECONDS: Final = 150.0  # The API answers within 120.


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

    def get(self, zone: str, name: str, fields: str | None = None) -> dict[str, Any]:
        """Return a VM as Compute shows it.

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
        """Create a VM, and waits until it is there.

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
        """Delete a VM, and waits until it is gone.

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
        """Add labels to a VM; those that it has already are kept, unless they have another value here.

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

    def serial_output(self, zone: str, name: str, *, timeout_seconds: float = 20.0) -> str:
        """Return what a VM has written to its first serial port, where its startup script logs.

        Raises:
            NotFoundError: There is none of that name.
            XprofilerError: It could not be asked for.
        """
        request = self._api.compute.instances().getSerialPortOutput(
            project=self._api.project, zone=checked_name(zone, "zone"), instance=checked_name(name, "VM")
        )
        doing = f"read the serial port of the VM {name} in zone {zone}"
        return str(self._api.execute(request, doing, timeout_seconds=timeout_seconds).get("contents", ""))

    def _finish(self, zone: str, operation: dict[str, Any], doing: str, timeout_seconds: float) -> None:
        """Wait until an operation is done; the API answers when it is, or after two minutes."""
        deadline = self._clock() + timeout_seconds
        backoff = Backoff(0.1, 5.0)
        while operation.get("status") != "DONE":
            began = self._clock()
            if began >= deadline:
                raise TimedOutError(f"could not {doing} within {timeout_seconds:g} s; it may still be done")
            with contextlib.suppress(TimedOutError):
                operation = self._wait(zone, operation["name"], doing, min(_WAIT_SECONDS, deadline - began))
            if self._clock() - began < 1.0 and operation.get("status") != "DONE":
                self._sleep(backoff.failed())
        error = operation_error(operation, doing)
        if error is not None:
            raise error

    def _wait(self, zone: str, operation: str, doing: str, seconds: float) -> dict[str, Any]:
        request = self._api.compute.zoneOperations().wait(project=self._api.project, zone=zone, operation=operation)
        return self._api.execute(request, doing, timeout_seconds=seconds, is_repeatable=True)

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
        """Return the zones that have such machines, sorted."""
        machine_types = self._api.compute.machineTypes()
        request = machine_types.aggregatedList(
            project=self._api.project,
            filter=f"name = {checked_name(machine_type, 'machine type')}",
            fields="nextPageToken,items/*/machineTypes/name",
            returnPartialSuccess=True,
        )
        zones: set[str] = set()
        following, doing = machine_types.aggregatedList_next, f"look for zones with {machine_type}"
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
