"""Lines that wait for the disk, in bounded memory."""

from __future__ import annotations

import threading
from collections import deque

__all__ = ["HeldLines"]


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
        """Takes the line; False when there is no room. One line finds room whatever its size."""
        with self._lock:
            if self._lines and self._bytes + len(line) > self._limit_bytes:
                return False
            self._lines.append(line)
            self._bytes += len(line)
            return True

    def first(self, limit_bytes: int) -> bytes:
        """The oldest lines, joined: at least one of them, if there is any, and no more than about `limit_bytes`."""
        with self._lock:
            lines = self._lines.copy()  # One call: a signal handler that adds a line cannot come in between.
        first: list[bytes] = []
        size = 0
        for line in lines:
            first.append(line)
            size += len(line)
            if size >= limit_bytes:
                break
        return b"".join(first)

    def remove(self, written: int) -> None:
        """Forgets the oldest lines that lie whole within the first `written` bytes."""
        with self._lock:
            while self._lines and len(self._lines[0]) <= written:
                size = len(self._lines.popleft())
                written -= size
                self._bytes -= size
            if not self._lines:
                self._bytes = 0
