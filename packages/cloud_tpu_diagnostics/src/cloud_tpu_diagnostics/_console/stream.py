"""Passes one stream of a job on as it grows, in a thread, which alone waits for the stream's reader."""

from __future__ import annotations

import errno
import os
import select
import threading
import time
from collections.abc import Callable
from typing import Final

from ml_diagnostics_common.worker import Task, start

from cloud_tpu_diagnostics._console.marks import TimeMarks
from cloud_tpu_diagnostics._console.memory import MOST_BYTES, TAIL_BYTES, MemoryFile

__all__ = ["Stream"]

_CHUNK_BYTES: Final = 2**20
_COMPARED_BYTES: Final = 4096
_SHORTEST_SECONDS: Final = 0.005
_LONGEST_SECONDS: Final = 0.1
"""The intervals of checks: short while the job prints."""


class Stream:
    """One stream of a job.

    Args:
        name: `out`, `err`, or `out+err` if the job's stdout and stderr are one file.
        target: The descriptor that everything is passed on to.

    Raises:
        OSError: The system has no files in memory.
    """

    def __init__(self, name: str, target: int) -> None:
        self.name = name
        self.file = MemoryFile()
        self.keep: Callable[[bytes], object] = lambda _: None
        """Called with everything that was passed on."""
        self.passed_on = 0
        """The position up to which the stream was passed on, or dropped."""
        self.dropped_bytes = 0
        """The bytes that were dropped, since the reader had stopped reading."""
        self.marks = TimeMarks()
        """When the bytes were printed."""
        self._last = b""
        """The last bytes that were passed on, which are still in the file unless it was truncated."""
        self._target: int | None = target
        self._is_ended = threading.Event()
        self._task: Task | None = None

    def start(self) -> None:
        """Start to pass the stream on."""
        self._task = start(self._pass_on_until_end, "cloud-tpu-diagnostics-console")

    def limit(self) -> None:
        """Free what is above the limit, since the reader has stopped reading; called by another thread."""
        self.file.free_before(self.file.size() - MOST_BYTES)

    def end(self, patience_seconds: float) -> None:
        """Wait until everything was passed on.

        Args:
            patience_seconds: The wait for a reader that reads nothing.
        """
        self._is_ended.set()
        before, deadline = -1, 0.0
        while self._task is not None and not self._task.wait(_LONGEST_SECONDS):
            if self.passed_on != before:
                before, deadline = self.passed_on, time.monotonic() + patience_seconds
            elif time.monotonic() >= deadline:
                return

    def tail(self) -> tuple[bytes, int]:
        """Return the last bytes of the stream, and their position."""
        start = max(0, self.file.size() - TAIL_BYTES, self.file.freed)
        return self.file.read(start, TAIL_BYTES), start

    # --- In the thread --------------------------------------------------------------------------------

    def _pass_on_until_end(self) -> None:
        seconds = _SHORTEST_SECONDS
        while True:
            is_ended = self._is_ended.is_set()
            if self._pass_on():
                seconds = _SHORTEST_SECONDS
            elif is_ended:
                return
            else:
                self._is_ended.wait(seconds)
                seconds = min(2 * seconds, _LONGEST_SECONDS)

    def _pass_on(self) -> bool:
        """Pass on what the job has written since; return False if that is nothing."""
        size = self.file.size()
        self.marks.add(size, time.time_ns())
        if self._is_truncated(size):
            self.passed_on, self._last = 0, b""
        if self.file.freed > self.passed_on:
            dropped = self.file.freed - self.passed_on
            self.dropped_bytes += dropped
            self.passed_on, self._last = self.file.freed, b""
            self._write(f"\n[{dropped:,} bytes of output were dropped, since nothing read them]\n".encode())
        data = self.file.read(self.passed_on, min(_CHUNK_BYTES, size - self.passed_on))
        if not data:
            return False
        self._write(data)
        self.keep(data)
        self.passed_on += len(data)
        self._last = (self._last + data)[-_COMPARED_BYTES:]
        self.file.free_before(self.passed_on - TAIL_BYTES)
        return True

    def _is_truncated(self, size: int) -> bool:
        """Return True if the job has opened /dev/stdout to write from the beginning; it may have written more since."""
        if size < self.passed_on:
            return True
        last = self._last
        return bool(last) and size > self.passed_on and self.file.read(self.passed_on - len(last), len(last)) != last

    def _write(self, data: bytes) -> None:
        """Write to the target; drop what it cannot take for ever, or for now because its disk is full."""
        while data and self._target is not None:
            try:
                data = data[os.write(self._target, data) :]
            except BlockingIOError:  # Another process has made it non-blocking.
                poller = select.poll()
                poller.register(self._target, select.POLLOUT)
                poller.poll()
            except OSError as error:
                if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                    self._target = None  # Its reader has ended.
                return
