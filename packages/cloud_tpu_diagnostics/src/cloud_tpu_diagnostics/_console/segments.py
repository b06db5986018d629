"""The last megabytes of a stream, in two private files: `<host>-<pid>.out`, and before that `<host>-<pid>.out.1`.

Beside each, `<host>-<pid>.out.times` has when its bytes were printed: lines of a position in the file and a time, in ns
since 1970, which say that all before the position were printed by then.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from pathlib import Path
from typing import Final

from ml_diagnostics_common.environment import identity
from ml_diagnostics_common.files import is_held, open_regular, share_lock
from ml_diagnostics_common.processes import process_started_ns

from cloud_tpu_diagnostics._console.marks import MARK_NS

__all__ = ["SEGMENT_BYTES", "TIMES_SUFFIX", "Segments", "console_directory"]

TIMES_SUFFIX: Final = ".times"
SEGMENT_BYTES: Final = 8 * 2**20
_KEPT_SECONDS: Final = 7 * 86_400.0
"""Files of jobs that have ended are removed after this time, as trace files are."""
_ROUNDED_NS: Final = 5_000_000_000
"""The kernel's time of a start is in whole seconds, and follows changes of the clock."""
_OWNER: Final = re.compile(r"(?P<host>.+)-(?P<pid>[0-9]{1,10})\..*", re.DOTALL)


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
        share_lock(self._descriptor)  # No other job removes it while this process lives, however little is printed.
        self._last_mark, self._marked_ns = b"", 0
        with contextlib.suppress(OSError):
            self._times = _create(f"{self._path}{TIMES_SUFFIX}")


def _create(path: str) -> int:
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.open(path, flags, 0o600)


def _prune(folder: Path) -> None:
    """Remove old files of jobs that have ended: with one file that is in use, all files of its job are."""
    by_owner: dict[str, list[Path]] = {}
    for file in folder.iterdir():
        found = _OWNER.fullmatch(file.name)
        by_owner.setdefault(f"{found['host']}-{found['pid']}" if found else file.name, []).append(file)
    for files in by_owner.values():
        with contextlib.suppress(OSError):
            old = [file for file in files if file.is_file() and time.time() - file.lstat().st_mtime > _KEPT_SECONDS]
            if old and not _is_in_use(files):
                for file in old:
                    file.unlink()


def _is_in_use(files: list[Path]) -> bool:
    """Return True if the process that writes these files lives: it has them locked, or, without locks, still runs."""
    for file in files:
        with contextlib.suppress(OSError, ValueError):
            descriptor = open_regular(file, follow_links=False)
            try:
                if is_held(descriptor):
                    return True
            finally:
                os.close(descriptor)
    found = _OWNER.fullmatch(files[0].name)
    if found is None or found["host"] != identity().host:
        return False
    started_ns = process_started_ns(int(found["pid"]))
    # A process that started after the last write is another one with the same pid.
    return started_ns is not None and started_ns <= max(file.lstat().st_mtime_ns for file in files) + _ROUNDED_NS
