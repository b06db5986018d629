"""The mirror once the job has ended: the companion writes what a killed process could not."""

from __future__ import annotations

import time

from ml_diagnostics_common.environment import configured_mirror, diagnostics_directory
from ml_diagnostics_common.mirror.rest import push
from ml_diagnostics_common.mirror.writer import finish_mirrors

__all__ = ["write_rest"]


def write_rest(pid: int | None, seconds: float) -> None:
    """Write the rest of the companion's own entries, and of what the job has recorded.

    Args:
        pid: The job's process, which has ended; None if it goes on, and writes what it records itself.
        seconds: How long it may take; a later process writes what is left.

    Raises:
        StorageError: The mirror refuses it, or failed.
        ConfigurationError: ML_DIAGNOSTICS_MIRROR is not valid.
    """
    deadline = time.monotonic() + seconds
    finish_mirrors(seconds / 2)
    if pid is None:
        return
    root, left = diagnostics_directory(), deadline - time.monotonic()
    for _ in push(root, configured_mirror(), by="companion", ended_pids={pid}, seconds=left, deadline_seconds=left):
        pass
