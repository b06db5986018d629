"""Those that host XProf, wherever they are: what they are, and how commands find and delete them."""

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
        url: The proxy's link; None while the proxy does not know it.
        status: Of the VM: RUNNING, STAGING, TERMINATED, ...
        has_external_address: Whether ssh reaches it without the Identity-Aware Proxy.
        labels: All that it bears.
        state: How far it tells that XProf is: starting, ready or failed; empty where nobody has asked it.
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
    """Read a VM as Compute shows it."""
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
    """Which viewers are sought.

    Attributes:
        zones: Those in one of these; none is everywhere.
        log_directories: Of these, as `LogDirectory.path` has them, or of `names`.
        names: Of these names, or of `log_directories`; none of either is all.
        filters: What gcloud takes as `--filter`; each must hold, too.
    """

    zones: Collection[str] = ()
    log_directories: Collection[str] = ()
    names: Collection[str] = ()
    filters: Collection[str] = ()

    def among(self, viewers: Iterable[Viewer]) -> list[Viewer]:
        """Return those that are sought, as far as zone, log directory and name say; by log directory and name."""
        found = [viewer for viewer in viewers if viewer.log_directory and self._takes(viewer)]
        return sorted(found, key=lambda viewer: (viewer.log_directory, viewer.name, viewer.zone))

    def _takes(self, viewer: Viewer) -> bool:
        is_any = not (self.log_directories or self.names)
        is_named = viewer.log_directory in self.log_directories or viewer.name in self.names
        return (not self.zones or viewer.zone in self.zones) and (is_any or is_named)


class Viewers(Protocol):
    """A place where viewers are.

    Attributes:
        noun: What each of them is: "VM", "Pod".
    """

    noun: str

    def find(self, sought: Sought) -> list[Viewer]:
        """Return those sought, by log directory and name.

        Raises:
            XprofilerError: They cannot be listed.
        """
        ...

    def delete(self, viewers: Sequence[Viewer]) -> list[Exception | None]:
        """Delete these, at once, and waits until they are gone; return what went wrong with each."""
        ...

    def delete_argv(self, viewers: Sequence[Viewer]) -> list[list[str]]:
        """Return the programs that would do the same."""
        ...
