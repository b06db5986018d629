"""Viewers, the VMs and pods that host XProf: labels, a list, and the interfaces to find, create and delete them."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from ml_diagnostics_common.command.formats import format_data, format_table

__all__ = [
    "BACKEND_LABEL",
    "CREATION_LABEL",
    "LOG_DIRECTORY_KEY",
    "PLUGIN_LABEL",
    "VERSION_LABEL",
    "NewViewer",
    "Sought",
    "Viewer",
    "Viewers",
    "as_viewer",
    "format_viewers",
    "label_value",
    "log_directory_of",
    "viewer_url",
]

# Labels can be searched, metadata accept any text:
# https://cloud.google.com/compute/docs/labeling-resources#requirements
VERSION_LABEL: Final = "xprofiler_version"
"""Marks a VM as one of ours."""
PLUGIN_LABEL: Final = "tensorboard_plugin_profile"
BACKEND_LABEL: Final = "tb_backend_id"
"""The VM's id in the proxy."""
CREATION_LABEL: Final = "xprofiler_creation"
"""A random id of one `create` command, which may delete only what it created."""
LOG_DIRECTORY_KEY: Final = "xprofiler_log_directory"
"""The key in the metadata; releases before 0.0.11 used a label."""

_SLASH: Final = "--slash--"  # The encoding of a slash in those releases.
_LONGEST_VALUE: Final = 63
_NOT_IN_A_VALUE: Final = re.compile(r"[^\w-]")
_HEADERS: Final = ("Log_Directory  ", "URL  ", "Name  ", "Zone  ")
"""Two spaces follow each header, as in previous releases, which used tabulate."""
_STARTING: Final = ("PROVISIONING", "STAGING")


def label_value(text: str) -> str:
    """Return a text as a valid value of a label: `1.0.17` becomes `1-0-17`."""
    return _NOT_IN_A_VALUE.sub("-", text.lower())[:_LONGEST_VALUE]


def _metadata_of(instance: Mapping[str, Any]) -> dict[str, str]:
    """Return a VM's metadata as a dictionary.

    Args:
        instance: A resource of Compute.
    """
    items: Iterable[Mapping[str, Any]] = instance.get("metadata", {}).get("items", ())
    return {str(item["key"]): str(item.get("value", "")) for item in items if "key" in item}


def log_directory_of(instance: Mapping[str, Any]) -> str:
    """Return the log directory of a VM; empty if it has none.

    Args:
        instance: A resource of Compute, with its metadata and labels.
    """
    named = _metadata_of(instance).get(LOG_DIRECTORY_KEY, "").rstrip("/")
    if named:
        return named
    label = str(instance.get("labels", {}).get(LOG_DIRECTORY_KEY, ""))
    return f"gs://{label.replace(_SLASH, '/')}".rstrip("/") if label else ""


def viewer_url(backend: str | None, zone: str) -> str | None:
    """Return the proxy's link to a VM; None until the VM is registered.

    Args:
        backend: The label `tb_backend_id`.
        zone: Such as us-central1-a.
    """
    if not backend or not zone:
        return None
    return f"https://{backend}-dot-{zone.rpartition('-')[0]}.notebooks.googleusercontent.com"


@dataclass(frozen=True)
class Viewer:
    """A VM, or a pod, that hosts XProf for a log directory.

    Attributes:
        name: Its name.
        zone: Its zone.
        log_directory: `gs://bucket/path`; empty for a VM that hosts nothing.
        url: The proxy's link; None until it is registered.
        status: The VM's status: RUNNING, STAGING, TERMINATED, ...
        has_external_address: True if ssh can connect without the Identity-Aware Proxy.
        labels: All its labels.
        state: The state of XProf: starting, ready or failed; empty if it was not read.
    """

    name: str
    zone: str
    log_directory: str
    url: str | None
    status: str
    has_external_address: bool = False
    labels: Mapping[str, str] = field(default_factory=dict)
    state: str = ""


def as_viewer(instance: Mapping[str, Any]) -> Viewer:
    """Return the viewer for a VM, which is a resource of Compute."""
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


@dataclass(frozen=True)
class Sought:
    """A search for viewers.

    Attributes:
        zones: The zones to search; empty selects all.
        log_directories: Log directories, as in `LogDirectory.path`. A viewer matches by log directory or by name.
        names: Names. If both are empty, all viewers match.
        filters: Filters in the language of gcloud's `--filter`; all must match.
    """

    zones: Collection[str] = ()
    log_directories: Collection[str] = ()
    names: Collection[str] = ()
    filters: Collection[str] = ()

    def among(self, viewers: Iterable[Viewer]) -> list[Viewer]:
        """Return the viewers that match by zone, log directory and name, sorted by log directory and name."""
        found = [viewer for viewer in viewers if viewer.log_directory and self._takes(viewer)]
        return sorted(found, key=lambda viewer: (viewer.log_directory, viewer.name, viewer.zone))

    def _takes(self, viewer: Viewer) -> bool:
        is_any = not (self.log_directories or self.names)
        is_named = viewer.log_directory in self.log_directories or viewer.name in self.names
        return (not self.zones or viewer.zone in self.zones) and (is_any or is_named)


class Viewers(Protocol):
    """The interface of a set of viewers.

    Attributes:
        noun: The kind of a viewer, for messages: "VM", "Pod".
    """

    noun: str

    def find(self, sought: Sought) -> list[Viewer]:
        """Return the matching viewers, sorted by log directory and name.

        Raises:
            CommandError: The viewers cannot be listed.
        """
        ...

    def delete(self, viewers: Sequence[Viewer]) -> list[Exception | None]:
        """Delete viewers in parallel, wait until they are gone, and return an error or None for each."""
        ...

    def delete_argv(self, viewers: Sequence[Viewer]) -> list[list[str]]:
        """Return the equivalent command lines."""
        ...


class NewViewer(Protocol):
    """A viewer to create. Its creation can be undone at every stage.

    Attributes:
        noun: Its kind for messages: "VM", "Pod".
        name: Its name.
        zone: Its zone; on GKE, a label.
        others: The search for existing viewers of the same log directory.
        may_exist: True if its creation was requested and not rejected.
        delete_command: The command that deletes it.
    """

    noun: str
    name: str
    zone: str
    others: Sought
    may_exist: bool
    delete_command: str

    def recipe(self) -> str:
        """Return an equivalent command, or its input, without creating anything."""
        ...

    def check(self) -> None:
        """Check the preconditions of its creation.

        Raises:
            CommandError: It cannot be created, or its name is in use.
        """
        ...

    def make(self) -> str:
        """Create it, wait until XProf answers, and return how to connect, for the user.

        Raises:
            DiagnosticsError: It was not created, or does not answer. If `may_exist`, call `remove`.
        """
        ...

    def remove(self) -> Exception | None:
        """Delete what was created, in whatever state, and nothing else.

        Returns:
            The reason why it may still exist; None if it is gone.
        """
        ...


def format_viewers(viewers: Sequence[Viewer], style: str = "table") -> str:
    """Format viewers, with the columns of all previous releases.

    Args:
        viewers: The viewers, one per row.
        style: One of `FORMATS`. A table has a reason for each missing link.
    """
    if style == "table":
        rows = [(viewer.log_directory, _link(viewer), viewer.name, viewer.zone) for viewer in viewers]
        return "\n".join(format_table(_HEADERS, rows))
    records = [
        {
            "log_directory": viewer.log_directory,
            "url": viewer.url,
            "name": viewer.name,
            "zone": viewer.zone,
            "status": viewer.status,
        }
        for viewer in viewers
    ]
    return format_data(records, style, records, ("log_directory", "url", "name", "zone", "status"))


def _link(viewer: Viewer) -> str:
    """Return the link, or the reason why it is missing."""
    if viewer.url:
        return viewer.url
    if viewer.status == "RUNNING":
        return viewer.state if viewer.state in ("starting", "failed") else "no link"
    return "starting" if viewer.status in _STARTING else viewer.status.lower()
