"""The destination of the timer's dumps, each after its header line: the trace file, or the console."""

from __future__ import annotations

import errno
import os
import stat
import time
from collections import deque
from typing import Protocol

from ml_diagnostics_common.worker import Worker

from cloud_tpu_diagnostics._dumps.text import PIPE_BYTES, header, open_nonblocking

__all__ = ["ConsoleOutput", "FileOutput", "Headers", "TraceOutput"]

_READ_BYTES = 2**20
_MOST_HELD_BYTES = 2**16
_CONSOLE_SECONDS = 1.0
_POLL_SECONDS = 0.005
_MOST_WAITING_PARTS = 256


class Headers:
    """Inserts the header line before each dump of the timer, as its bytes arrive.

    Args:
        interval_seconds: The interval between two dumps.
    """

    def __init__(self, interval_seconds: float) -> None:
        self._header = header(interval_seconds).encode()
        self._held = b""

    def add(self, data: bytes) -> bytes:
        """Return the complete lines so far; the rest waits for its end."""
        whole, newline, self._held = (self._held + data).rpartition(b"\n")
        if len(self._held) > _MOST_HELD_BYTES:
            whole, newline, self._held = whole + newline + self._held, b"", b""
        lines = (whole + newline).splitlines(keepends=True)
        return b"".join(self._header + line if line.startswith(b"Timeout (") else line for line in lines)

    def rest(self) -> bytes:
        """Return the last line, which has no end, when nothing more will arrive."""
        rest, self._held = self._held, b""
        return rest


class TraceOutput(Protocol):
    """The destination of dumps."""

    def append(self, data: bytes) -> None:
        """Write complete lines.

        Raises:
            OSError: They cannot be written.
        """
        ...

    def read_others(self) -> bytes:
        """Return what the job has written there since the last call, at most a megabyte; empty if nothing."""
        ...

    def close(self) -> None:
        """Close it."""
        ...


class FileOutput:
    """The trace file. Faults and signals of the job are written there too, at any time.

    Args:
        path: It exists.
        first_byte: The size of the file when the block started.
        most_bytes: Nothing is appended that would make it larger.
    """

    def __init__(self, path: str, first_byte: int, most_bytes: int) -> None:
        self._descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
        status = os.fstat(self._descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or status.st_nlink > 1:
            os.close(self._descriptor)
            raise PermissionError(errno.EPERM, f"{path} was replaced by something that is not ours")
        self._read_until = first_byte
        self._most_bytes = most_bytes
        self._is_full = False
        self._ours: deque[tuple[int, int]] = deque()
        """The ranges that we wrote, in the order of the file."""

    def append(self, data: bytes) -> None:
        """See `TraceOutput`; at the cap, one line that reports it, and then nothing."""
        if self._is_full:
            return
        if os.fstat(self._descriptor).st_size + len(data) > self._most_bytes:
            self._is_full = True
            data = (
                f"INFO: This file has reached its limit of {self._most_bytes} bytes: periodic stack traces are no "
                "longer written to it.\n"
            ).encode()
        while data:
            written = os.write(self._descriptor, data)
            if not written:
                raise OSError(errno.EIO, "nothing was written")
            end = os.lseek(self._descriptor, 0, os.SEEK_CUR)  # With O_APPEND, the end of what was just written.
            self._ours.append((end - written, end))
            data = data[written:]

    def read_others(self) -> bytes:
        """See `TraceOutput`."""
        end = os.fstat(self._descriptor).st_size
        while self._read_until < end:
            until = end
            if self._ours:
                start, until_ours = self._ours[0]
                if start <= self._read_until:
                    self._read_until = max(self._read_until, until_ours)
                    self._ours.popleft()
                    continue
                until = start
            data = os.pread(self._descriptor, min(_READ_BYTES, until - self._read_until), self._read_until)
            self._read_until += len(data)
            return data
        return b""

    def close(self) -> None:
        """See `TraceOutput`."""
        os.close(self._descriptor)


class ConsoleOutput:
    """The job's stderr. If its reader stops reading, a part of a dump is lost.

    Args:
        descriptor: A duplicate of the job's. It must not be made non-blocking, as that would make the job's so.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._waiting: _WaitingWriter | None = None
        mode = os.fstat(descriptor).st_mode
        self._is_socket = stat.S_ISSOCK(mode)
        # A terminal that polls as writable may accept less than is written; so may a pipe that others fill meanwhile.
        if stat.S_ISFIFO(mode) or stat.S_ISCHR(mode):
            again = open_nonblocking(descriptor)
            if again is None:
                self._waiting = _WaitingWriter(descriptor)
            else:
                os.close(descriptor)
                self._descriptor = again

    def append(self, data: bytes) -> None:
        """See `TraceOutput`."""
        deadline = time.monotonic() + _CONSOLE_SECONDS
        while data:
            try:
                data = data[self._write(data[:PIPE_BYTES]) :]
                deadline = time.monotonic() + _CONSOLE_SECONDS
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise TimeoutError(errno.ETIMEDOUT, "the reader of the console has stopped reading") from None
                time.sleep(_POLL_SECONDS)

    def _write(self, data: bytes) -> int:
        """Write what fits; never wait."""
        if self._waiting is not None:
            return self._waiting.write(data)
        if not self._is_socket:
            return os.write(self._descriptor, data)
        import socket

        console = socket.socket(fileno=self._descriptor)
        try:
            return console.send(data, socket.MSG_DONTWAIT)
        finally:
            console.detach()

    def read_others(self) -> bytes:
        """See `TraceOutput`: a console cannot be read."""
        return b""

    def close(self) -> None:
        """See `TraceOutput`: a reader that waits for the end of the job's stderr does not wait for us."""
        if self._waiting is not None:
            self._waiting.close()
        else:
            os.close(self._descriptor)


class _WaitingWriter:
    """Writes in a thread of its own, which may wait forever.

    Args:
        descriptor: Written to, and closed.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._worker = Worker("cloud-tpu-diagnostics-console", limit=_MOST_WAITING_PARTS)

    def write(self, data: bytes) -> int:
        """Accept a part; raise BlockingIOError if too many wait already."""
        if not self._worker.put(lambda: self._write(data)):
            raise BlockingIOError(errno.EAGAIN, "the reader of the console has stopped reading")
        return len(data)

    def close(self) -> None:
        """Wait a bounded time for what is being written, and close the descriptor."""
        if self._worker.pending_count() < _MOST_WAITING_PARTS:
            self._worker.drain(_CONSOLE_SECONDS)
        self._worker.stop()
        # Its number must not be another file's while the thread may write to it.
        nowhere = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
        os.dup2(nowhere, self._descriptor, inheritable=False)
        os.close(nowhere)

    def _write(self, data: bytes) -> None:
        try:
            while data:
                data = data[os.write(self._descriptor, data) :]
        except OSError:
            pass  # Its reader is gone.
