"""The limits and the use of memory and CPU of a container: cgroups v2 and v1, as a process in it sees them."""

from __future__ import annotations

from pathlib import Path
from typing import Final

__all__ = ["cpu_limit", "memory_limit_bytes", "memory_used_bytes"]

_ROOT: Final = Path("/sys/fs/cgroup")
_PROCESS: Final = Path("/proc/self/cgroup")
_UNLIMITED: Final = 1 << 60
"""Version 1 has a number of about 2**63 instead of `max`."""


def cpu_limit(root: Path = _ROOT, process: Path = _PROCESS) -> float | None:
    """Return how many cores the container may keep busy; None without a limit.

    Args:
        root: The mount point of the cgroups.
        process: The file that lists this process's cgroups.
    """
    limits = []
    for folder in _folders(root, process, "cpu"):
        quota, _, period = _text(folder / "cpu.max").partition(" ")
        if not quota:
            quota, period = _text(folder / "cpu.cfs_quota_us"), _text(folder / "cpu.cfs_period_us")
        if quota.isdigit() and period.isdigit() and int(quota) > 0 and int(period) > 0:
            limits.append(int(quota) / int(period))
    return min(limits, default=None)


def memory_limit_bytes(root: Path = _ROOT, process: Path = _PROCESS) -> int | None:
    """Return how much memory the container may use before a process in it is killed; None without a limit."""
    found = _memory(root, process)
    return None if found is None else found[0]


def memory_used_bytes(root: Path = _ROOT, process: Path = _PROCESS) -> int | None:
    """Return how much of its limit is used, without page cache that the kernel may drop; None without a limit."""
    found = _memory(root, process)
    return None if found is None else found[1]


def _memory(root: Path, process: Path) -> tuple[int, int] | None:
    """Return the narrowest limit of this process's cgroup and its parents, and the use of that one."""
    narrowest: tuple[int, int] | None = None
    for folder in _folders(root, process, "memory"):
        limit = _text(folder / "memory.max") or _text(folder / "memory.limit_in_bytes")
        used = _text(folder / "memory.current") or _text(folder / "memory.usage_in_bytes")
        if not limit.isdigit() or not used.isdigit() or int(limit) >= _UNLIMITED:
            continue
        if narrowest is None or int(limit) < narrowest[0]:
            narrowest = int(limit), max(0, int(used) - _droppable_bytes(folder))
    return narrowest


def _droppable_bytes(folder: Path) -> int:
    statistics = dict(line.split(" ", 1) for line in _text(folder / "memory.stat").splitlines() if " " in line)
    droppable = statistics.get("total_inactive_file") or statistics.get("inactive_file") or ""
    return int(droppable) if droppable.isdigit() else 0


def _folders(root: Path, process: Path, controller: str) -> list[Path]:
    """Return the folders of this process's cgroup and its parents, in both versions, as far as they are visible.

    In a container with a cgroup namespace, the root is the container's own.
    """
    folders: list[Path] = []
    for line in _text(process).splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            tops = [root, root / "unified"]
        elif controller in controllers.split(","):
            tops = [root / controller, root / controllers]
        else:
            continue
        parts = [part for part in path.split("/") if part and part != ".."]
        for top in tops:
            folders += [top.joinpath(*parts[:length]) for length in range(len(parts), -1, -1)]
    return list(dict.fromkeys(folders))


def _text(path: Path) -> str:
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            return file.read(65536).strip()
    except OSError:
        return ""
