"""Whether the kernel has killed processes of the job's control group because its memory ran out.

Version 2: `oom_kill` in memory.events; version 1: in memory.oom_control
(https://docs.kernel.org/admin-guide/cgroup-v2.html, https://docs.kernel.org/admin-guide/cgroup-v1/memory.html).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

__all__ = ["OutOfMemoryKills"]

_ROOT = Path("/sys/fs/cgroup")


class OutOfMemoryKills:
    """Counts them, and remembers when there was one last.

    Args:
        pid: The process whose group it is.
        root: Where control groups are mounted.
        proc: Where processes are.
    """

    def __init__(self, pid: int, *, root: Path = _ROOT, proc: Path = Path("/proc")) -> None:
        self._file = next((file for file in _files(pid, root, proc) if _count(file) is not None), None)
        self._last = _count(self._file)
        self._last_kill = -float("inf")

    def look(self, now: float) -> None:
        """Reads the count.

        Args:
            now: In monotonic seconds.
        """
        count = _count(self._file)
        if count is not None and self._last is not None and count > self._last:
            self._last_kill = now
        self._last = count

    def was_within(self, seconds: float, now: float) -> bool:
        """Whether there was one in the last so many seconds, as far as was looked."""
        return now - self._last_kill <= seconds


def _files(pid: int, root: Path, proc: Path) -> Iterator[Path]:
    """Yields where the count may be; in a container the group's path is often not what is mounted, but its root is."""
    try:
        lines = (proc / str(pid) / "cgroup").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if not controllers:
            for mounted in (root, root / "unified"):
                yield mounted / path.lstrip("/") / "memory.events"
                yield mounted / "memory.events"
        elif "memory" in controllers.split(","):
            yield root / "memory" / path.lstrip("/") / "memory.oom_control"
            yield root / "memory" / "memory.oom_control"


def _count(file: Path | None) -> int | None:
    if file is None:
        return None
    try:
        for line in file.read_text(encoding="ascii", errors="replace").splitlines():
            name, _, value = line.partition(" ")
            if name == "oom_kill":
                return int(value)
    except (OSError, ValueError):
        pass
    return None
