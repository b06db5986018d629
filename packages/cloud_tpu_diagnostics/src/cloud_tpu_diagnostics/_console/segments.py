"""The last megabytes of a stream, in two private files: `<host>-<pid>.out`, and before that `<host>-<pid>.out.1`."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import Final

__all__ = ["SEGMENT_BYTES", "Segments", "console_directory"]

SEGMENT_BYTES: Final = 8 * 2**20
_KEPT_SECONDS: Final = 7 * 86_400.0
"""Files of earlier jobs are removed after this time, as trace files are."""


def console_directory() -> Path:
    """Return the folder of these files."""
    from ml_diagnostics_common.environment import diagnostics_directory

    return diagnostics_directory() / "console"


class Segments:
    """The files of one stream. What cannot be written, for example to a full disk, is left out, which a line reports.

    Args:
        path: The newer file.
        most_bytes: The size at which it becomes the older one.
    """

    def __init__(self, path: Path, most_bytes: int = SEGMENT_BYTES) -> None:
        self._path = path
        self._most_bytes = most_bytes
        self._descriptor = -1
        self._bytes = 0
        self._left_out = 0
        """The bytes that were not written since the last one that was."""
        with contextlib.suppress(OSError):
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            _prune(path.parent)
            self._open()

    def append(self, data: bytes) -> None:
        """Append bytes; the older file is dropped when the newer one is full."""
        try:
            if self._descriptor < 0:
                self._open()
            if self._left_out and self._has_noted_gap():
                self._left_out = 0
            written = 0 if self._left_out else self._write(data)
            self._left_out += len(data) - written
            if self._bytes >= self._most_bytes:
                os.replace(self._path, f"{self._path}.1")  # noqa: PTH105
                self.close()
        except OSError:
            self._left_out += len(data) if self._descriptor < 0 else 0

    def _has_noted_gap(self) -> bool:
        """Write how much is missing; return False if that cannot be written either."""
        line = f"\n[{self._left_out:,} bytes are missing here: they could not be written]\n".encode()
        written = self._write(line)
        if written == len(line):
            return True
        self._bytes -= written
        with contextlib.suppress(OSError):
            os.ftruncate(self._descriptor, self._bytes)
        return False

    def _write(self, data: bytes) -> int:
        """Write bytes, and return the number of those that could be written."""
        written = 0
        with contextlib.suppress(OSError):
            while written < len(data):
                written += os.write(self._descriptor, data[written:])
        self._bytes += written
        return written

    def close(self) -> None:
        """Close the file."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def _open(self) -> None:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        self._descriptor, self._bytes = os.open(self._path, flags, 0o600), 0


def _prune(folder: Path) -> None:
    for file in folder.iterdir():
        with contextlib.suppress(OSError):
            if file.is_file() and time.time() - file.lstat().st_mtime > _KEPT_SECONDS:
                file.unlink()
