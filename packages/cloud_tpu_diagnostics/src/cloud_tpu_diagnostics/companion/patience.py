"""When a job that does not answer may be taken for stuck, and its threads be read by C: only if none of them executes.

To read the frames of threads that run ends the job with a segmentation fault now and then. A job that answers late
because the machine is busy, or because a hundred threads take turns with the GIL, has threads that run or want to.
"""

from __future__ import annotations

import os
from collections import deque
from typing import Final

from cloud_tpu_diagnostics.companion.system_files import read_system_file

__all__ = ["STUCK_SECONDS", "Patience"]

STUCK_SECONDS: Final = 0.5
"""How long the job's Python is waited for at least."""
BUSY_SECONDS: Final = 3.0
"""The same while its threads run: they may be busy with Python, or one spins in native code with the GIL held."""
_MOST_THREADS: Final = 256


class Patience:
    """Judges one silence of a job at a time, sampled with each call of `is_over`.

    Args:
        pid: The job.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._began = 0.0
        self._was_active: deque[tuple[float, bool]] = deque()

    def begin(self, now: float) -> None:
        """Start a silence: the job was asked, or has just shown that it runs."""
        self._began = now
        self._was_active.clear()

    def is_over(self, now: float) -> bool:
        """Return True if the job is stuck. Call it about ten times in half a second."""
        states = _thread_states(self._pid)
        if states & {"T", "t"}:  # Stopped by a user or a debugger: that counts for nothing.
            self.begin(now)
            return False
        self._was_active.append((now, "R" in states))
        while self._was_active[0][0] < now - STUCK_SECONDS:
            self._was_active.popleft()
        if now - self._began < STUCK_SECONDS:
            return False
        active = sum(was_active for _, was_active in self._was_active)
        # A thread that waits for the GIL runs for some microseconds each 5 ms: samples may meet it.
        return active * 2 <= len(self._was_active) or now - self._began >= BUSY_SECONDS


def _thread_states(pid: int) -> set[str]:
    """The states of the job's threads (proc_pid_stat(5)); empty where the system does not show them."""
    folder = f"/proc/{pid}/task"
    states = set()
    try:
        for thread in os.listdir(folder)[:_MOST_THREADS]:  # noqa: PTH208 (pathlib costs the companion memory)
            try:
                states.add(read_system_file(f"{folder}/{thread}/stat").rpartition(b")")[2].split()[0].decode())
            except (OSError, IndexError):
                continue  # It has ended.
    except OSError:
        pass
    return states
