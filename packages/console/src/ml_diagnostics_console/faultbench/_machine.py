"""Injections that need rights on this machine: a small file system, a control group of its own."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from ml_diagnostics_console.faultbench._network import why_no_network

__all__ = ["control_group", "missing", "small_disk"]

_MOUNT_SECONDS: Final = 10.0
_GROUPS: Final = ("/sys/fs/cgroup/memory", "/sys/fs/cgroup")
"""The folders of version 1, and of version 2."""
_EMPTY_SECONDS: Final = 2.0


def missing(need: str) -> str:
    """Return why a need of a kind is not met here; empty if it is."""
    if need == "mount" and os.geteuid() != 0:
        return "mounting a small file system needs the rights of root"
    if need == "control_group" and _parent_group() is None:
        return "no control group with a limit of memory can be made here"
    if need == "network":
        return why_no_network()
    return ""


@contextlib.contextmanager
def small_disk(folder: Path, mebibytes: int = 1) -> Iterator[Path]:
    """Mount a file system of this size at a folder, which is made."""
    folder.mkdir(parents=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={mebibytes}m", "faultbench", str(folder)]
    subprocess.run(command, check=True, timeout=_MOUNT_SECONDS, capture_output=True)
    try:
        yield folder
    finally:
        # Lazily: a process that is about to end may have a file open.
        subprocess.run(["umount", "-l", str(folder)], check=False, timeout=_MOUNT_SECONDS, capture_output=True)


@contextlib.contextmanager
def control_group(name: str, memory_bytes: int) -> Iterator[Path]:
    """Make a control group with a limit of memory, and remove it once its processes have ended."""
    parent = _parent_group()
    if parent is None:
        raise OSError(missing("control_group"))
    folder = parent / name
    folder.mkdir()
    try:
        limit = "memory.max" if (folder / "memory.max").exists() else "memory.limit_in_bytes"
        (folder / limit).write_text(str(memory_bytes))
        yield folder
    finally:
        deadline = time.monotonic() + _EMPTY_SECONDS
        while folder.exists() and time.monotonic() < deadline:
            with contextlib.suppress(OSError):
                folder.rmdir()
            time.sleep(0.1)


def _parent_group() -> Path | None:
    """Return the folder in which groups with a limit of memory can be made; None if there is none."""
    for parent in map(Path, _GROUPS):
        probe = parent / f"faultbench-probe-{os.getpid()}"
        try:
            probe.mkdir()
        except OSError:
            continue
        has_limit = any((probe / name).exists() for name in ("memory.max", "memory.limit_in_bytes"))
        with contextlib.suppress(OSError):
            probe.rmdir()
        if has_limit:
            return parent
    return None
