"""The last lines of another process's stdout and stderr, where these are files: read at no cost for that process."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from typing import NamedTuple, TypeVar

from cloud_tpu_diagnostics._console.memory import MOST_BYTES, NAME, free_before

__all__ = ["ConsoleFile", "console_paths", "open_console"]

_OPEN_SECONDS = 2.0
"""The wait for the file's disk, which may be that of another machine."""
_STREAMS = ((1, "out"), (2, "err"))
_Result = TypeVar("_Result")


class ConsoleFile(NamedTuple):
    """A file that a process prints to.

    Attributes:
        stream: `out`, `err`, or `out+err` if both are the same file.
        descriptor: Open for reading.
        is_in_memory: True if `python -m cloud_tpu_diagnostics run` passes it on.
        path: Its path; empty if it is in memory.
        is_local: True if it is not on a disk of the network.
    """

    stream: str
    descriptor: int
    is_in_memory: bool
    path: str = ""
    is_local: bool = True

    def tail(self, most_bytes: int) -> tuple[bytes, int]:
        """Return the last bytes, and their position in the file; none if the file's disk does not answer."""

        def read() -> tuple[bytes, int]:
            start = max(0, self.size() - most_bytes)
            return os.pread(self.descriptor, most_bytes, start), start

        return _call(read) or (b"", 0)

    def size(self) -> int:
        """Return the size of the file; it may wait for its disk unless it `is_local`."""
        return os.fstat(self.descriptor).st_size

    def limit(self) -> None:
        """Free the memory above the limit, in place of the process that passed the output on and has ended."""
        if self.is_in_memory:
            free_before(self.descriptor, self.size() - MOST_BYTES)


def open_console(pid: int) -> list[ConsoleFile]:
    """Open the files that a process prints to; leave out pipes, terminals and what cannot be read."""
    return _call(lambda: _open(pid)) or []


def console_paths(pid: int) -> dict[str, str]:
    """Return the files that a process prints to by stream, `out` and `err`; never waits for their disk."""
    found = {}
    for number, name in _STREAMS:
        try:
            path = os.readlink(f"/proc/{pid}/fd/{number}")  # noqa: PTH115
        except OSError:
            continue
        if path.startswith("/") and not path.startswith("/dev/"):  # Others are pipes and sockets.
            found[name] = path
    return found


def _open(pid: int) -> list[ConsoleFile]:
    from pathlib import Path

    from ml_diagnostics_common.files import is_network_filesystem

    found: dict[tuple[int, int], ConsoleFile] = {}
    for number, name in _STREAMS:
        path = f"/proc/{pid}/fd/{number}"
        try:
            status = os.stat(path)  # noqa: PTH116
            if not stat.S_ISREG(status.st_mode):
                continue
            key = (status.st_dev, status.st_ino)
            if key in found:
                found[key] = found[key]._replace(stream=f"{found[key].stream}+{name}")
                continue
            target = os.readlink(path)  # noqa: PTH115
            is_in_memory = NAME in target
            is_local = is_in_memory or not is_network_filesystem(Path(target))
            # Writing is needed to free memory.
            flags = (os.O_RDWR if is_in_memory else os.O_RDONLY) | os.O_NONBLOCK | os.O_CLOEXEC
            descriptor = os.open(path, flags)
            found[key] = ConsoleFile(name, descriptor, is_in_memory, "" if is_in_memory else target, is_local)
        except OSError:
            continue
    return list(found.values())


def _call(function: Callable[[], _Result]) -> _Result | None:
    """Call a function in a thread; return None if it fails, or the file's disk does not answer."""
    from ml_diagnostics_common.worker import NoAnswerError, call

    try:
        return call(function, _OPEN_SECONDS, "cloud-tpu-diagnostics-console")
    except (OSError, NoAnswerError):
        return None
