"""What was exported, kept on this host so that no later process exports it again.

Before a batch is added to a file it is written down how long the file is, and how far the export is, before and after
the batch. The length of the file then says which of both holds, whenever a process was killed.
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
from ml_diagnostics_common.file_lock import open_lock_file, try_lock
from ml_diagnostics_common.guard import LOSSES, warn_once
from ml_diagnostics_common.journal.layout import make_private_folder, read_state, write_state
from ml_diagnostics_common.storage import storage_for

__all__ = ["ExportLock", "ExportNote", "ExportState", "Progress", "note_path", "state_path"]


@dataclass(frozen=True, slots=True)
class Progress:
    """How far an export is."""

    step: int | None = None
    """Of the values below."""
    values: Mapping[str, float] = field(default_factory=dict)
    """The last value of each tag."""
    deviations_until_ns: int = -1
    """Start of the last step whose deviation is exported."""


@dataclass(frozen=True, slots=True)
class ExportState:
    """How far an export is, and how far it is going to be once its file has grown."""

    progress: Progress = Progress()
    file: str = ""
    """The name of the file that was written last."""
    length: int = 0
    """Bytes in it that `progress` covers."""
    next_progress: Progress | None = None
    next_length: int = 0
    """Of the file when `next_progress` holds."""

    def settled(self, folder: Path) -> ExportState:
        """What holds now that nobody writes the file any more; cuts off a batch that is not whole.

        Raises:
            OSError: The file cannot be cut.
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
        """Writes it to a file of this host, whole.

        Raises:
            OSError: That cannot be done.
        """
        write_state(path, asdict(self))

    @classmethod
    def load(cls, path: Path) -> ExportState:
        """What a file holds; a new one if there is none, or something else in it."""
        saved = read_state(path)
        try:
            return cls() if saved is None else _decoded(saved)
        except (KeyError, TypeError, ValueError, AttributeError):
            return cls()


class ExportNote:
    """How far an export is, told beside the place itself: for a host that comes to it and knows nothing of it.

    Args:
        path: The note, `gs://` or local.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._told: Progress | None = None

    def read(self, deadline_seconds: float) -> Progress:
        """How far another host got; the beginning where none was, or none can be told: rather twice than never."""
        try:
            data = storage_for(self._path, deadline_seconds=deadline_seconds).read(self._path)
            self._told = _decoded_progress(json.loads(data))
        except (DiagnosticsError, OSError, KeyError, TypeError, ValueError, AttributeError, RecursionError):
            return Progress()
        return self._told

    def write(self, progress: Progress, deadline_seconds: float) -> None:
        """Tells how far this host got, if that is new; where it cannot be told, that is counted and said once."""
        if progress == self._told:
            return
        try:
            data = json.dumps(asdict(progress)).encode()
            storage_for(self._path, deadline_seconds=deadline_seconds).write(self._path, data)
            self._told = progress
        except (DiagnosticsError, OSError) as error:
            LOSSES.add("tensorboard_note")
            warn_once(
                ("tensorboard note", self._path),
                "How far the TensorBoard points are could not be noted in %s (%s): a later run on another machine may "
                "write some of them again.",
                self._path,
                error,
            )


class ExportLock:
    """Held by the one process of this host that exports a job to a place; the kernel frees it when the process ends.

    Args:
        path: The lock file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None

    def take(self) -> bool:
        """Whether this process has it now. Without locks in the system or the file system, it always has.

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
        """Lets the next one have it."""
        if self._descriptor is not None:
            descriptor, self._descriptor = self._descriptor, None
            with contextlib.suppress(OSError):
                os.close(descriptor)


def state_path(exporter: str, job_name: str, place: str) -> Path:
    """Where an exporter keeps its state of one job and one place; `.lock` and a folder may lie beside it."""
    return diagnostics_directory() / "state" / "monitor" / f"{exporter}-{_key(job_name, place)}.json"


def note_path(exporter: str, job_name: str, folder: str) -> str:
    """Where an exporter tells other hosts how far it is with one job in a folder."""
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
