"""The content of an object, read in parts: it may be larger than the memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ml_diagnostics_common.storage import Storage

__all__ = ["Parts"]


class Parts:
    """The content of an object; pages are fetched when they are read.

    Args:
        storage: The storage that holds it.
        path: The object's path.
        page_bytes: The size of a page.

    Raises:
        ObjectNotFoundError: The object does not exist.
        StorageError: The object cannot be read.
    """

    def __init__(self, storage: Storage, path: str, page_bytes: int = 1 << 16) -> None:
        self._storage = storage
        self._path = path
        self._page_bytes = page_bytes
        self._size = storage.size(path)
        self._pages: dict[int, bytes] = {}

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, index: Any, /) -> Any:
        if not isinstance(index, slice):
            return self._page(index // self._page_bytes)[index % self._page_bytes]
        start, end, _ = index.indices(self._size)
        first, last = start // self._page_bytes, max(start, end - 1) // self._page_bytes
        joined = b"".join(self._page(number) for number in range(first, last + 1)) if start < end else b""
        return joined[start - first * self._page_bytes : end - first * self._page_bytes]

    def _page(self, number: int) -> bytes:
        if number not in self._pages:
            start = number * self._page_bytes
            self._pages[number] = self._storage.read_part(self._path, start, min(start + self._page_bytes, self._size))
        return self._pages[number]
