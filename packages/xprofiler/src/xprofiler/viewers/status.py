"""The status of a viewer VM: an object in the log directory, which the startup script rewrites at every step.

A VM without the label of the proxy's link gets the link from its status. The client that creates a VM adds the label,
unless it was interrupted. The format is compatible with older releases, which wrote a Python literal: one flat object
of strings and numbers.
"""

from __future__ import annotations

import ast
import contextlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from ml_diagnostics_common.exceptions import DiagnosticsError, ObjectNotFoundError
from ml_diagnostics_common.storage import Storage
from ml_diagnostics_common.worker import in_parallel

from xprofiler.log_directory import LogDirectory
from xprofiler.viewers.instances import Instances
from xprofiler.viewers.viewer import BACKEND_LABEL, Viewer, label_value, viewer_url

__all__ = ["StartupStatus", "label_with_status", "read_status", "status_path", "with_links"]

_LABELLED: Final = ("startup_script_begin_ts", "tb_launched_ts", "tb_attempts_count", BACKEND_LABEL)
_MOST_READS: Final = 64


@dataclass(frozen=True)
class StartupStatus:
    """The status of a viewer VM.

    Attributes:
        state: "starting", "ready" or "failed"; a status of older releases is "ready" or "failed".
        step: The current or failed step, such as "installing XProf".
        error: The error; a ready viewer has one if its registration with the proxy failed.
        labels: The labels to add to the VM, including its id in the proxy.
    """

    state: str
    step: str = ""
    error: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def parse(cls, data: bytes) -> StartupStatus | None:
        """Parse a status; return None if its format is not valid.

        Args:
            data: The object's content.
        """
        fields = _literal(data.decode("utf-8", "replace"))
        if not isinstance(fields, dict):
            return None
        launched = str(fields.get("tb_launched_ts") or "0") not in ("", "0")
        return cls(
            state=str(fields.get("state") or ("ready" if launched else "failed")),
            step=str(fields.get("step", "")),
            error=str(fields.get("error", "")),
            labels={name: label_value(str(fields[name])) for name in _LABELLED if fields.get(name)},
        )


def status_path(log_directory: LogDirectory, vm_name: str) -> str:
    """Return the path to which a viewer VM writes its status."""
    return log_directory.child(f"{vm_name}/startup_output.json")


def _literal(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        try:
            return ast.literal_eval(text)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            return None


def with_links(viewers: Sequence[Viewer], storage: Storage) -> list[Viewer]:
    """Return the viewers, with links from the status of at most 64 running viewers without one, read in parallel.

    Args:
        viewers: The viewer VMs.
        storage: The storage that holds their status.
    """
    unlinked = [viewer for viewer in viewers if viewer.status == "RUNNING" and not viewer.url][:_MOST_READS]
    answers = in_parallel(lambda viewer: read_status(viewer, storage), unlinked)
    statuses = {(viewer.zone, viewer.name): answer for viewer, answer in zip(unlinked, answers, strict=True)}
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
