"""The file that a writer appends to, and its replacement by the next."""

from __future__ import annotations

import errno
import os
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from ml_diagnostics_common.descriptors import with_high_number
from ml_diagnostics_common.files import make_private_folder, read_at, share_lock
from ml_diagnostics_common.journal._layout import (
    Header,
    decode_header,
    encode_header,
    first_line,
    opened_segment,
    segment_name,
)

__all__ = ["HeldLines", "SegmentFile", "SegmentState"]

SegmentState = Literal["open", "not_open", "descriptor_taken", "file_deleted", "file_moved", "file_truncated"]
_NOT_OURS = ("not_open", "descriptor_taken")
_PIECE_BYTES = 1 << 20


class SegmentFile:
    """The newest segment of a writer.

    The descriptor keeps its number when the next segment is opened, so that a thread in the middle of a write writes to
    the old file or to the new one. The number is high: appends do not check it, for speed, so after a program closed
    all descriptors the next append must fail, instead of writing to a file that the program has opened since.
    """

    def __init__(self, folder: Path, header: Header) -> None:
        self.descriptor = -1
        self._folder = folder
        self._header = header
        self._number = 0
        self._identity = (0, 0)
        self._path = folder
        self._size = 0  # Of the file when it was checked last; it never shrinks by itself.

    def open_next(self) -> None:
        """Open the writer's next segment; if that raises OSError, appends still go to the previous one."""
        make_private_folder(self._folder)
        path = self._folder / segment_name(self._header.writer, self._number)
        self._number += 1  # Before there is a file: a signal handler may raise anywhere, and no name is used twice.
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND  # O_EXCL follows no link that another user made.
        new = os.open(path, flags | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0), 0o600)
        try:
            line = encode_header(self._header)
            if os.write(new, line) != len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
            share_lock(new)  # Readers in other containers cannot look up this process by its pid: `is_open`.
            status = os.fstat(new)
            if self.state() in _NOT_OURS:
                self.descriptor = with_high_number(os.dup(new))
            else:
                os.dup2(new, self.descriptor, inheritable=False)
        except OSError:
            path.unlink(missing_ok=True)
            raise
        finally:
            os.close(new)
        self._identity = (status.st_dev, status.st_ino)
        self._path, self._size = path, status.st_size

    def state(self) -> SegmentState:
        """Return where an append would go now: only if "open" to a file that readers find.

        A daemon may have closed all descriptors that it found: the file is "not_open", as before the first segment,
        until the number is given to another file: "descriptor_taken". That file is not written to. logrotate and mv
        leave the descriptor, and take the name or the content.
        """
        if self.descriptor < 0:
            return "not_open"
        try:
            status = os.fstat(self.descriptor)
        except OSError:
            self.descriptor = -1
            return "not_open"
        if (status.st_dev, status.st_ino) != self._identity:
            self.descriptor = -1
            return "descriptor_taken"
        if status.st_nlink == 0:
            return "file_deleted"
        try:
            named = self._path.lstat()
        except (FileNotFoundError, NotADirectoryError):
            return "file_moved"
        except OSError:  # It is not known; the descriptor is good.
            named = status
        if (named.st_dev, named.st_ino) != self._identity:
            return "file_moved"
        # A file that was emptied and has grown since has no header.
        if status.st_size < self._size or read_at(self.descriptor, 1, 0) != b"{":
            return "file_truncated"
        self._size = status.st_size
        return "open"

    def count_entries(self) -> int:
        """Count the whole lines in the file without the header; 0 if it cannot be read."""
        count = offset = 0
        last = b""
        try:
            with opened_segment(str(self._path)) as descriptor:
                has_header = decode_header(first_line(descriptor)[0]) is not None
                while data := read_at(descriptor, _PIECE_BYTES, offset):
                    count += (last + data).count(b"}\n")
                    offset, last = offset + len(data), data[-1:]
        except OSError:
            return 0
        return max(0, count + (last == b"}") - has_header)

    def sync(self) -> None:
        """Write the file, and its entry in its folder, to the disk itself; raises OSError."""
        _sync_and_close(os.dup(self.descriptor), getattr(os, "fdatasync", os.fsync))
        _sync_and_close(os.open(self._folder, os.O_RDONLY), os.fsync)

    def close(self) -> None:
        """Close the descriptor, if it is still ours."""
        if self.state() not in _NOT_OURS:
            os.close(self.descriptor)
        self.descriptor = -1

    def __del__(self) -> None:
        # Not before the last reference is gone: a thread may be in the middle of a write, or of a sync.
        try:
            self.close()
        except Exception:
            pass  # A constructor that failed, or the end of the interpreter.


def _sync_and_close(descriptor: int, sync: Callable[[int], None]) -> None:
    try:
        sync(descriptor)
    finally:
        os.close(descriptor)


class HeldLines:
    """A queue of lines with a limit in bytes.

    Its lock is never held during I/O, and a signal handler that interrupts its holder may take it again.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._lines: deque[bytes] = deque()
        self._bytes = 0
        self._lock = threading.RLock()

    def __len__(self) -> int:
        return len(self._lines)

    def add(self, line: bytes) -> bool:
        """Add a line; return False if there is not enough space. An empty queue accepts a line of any size."""
        with self._lock:
            if self._lines and self._bytes + len(line) > self._limit_bytes:
                return False
            self._lines.append(line)
            self._bytes += len(line)
            return True

    def first(self, limit_bytes: int) -> bytes:
        """Return the oldest lines, joined: at least one, if there is any, and about `limit_bytes` at most."""
        with self._lock:
            lines = self._lines.copy()  # One call, which no signal handler that adds a line can interrupt.
        first: list[bytes] = []
        size = 0
        for line in lines:
            first.append(line)
            size += len(line)
            if size >= limit_bytes:
                break
        return b"".join(first)

    def remove(self, written: int) -> None:
        """Remove the oldest lines that are complete within the first `written` bytes."""
        with self._lock:
            while self._lines and len(self._lines[0]) <= written:
                size = len(self._lines.popleft())
                written -= size
                self._bytes -= size
            if not self._lines:
                self._bytes = 0
