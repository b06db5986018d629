"""The proxy's link to a viewer VM, where its labels do not have it: the VM itself tells it.

The client that creates a VM labels it with what that tells; one that did not live that long has not.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from ml_diagnostics_common.exceptions import DiagnosticsError, ObjectNotFoundError
from ml_diagnostics_common.storage import Storage

from xprofiler.log_directory import LogDirectory
from xprofiler.parallel import in_parallel
from xprofiler.viewers.instances import Instances
from xprofiler.viewers.labels import BACKEND_LABEL, viewer_url
from xprofiler.viewers.startup.status import StartupStatus, status_path
from xprofiler.viewers.viewer import Viewer

__all__ = ["label_as_told", "told_by", "with_told_links"]

_MOST_LOOKS: Final = 64


def with_told_links(viewers: Sequence[Viewer], storage: Storage) -> list[Viewer]:
    """Return the viewers with what those tell of themselves that run and have no link; side by side, 64 at most.

    Args:
        viewers: VMs.
        storage: Where they tell it.
    """
    asked = [viewer for viewer in viewers if viewer.status == "RUNNING" and not viewer.url][:_MOST_LOOKS]
    answers = in_parallel(lambda viewer: told_by(viewer, storage), asked)
    told = {(viewer.zone, viewer.name): answer for viewer, answer in zip(asked, answers, strict=True)}
    return [_with(viewer, told.get((viewer.zone, viewer.name))) for viewer in viewers]


def told_by(viewer: Viewer, storage: Storage) -> StartupStatus:
    """Return how far a VM tells that it is; "starting" where it has told nothing yet.

    Raises:
        StorageError: Nobody could be asked.
        UsageError: Its log directory is none.
    """
    try:
        data = storage.read(status_path(LogDirectory.parse(viewer.log_directory), viewer.name))
    except ObjectNotFoundError:
        return StartupStatus("starting")
    return StartupStatus.parse(data) or StartupStatus("starting")


def label_as_told(viewer: Viewer, told: StartupStatus, instances: Instances) -> None:
    """Labels a VM with what it tells, if this user may, so that the next list has it; it is not waited for."""
    with contextlib.suppress(DiagnosticsError):
        instances.set_labels(viewer.zone, viewer.name, told.labels, timeout_seconds=0)


def _with(viewer: Viewer, told: StartupStatus | Exception | None) -> Viewer:
    if not isinstance(told, StartupStatus):  # Nobody was asked, or could be.
        return viewer
    return replace(viewer, state=told.state, url=viewer_url(told.labels.get(BACKEND_LABEL), viewer.zone))
