"""The free space of file systems.

A file system that does not answer, such as NFS without its server, holds its caller until it does. So each question is
asked in a thread of its own, and no other is asked about the same path before the answer.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from ml_diagnostics_common.worker import Task, start

__all__ = [
    "FileSystem",
    "FileSystemProbe",
    "FileSystemProbes",
    "announce_checkpoint_folder",
    "announced_checkpoint_folders",
    "temporary_folder",
]

_ANSWER_SECONDS: Final = 0.2
"""A disk answers within microseconds; the rest is for a busy machine."""
_MOST_PATHS: Final = 8
_MOST_ANNOUNCED: Final = 4


class FileSystem(NamedTuple):
    """The state of the file system that a path is on."""

    path: str
    """The path, which need not exist."""
    free_bytes: int
    """Without those that are reserved for the superuser."""
    total_bytes: int
    free_inodes: int | None
    """None where the file system has no fixed number of them, or the system does not show it."""
    device: int

    def to_json(self) -> dict[str, Any]:
        """Return it in the types of JSON, for an entry."""
        fields = self._asdict()
        del fields["device"]
        return {name: value for name, value in fields.items() if value is not None}


class FileSystemProbe:
    """Asks for the free space at one path.

    Args:
        path: An absolute path, which need not exist.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._task: Task | None = None
        self._answers: list[FileSystem] = []

    @property
    def is_waiting(self) -> bool:
        """True while the last question is not answered."""
        return self._task is not None and not self._task.wait(0)

    def ask(self) -> None:
        """Ask in a thread, unless an earlier question is not answered yet."""
        if self.is_waiting:
            return
        answers: list[FileSystem] = []

        def ask() -> None:
            try:
                answers.append(_file_system_of(self.path))
            except (OSError, ValueError):
                pass  # It may be unmounted, or not readable for this user.

        self._answers, self._task = answers, start(ask, "file-system-probe")

    def answer(self, timeout_seconds: float) -> FileSystem | None:
        """Return the answer to the last question; None if there is none within this time."""
        if self._task is None or not self._task.wait(timeout_seconds):
            return None
        return self._answers[0] if self._answers else None


class FileSystemProbes:
    """Questions about several paths, which are asked at construction.

    Args:
        paths: Absolute paths; those beyond the first few are left out.
    """

    def __init__(self, paths: Iterable[str]) -> None:
        self._probes = [FileSystemProbe(path) for path in list(dict.fromkeys(paths))[:_MOST_PATHS]]
        self.ask()

    def ask(self) -> None:
        """Ask again."""
        for probe in self._probes:
            probe.ask()

    def waiting(self) -> list[str]:
        """Return the paths of which the last question is not answered."""
        return [probe.path for probe in self._probes if probe.is_waiting]

    def answers(self, timeout_seconds: float = _ANSWER_SECONDS) -> list[FileSystem]:
        """Return each file system that has answered, once, with the first path on it.

        Args:
            timeout_seconds: The longest wait for all of them together.
        """
        deadline = time.monotonic() + timeout_seconds
        found: dict[int, FileSystem] = {}
        for probe in self._probes:
            file_system = probe.answer(max(0.0, deadline - time.monotonic()))
            if file_system is not None:
                found.setdefault(file_system.device, file_system)
        return list(found.values())


# State of the process: folders that checkpoints were saved to, the last one first.
_announced: list[str] = []


def announce_checkpoint_folder(path: str) -> None:
    """Publish, within this process, that checkpoints are saved to a folder; one in a bucket has no file system."""
    if "://" in path:
        return
    folder = os.path.abspath(path)  # noqa: PTH100
    _announced[:] = [folder, *(other for other in _announced if other != folder)][:_MOST_ANNOUNCED]


def announced_checkpoint_folders() -> list[str]:
    """Return the folders that were published, the last one first."""
    return list(_announced)


def temporary_folder(environ: Mapping[str, str] = os.environ) -> str:
    """Return TMPDIR, or the system's folder for temporary files. `tempfile` would write a file to find it."""
    return os.path.abspath(environ.get("TMPDIR") or environ.get("TEMP") or "/tmp")  # noqa: PTH100


def _file_system_of(path: str) -> FileSystem:
    """Ask the system, which may never answer. For a missing path, the folder above it counts.

    Raises:
        OSError: It cannot be asked.
    """
    existing = path
    while True:
        try:
            device = os.stat(existing).st_dev  # noqa: PTH116 (as text: a path may have any bytes)
            break
        except (FileNotFoundError, NotADirectoryError):
            above = os.path.dirname(existing)  # noqa: PTH120
            if above == existing:
                raise
            existing = above
    if not hasattr(os, "statvfs"):  # Windows.
        import shutil

        usage = shutil.disk_usage(existing)
        return FileSystem(path, usage.free, usage.total, None, device)
    found = os.statvfs(existing)
    inodes = found.f_favail if found.f_files else None
    return FileSystem(path, found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize, inodes, device)
