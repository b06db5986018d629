"""The viewers of profiles that run on this machine: `xprofiler serve`, found by its processes; nothing is started."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

__all__ = ["Viewers"]

_SERVER: Final = b"xprofiler.serve.server"
"""The module in the command line of the process that listens."""
_OPTIONS: Final = ("-l", "--log-directory")
_LOOPBACK: Final = "0100007F"
"""127.0.0.1, as the kernel writes it."""
_LISTENS: Final = "0A"
_SOCKET: Final = "socket:["
_PROC: Final = Path("/proc")
_KEPT_SECONDS: Final = 2.0


class Viewers:
    """The viewers that run; those of a moment ago are kept, since a page asks several times in one."""

    def __init__(self) -> None:
        self._found: list[tuple[str, str]] = []
        self._found_at = -float("inf")

    def url(self, log_directory: str, run_id: str) -> str | None:
        """Return the URL of a running `xprofiler serve` of this user that shows a log directory; None without one.

        Args:
            log_directory: The log directory: a viewer of a folder above it shows it, too.
            run_id: The run, which may be named in place of its log directory.
        """
        if time.monotonic() - self._found_at > _KEPT_SECONDS:
            self._found, self._found_at = list(_viewers()), time.monotonic()
        wanted = _resolved(log_directory, os.sep)
        for folder, url in self._found:
            if folder == run_id or wanted == folder or wanted.startswith(f"{folder.rstrip('/')}/"):
                return url
        return None


def _viewers() -> Iterator[tuple[str, str]]:
    """Yield the folder and the URL of each viewer; none where there is no /proc."""
    with suppress(OSError):
        for folder in _PROC.iterdir():
            if folder.name.isdecimal():
                with suppress(OSError, ValueError, IndexError):
                    yield from _viewer(folder)


def _viewer(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield a viewer if a process is one: its parent is the command, with the log directory."""
    if _SERVER not in (folder / "cmdline").read_bytes() or folder.stat().st_uid != os.getuid():
        return
    parent = _PROC / (folder / "stat").read_text().rpartition(")")[2].split()[1]
    words = (parent / "cmdline").read_bytes().decode("utf-8", "surrogateescape").split("\0")
    path, port = _log_directory(words), _port(folder)
    if path and port:
        is_name = "/" not in path and not (parent / "cwd" / path).exists()
        shown = path if is_name else _resolved(path, str((parent / "cwd").readlink()))
        yield shown, f"http://127.0.0.1:{port}/"


def _log_directory(words: Sequence[str]) -> str:
    for position, word in enumerate(words):
        for option in _OPTIONS:
            if word == option and position + 1 < len(words):
                return words[position + 1]
            if word.startswith(f"{option}=") or (option == "-l" and word.startswith("-l") and len(word) > 2):
                return word.removeprefix(option).removeprefix("=")
    return ""


def _port(folder: Path) -> int:
    """Return the port of 127.0.0.1 on which a process listens; 0 without one."""
    own = {
        target.removeprefix(_SOCKET).rstrip("]")
        for file in (folder / "fd").iterdir()
        if (target := str(file.readlink())).startswith(_SOCKET)
    }
    for line in (folder / "net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        address, _, port = fields[1].partition(":")
        if fields[9] in own and fields[3] == _LISTENS and address == _LOOPBACK:
            return int(port, 16)
    return 0


def _resolved(path: str, folder: str) -> str:
    return path if "://" in path or "\0" in path else os.path.realpath(Path(folder) / path)
