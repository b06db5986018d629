"""The output of jobs as `run` keeps it: files with the last megabytes of each stream, and the times of its parts."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from cloud_tpu_diagnostics._console.segments import TIMES_SUFFIX, console_directory
from cloud_tpu_diagnostics._console.tail import console_paths

__all__ = ["ConsoleFile", "Printed", "console_files", "console_paths"]

_NAME: Final = re.compile(r"(?P<host>.+)-(?P<pid>[0-9]{1,10})\.(?P<stream>out|err|out\+err)")
_MOST_TIMES_BYTES: Final = 16 * 2**20


class Printed(NamedTuple):
    """A part of a stream.

    Attributes:
        data: Its bytes.
        end: The position behind it in the stream, as far as the stream is kept: it grows until the next segment.
        times: Positions in `data`, in order, with the time by which all before was printed, in ns since 1970.
    """

    data: bytes
    end: tuple[int, int]
    times: list[tuple[int, int]]


class ConsoleFile(NamedTuple):
    """The files of one stream of a job of `python -m cloud_tpu_diagnostics run`.

    Attributes:
        path: The newer file; the older one has `.1` after its name.
        host: The host's name.
        pid: The job's process.
        stream: `out`, `err`, or `out+err` if both are one.
    """

    path: Path
    host: str
    pid: int
    stream: str

    def first_ns(self) -> int:
        """Return by when the first part that is kept was printed, in ns since 1970; 0 if it is not known."""
        for path in (f"{self.path}.1", self.path):
            if times := _times(Path(f"{path}{TIMES_SUFFIX}")):
                return times[0][1]
        return 0

    def read(self, most_bytes: int | None = None, after: tuple[int, int] | None = None) -> Printed:
        """Return the last bytes of the stream.

        Args:
            most_bytes: How many at most; None for all that is kept.
            after: The `end` of an earlier result: only what was printed since.
        """
        older = _read(Path(f"{self.path}.1"))
        newer = _read(self.path)
        start = 0
        if after is not None:
            inode, position = after
            if newer.inode == inode:
                older, start = _Segment(0, b"", []), position
            elif older.inode == inode:
                start = position
        data = older.data + newer.data
        shift = len(older.data)
        times = [*older.times, *((position + shift, time_ns) for position, time_ns in newer.times)]
        if most_bytes is not None:
            start = max(start, len(data) - most_bytes)
        kept = [(position - start, time_ns) for position, time_ns in times if position > start]
        return Printed(data[start:], (newer.inode, len(newer.data)), kept)


class _Segment(NamedTuple):
    inode: int
    data: bytes
    times: list[tuple[int, int]]


def console_files(root: Path | None = None) -> list[ConsoleFile]:
    """Return the streams that are kept in a diagnostics folder.

    Args:
        root: The folder; None for that of this process.
    """
    return sorted(_console_files(console_directory(root)))


def _console_files(folder: Path) -> Iterator[ConsoleFile]:
    with contextlib.suppress(OSError):
        for path in folder.iterdir():
            if found := _NAME.fullmatch(path.name):
                yield ConsoleFile(path, found["host"], int(found["pid"]), found["stream"])


def _read(path: Path) -> _Segment:
    """Return a segment, which may be growing; empty if it cannot be read."""
    from ml_diagnostics_common.files import open_regular

    try:
        with os.fdopen(open_regular(path, follow_links=False), "rb") as file:
            data = file.read()
            status = os.fstat(file.fileno())
    except OSError:
        return _Segment(0, b"", [])
    times = [mark for mark in _times(Path(f"{path}{TIMES_SUFFIX}")) if mark[0] <= len(data)]
    if data and (not times or times[-1][0] < len(data)):  # Since the last mark, and before the last write.
        times.append((len(data), status.st_mtime_ns))
    return _Segment(status.st_ino, data, times)


def _times(path: Path) -> list[tuple[int, int]]:
    from ml_diagnostics_common.files import read_regular

    try:
        lines = read_regular(path, _MOST_TIMES_BYTES).splitlines()
        marks = [line.split() for line in lines if line.replace(b" ", b"").isdigit()]
        return sorted((int(mark[0]), int(mark[1])) for mark in marks if len(mark) == 2 and len(mark[1]) < 20)
    except OSError:
        return []
