"""The last megabytes of a stream, in two private files: `<host>-<pid>.out`, and before that `<host>-<pid>.out.1`.

Beside each, `<host>-<pid>.out.times` has when its bytes were printed: lines of a position in the file and a time, in ns
since 1970, which say that all before the position were printed by then.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import Final

from cloud_tpu_diagnostics._console.marks import MARK_NS

__all__ = ["SEGMENT_BYTES", "TIMES_SUFFIX", "Segments", "console_directory"]

TIMES_SUFFIX: Final = ".times"
SEGMENT_BYTES: Final = 8 * 2**20
_KEPT_SECONDS: Final = 7 * 86_400.0
"""Files of earlier jobs are removed after this time, as trace files are."""


def console_directory(root: Path | None = None) -> Path:
    """Return the folder of these files.

    Args:
        root: The diagnostics folder; None for that of this process.
    """
    from ml_diagnostics_common.environment import diagnostics_directory

    return (diagnostics_directory() if root is None else root) / "console"


class Segments:
    """The files of one stream. What cannot be written, for example to a full disk, is left out, which a line reports.

    Args:
        path: The newer file.
        most_bytes: The size at which it becomes the older one.
    """

    def __init__(self, path: Path, most_bytes: int = SEGMENT_BYTES) -> None:
        self._path = path
        self._most_bytes = most_bytes
        self._descriptor = self._times = -1
        self._bytes = self._marked_ns = 0
        self._last_mark = b""
        """The mark of the last write, if it was not noted."""
        self._left_out = 0
        """The bytes that were not written since the last one that was."""
        with contextlib.suppress(OSError):
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            _prune(path.parent)
            self._open()

    def append(self, data: bytes) -> None:
        """Append bytes that were just printed; the older file is dropped when the newer one is full."""
        try:
            if self._descriptor < 0:
                self._open()
            if self._left_out and self._has_noted_gap():
                self._left_out = 0
            written = 0 if self._left_out else self._write(data)
            self._left_out += len(data) - written
            self._mark(time.time_ns())
            if self._bytes >= self._most_bytes:
                os.replace(self._path, f"{self._path}.1")  # noqa: PTH105
                with contextlib.suppress(OSError):
                    os.replace(f"{self._path}{TIMES_SUFFIX}", f"{self._path}.1{TIMES_SUFFIX}")  # noqa: PTH105
                self.close()
        except OSError:
            self._left_out += len(data) if self._descriptor < 0 else 0

    def _mark(self, time_ns: int) -> None:
        """Note the time, but not for each of many writes: of these, that of the last one."""
        mark = b"%d %d\n" % (self._bytes, time_ns)
        if time_ns - self._marked_ns < MARK_NS:
            self._last_mark = mark
        elif self._times >= 0:
            self._marked_ns = time_ns
            with contextlib.suppress(OSError):
                os.write(self._times, self._last_mark + mark)
            self._last_mark = b""

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
        """Close the files."""
        for descriptor in (self._descriptor, self._times):
            if descriptor >= 0:
                os.close(descriptor)
        self._descriptor = self._times = -1

    def _open(self) -> None:
        self._descriptor, self._bytes = _create(str(self._path)), 0
        self._last_mark, self._marked_ns = b"", 0
        with contextlib.suppress(OSError):
            self._times = _create(f"{self._path}{TIMES_SUFFIX}")


def _create(path: str) -> int:
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.open(path, flags, 0o600)


def _prune(folder: Path) -> None:
    for file in folder.iterdir():
        with contextlib.suppress(OSError):
            if file.is_file() and time.time() - file.lstat().st_mtime > _KEPT_SECONDS:
                file.unlink()
