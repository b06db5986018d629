"""The job, as the companion sees it."""

from __future__ import annotations

import os
import select
import signal

from cloud_tpu_diagnostics.companion.exit_status import exit_status
from cloud_tpu_diagnostics.companion.system_files import read_system_file
from cloud_tpu_diagnostics.signals import caught_signals

__all__ = ["Job"]


class Job:
    """A process that is not our child.

    Args:
        pid: The process.
        descriptor: Opened by the process itself; None where the system has no such thing.
    """

    def __init__(self, pid: int, descriptor: int | None) -> None:
        self.pid = pid
        self.descriptor = descriptor
        """Polls as readable once it is dead."""
        self._program = self._stack_start()

    def is_dead(self) -> bool:
        """Whether it has ended; it may still wait to be reaped."""
        if self.descriptor is not None:
            poller = select.poll()
            poller.register(self.descriptor, select.POLLIN)
            return bool(poller.poll(0))
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return True
        except OSError:
            pass
        return False

    def status(self) -> int | None:
        """Its wait status, once it is dead; None if nothing tells it."""
        return None if self.descriptor is None else exit_status(self.pid, self.descriptor)

    def is_same_program(self) -> bool:
        """False once it has replaced itself by another program (execve), which our signals are not for."""
        now = self._stack_start()
        return now == self._program or 0 in (now, self._program)  # 0: the system does not tell.

    def is_stopped(self) -> bool:
        """Return True while SIGSTOP, or a debugger, keeps it from running: field 3 of proc_pid_stat(5)."""
        try:
            return read_system_file(f"/proc/{self.pid}/stat").rpartition(b")")[2].split()[0] in (b"T", b"t")
        except (OSError, IndexError):
            return False

    def ask(self, number: int | None) -> bool:
        """Sends a signal that it has a handler for; to any other process it would be the end.

        Args:
            number: The signal; None does nothing.

        Returns:
            Whether it was sent.
        """
        if number is None or not self._catches(number):
            return False
        return self.send(number)

    def send(self, number: int) -> bool:
        """Sends a signal, whatever it does; whether it could be."""
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

    def _stack_start(self) -> int:
        """Where the program's stack begins, which is elsewhere after each execve: field 28 of proc_pid_stat(5)."""
        try:
            return int(read_system_file(f"/proc/{self.pid}/stat").rpartition(b")")[2].split()[25])
        except (OSError, ValueError, IndexError):
            return 0

    def _catches(self, number: int) -> bool:
        """Whether it has a handler for a signal, as far as the system tells it."""
        try:
            return number in caught_signals(self.pid)
        except (OSError, ValueError):
            return False
