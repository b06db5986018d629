"""The stderr of a process, as far as stack traces can be written to it without ever waiting for who reads it."""

from __future__ import annotations

import os
import stat
import sys
from typing import Final

from ml_diagnostics_common.descriptors import Descriptor, with_high_number

__all__ = ["Console"]

_STDERR = 2


class Console:
    """Where stack traces go that are for the console.

    Raises:
        OSError: There is none.
    """

    path: Final = None
    """Where its file is: it has none."""

    def __init__(self) -> None:
        self._opened: list[Descriptor] = []
        number = _number_of_stderr()
        if number != _STDERR:  # The job's file, which may be closed before we are done.
            number = self._keep(os.dup(number))
        self.number = number
        """For faults and for the signal."""
        self.patient = self._patient(number)
        """For the timer: writes to it never wait. None if there is no such way, as where stderr is a socket."""

    def is_open(self) -> bool:
        """Whether what was opened here is still ours."""
        return all(descriptor.number() is not None for descriptor in self._opened)

    def is_full(self) -> bool:
        """Never."""
        return False

    def close(self) -> None:
        """Closes what was opened here: never the job's stderr."""
        for descriptor in self._opened:
            descriptor.close()

    def _patient(self, number: int) -> int | None:
        mode = os.fstat(number).st_mode
        if stat.S_ISREG(mode):
            return number
        if stat.S_ISFIFO(mode) or stat.S_ISCHR(mode):
            return self._open_again(number)
        return None

    def _open_again(self, number: int) -> int | None:
        """Opens the same pipe or terminal once more, so that writes here do not wait: its own O_NONBLOCK.

        Set on the job's, it would make the job's prints fail, and those of all who share it.
        """
        flags = os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC | os.O_APPEND
        for path in (f"/proc/self/fd/{number}", f"/dev/fd/{number}"):
            try:
                return self._keep(os.open(path, flags))
            except OSError:  # None of that system, nobody reads, or the terminal is another user's.
                continue
        return None

    def _keep(self, number: int) -> int:
        number = with_high_number(number)
        self._opened.append(Descriptor(number))
        return number


def _number_of_stderr() -> int:
    """The number of `sys.stderr`; of the real one where that has none, as in a notebook."""
    if sys.stderr is None and sys.__stderr__ is None:
        # It was closed when Python started: its number may be that of any file by now.
        raise OSError("stderr was closed when the program started")
    try:
        number = sys.stderr.fileno()
        os.fstat(number)
    except Exception:  # No file, a closed one, or a class of the job's.
        os.fstat(_STDERR)
        return _STDERR
    return number
