"""The job, as the companion sees it."""

from __future__ import annotations

import os
import select
import signal

from cloud_tpu_diagnostics.companion.exit_status import exit_status
from cloud_tpu_diagnostics.companion.system_files import read_system_file

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
        try:
            if self.descriptor is not None and hasattr(signal, "pidfd_send_signal"):
                signal.pidfd_send_signal(self.descriptor, number)
            else:
                os.kill(self.pid, number)
        except OSError:
            return False
        return True

    def _catches(self, number: int) -> bool:
        """Whether it has a handler for a signal, as far as the system tells it."""
        try:
            status = read_system_file(f"/proc/{self.pid}/status")
            mask = int(status.partition(b"SigCgt:")[2].split(None, 1)[0], 16)
        except (OSError, ValueError, IndexError):
            return False
        return bool(mask >> (number - 1) & 1)
