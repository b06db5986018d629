"""The last lines that the job printed, as entries: at a hang, and at its end."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from cloud_tpu_diagnostics._companion.log import EntryLog, console_entry

if TYPE_CHECKING:
    from cloud_tpu_diagnostics._console.tail import ConsoleFile

__all__ = ["JobConsole"]

_HANG_BYTES: Final = 4 * 2**10
_CHECK_SECONDS: Final = 10.0
"""The interval of checks that the job prints to the same files: programs replace their stdout at their start."""


class JobConsole:
    """The files that a job prints to; none if it prints to pipes or a terminal.

    Args:
        pid: The job.
        log: The log of the job.
    """

    def __init__(self, pid: int, log: EntryLog) -> None:
        self._pid, self._log = pid, log
        self._files: list[ConsoleFile] = []
        self._paths: dict[str, str] = {}
        self._next_check = 0.0

    def step(self, now: float, *, is_passed_on: bool) -> None:
        """Keep the present files open.

        Args:
            now: Monotonic seconds.
            is_passed_on: False if no process passes the output on, so that its memory is limited here.
        """
        if now >= self._next_check:
            self._next_check = now + _CHECK_SECONDS
            self._open()
        if not is_passed_on:
            for file in self._files:
                file.limit()

    def write(self, occasion: str) -> None:
        """Write the last lines. They stay on this machine: what a job prints may be anything.

        Args:
            occasion: `hang` or `end`.
        """
        from cloud_tpu_diagnostics._console.memory import TAIL_BYTES

        log = self._log.local()
        for file in self._files:
            if data := file.tail(TAIL_BYTES if occasion == "end" else _HANG_BYTES):
                log.write(console_entry(file.stream, data, occasion))
        log.close(1.0)

    def _open(self) -> None:
        from cloud_tpu_diagnostics._console.tail import console_paths, open_console

        paths = console_paths(self._pid)
        if paths and paths != self._paths:  # None: it has ended, and what it printed to is still open here.
            self._paths = paths
            for file in self._files:
                os.close(file.descriptor)
            self._files = open_console(self._pid)
