"""The proxy's link to a viewer VM that lacks the label: read it from the status that the VM writes.

The client that creates a VM adds the label, unless it was interrupted.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from ml_diagnostics_common.exceptions import DiagnosticsError, ObjectNotFoundError
from ml_diagnostics_common.storage import Storage
from ml_diagnostics_common.worker import in_parallel

from xprofiler.log_directory import LogDirectory
from xprofiler.viewers.instances import Instances
from xprofiler.viewers.labels import BACKEND_LABEL, viewer_url
from xprofiler.viewers.startup.status import StartupStatus, status_path
from xprofiler.viewers.viewer import Viewer

__all__ = ["label_with_status", "read_status", "with_told_links"]

_MOST_READS: Final = 64


def with_told_links(viewers: Sequence[Viewer], storage: Storage) -> list[Viewer]:
    """Return the viewers, with links from the status of at most 64 running viewers without one, read in parallel.

    Args:
        viewers: The viewer VMs.
        storage: The storage that holds their status.
    """
    asked = [viewer for viewer in viewers if viewer.status == "RUNNING" and not viewer.url][:_MOST_READS]
    answers = in_parallel(lambda viewer: read_status(viewer, storage), asked)
    statuses = {(viewer.zone, viewer.name): answer for viewer, answer in zip(asked, answers, strict=True)}
    return [_with(viewer, statuses.get((viewer.zone, viewer.name))) for viewer in viewers]


def read_status(viewer: Viewer, storage: Storage) -> StartupStatus:
    """Return the status that a VM has written; "starting" if it has written none yet.

    Raises:
        StorageError: The status could not be read.
        UsageError: The VM's log directory is not valid.
    """
    try:
        data = storage.read(status_path(LogDirectory.parse(viewer.log_directory), viewer.name))
    except ObjectNotFoundError:
        return StartupStatus("starting")
    return StartupStatus.parse(data) or StartupStatus("starting")


def label_with_status(viewer: Viewer, status: StartupStatus, instances: Instances) -> None:
    """Label a VM with its status, if permitted, so that the next list has the link. Do not wait for completion."""
    with contextlib.suppress(DiagnosticsError):
        instances.set_labels(viewer.zone, viewer.name, status.labels, timeout_seconds=0)


def _with(viewer: Viewer, status: StartupStatus | Exception | None) -> Viewer:
    if not isinstance(status, StartupStatus):  # Not read, or reading failed.
        return viewer
    return replace(viewer, state=status.state, url=viewer_url(status.labels.get(BACKEND_LABEL), viewer.zone))
