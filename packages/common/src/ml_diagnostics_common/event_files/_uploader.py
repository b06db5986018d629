"""The upload of event files to Cloud Storage, whole and oldest first."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ml_diagnostics_common.event_files._event_file import EventFile, event_file_names
from ml_diagnostics_common.exceptions import StorageError
from ml_diagnostics_common.guard import LOSSES, warn_once
from ml_diagnostics_common.storage import GoogleCloudStorage

__all__ = ["UploadLimits", "Uploader"]


@dataclass(frozen=True, slots=True)
class UploadLimits:
    """The limits of uploads."""

    seconds: float = 20.0
    """The approximate time of one call."""
    part_bytes: int = 256 * 1024
    """A file of this size is not extended, since each upload sends the whole file."""
    kept_bytes: int = 64 * 1024 * 1024
    """The oldest files are dropped if more than this is to be uploaded."""


class Uploader:
    """Uploads the event files of a folder to Cloud Storage.

    Args:
        folder: The folder of the files; no other process writes there.
        target: `gs://bucket/path`, their destination.
        limits: The limits of uploads.
        clock: Monotonic seconds.
    """

    def __init__(
        self, folder: Path, target: str, limits: UploadLimits, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._folder = folder
        self._target = target
        self._limits = limits
        self._clock = clock
        self._storage: GoogleCloudStorage | None = None
        self._deadline_seconds = 0.0
        self._uploaded: tuple[str, int] | None = None  # The growing file, and its uploaded bytes.

    def is_full(self, file: EventFile) -> bool:
        """Return True if a file must not be extended."""
        return file.length >= self._limits.part_bytes

    def upload(self, growing: EventFile | None, timeout_seconds: float | None = None) -> bool:
        """Upload new data, oldest first; remove files that do not grow any more.

        Args:
            growing: The file that is being written.
            timeout_seconds: The approximate time after which the rest is left for the next call; None for the limit.

        Returns:
            True if everything is uploaded.

        Raises:
            StorageError: Something could not be uploaded; it waits for the next call.
        """
        seconds = self._limits.seconds if timeout_seconds is None else timeout_seconds
        half = seconds / 2  # An upload that starts in the first half may take the second.
        end = self._clock() + half
        storage = self._storage_within(half)
        try:
            for name in event_file_names(self._folder):
                if growing is None or name != growing.path.name:
                    self._move(storage, name)
                elif self._uploaded != (name, growing.length):
                    length = growing.length
                    storage.write(f"{self._target}/{name}", growing.path.read_bytes()[:length])
                    self._uploaded = (name, length)
                if self._clock() >= end:
                    return self._is_up(growing)
            return True
        except OSError as error:
            if isinstance(error, StorageError):
                raise
            raise StorageError(f"cannot upload the event files in {self._folder}: {error}; check the folder") from error
        finally:
            self._drop_oldest(growing)

    def _is_up(self, growing: EventFile | None) -> bool:
        """Return True if the folder has only the growing file, and that is uploaded."""
        waiting = event_file_names(self._folder)
        if growing is None or not waiting:
            return not waiting
        return waiting == [growing.path.name] and self._uploaded == (growing.path.name, growing.length)

    def close(self) -> None:
        """Close the connections."""
        if self._storage is not None:
            self._storage.close()
            self._storage = None

    def _move(self, storage: GoogleCloudStorage, name: str) -> None:
        path = self._folder / name
        storage.write(f"{self._target}/{name}", path.read_bytes())
        path.unlink(missing_ok=True)

    def _storage_within(self, seconds: float) -> GoogleCloudStorage:
        if self._storage is None or self._deadline_seconds != seconds:
            self.close()
            self._storage, self._deadline_seconds = GoogleCloudStorage(deadline_seconds=seconds), seconds
        return self._storage

    def _drop_oldest(self, growing: EventFile | None) -> None:
        """Keep the folder within its limit."""
        paths = [self._folder / name for name in event_file_names(self._folder)]
        sizes = {path: path.stat().st_size for path in paths}
        excess = sum(sizes.values()) - self._limits.kept_bytes
        for path in paths:
            if excess <= 0 or (growing is not None and path == growing.path):
                break
            path.unlink(missing_ok=True)
            excess -= sizes[path]
            LOSSES.add("tensorboard_part_dropped")
            warn_once(
                ("tensorboard part dropped", self._target),
                "More than %d MiB wait in %s to be uploaded to %s, which does not take them: the oldest are dropped. "
                "Further ones are counted, not logged.",
                self._limits.kept_bytes // 2**20,
                self._folder,
                self._target,
            )
