"""An object of a bucket as a file: a job is a small part of it, so only that part is read."""

from __future__ import annotations

import io
import os
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from ml_diagnostics_common.storage import Storage

__all__ = ["ObjectFile"]

_LEAST_BYTES: Final = 2**18
"""The bytes of a request, at least. The end of a file has its description, which is read first."""


class ObjectFile(io.RawIOBase):
    """An object, opened for reading; one range of it is in memory.

    Args:
        storage: The storage that holds it.
        path: The object's path.

    Raises:
        ObjectNotFoundError: The object does not exist.
        StorageError: The object cannot be read.
    """

    def __init__(self, storage: Storage, path: str) -> None:
        self._storage, self._path = storage, path
        self._size = storage.size(path)
        self._position = 0
        self._start, self._data = 0, b""
        self.fetch(self._size - _LEAST_BYTES, self._size)

    def fetch(self, start: int, end: int) -> None:
        """Read the bytes from `start` to `end`, which next reads will need, with one request."""
        start, end = max(start, 0), min(end, self._size)
        if start < self._start or end > self._start + len(self._data):
            self._start, self._data = start, self._storage.read_part(self._path, start, end)

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Return the position of the next read."""
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Set the position of the next read, and return it."""
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._size}[whence]
        self._position = max(0, base + offset)
        return self._position

    def readinto(self, buffer: Any) -> int:
        """Read bytes into a buffer; return their number, 0 at the end."""
        view = memoryview(buffer).cast("B")
        position, length = self._position, min(len(view), self._size - self._position)
        if length <= 0:
            return 0
        if position < self._start or position + length > self._start + len(self._data):
            self.fetch(position, position + max(length, _LEAST_BYTES))
        data = self._data[position - self._start : position - self._start + length]
        view[: len(data)] = data
        self._position += len(data)
        return len(data)
