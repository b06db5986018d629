"""The stderr of a process, as far as stack traces can be written to it without waiting for its reader."""

from __future__ import annotations

import os
import stat
import sys
from typing import Final

from ml_diagnostics_common.descriptors import Descriptor, with_high_number

from cloud_tpu_diagnostics._dumps.text import open_nonblocking

__all__ = ["Console"]

_STDERR = 2


class Console:
    """The console as a destination of stack traces.

    Raises:
        OSError: There is no stderr.
    """

    path: Final = None
    """A console has no path."""

    def __init__(self) -> None:
        self._opened: list[Descriptor] = []
        number = _number_of_stderr()
        if number != _STDERR:  # The job's file, which may be closed before we are done.
            number = self._keep(os.dup(number))
        self.number = number
        """The descriptor for faults and signals."""
        self.nonblocking = self._nonblocking(number)
        """The descriptor for the timer, which never blocks; None if there is none, for example for a socket."""

    def is_open(self) -> bool:
        """Return True while the descriptors that were opened here are still ours."""
        return all(descriptor.number() is not None for descriptor in self._opened)

    def is_full(self) -> bool:
        """Return False: a console has no limit."""
        return False

    def prune(self) -> None:
        """Do nothing: a console has no old files beside it."""

    def close(self) -> None:
        """Close what was opened here, never the job's stderr."""
        for descriptor in self._opened:
            descriptor.close()

    def _nonblocking(self, number: int) -> int | None:
        mode = os.fstat(number).st_mode
        if stat.S_ISREG(mode):
            return number
        if stat.S_ISFIFO(mode) or stat.S_ISCHR(mode):
            opened = open_nonblocking(number)
            return None if opened is None else self._keep(opened)
        return None

    def _keep(self, number: int) -> int:
        number = with_high_number(number)
        self._opened.append(Descriptor(number))
        return number


def _number_of_stderr() -> int:
    """Return the descriptor of `sys.stderr`; of the real stderr if that has none, as in a notebook."""
    if sys.stderr is None and sys.__stderr__ is None:
        # It was closed when Python started, so any file may have its number by now.
        raise OSError("stderr was closed when the program started")
    try:
        number = sys.stderr.fileno()
        os.fstat(number)
    except Exception:  # Not a file, closed, or a class of the job's.
        os.fstat(_STDERR)
        return _STDERR
    return number
