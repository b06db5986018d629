"""The job, as the companion sees it: a process that is not its child, signals to it, and if it is stuck."""

from __future__ import annotations

import os
import signal
from collections import deque
from typing import Final

from ml_diagnostics_common.processes import exists, handled_signals, stat_fields, wait_readable

__all__ = ["STUCK_SECONDS", "Job", "StuckCheck"]

STUCK_SECONDS: Final = 0.5
"""The least wait for the job's Python."""
BUSY_SECONDS: Final = 3.0
"""The same while its threads run: they may be busy with Python, or one spins in native code with the GIL held."""
_MOST_THREADS: Final = 256
_TRACED: Final = b"t"
_STOPPED: Final = (b"T", _TRACED)
# Indexes into `stat_fields`.
_STATE: Final = 0
_PARENT: Final = 1
_STACK_START: Final = 25


class Job:
    """A process.

    Args:
        pid: The process.
        descriptor: A process descriptor, opened by the process itself; None where the system has none.
    """

    def __init__(self, pid: int, descriptor: int | None) -> None:
        self.pid = pid
        self.descriptor = descriptor
        self._program = self._stack_start()

    def is_dead(self) -> bool:
        """Return True if it has ended; it may still wait to be reaped."""
        if self.descriptor is not None:
            return bool(wait_readable([self.descriptor], 0))
        return not exists(self.pid)

    def is_same_program(self) -> bool:
        """Return False once it has replaced itself by another program (execve), which our signals are not for."""
        now = self._stack_start()
        return now == self._program or 0 in (now, self._program)  # 0: the system does not show it.

    def is_stopped(self) -> bool:
        """Return True while SIGSTOP, or a debugger, keeps it from running."""
        try:
            return stat_fields(self.pid)[_STATE] in _STOPPED
        except (OSError, IndexError):
            return False

    def is_traced(self) -> bool:
        """Return True while a debugger keeps it from running."""
        try:
            return stat_fields(self.pid)[_STATE] == _TRACED
        except (OSError, IndexError):
            return False

    def ask(self, number: int | None) -> bool:
        """Send a signal if the job has a handler for it: otherwise the signal would end it.

        Args:
            number: The signal; None does nothing.

        Returns:
            True if it was sent.
        """
        try:
            if number is None or number not in handled_signals(self.pid):
                return False
        except (OSError, ValueError):
            return False
        return self.send(number)

    def send(self, number: int) -> bool:
        """Send a signal, whatever it causes; return True if it was sent."""
        if not self.is_same_program():
            return False
        try:
            if self.descriptor is not None and hasattr(signal, "pidfd_send_signal"):
                signal.pidfd_send_signal(self.descriptor, number)
            else:
                os.kill(self.pid, number)
        except OSError:
            return False
        return True

    def parent_pid(self) -> int | None:
        """Return its parent process; None if the system does not show it."""
        try:
            return int(stat_fields(self.pid)[_PARENT])
        except (OSError, ValueError, IndexError):
            return None

    def _stack_start(self) -> int:
        """Return the address of the program's stack, which differs after each execve; 0 if it is unknown."""
        try:
            return int(stat_fields(self.pid)[_STACK_START])
        except (OSError, ValueError, IndexError):
            return 0


class StuckCheck:
    """Decides when a job that does not answer counts as stuck, and its threads may be read by C.

    Reading the frames of threads that run ends the job with a segmentation fault now and then. A job that answers late
    because the machine is busy, or because a hundred threads take turns with the GIL, has threads that run or want to.

    One silence at a time, sampled with each call of `is_stuck`.

    Args:
        pid: The job.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._started = 0.0
        self._was_active: deque[tuple[float, bool]] = deque()

    def start(self, now: float) -> None:
        """Start a silence: the job was asked, or has just shown that it runs."""
        self._started = now
        self._was_active.clear()

    def is_stuck(self, now: float) -> bool:
        """Return True if the job is stuck. Call it about ten times in half a second."""
        states = _thread_states(self._pid)
        if states & {*_STOPPED}:  # Stopped by a user or a debugger: that time does not count.
            self.start(now)
            return False
        self._was_active.append((now, b"R" in states))
        while self._was_active[0][0] < now - STUCK_SECONDS:
            self._was_active.popleft()
        if now - self._started < STUCK_SECONDS:
            return False
        active = sum(was_active for _, was_active in self._was_active)
        # A thread that waits for the GIL runs for some microseconds each 5 ms: samples may meet it.
        return active * 2 <= len(self._was_active) or now - self._started >= BUSY_SECONDS


def _thread_states(pid: int) -> set[bytes]:
    """Return the states of the job's threads; empty where the system does not show them."""
    folder = f"/proc/{pid}/task"
    states = set()
    try:
        for thread in os.listdir(folder)[:_MOST_THREADS]:  # noqa: PTH208 (pathlib costs the companion memory)
            try:
                states.add(stat_fields(pid, int(thread))[_STATE])
            except (OSError, IndexError):
                continue  # It has ended.
    except OSError:
        pass
    return states
