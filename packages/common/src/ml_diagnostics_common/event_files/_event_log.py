"""The points of one folder of TensorBoard: each is written once, also over restarts and by several processes.

Before a batch is appended to a file, its length and the progress before and after the batch are saved. If the process
is killed, the length of the file then shows which progress is valid.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

from ml_diagnostics_common.descriptors import Descriptor
from ml_diagnostics_common.event_files._event_file import EventFile, event_file_names
from ml_diagnostics_common.event_files._uploader import Uploader, UploadLimits
from ml_diagnostics_common.exceptions import ConfigurationError
from ml_diagnostics_common.files import (
    in_bucket,
    make_private_folder,
    native_path,
    open_lock_file,
    read_state,
    try_lock,
    unlock,
    write_state,
)
from ml_diagnostics_common.process_hooks import LiveObjects, at_fork
from ml_diagnostics_common.storage import storage_for

__all__ = ["EventLog", "SavedLog", "points_folder"]

_Progress = TypeVar("_Progress")


def points_folder(directory: str, name: str) -> str:
    """Return a folder within a user's directory of TensorBoard, in one spelling.

    Each writer needs a folder of its own, since TensorBoard never returns to an earlier file of a folder.

    Args:
        directory: `gs://bucket/path`, or a local path.
        name: The name of the folder, which TensorBoard shows.

    Raises:
        ConfigurationError: The directory is neither on this machine nor in Cloud Storage.
    """
    if "\0" in directory:
        raise ConfigurationError(f"tensorboard_dir is {directory!r}: a path has no NUL bytes")
    storage_for(directory)  # Raises if it is neither.
    if not in_bucket(directory):
        return str(Path(native_path(directory)).resolve() / name)
    if not directory.removeprefix("gs://").split("/")[0]:
        raise ConfigurationError(f"tensorboard_dir is {directory!r}: give gs://bucket/path")
    return f"{directory.rstrip('/')}/{name}"


@dataclass(frozen=True)
class SavedLog(Generic[_Progress]):
    """The saved state of a log: its progress, and that after the batch that is being appended to its file.

    Attributes:
        progress: The written points, in the terms of the writer.
        file: The name of the last file.
        length: Its bytes that `progress` covers.
        next_progress: The progress after the batch that is being appended; None for none.
        next_length: The length of the file at which `next_progress` is valid.
    """

    progress: _Progress
    file: str = ""
    length: int = 0
    next_progress: _Progress | None = None
    next_length: int = 0

    def settled(self, folder: Path) -> SavedLog[_Progress]:
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
            return SavedLog(self.progress, self.file)
        if length >= self.next_length:
            return SavedLog(self.next_progress, self.file, self.next_length)
        if length > self.length:
            os.truncate(path, self.length)
        return SavedLog(self.progress, self.file, self.length)

    def save(self, path: Path, encode: Callable[[_Progress], Mapping[str, Any]]) -> None:
        """Write it to a file of this host, whole.

        Raises:
            OSError: The file cannot be written.
        """
        following = None if self.next_progress is None else encode(self.next_progress)
        state = {"progress": encode(self.progress), "file": self.file, "length": self.length}
        write_state(path, {**state, "next_progress": following, "next_length": self.next_length})

    @staticmethod
    def load(path: Path, decode: Callable[[Mapping[str, Any]], _Progress], empty: _Progress) -> SavedLog[_Progress]:
        """Return the state in a file; an empty one if there is none, or if it is not valid."""
        saved = read_state(path)
        if saved is None:
            return SavedLog(empty)
        try:
            following, name = saved["next_progress"], str(saved["file"])
            if Path(name).name != name:
                raise ValueError(f"{name!r} is not the name of a file")
            return SavedLog(
                decode(saved["progress"]),
                name,
                int(saved["length"]),
                None if following is None else decode(following),
                int(saved["next_length"]),
            )
        except (KeyError, TypeError, ValueError, AttributeError):
            return SavedLog(empty)


class EventLog(Generic[_Progress]):
    """The event files of one folder, of which one process of a host is the writer at a time.

    Opens nothing before `take`. The methods below `take` are for the process that has the log.

    Args:
        folder: The folder of the files: see `points_folder`.
        state_path: The file on this host with the progress; `.lock` and a folder may be beside it.
        encode: Return a progress as a mapping for JSON.
        decode: Return a progress from such a mapping; may raise KeyError, TypeError, ValueError or AttributeError.
        empty: The progress of a log without points.
        initial: Return the progress of a log that this host has not written to; None for `empty`.
        limits: The limits of uploads to Cloud Storage.
        version: The version of the format of the files: see `header_record`.
    """

    def __init__(
        self,
        folder: str,
        state_path: Path,
        *,
        encode: Callable[[_Progress], Mapping[str, Any]],
        decode: Callable[[Mapping[str, Any]], _Progress],
        empty: _Progress,
        initial: Callable[[], _Progress] | None = None,
        limits: UploadLimits = UploadLimits(),  # noqa: B008 - frozen
        version: int = 2,
    ) -> None:
        self._state_path = state_path
        self._encode = encode
        self._decode = decode
        self._empty = empty
        self._initial = initial or (lambda: empty)
        self._version = version
        self._lock = _Lock(state_path.with_suffix(".lock"))
        self._state: SavedLog[_Progress] | None = None
        self._file: EventFile | None = None
        self._uploader: Uploader | None = None
        self._folder = Path(folder)
        if in_bucket(folder):
            self._folder = state_path.with_suffix("")
            self._uploader = Uploader(self._folder, folder, limits)

    def take(self) -> bool:
        """Return True if this process is the writer; from then on it knows what was written before.

        Raises:
            OSError: The state cannot be read or written.
        """
        if not self._lock.take():
            return False
        if self._state is None:
            self._save(self._last_state().settled(self._folder))
        return True

    def saved_progress(self) -> _Progress:
        """Return the progress of whichever process has written last."""
        return SavedLog.load(self._state_path, self._decode, self._empty).progress

    @property
    def progress(self) -> _Progress:
        """The written points, in the terms of the writer."""
        return self._known.progress

    def set_progress(self, progress: _Progress) -> None:
        """Change the progress without a point; it is saved with the next one."""
        self._state = replace(self._known, progress=progress)

    def save_progress(self, progress: _Progress) -> None:
        """Change the progress without a point, and save it.

        Raises:
            OSError: It cannot be saved.
        """
        self._save(replace(self._known, progress=progress))

    def restart_if_removed(self) -> bool:
        """Return True, and continue with an empty progress, if another process removed all files."""
        if self._uploader is not None or self._known.progress == self._empty or event_file_names(self._folder):
            return False
        self._state = SavedLog(self._empty)
        return True

    def append(self, records: bytes, progress: _Progress, time_ns: int) -> None:
        """Append records to the event file.

        Args:
            records: The records; if there are none, only the progress changes.
            progress: The progress with them.
            time_ns: Now.

        Raises:
            OSError: They could not be written.
            StorageError: The file was removed.
        """
        if not records:
            self.set_progress(progress)
            return
        file = self._growing_file(time_ns)
        name, length, next_length = file.path.name, file.length, file.length + len(records)
        SavedLog(self._known.progress, name, length, progress, next_length).save(self._state_path, self._encode)
        file.append(records)
        self._state = SavedLog(progress, name, next_length)

    def upload(self, timeout_seconds: float | None = None) -> bool:
        """Upload new data; return True if nothing waits for it.

        Args:
            timeout_seconds: The approximate time after which the rest is left for the next call; None for the limit.

        Raises:
            StorageError: Something could not be uploaded; it waits for the next call.
        """
        return self._uploader is None or self._uploader.upload(self._file, timeout_seconds)

    def close(self) -> None:
        """End the event file, and let another process take over; `take` starts again."""
        if self._file is not None:
            self._file.close()
        if self._uploader is not None:
            self._uploader.close()
        self._file = self._state = None
        self._lock.release()

    def _last_state(self) -> SavedLog[_Progress]:
        if self._state_path.exists():
            return SavedLog.load(self._state_path, self._decode, self._empty)
        return SavedLog(self._initial())

    def _save(self, state: SavedLog[_Progress]) -> None:
        state.save(self._state_path, self._encode)
        self._state = state

    def _growing_file(self, time_ns: int) -> EventFile:
        """Return the file to write to: a new one if there is none, or if it is full or removed."""
        if self._file is not None:
            is_full = self._uploader is not None and self._uploader.is_full(self._file)
            if is_full or not self._file.is_usable():
                self._file.close()
                self._file = None
        if self._file is None:
            if self._uploader is not None:
                make_private_folder(self._folder)
            mode = 0o666 if self._uploader is None else 0o600
            self._file = EventFile(
                self._folder, after=[self._known.file], time_ns=time_ns, mode=mode, version=self._version
            )
        return self._file

    @property
    def _known(self) -> SavedLog[_Progress]:
        assert self._state is not None, "only asked after take"
        return self._state


class _Lock:
    """The lock of the process that writes; the kernel releases it when the process ends.

    A forked child, such as a worker of a data loader, may outlive its parent: it closes its copy.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: Descriptor | None = None
        _locks_of_this_process.add(self)

    def take(self) -> bool:
        """Return True if this process has the lock now; always, if the system or the file system has no locks.

        Raises:
            OSError: The lock file cannot be opened.
        """
        if self._descriptor is not None and self._descriptor.number() is not None:
            return True
        make_private_folder(self._path.parent)
        number = open_lock_file(self._path)
        try:
            is_ours = try_lock(number)
        except OSError:
            is_ours = True
        if not is_ours:
            os.close(number)
            return False
        self._descriptor = Descriptor(number)
        return True

    def release(self) -> None:
        """Release the lock for the next process."""
        number = None if self._descriptor is None else self._descriptor.number()
        if number is not None:
            unlock(number)  # Also if a child is being forked just now, and has not closed its copy yet.
        self.forget()

    def forget(self) -> None:
        """Close a forked child's copy, which releases nothing."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            with contextlib.suppress(OSError):
                descriptor.close()


_locks_of_this_process: LiveObjects[_Lock] = LiveObjects()


def _forget_in_child() -> None:
    for lock in _locks_of_this_process:
        lock.forget()


at_fork(_forget_in_child)
