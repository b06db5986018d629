"""Viewers on Compute Engine, through its API: one list, and parallel deletions."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any, Final

from ml_diagnostics_common.command.errors import NotFoundError
from ml_diagnostics_common.worker import in_parallel

from xprofiler.cloud.api import GoogleApi
from xprofiler.programs.gcloud import checked_name
from xprofiler.viewers.by_gcloud import delete_argv
from xprofiler.viewers.instances import Instances
from xprofiler.viewers.labels import LOG_DIRECTORY_KEY, VERSION_LABEL
from xprofiler.viewers.viewer import Sought, Viewer, as_viewer

__all__ = ["ViewersOnCompute"]

# OR binds tighter than AND: https://cloud.google.com/compute/docs/reference/rest/v1/instances/aggregatedList
_OURS: Final = f"(labels.{VERSION_LABEL}:*) OR (labels.{LOG_DIRECTORY_KEY}:*)"
_FIELDS: Final = "name,zone,status,machineType,labels,metadata/items,networkInterfaces/accessConfigs/natIP"
_PAGE_SIZE: Final = 500
_LISTING: Final = "list the VMs"


class ViewersOnCompute:
    """A `Viewers` for the VMs of a project.

    Args:
        api: Google's APIs.
    """

    noun = "VM"

    def __init__(self, api: GoogleApi) -> None:
        self._api = api

    def find(self, sought: Sought) -> list[Viewer]:
        """See `Viewers.find`; `sought` has no filters, which are gcloud's."""
        asked = [_OURS]
        if sought.names and not sought.log_directories:
            asked.append(" OR ".join(f'(name = "{checked_name(name, "VM")}")' for name in sought.names))
        return sought.among(map(as_viewer, self._list(sought.zones, " AND ".join(asked))))

    def delete(self, viewers: Sequence[Viewer]) -> list[Exception | None]:
        """See `Viewers.delete`."""
        instances = Instances(self._api)
        return in_parallel(lambda viewer: instances.delete(viewer.zone, viewer.name), viewers)

    def delete_argv(self, viewers: Sequence[Viewer]) -> list[list[str]]:
        """See `Viewers.delete_argv`."""
        return delete_argv(viewers, self._api.project)

    def _list(self, zones: Collection[str], filter_: str) -> Iterator[dict[str, Any]]:
        """Yield the VMs that match a filter, from the list of one zone, or from the list of all.

        Raises:
            NotFoundError: The zone does not exist.
        """
        asked = {"project": self._api.project, "filter": filter_, "maxResults": _PAGE_SIZE}
        wanted = {checked_name(zone, "zone") for zone in zones}
        instances = self._api.compute.instances()
        if len(wanted) == 1:
            request = instances.list(zone=min(wanted), fields=f"nextPageToken,items({_FIELDS})", **asked)
            try:
                for page in self._api.pages(request, instances.list_next, _LISTING):
                    yield from page.get("items", ())
            except NotFoundError as error:
                raise self._without_zones(wanted) from error
            return
        fields = f"nextPageToken,items/*/instances({_FIELDS}),items/*/warning/code"
        request = instances.aggregatedList(fields=fields, returnPartialSuccess=True, **asked)
        unseen = set(wanted)
        for page in self._api.pages(request, instances.aggregatedList_next, _LISTING):
            for scope, part in page.get("items", {}).items():
                zone = scope.rpartition("/")[2]
                if not wanted or zone in wanted:
                    unseen.discard(zone)
                    yield from part.get("instances", ())
                    if part.get("warning", {}).get("code") == "UNREACHABLE":
                        self._api.console.notify(
                            f"note: {zone} does not answer: its VMs are missing", is_progress=False
                        )
        if unseen:  # The list has every existing zone, with or without VMs.
            raise self._without_zones(unseen)

    def _without_zones(self, zones: Collection[str]) -> NotFoundError:
        return NotFoundError(f"there is no zone {', '.join(sorted(zones))} in project {self._api.project}")
