"""How one process sees another die: the ends of their pipes may be held by others too."""

from __future__ import annotations

import os
import select

__all__ = ["exists", "has_ended", "process_descriptor"]


def process_descriptor(pid: int) -> int | None:
    """Returns a descriptor that polls as readable once the process is dead; None where the system has none."""
    try:
        return os.pidfd_open(pid)  # type: ignore[attr-defined,unused-ignore]
    except (AttributeError, OSError):
        return None


def exists(pid: int) -> bool:
    """Whether there is a process of that number, if only one that waits to be reaped."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:  # It is somebody else's.
        pass
    return True


def has_ended(pid: int) -> bool:
    """Whether a process is gone, or waits to be reaped, as far as the system tells it."""
    descriptor = process_descriptor(pid)
    if descriptor is None:
        return not exists(pid)
    try:
        poller = select.poll()
        poller.register(descriptor, select.POLLIN)
        return bool(poller.poll(0))
    finally:
        os.close(descriptor)
