"""The streams of a job that are captured: not those that are a terminal, or closed."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Final

from cloud_tpu_diagnostics._console import CONSOLE_VARIABLE
from cloud_tpu_diagnostics._console.stream import Stream

__all__ = ["Capture"]

_NAMES: Final = {1: "out", 2: "err"}


class Capture:
    """The captured streams of one job; none where the system has no files in memory.

    Args:
        numbers: The descriptors of this process that may be captured: 1, 2; none if the user wants no last lines.
    """

    def __init__(self, numbers: Sequence[int]) -> None:
        self._is_kept = bool(numbers)
        self.streams: list[Stream] = []
        self._numbers: dict[int, Stream] = {}
        for number in numbers:
            if not _is_captured(number):
                continue
            name = _NAMES[number]
            stream = self._same_file(number)
            if stream is None:
                try:
                    stream = Stream(name, number)
                except OSError:
                    return
                self.streams.append(stream)
            else:
                stream.name = f"{stream.name}+{name}"
            self._numbers[number] = stream

    def _same_file(self, number: int) -> Stream | None:
        """Return the stream that is the same file, so that the order of both is kept."""
        return next(
            (stream for other, stream in self._numbers.items() if os.path.sameopenfile(number, other)),
            None,
        )

    def file_actions(self) -> list[tuple[int, int, int]]:
        """Return what gives the job its streams, for `os.posix_spawn`."""
        return [(os.POSIX_SPAWN_DUP2, stream.file.descriptor, number) for number, stream in self._numbers.items()]

    def environment(self) -> dict[str, str]:
        """Return the variables of the job: Python would lose the last 8 KiB of a buffered stdout in a crash."""
        if not self._is_kept:
            return {CONSOLE_VARIABLE: "off"}
        return {"PYTHONUNBUFFERED": "1"} if self.streams and not os.environ.get("PYTHONUNBUFFERED") else {}

    def start(self, job: str) -> None:
        """Start to pass the streams on, and to keep their last megabytes.

        Args:
            job: The name of their files, without the endings.
        """
        from cloud_tpu_diagnostics._console.segments import Segments, console_directory

        for stream in self.streams:
            stream.keep = Segments(console_directory() / f"{job}.{stream.name}").append
            stream.start()

    def limit(self) -> None:
        """Free the memory of what a stopped reader does not read."""
        for stream in self.streams:
            stream.limit()

    def end(self, patience_seconds: float) -> None:
        """Wait until everything was passed on, for readers that read."""
        for stream in self.streams:
            stream.end(patience_seconds)


def _is_captured(number: int) -> bool:
    # Python has no stream for a descriptor that was closed at its start; the number may be that of another file now.
    is_open = {1: sys.__stdout__, 2: sys.__stderr__}[number] is not None
    try:
        return is_open and not os.isatty(number)
    except OSError:
        return False
