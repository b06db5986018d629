"""The entries of a mirror's writers, each once: from objects that may overlap, vanish, or be damaged."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from typing import Any

from ml_diagnostics_common.entry import LogEntry, SeenSequences
from ml_diagnostics_common.exceptions import ObjectNotFoundError
from ml_diagnostics_common.guard import warn_once
from ml_diagnostics_common.mirror._bucket import Bucket
from ml_diagnostics_common.mirror._objects import ObjectCache, UnreadObjects
from ml_diagnostics_common.mirror.names import LogPaths, SegmentName
from ml_diagnostics_common.mirror.segments import DamagedObjectError, SegmentContent
from ml_diagnostics_common.reader import Take, in_order

__all__ = ["ReadObjects", "WriterStream"]

# Entries of one writer that are put in order together: those of many small objects, as a journal's are in one chunk.
_BATCH, _LEAST_BATCH, _ALL_BATCHES = 2_000, 100, 130_000


class ReadObjects:
    """The objects of one log, and what was read of them; all of the log's streams share it.

    Args:
        bucket: The mirror.
        paths: The paths of the log.
        resource_labels: Objects without one of the values of each of these labels are read as empty.
        seen: The entries that were read before.
        read: The names of objects that were read before, though their ranges are not covered.
        list_again: Hands the objects that exist now to the streams.

    Attributes:
        seen: The entries that were read.
        read: The names of objects that have nothing else, though their ranges are not covered.
        skipped: Counts what was read and not yielded, by reason.
        damaged: The paths of damaged objects.
        cache: Fetches objects.
    """

    def __init__(
        self,
        bucket: Bucket,
        paths: LogPaths,
        resource_labels: Mapping[str, Set[str]],
        seen: SeenSequences,
        read: set[str],
        list_again: Callable[[], None],
    ) -> None:
        self.seen, self.read = seen, read
        self.skipped: Counter[str] = Counter()
        self.damaged: list[str] = []
        self.cache = ObjectCache(bucket)
        self._bucket, self._paths = bucket, paths
        self._resource_labels, self._list_again = resource_labels, list_again
        self._vanished: set[str] = set()

    def start(self) -> None:
        """Start a read: an object may vanish once in each."""
        self._vanished.clear()

    def path(self, name: SegmentName) -> str:
        """Return the path of an object."""
        return self._paths.path(name)

    def is_read(self, name: SegmentName) -> bool:
        """Return True if an object has nothing that was not read."""
        return self.seen.covers(name.writer, name.first, name.last) or str(name) in self.read

    def open(self, name: SegmentName, ahead: Iterable[SegmentName]) -> SegmentContent | None:
        """Return an object's content; None if it is damaged, or not there any more.

        Args:
            name: The object.
            ahead: Objects that will be opened next.

        Raises:
            ObjectNotFoundError: It has vanished, was listed again, and does not exist.
            NewerFormatError: A newer version wrote it.
            StorageError: It cannot be read.
        """
        path = self.path(name)
        try:
            return self._content(name, path, self.cache.read(path, [self.path(each) for each in ahead]))
        except ObjectNotFoundError:
            if path in self._vanished:
                raise
            # Rolled up since it was listed: the object of its hour has its entries.
            self._vanished.add(path)
            self._list_again()
            return None

    def _content(self, name: SegmentName, path: str, data: bytes) -> SegmentContent | None:
        try:
            try:
                return SegmentContent(data, path, writer=name.writer)
            except DamagedObjectError:
                # Perhaps on the way: what is damaged in the mirror is so again.
                return SegmentContent(self._bucket.read(path), path, writer=name.writer)
        except DamagedObjectError as error:
            self.read.add(str(name))
            self.skipped["damaged_object"] += 1
            self.damaged.append(path)
            warn_once(("damaged object", path), "%s. Its entries are missing, unless the journal has them.", error)
            return None

    def finished(self, name: SegmentName) -> None:
        """Note that all of an object was read."""
        if not self.seen.covers(name.writer, name.first, name.last):
            self.read.add(str(name))

    def new_entries(self, writer: str, entries: list[LogEntry]) -> list[LogEntry]:
        """Return those entries of a writer that were not read before, and note that they are read."""
        first, last = entries[0].sequence, entries[-1].sequence
        numbers = [entry.sequence for entry in entries]
        ranges = self.seen.ranges(writer)
        is_run = numbers == list(range(first, first + len(numbers)))
        if is_run and (not ranges or first > ranges[-1][1]):
            self.seen.add_range(writer, first, last)
            return entries
        return [entry for entry in entries if self.seen.add(writer, entry.sequence)]

    def is_wanted(self, content: SegmentContent) -> bool:
        """Return True if an object's resource has the labels that are read."""
        labels = content.header.resource.get("labels")
        has = labels if isinstance(labels, dict) else {}
        return all(has.get(name) in values for name, values in self._resource_labels.items())


class WriterStream:
    """One writer's entries in the order of its objects: a stream of `reader.merge`.

    Args:
        writer: The writer.
        objects: The objects of its log.

    Attributes:
        head: Entries that were read, and not yielded.
        labels: The labels of its entries.
        last_ns: The greatest time of its entries, in ns since 1970; None before the first.
        has_ended: True if the mirror has its end.
        unread: Its objects that were not read.
        read_for_head: Objects that were read to their ends for the head: what is in the head was not yielded yet.
    """

    def __init__(self, writer: str, objects: ReadObjects) -> None:
        self.writer = writer
        self.head: list[LogEntry] = []
        self.labels: Mapping[str, str] = {}
        self.last_ns: int | None = None
        self.has_ended = False
        self.unread = UnreadObjects(objects.is_read)
        self.read_for_head: set[str] = set()
        self._take: Take | None = None
        self._batch_entries = _BATCH
        self._objects = objects
        self._name: SegmentName | None = None
        self._entries: Iterator[list[LogEntry]] = iter(())

    def restore(self, known: Mapping[str, Any]) -> None:
        """Set what an earlier reader knew."""
        labels = known.get("labels")
        self.labels = {str(key): str(value) for key, value in labels.items()} if isinstance(labels, dict) else {}
        self.last_ns = known["last_ns"] if isinstance(known.get("last_ns"), int) else None
        self.has_ended = known.get("has_ended") is True

    def to_json(self) -> dict[str, Any]:
        """Return what `restore` takes."""
        return {"labels": dict(self.labels), "last_ns": self.last_ns, "has_ended": self.has_ended}

    def start(self, take: Take | None, streams: int) -> None:
        """Start a read.

        Args:
            take: See `JournalReader.read_new`.
            streams: The number of streams that share the memory.
        """
        self._take, self._batch_entries = take, max(_LEAST_BATCH, min(_BATCH, _ALL_BATCHES // streams))

    def has_unread(self) -> bool:
        """Return True if there may be more entries."""
        return self._name is not None or bool(self.unread)

    def next_path(self) -> str:
        """Return the path of the object that is opened next; empty if there is none, or one is open."""
        ahead: Sequence[SegmentName] = () if self._name is not None else self.unread.ahead(1)
        return self._objects.path(ahead[0]) if ahead else ""

    def fill(self) -> bool:
        """Read new entries into the head; return False if there are none."""
        self.read_for_head = set()
        while found := self._next_batch():
            ordered = in_order(found)
            self.last_ns = max(self.last_ns or 0, ordered[-1].timestamp_ns)
            self.head = ordered if self._take is None else self._take(ordered)
            if self.head:
                return True
        return False

    def _next_batch(self) -> list[LogEntry]:
        """Return new entries of one or several objects; none if there are no more."""
        found: list[LogEntry] = []
        try:
            while len(found) < self._batch_entries and (self._name is not None or self._open_next()):
                entries = next(self._entries, None)
                if entries is None:
                    self._close()
                else:
                    found += self._objects.new_entries(self.writer, entries)
        except Exception:
            if not found:
                raise
            # They are read, so they must be yielded first; the next call meets the same error.
        return found

    def _open_next(self) -> bool:
        while name := self.unread.pop():
            try:
                content = self._objects.open(name, self.unread.ahead(self._objects.cache.window - 1))
            except BaseException:
                self.unread.push_back(name)
                raise
            if content is None:
                continue
            self.labels = content.header.labels
            self._name = name
            is_wanted = self._objects.is_wanted(content)
            self._entries = content.entries(self._objects.skipped) if is_wanted else iter(())
            return True
        return False

    def _close(self) -> None:
        name, self._name = self._name, None
        assert name is not None
        self._objects.finished(name)
        self.read_for_head.add(str(name))
