"""The last lines that the job printed, as entries: at a hang, and at its end."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from cloud_tpu_diagnostics._companion.log import EntryLog, console_entry
from cloud_tpu_diagnostics._console import RING_PREFIX, is_console_kept
from cloud_tpu_diagnostics._console.marks import TimeMarks
from cloud_tpu_diagnostics._console.memory import TAIL_BYTES
from cloud_tpu_diagnostics._console.ring import read_ring, written_bytes

if TYPE_CHECKING:
    from cloud_tpu_diagnostics._console.tail import ConsoleFile

__all__ = ["JobConsole"]

_HANG_BYTES: Final = 4 * 2**10
_CHECK_SECONDS: Final = 10.0
"""The interval of checks that the job prints to the same files: programs replace their stdout at their start."""


class JobConsole:
    """The files that a job prints to; if it prints to pipes or a terminal, the lines that Python prints in the block.

    Args:
        pid: The job.
        log: The log of the job.
        descriptors: Descriptors of the job, among them its rings by `printed_` and the stream.
    """

    def __init__(self, pid: int, log: EntryLog, descriptors: Mapping[str, int]) -> None:
        self._pid, self._log = pid, log
        self._is_kept = is_console_kept()
        self._rings = {
            name.removeprefix(RING_PREFIX): number
            for name, number in descriptors.items()
            if name.startswith(RING_PREFIX)
        }
        self._files: list[ConsoleFile] = []
        self._marks: dict[str, TimeMarks] = {}
        """When the bytes of each stream were printed."""
        self._paths: dict[str, str] = {}
        self._next_check = 0.0

    def step(self, now: float, *, is_passed_on: bool) -> None:
        """Keep the present files open.

        Args:
            now: Monotonic seconds.
            is_passed_on: False if no process passes the output on, so that its memory is limited here.
        """
        if now >= self._next_check and self._is_kept:
            self._next_check = now + _CHECK_SECONDS
            self._open()
        for file in self._files:
            if not is_passed_on:
                file.limit()
            if file.is_local:
                self._mark(file.stream, file.size())
        for stream, ring in self._rings.items():
            self._mark(f"{RING_PREFIX}{stream}", written_bytes(ring))

    def write(self, occasion: str) -> None:
        """Write the last lines. They stay on this machine: what a job prints may be anything.

        Args:
            occasion: `hang` or `end`.
        """
        most_bytes = TAIL_BYTES if occasion == "end" else _HANG_BYTES
        log = self._log.local()
        for file in self._files:
            data, start = file.tail(most_bytes)
            if data:
                marks = self._mark(file.stream, start + len(data))
                log.write(console_entry(file.stream, data, occasion, start=start, marks=marks, path=file.path))
        in_files = {stream for file in self._files for stream in file.stream.split("+")}
        for stream, ring in self._rings.items():
            data, start = read_ring(ring)
            if in_files.isdisjoint(stream.split("+")) and data:
                marks = self._mark(f"{RING_PREFIX}{stream}", start + len(data))
                start, data = start + max(0, len(data) - most_bytes), data[-most_bytes:]
                log.write(console_entry(stream, data, occasion, start=start, marks=marks, is_of_python=True))
        log.close(1.0)

    def _mark(self, stream: str, position: int) -> TimeMarks:
        marks = self._marks.setdefault(stream, TimeMarks())
        marks.add(position, time.time_ns())
        return marks

    def _open(self) -> None:
        from cloud_tpu_diagnostics._console.tail import console_paths, open_console

        paths = console_paths(self._pid)
        if paths and paths != self._paths:  # None: it has ended, and what it printed to is still open here.
            self._paths = paths
            for file in self._files:
                os.close(file.descriptor)
                self._marks.pop(file.stream, None)
            self._files = open_console(self._pid)
