"""Viewers, the VMs and pods that host XProf, and the interface to find and delete them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from xprofiler.viewers.labels import BACKEND_LABEL, log_directory_of, viewer_url

__all__ = ["Sought", "Viewer", "Viewers", "as_viewer"]


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
