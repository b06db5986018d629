"""Whether the kernel has killed processes of the job's control group because its memory ran out.

Version 2: `oom_kill` in memory.events; version 1: in memory.oom_control
(https://docs.kernel.org/admin-guide/cgroup-v2.html, https://docs.kernel.org/admin-guide/cgroup-v1/memory.html).
"""

from __future__ import annotations

from collections.abc import Iterator

from cloud_tpu_diagnostics.companion.system_files import read_system_file

__all__ = ["OutOfMemoryKills"]

_ROOT = "/sys/fs/cgroup"


class OutOfMemoryKills:
    """Counts them, and remembers when there was one last.

    Args:
        pid: The process whose group it is.
        root: Where control groups are mounted.
        proc: Where processes are.
    """

    def __init__(self, pid: int, *, root: str = _ROOT, proc: str = "/proc") -> None:
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


def _files(pid: int, root: str, proc: str) -> Iterator[str]:
    """Yields where the count may be; in a container the group's path is often not what is mounted, but its root is."""
    try:
        lines = read_system_file(f"{proc}/{pid}/cgroup").decode("utf-8", "replace").splitlines()
    except OSError:
        return
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if not controllers:
            for mounted in (root, f"{root}/unified"):
                yield f"{mounted}{path}/memory.events"
                yield f"{mounted}/memory.events"
        elif "memory" in controllers.split(","):
            yield f"{root}/memory{path}/memory.oom_control"
            yield f"{root}/memory/memory.oom_control"


def _count(file: str | None) -> int | None:
    if file is None:
        return None
    try:
        for line in read_system_file(file).decode("ascii", "replace").splitlines():
            name, _, value = line.partition(" ")
            if name == "oom_kill":
                return int(value)
    except (OSError, ValueError):
        pass
    return None
