"""Checks if processes are alive, by pid and the mark of their start."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Any, Final

from ml_diagnostics_common.entry import parse_timestamp
from ml_diagnostics_common.processes import pid_namespace, start_mark

__all__ = ["is_alive", "is_visible", "own_mark"]

_SILENT_NS: Final = 180 * 10**9
"""A process that is well changes its run's folder each 60 s."""


def own_mark() -> str:
    """Return an id that no earlier process with this pid has; it includes the namespace of the pid."""
    return f"{start_mark(os.getpid())}@{pid_namespace()}"


def is_visible(process: Mapping[str, Any], host: str) -> bool:
    """Return True if a process of a run can be found by its pid: it runs on this host, and in this container."""
    namespace = str(process.get("started") or "").partition("@")[2]
    return process.get("hostname") == host and namespace in ("", pid_namespace())


def is_alive(process: Mapping[str, Any], host: str, *, now_ns: int | None = None) -> bool:
    """Return True if a process of a run still runs.

    Args:
        process: The process as the run's folder has it, and the run's `updateTime`.
        host: This host's name. A process of another host is alive as long as the folder changes.
        now_ns: The time, in ns since 1970; None for now.
    """
    if not is_visible(process, host):
        try:
            changed_ns = parse_timestamp(str(process.get("updateTime")))
        except ValueError:
            return False
        return (time.time_ns() if now_ns is None else now_ns) - changed_ns < _SILENT_NS
    pid, started = process.get("pid"), str(process.get("started") or "").partition("@")[0]
    if not isinstance(pid, int) or pid <= 0:
        return False
    if started:
        return start_mark(pid) == started
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except (OSError, OverflowError):
        return False
    return True
