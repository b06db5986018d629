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
