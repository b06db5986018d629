"""Viewers on Compute Engine: through its API, or through gcloud for gcloud's own flags and filters."""

from __future__ import annotations

import json
import shutil
from collections.abc import Collection, Iterator, Sequence
from typing import Any, Final

from ml_diagnostics_common.command.console import Console
from ml_diagnostics_common.command.errors import CommandError, NotFoundError, UsageError, class_of_kind
from ml_diagnostics_common.failures import Kind
from ml_diagnostics_common.worker import in_parallel

from xprofiler.gcloud.api import GoogleApi
from xprofiler.gcloud.command_lines import checked_name
from xprofiler.gcloud.processes import Programs
from xprofiler.viewers.instances import Instances
from xprofiler.viewers.viewer import LOG_DIRECTORY_KEY, VERSION_LABEL, Sought, Viewer, Viewers, as_viewer

__all__ = ["ViewersByGcloud", "ViewersOnCompute", "flags_of_all_commands", "viewers_on_compute"]

_GCLOUD_FILTER: Final = f"(labels.{VERSION_LABEL}:* OR labels.{LOG_DIRECTORY_KEY}:*)"
_SHOWN: Final = "json(name,zone,status,labels,metadata.items,networkInterfaces)"
_OF_ALL_COMMANDS: Final = frozenset(
    {
        "--access-token-file",
        "--account",
        "--billing-project",
        "--configuration",
        "--impersonate-service-account",
        "--project",
    }
)
# OR binds tighter than AND: https://cloud.google.com/compute/docs/reference/rest/v1/instances/aggregatedList
_API_FILTER: Final = f"(labels.{VERSION_LABEL}:*) OR (labels.{LOG_DIRECTORY_KEY}:*)"
_FIELDS: Final = "name,zone,status,machineType,labels,metadata/items,networkInterfaces/accessConfigs/natIP"
_PAGE_SIZE: Final = 500
_LISTING: Final = "list the VMs"


class ViewersByGcloud:
    """A `Viewers` for VMs of Compute, through gcloud.

    Args:
        project: The project's id; empty selects gcloud's own.
        console: Receives command lines, with `--verbose`.
        extra: The user's own flags, each with its value.
    """

    noun = "VM"

    def __init__(self, project: str, console: Console, extra: Sequence[str]) -> None:
        self._project = project
        self._console = console
        self._extra = list(extra)

    def find(self, sought: Sought) -> list[Viewer]:
        """See `Viewers.find`."""
        filters = " AND ".join([_GCLOUD_FILTER, *(f"({text})" for text in sought.filters)])
        zones = ",".join(checked_name(zone, "zone") for zone in sought.zones)
        chosen = [f"--zones={zones}"] if zones else []
        flags = [*chosen, f"--filter={filters}", f"--format={_SHOWN}"]
        argv = _argv(["list"], flags, self._project, self._extra)
        listed = self._run(argv, _LISTING)
        try:
            return sought.among(as_viewer(instance) for instance in json.loads(listed))
        except (ValueError, TypeError, AttributeError) as error:
            raise CommandError(
                f"gcloud's list of VMs cannot be read ({error}): remove flags that change its format"
            ) from error

    def delete(self, viewers: Sequence[Viewer]) -> list[Exception | None]:
        """See `Viewers.delete`. gcloud reports one error for all VMs."""
        try:
            for argv in self.delete_argv(viewers):
                self._run(argv, "delete the VMs")
        except CommandError as error:
            return [error] * len(viewers)
        return [None] * len(viewers)

    def delete_argv(self, viewers: Sequence[Viewer]) -> list[list[str]]:
        """See `Viewers.delete_argv`."""
        return _delete_argv(viewers, self._project, self._extra)

    def _run(self, argv: Sequence[str], doing: str) -> bytes:
        with Programs(self._console) as programs:
            ended = programs.run(argv)
        if ended.exit_code:
            failure = ended.failure("gcloud")
            error = UsageError if failure is Kind.INVALID else class_of_kind(failure)
            raise error(f"gcloud could not {doing}: {ended.complaint}")
        return ended.output


def _delete_argv(viewers: Sequence[Viewer], project: str, extra: Sequence[str] = ()) -> list[list[str]]:
    """Return the command lines of gcloud that delete VMs, one for each zone.

    Args:
        viewers: The VMs.
        project: The project's id; empty selects gcloud's own.
        extra: The user's own flags, each with its value.

    Raises:
        UsageError: A name is not valid.
    """
    by_zone: dict[str, list[str]] = {}
    for viewer in viewers:
        by_zone.setdefault(checked_name(viewer.zone, "zone"), []).append(checked_name(viewer.name, "VM"))
    return [_argv(["delete", *names], ["--quiet", f"--zone={zone}"], project, extra) for zone, names in by_zone.items()]


def flags_of_all_commands(extra: Sequence[str]) -> list[str]:
    """Return the user's flags for account and project, which are valid for every command."""
    return [argument for argument in extra if argument.partition("=")[0] in _OF_ALL_COMMANDS]


def _argv(verb: Sequence[str], flags: Sequence[str], project: str, extra: Sequence[str]) -> list[str]:
    """Return a command line. Our flags are last, since gcloud uses the last value, even with a --flags-file."""
    chosen = [] if not project or _names_project(extra) else [f"--project={project}"]
    return ["gcloud", "compute", "instances", *verb, *extra, *flags, *chosen]


def _names_project(extra: Sequence[str]) -> bool:
    return any(argument.partition("=")[0] == "--project" for argument in extra)


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
        filters = [_API_FILTER]
        if sought.names and not sought.log_directories:
            filters.append(" OR ".join(f'(name = "{checked_name(name, "VM")}")' for name in sought.names))
        return sought.among(map(as_viewer, self._list(sought.zones, " AND ".join(filters))))

    def delete(self, viewers: Sequence[Viewer]) -> list[Exception | None]:
        """See `Viewers.delete`."""
        instances = Instances(self._api)
        return in_parallel(lambda viewer: instances.delete(viewer.zone, viewer.name), viewers)

    def delete_argv(self, viewers: Sequence[Viewer]) -> list[list[str]]:
        """See `Viewers.delete_argv`."""
        return _delete_argv(viewers, self._api.project)

    def _list(self, zones: Collection[str], filter_: str) -> Iterator[dict[str, Any]]:
        """Yield the VMs that match a filter, from the list of one zone, or from the list of all.

        Raises:
            NotFoundError: The zone does not exist.
        """
        parameters = {"project": self._api.project, "filter": filter_, "maxResults": _PAGE_SIZE}
        wanted = {checked_name(zone, "zone") for zone in zones}
        instances = self._api.compute.instances()
        if len(wanted) == 1:
            request = instances.list(zone=min(wanted), fields=f"nextPageToken,items({_FIELDS})", **parameters)
            try:
                for page in self._api.pages(request, instances.list_next, _LISTING):
                    yield from page.get("items", ())
            except NotFoundError as error:
                raise self._without_zones(wanted) from error
            return
        fields = f"nextPageToken,items/*/instances({_FIELDS}),items/*/warning/code"
        request = instances.aggregatedList(fields=fields, returnPartialSuccess=True, **parameters)
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


def viewers_on_compute(api: GoogleApi, sought: Sought, extra: Sequence[str]) -> Viewers:
    """Return the interface to use: Compute's API, which is fast, or gcloud for its own flags and filters.

    Args:
        api: Google's APIs.
        sought: The viewers to find.
        extra: Flags for gcloud.

    Raises:
        UsageError: gcloud is necessary, but not installed.
    """
    needs_gcloud = [*extra, *sought.filters]
    if not needs_gcloud:
        return ViewersOnCompute(api)
    if not shutil.which("gcloud", path=api.settings.environ.get("PATH")):
        raise UsageError(
            f"{' '.join(needs_gcloud)!r} needs gcloud, which is not installed: install the Google Cloud CLI, or select "
            "VMs by zones, log directories or names"
        )
    return ViewersByGcloud(api.settings.project, api.console, extra)
