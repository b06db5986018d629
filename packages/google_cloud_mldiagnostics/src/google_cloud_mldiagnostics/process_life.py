"""Which processes live: told apart from later ones of the same pid."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Any, Final

from ml_diagnostics_common.child_process import start_mark
from ml_diagnostics_common.entry import parse_timestamp

from google_cloud_mldiagnostics.attempts import Member

__all__ = ["is_alive"]

_SILENT_NS: Final = 180 * 10**9
"""A process that is well changes its run's folder each 60 s."""


def is_alive(process: Mapping[str, Any], here: Member, *, now_ns: int | None = None) -> bool:
    """Whether a process of a run still runs.

    Args:
        process: As the run's folder has it, and the run's `updateTime`.
        here: A process of this host, which knows only those of its own host; others live while the folder changes.
        now_ns: The time, in ns since 1970; None for now.
    """
    if process.get("hostname") != here.host:
        try:
            changed_ns = parse_timestamp(str(process.get("updateTime")))
        except ValueError:
            return False
        return (time.time_ns() if now_ns is None else now_ns) - changed_ns < _SILENT_NS
    pid, started = process.get("pid"), process.get("started")
    if not isinstance(pid, int) or pid <= 0:
        return False
    if started:
        return start_mark(pid) == str(started)
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except (OSError, OverflowError):
        return False
    return True
