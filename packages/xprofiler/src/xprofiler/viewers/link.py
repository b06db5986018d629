"""The proxy's link to a viewer VM, where its labels do not have it: whoever finds that, mends it."""

from __future__ import annotations

import contextlib

from ml_diagnostics_common.exceptions import DiagnosticsError
from ml_diagnostics_common.storage import Storage

from xprofiler.log_directory import LogDirectory
from xprofiler.viewers.instances import Instances
from xprofiler.viewers.labels import BACKEND_LABEL, viewer_url
from xprofiler.viewers.startup.status import StartupStatus, status_path
from xprofiler.viewers.viewer import Viewer

__all__ = ["link_to"]


def link_to(viewer: Viewer, instances: Instances, storage: Storage) -> str | None:
    """Returns the link; None where the proxy does not know the VM.

    The client that created the VM labels it with what the VM tells; one that did not live that long has not.

    Args:
        viewer: The VM.
        instances: The VMs of the project.
        storage: Where the VM has told how far it is.
    """
    if viewer.url:
        return viewer.url
    try:
        data = storage.read(status_path(LogDirectory.parse(viewer.log_directory), viewer.name))
    except DiagnosticsError:  # It has told nothing yet.
        return None
    labels = (StartupStatus.parse(data) or StartupStatus("starting")).labels
    url = viewer_url(labels.get(BACKEND_LABEL), viewer.zone)
    if url:
        with contextlib.suppress(DiagnosticsError):  # This user may not, or it is not done yet.
            instances.set_labels(viewer.zone, viewer.name, labels, timeout_seconds=0)
    return url
