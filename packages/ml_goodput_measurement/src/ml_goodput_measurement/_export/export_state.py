"""The progress of an export: its paths on this host, and a note of it for the next host."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ml_diagnostics_common.environment import diagnostics_directory
from ml_diagnostics_common.exceptions import DiagnosticsError
from ml_diagnostics_common.guard import LOSSES, warn_once
from ml_diagnostics_common.storage import storage_for

__all__ = ["ExportNote", "Progress", "decoded_progress", "note_path", "state_path"]


@dataclass(frozen=True, slots=True)
class Progress:
    """The points that were exported."""

    step: int | None = None
    """The step of the values below."""
    values: Mapping[str, float] = field(default_factory=dict)
    """The last value of each tag."""
    deviations_until_ns: int = -1
    """Start of the last step with an exported deviation."""


class ExportNote:
    """The progress of an export, saved beside its points for the next host that exports the job.

    Args:
        path: The note, `gs://` or local.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._written: Progress | None = None

    def read(self, deadline_seconds: float) -> Progress:
        """Return the progress of another host.

        It is empty if it cannot be read: points are rather written twice than never.
        """
        try:
            data = storage_for(self._path, deadline_seconds=deadline_seconds).read(self._path)
            self._written = decoded_progress(json.loads(data))
        except (DiagnosticsError, OSError, KeyError, TypeError, ValueError, AttributeError, RecursionError):
            return Progress()
        return self._written

    def write(self, progress: Progress, deadline_seconds: float) -> None:
        """Save the progress of this host if it has changed; count a failure, and log it once."""
        if progress == self._written:
            return
        try:
            data = json.dumps(asdict(progress)).encode()
            storage_for(self._path, deadline_seconds=deadline_seconds).write(self._path, data)
            self._written = progress
        except (DiagnosticsError, OSError) as error:
            LOSSES.add("tensorboard_note")
            warn_once(
                ("tensorboard note", self._path),
                "The progress of the TensorBoard points could not be saved in %s (%s): a later run on another machine "
                "may write some of them again.",
                self._path,
                error,
            )


def state_path(exporter: str, job_name: str, target: str) -> Path:
    """Return the path of an exporter's state of one job and one target; `.lock` and a folder may be beside it."""
    return diagnostics_directory() / "state" / "monitor" / f"{exporter}-{_key(job_name, target)}.json"


def note_path(exporter: str, job_name: str, folder: str) -> str:
    """Return the path of an exporter's note for other hosts on the progress of one job in a folder."""
    return f"{folder.rstrip('/')}/goodput_state/{exporter}-{_key(job_name)}.json"


def _key(*names: str) -> str:
    return hashlib.sha256(json.dumps(names).encode()).hexdigest()[:24]


def decoded_progress(saved: Mapping[str, Any]) -> Progress:
    """Return a progress from JSON; raise KeyError, TypeError, ValueError or AttributeError for any other value."""
    return Progress(
        step=None if saved["step"] is None else int(saved["step"]),
        values={str(tag): float(value) for tag, value in saved["values"].items()},
        deviations_until_ns=int(saved["deviations_until_ns"]),
    )
