"""The objects that a reader of a mirror has not read yet, and those that it has fetched ahead."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from ml_diagnostics_common.mirror._bucket import Bucket
from ml_diagnostics_common.mirror.names import SegmentName

__all__ = ["ObjectCache", "UnreadObjects", "without"]

_MOST_THREADS = 32
_CACHED_BYTES = 32 * 2**20
_LARGE_BYTES = 4 * 2**20  # The size of an object before one is known: it may be that of an hour.
_MOST_FETCHED = 256


class UnreadObjects:
    """The objects of one writer that were listed and not read, in the order of their first entries.

    Of two that start alike the longer one is first: it has the entries of the other, mostly.

    Args:
        is_read: Return True if an object has nothing that was not read.
    """

    def __init__(self, is_read: Callable[[SegmentName], bool]) -> None:
        self._is_read = is_read
        self._names: list[SegmentName] = []  # The next one is the last.

    def __bool__(self) -> bool:
        """Return True if there is at least one."""
        return bool(self._names)

    def update(self, names: Iterable[SegmentName]) -> None:
        """Replace the objects by those that are listed now."""
        unread = [name for name in names if not self._is_read(name)]
        self._names = sorted(unread, key=lambda name: (name.first, -name.last, -name.level, name.day), reverse=True)

    def pop(self) -> SegmentName | None:
        """Remove and return the next object; None if there is no other."""
        while self._names:
            name = self._names.pop()
            if not self._is_read(name):
                return name
        return None

    def push_back(self, name: SegmentName) -> None:
        """Return an object that `pop` removed, and that could not be read."""
        self._names.append(name)

    def ahead(self, most: int) -> list[SegmentName]:
        """Return the objects that will be opened next, without those that others of them cover."""
        found: list[SegmentName] = []
        for name in reversed(self._names):
            if len(found) >= most:
                break
            if not (found and found[-1].covers(name)) and not self._is_read(name):
                found.append(name)
        return found


class ObjectCache:
    """Objects that are fetched several at a time: a request takes 50 ms, however small its answer is."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket
        self._fetched: dict[str, bytes] = {}
        self._sizes = [_LARGE_BYTES]
        self._streams = 1

    def share_among(self, streams: int) -> None:
        """Set the number of streams that share the memory."""
        self._streams = max(1, streams)

    @property
    def window(self) -> int:
        """The number of objects that one stream fetches at once."""
        mean_bytes = max(1, sum(self._sizes) // len(self._sizes))
        return max(1, min(_MOST_THREADS, _CACHED_BYTES // (self._streams * mean_bytes)))

    def fetch(self, paths: Iterable[str]) -> None:
        """Fetch objects, each the next of another stream; those that cannot be read are left out."""
        wanted = [path for path in paths if path not in self._fetched][:_MOST_FETCHED]
        self._keep(wanted, self._bucket.read_each(wanted, _MOST_THREADS))

    def read(self, path: str, ahead: Sequence[str]) -> bytes:
        """Return the content of an object.

        Args:
            path: The object's path.
            ahead: Objects to fetch with it.

        Raises:
            ObjectNotFoundError: The object does not exist.
            StorageError: It cannot be read.
        """
        data = self._fetched.pop(path, None)
        if data is not None:
            return data
        paths = [path, *(each for each in ahead if each not in self._fetched)]
        result, *others = self._bucket.read_each(paths, _MOST_THREADS)
        self._keep(paths[1:], others)
        if isinstance(result, Exception):
            raise result
        self._sizes = [*self._sizes[-7:], len(result)]
        return result

    def _keep(self, paths: Sequence[str], results: Sequence[bytes | Exception]) -> None:
        for path, result in zip(paths, results, strict=True):
            if not isinstance(result, Exception):
                self._fetched[path] = result


def without(ranges: Sequence[Sequence[int]], numbers: Iterable[int]) -> list[list[int]]:
    """Return (first, last) ranges without some of their numbers."""
    left: list[list[int]] = [list(each) for each in ranges]
    for number in numbers:
        for index, (first, last) in enumerate(left):
            if first <= number <= last:
                left[index : index + 1] = [
                    part for part in ([first, number - 1], [number + 1, last]) if part[0] <= part[1]
                ]
                break
    return left
