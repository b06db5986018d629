"""The progress of an export, kept on this host so that no later process exports the same points again.

Before a batch is appended to a file, its length and the progress before and after the batch are saved. If the process
is killed, the length of the file then shows which progress is valid.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ml_diagnostics_common.environment import diagnostics_directory
from ml_diagnostics_common.exceptions import DiagnosticsError
from ml_diagnostics_common.files import make_private_folder, open_lock_file, read_state, try_lock, write_state
from ml_diagnostics_common.guard import LOSSES, warn_once
from ml_diagnostics_common.storage import storage_for

__all__ = ["ExportLock", "ExportNote", "ExportState", "Progress", "note_path", "state_path"]


@dataclass(frozen=True, slots=True)
class Progress:
    """The points that were exported."""

    step: int | None = None
    """The step of the values below."""
    values: Mapping[str, float] = field(default_factory=dict)
    """The last value of each tag."""
    deviations_until_ns: int = -1
    """Start of the last step with an exported deviation."""


@dataclass(frozen=True, slots=True)
class ExportState:
    """The progress of an export, and the progress after the batch that is being appended to its file."""

    progress: Progress = Progress()
    file: str = ""
    """The name of the last file."""
    length: int = 0
    """Its bytes that `progress` covers."""
    next_progress: Progress | None = None
    next_length: int = 0
    """The length of the file at which `next_progress` is valid."""

    def settled(self, folder: Path) -> ExportState:
        """Return the valid state after the writer of the file has ended; truncate a partial batch.

        Raises:
            OSError: The file cannot be truncated.
        """
        path = folder / self.file
        if self.next_progress is None or not self.file:
            return self
        try:
            length = path.stat().st_size
        except FileNotFoundError:
            return ExportState(self.progress, self.file)
        if length >= self.next_length:
            return ExportState(self.next_progress, self.file, self.next_length)
        if length > self.length:
            os.truncate(path, self.length)
        return ExportState(self.progress, self.file, self.length)

    def save(self, path: Path) -> None:
        """Write it to a file of this host, whole.

        Raises:
            OSError: The file cannot be written.
        """
        write_state(path, asdict(self))

    @classmethod
    def load(cls, path: Path) -> ExportState:
        """Return the state in a file; a new one if there is none, or if it is not valid."""
        saved = read_state(path)
        try:
            return cls() if saved is None else _decoded(saved)
        except (KeyError, TypeError, ValueError, AttributeError):
            return cls()


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
            self._written = _decoded_progress(json.loads(data))
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


class ExportLock:
    """A lock of the process of this host that exports a job to a folder; the kernel frees it when the process ends.

    Args:
        path: The lock file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None

    def take(self) -> bool:
        """Return True if this process has the lock now; always, if the system or the file system has no locks.

        Raises:
            OSError: The lock file cannot be opened.
        """
        if self._descriptor is not None:
            return True
        make_private_folder(self._path.parent)
        descriptor = open_lock_file(self._path)
        try:
            is_ours = try_lock(descriptor)
        except OSError:
            is_ours = True
        if not is_ours:
            os.close(descriptor)
            return False
        self._descriptor = descriptor
        return True

    def release(self) -> None:
        """Release the lock for the next process."""
        if self._descriptor is not None:
            descriptor, self._descriptor = self._descriptor, None
            with contextlib.suppress(OSError):
                os.close(descriptor)


def state_path(exporter: str, job_name: str, target: str) -> Path:
    """Return the path of an exporter's state of one job and one target; `.lock` and a folder may be beside it."""
    return diagnostics_directory() / "state" / "monitor" / f"{exporter}-{_key(job_name, target)}.json"


def note_path(exporter: str, job_name: str, folder: str) -> str:
    """Return the path of an exporter's note for other hosts on the progress of one job in a folder."""
    return f"{folder.rstrip('/')}/goodput_state/{exporter}-{_key(job_name)}.json"


def _key(*names: str) -> str:
    return hashlib.sha256(json.dumps(names).encode()).hexdigest()[:24]


def _decoded(saved: Mapping[str, Any]) -> ExportState:
    following = saved["next_progress"]
    name = str(saved["file"])
    if Path(name).name != name:
        raise ValueError(f"{name!r} is not the name of a file")
    return ExportState(
        progress=_decoded_progress(saved["progress"]),
        file=name,
        length=int(saved["length"]),
        next_progress=None if following is None else _decoded_progress(following),
        next_length=int(saved["next_length"]),
    )


def _decoded_progress(saved: Mapping[str, Any]) -> Progress:
    return Progress(
        step=None if saved["step"] is None else int(saved["step"]),
        values={str(tag): float(value) for tag, value in saved["values"].items()},
        deviations_until_ns=int(saved["deviations_until_ns"]),
    )
