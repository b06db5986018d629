"""Where the timer's dumps go, each behind its header line: the trace file, or the console."""

from __future__ import annotations

import errno
import os
import stat
import time
from collections import deque
from typing import Protocol

from cloud_tpu_diagnostics.headlines import HEADER_START

__all__ = ["ConsoleOutput", "FileOutput", "Headers", "TraceOutput"]

_READ_BYTES = 2**20
_MOST_HELD_BYTES = 2**16
_PIPE_BYTES = 4096
"""PIPE_BUF of Linux: a pipe that polls as writable takes so many at once."""
_CONSOLE_SECONDS = 1.0
_LOOK_SECONDS = 0.005
_MOST_WAITING_PARTS = 256


class Headers:
    """Puts the header line before each dump of the timer, as its bytes come in.

    Args:
        interval_seconds: Between two dumps.
    """

    def __init__(self, interval_seconds: float) -> None:
        self._header = f"{HEADER_START}{interval_seconds} seconds.\n".encode()
        self._held = b""

    def add(self, data: bytes) -> bytes:
        """Returns the whole lines so far; the rest waits for its end."""
        whole, newline, self._held = (self._held + data).rpartition(b"\n")
        if len(self._held) > _MOST_HELD_BYTES:
            whole, newline, self._held = whole + newline + self._held, b"", b""
        lines = (whole + newline).splitlines(keepends=True)
        return b"".join(self._header + line if line.startswith(b"Timeout (") else line for line in lines)

    def rest(self) -> bytes:
        """Returns the line that has no end, when no more will come."""
        rest, self._held = self._held, b""
        return rest


class TraceOutput(Protocol):
    """What dumps are written to."""

    def append(self, data: bytes) -> None:
        """Writes whole lines.

        Raises:
            OSError: They cannot be written.
        """
        ...

    def read_others(self) -> bytes:
        """What others have written there since the last call, no more than a megabyte of it; empty if nothing."""
        ...

    def close(self) -> None:
        """Lets go of it."""
        ...


class FileOutput:
    """The trace file. Faults and signals of the job go there too, at any time.

    Args:
        path: It exists.
        begin: How long the file was when the block began.
        most_bytes: Nothing is appended that would make it longer.
    """

    def __init__(self, path: str, begin: int, most_bytes: int) -> None:
        self._descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
        status = os.fstat(self._descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or status.st_nlink > 1:
            os.close(self._descriptor)
            raise PermissionError(errno.EPERM, f"{path} was replaced by something that is not ours")
        self._read_until = begin
        self._most_bytes = most_bytes
        self._is_full = False
        self._ours: deque[tuple[int, int]] = deque()
        """Where we wrote, in the order of the file."""

    def append(self, data: bytes) -> None:
        """See `TraceOutput`; beyond the cap nothing, but for one line that says so."""
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
                begin, until_ours = self._ours[0]
                if begin <= self._read_until:
                    self._read_until = max(self._read_until, until_ours)
                    self._ours.popleft()
                    continue
                until = begin
            data = os.pread(self._descriptor, min(_READ_BYTES, until - self._read_until), self._read_until)
            self._read_until += len(data)
            return data
        return b""

    def close(self) -> None:
        """See `TraceOutput`."""
        os.close(self._descriptor)


class ConsoleOutput:
    """The job's stderr. Who reads it may stop reading: then a part of a dump is lost.

    Args:
        descriptor: A duplicate of the job's. It must not be made non-blocking, as that would make the job's so.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._waiting: _WaitingWriter | None = None
        mode = os.fstat(descriptor).st_mode
        self._is_socket = stat.S_ISSOCK(mode)
        # A terminal that polls as writable may take less than is written, and a pipe whom others fill meanwhile.
        if stat.S_ISFIFO(mode) or stat.S_ISCHR(mode):
            again = _opened_again(descriptor)
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
                data = data[self._write(data[:_PIPE_BYTES]) :]
                deadline = time.monotonic() + _CONSOLE_SECONDS
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise TimeoutError(errno.ETIMEDOUT, "nobody reads the console") from None
                time.sleep(_LOOK_SECONDS)

    def _write(self, data: bytes) -> int:
        """Writes what there is room for; never waits."""
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
        """See `TraceOutput`: who waits for the end of the job's stderr need not wait for us."""
        if self._waiting is not None:
            self._waiting.close()
        else:
            os.close(self._descriptor)


class _WaitingWriter:
    """Writes in a thread of its own, which may wait for ever.

    Args:
        descriptor: What it writes to, and closes.
    """

    def __init__(self, descriptor: int) -> None:
        import queue
        import threading

        self._descriptor = descriptor
        self._parts: queue.Queue[bytes] = queue.Queue(_MOST_WAITING_PARTS)
        self._thread = threading.Thread(target=self._run, name="console", daemon=True)
        self._thread.start()

    def write(self, data: bytes) -> int:
        """Takes a part; raises BlockingIOError where too many wait already."""
        import queue

        try:
            self._parts.put_nowait(data)
        except queue.Full:
            raise BlockingIOError(errno.EAGAIN, "nobody reads the console") from None
        return len(data)

    def close(self) -> None:
        """Waits a while for what is being written, and lets go."""
        try:
            self.write(b"")
        except BlockingIOError:
            pass
        else:
            self._thread.join(_CONSOLE_SECONDS)
        # Its number must not be another file's while the thread may write to it.
        nowhere = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
        os.dup2(nowhere, self._descriptor, inheritable=False)
        os.close(nowhere)

    def _run(self) -> None:
        while data := self._parts.get():
            try:
                while data:
                    data = data[os.write(self._descriptor, data) :]
            except OSError:
                pass  # Nobody will read it any more.


def _opened_again(descriptor: int) -> int | None:
    """Opens the same pipe or terminal once more, so that writes here do not wait; None where it is another user's."""
    flags = os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    try:
        return os.open(f"/dev/fd/{descriptor}", flags)
    except OSError:
        return None
