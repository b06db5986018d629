"""TensorBoard's event files: written in whole batches, and uploaded whole to a bucket.

Events and checksums are tensorboardX's. Its SummaryWriter is not used: its flush does not wait for the thread that
writes, a full disk ends that thread and blocks the next caller forever, and two writers that start in the same second
overwrite each other. Its RecordWriter cannot undo half a record.

Files for gs:// are written to a private folder first. Files that cannot be uploaded stay there, for the next try or the
next process on this host.

Format: https://www.tensorflow.org/tutorials/load_data/tfrecord, each record is an `Event`.
"""

from __future__ import annotations

import contextlib
import os
import re
import struct
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ml_diagnostics_common.exceptions import MissingExtraError, StorageError
from ml_diagnostics_common.guard import LOSSES, warn_once
from ml_diagnostics_common.storage import GoogleCloudStorage

from ml_goodput_measurement._export.scalars import STEP_DEVIATION, Scalar, single_precision
from ml_goodput_measurement.snapshot import DeviatingStep

__all__ = [
    "EventFile",
    "UploadLimits",
    "Uploader",
    "deviation_records",
    "event_file_names",
    "require_tensorboardx",
    "scalar_records",
]

_NAME = re.compile(r"events\.out\.tfevents\.(\d+)\..*")
_STEPS = range(-(2**63), 2**63)
_SECOND_NS = 1_000_000_000


def require_tensorboardx() -> None:
    """Check that tensorboardX is installed, without importing it.

    Raises:
        MissingExtraError: It is not installed.
    """
    from importlib.util import find_spec

    if find_spec("tensorboardX") is None:
        raise MissingExtraError("TensorBoard export", "ml-goodput-measurement", "tensorboard")


def scalar_records(scalars: Iterable[Scalar], *, step: int, time_ns: int) -> bytes:
    """Return one event with all scalars at one step; empty without scalars, and for a step beyond 64 bits."""
    from tensorboardX.proto.event_pb2 import Event
    from tensorboardX.proto.summary_pb2 import Summary, SummaryMetadata

    values = [
        Summary.Value(
            tag=scalar.tag,
            simple_value=scalar.value,
            metadata=SummaryMetadata(
                display_name=scalar.display_name, plugin_data=SummaryMetadata.PluginData(plugin_name="scalars")
            ),
        )
        for scalar in scalars
    ]
    if not values or step not in _STEPS:
        return b""
    return _record(Event(wall_time=time_ns / _SECOND_NS, step=step, summary=Summary(value=values)))


def deviation_records(steps: Sequence[DeviatingStep]) -> bytes:
    """Return an event for each step, at its start; deviations that are not finite are left out."""
    from tensorboardX.proto.event_pb2 import Event
    from tensorboardX.proto.summary_pb2 import Summary

    points = [(step.step, step.start_ns, single_precision(step.deviation_seconds)) for step in steps]
    return b"".join(
        _record(
            Event(
                wall_time=start_ns / _SECOND_NS,
                step=step,
                summary=Summary(value=[Summary.Value(tag=STEP_DEVIATION, simple_value=deviation)]),
            )
        )
        for step, start_ns, deviation in points
        if deviation is not None and step in _STEPS
    )


def event_file_names(folder: Path) -> list[str]:
    """Return the event files in a folder, of any writer, in the order in which TensorBoard reads them."""
    try:
        names = [path.name for path in folder.iterdir()]
    except FileNotFoundError:
        return []
    return sorted(name for name in names if _NAME.fullmatch(name))


class EventFile:
    """A new event file, which only grows by whole batches.

    TensorBoard reads the files of a folder in the order of their names, and never returns to an earlier one. So the
    name is greater than those of existing files, also if the clock was set back.

    Args:
        folder: The folder; it is created if necessary.
        after: Names of other files that must sort before this one.
        time_ns: Now.
        mode: The permissions, less the umask.

    Attributes:
        path: The file.
        length: Bytes that were written completely.
    """

    def __init__(self, folder: Path, *, after: Iterable[str] = (), time_ns: int, mode: int = 0o666) -> None:
        """Create the file.

        Raises:
            OSError: It cannot be created.
        """
        import socket

        from tensorboardX.proto.event_pb2 import Event

        folder.mkdir(parents=True, exist_ok=True)
        earlier = [_second(name) for name in (*event_file_names(folder), *after)]
        second = max([time_ns // _SECOND_NS, *(known + 1 for known in earlier)])
        host = re.sub(r"[^\w.-]", "_", socket.gethostname())[:64]
        self.path = folder / f"events.out.tfevents.{second:010d}.{host}.{os.getpid()}"
        self.length = 0
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | getattr(os, "O_CLOEXEC", 0)
        self._descriptor = os.open(self.path, flags | getattr(os, "O_NOFOLLOW", 0), mode)
        self._is_sound = True
        try:
            self.append(_record(Event(wall_time=time_ns / _SECOND_NS, file_version="brain.Event:2")))
        except OSError:
            self.close()
            self.path.unlink(missing_ok=True)
            raise

    def append(self, records: bytes) -> None:
        """Append records, all of them or none.

        Raises:
            OSError: They could not be written.
            StorageError: The file was removed, with its contents.
        """
        try:
            left = memoryview(records)
            while left:
                left = left[os.write(self._descriptor, left) :]
            os.fsync(self._descriptor)
        except OSError:
            self._take_back()
            raise
        if not self.is_usable():
            raise StorageError(f"{self.path} was removed while it was being written; the next try creates a new one")
        self.length += len(records)

    def is_usable(self) -> bool:
        """Return True if more can be added: the file still exists, and ends with a whole record."""
        if not self._is_sound:
            self._take_back()
        return self._is_sound and self.path.exists()

    def close(self) -> None:
        """End writing."""
        if self._descriptor >= 0:
            descriptor, self._descriptor, self._is_sound = self._descriptor, -1, False
            with contextlib.suppress(OSError):  # All records were synchronized before.
                os.close(descriptor)

    def _take_back(self) -> None:
        """Truncate a batch that was written in part; until that succeeds, nothing may be appended."""
        try:
            os.ftruncate(self._descriptor, self.length)
        except OSError:
            self._is_sound = False
        else:
            self._is_sound = True


def _second(name: str) -> int:
    found = _NAME.fullmatch(name)
    return int(found[1]) if found else 0


def _record(event: Any) -> bytes:
    from tensorboardX.record_writer import masked_crc32c

    data: bytes = event.SerializeToString()
    length = struct.pack("<Q", len(data))
    checksums = struct.pack("<I", masked_crc32c(length)), struct.pack("<I", masked_crc32c(data))
    return length + checksums[0] + data + checksums[1]


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
