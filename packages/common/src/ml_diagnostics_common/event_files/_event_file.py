"""One event file, which only grows by whole batches of records."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable
from pathlib import Path

from ml_diagnostics_common.descriptors import Descriptor
from ml_diagnostics_common.event_files._records import header_record
from ml_diagnostics_common.exceptions import StorageError

__all__ = ["EventFile", "event_file_names"]

_NAME = re.compile(r"events\.out\.tfevents\.(\d+)\..*")
_SECOND_NS = 1_000_000_000


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
        version: The version of the format: see `header_record`.

    Attributes:
        path: The file.
        length: Bytes that were written completely.
    """

    def __init__(
        self, folder: Path, *, after: Iterable[str] = (), time_ns: int, mode: int = 0o666, version: int = 2
    ) -> None:
        """Create the file.

        Raises:
            OSError: It cannot be created.
        """
        import socket

        folder.mkdir(parents=True, exist_ok=True)
        earlier = [_second(name) for name in (*event_file_names(folder), *after)]
        second = max([time_ns // _SECOND_NS, *(known + 1 for known in earlier)])
        host = re.sub(r"[^\w.-]", "_", socket.gethostname())[:64]
        self.path = folder / f"events.out.tfevents.{second:010d}.{host}.{os.getpid()}"
        self.length = 0
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | getattr(os, "O_CLOEXEC", 0)
        # A job may close all descriptors: then the number may be that of a file of its own.
        self._descriptor = Descriptor(
            os.open(self.path, flags | sum(getattr(os, name, 0) for name in ("O_NOFOLLOW", "O_BINARY")), mode)
        )
        self._is_sound = True
        try:
            self.append(header_record(time_ns, version))
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
        number = self._descriptor.number()
        if number is None:
            self._is_sound = False
            raise StorageError(f"{self.path} was closed by the program; the next try creates another file")
        try:
            left = memoryview(records)
            while left:
                left = left[os.write(number, left) :]
            os.fsync(number)
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
        self._is_sound = False
        with contextlib.suppress(OSError):  # All records were synchronized before.
            self._descriptor.close()

    def _take_back(self) -> None:
        """Truncate a batch that was written in part; until that succeeds, nothing may be appended."""
        number = self._descriptor.number()
        try:
            if number is not None:
                os.ftruncate(number, self.length)
        except OSError:
            number = None
        self._is_sound = number is not None


def _second(name: str) -> int:
    found = _NAME.fullmatch(name)
    return int(found[1]) if found else 0
