"""How the helper process sees the trainer die: its end of the pipe may be held by others too."""

from __future__ import annotations

import os

__all__ = ["process_descriptor"]


def process_descriptor(pid: int) -> int | None:
    """Returns a descriptor that polls as readable once the process is dead; None where the system has none."""
    try:
        return os.pidfd_open(pid)  # type: ignore[attr-defined,unused-ignore]
    except (AttributeError, OSError):
        return None
