"""Readers of log entries: the journal of this machine, and the union of several readers."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from heapq import heappop, heappush
from itertools import chain
from operator import attrgetter, itemgetter
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from ml_diagnostics_common.entry import LogEntry, SeenSequences
from ml_diagnostics_common.files import read_state, write_state
from ml_diagnostics_common.journal._layout import Segment, list_segments, log_directory, reader_position_path
from ml_diagnostics_common.journal._segment_reader import SegmentReader

__all__ = ["EntryReader", "JournalReader", "Take", "UnionReader", "in_order", "merge"]

Take: TypeAlias = Callable[[list[LogEntry]], list[LogEntry]]
"""Takes those entries of one writer that need no order among writers, and returns the others."""

_CHUNK_BYTES = 2**18  # Twice as fast as 1 MiB: the allocator reuses memory of this size.
_SMALLEST_CHUNK_BYTES = 2**14
_ALL_CHUNKS_BYTES = 16 * 2**20  # Of all writers together; in memory an entry takes about five times its line.

_timestamp_ns = attrgetter("timestamp_ns")
_sequence = attrgetter("sequence")


class EntryReader(Protocol):
    """Returns the entries of a log, each once."""

    def read_new(self) -> Iterator[list[LogEntry]]:
        """Yield batches of the entries that exist now and were not yielded before, merged by (timestamp, insertId).

        An entry that arrives late is yielded by the next call, whatever its timestamp.
        """
        ...

    def position(self) -> dict[str, Any]:
        """Return the position behind the yielded entries, as JSON: another reader of the same log continues from it.

        Exact when `read_new` was read to its end; in the middle of it a few entries may be repeated.
        """
        ...


class JournalReader:
    """Read a log's journal: every writer's segments, from the last position.

    Several readers and writers may work at once. Torn and foreign lines are skipped and counted; a folder that does not
    exist yet and segments that were dropped meanwhile are skipped.
    """

    def __init__(
        self,
        log_id: str,
        *,
        root: Path,
        position: Mapping[str, Any] | None = None,
        resource_labels: Mapping[str, Set[str]] | None = None,
        chunk_bytes: int = _CHUNK_BYTES,
        writers: Set[str] | None = None,
    ) -> None:
        """Create a reader that has read nothing.

        Args:
            log_id: The log's name.
            root: The diagnostics folder.
            position: The position of an earlier reader; None for the start.
            resource_labels: Reads only writers with one of the values of each of these labels in their monitored
                resource; of the others only the header is read.
            chunk_bytes: How much of a writer's journal is read at once, at most; less if there are many writers.
            writers: Reads only these; None for all.
        """
        self._log_id = log_id
        self._root = root
        self._folder = log_directory(root, log_id)
        self._skipped: Counter[str] = Counter()
        self._resource_labels = resource_labels
        self._chunk_bytes = chunk_bytes
        self._only = writers
        self._writers: dict[str, _WriterStream] = {}
        for writer, offsets in _writers_of(position).items():
            self._writers[writer] = _WriterStream(log_id, writer, self._skipped, offsets, resource_labels)

    def read_new(self, take: Take | None = None) -> Iterator[list[LogEntry]]:
        """See `EntryReader`.

        Args:
            take: Called with the entries of one writer at a time, in their order; what it returns is merged and
                yielded. Entries that it keeps cost no merge, and memory for one chunk instead of one of each writer.
        """
        by_writer: dict[str, list[Segment]] = {}
        for segment in list_segments(self._folder, self._only):
            by_writer.setdefault(segment.writer, []).append(segment)
        for writer, segments in by_writer.items():
            if writer not in self._writers:
                self._writers[writer] = _WriterStream(self._log_id, writer, self._skipped, {}, self._resource_labels)
            self._writers[writer].update(segments)
        for writer in self._writers.keys() - by_writer.keys():
            self._writers[writer].update([])
        streams = [stream for stream in self._writers.values() if stream.has_more()]
        streams.sort(key=lambda stream: stream.writer + ".")  # As insertIds sort, which start with it.
        for stream in streams:
            stream.chunk_bytes = min(self._chunk_bytes, max(_SMALLEST_CHUNK_BYTES, _ALL_CHUNKS_BYTES // len(streams)))
            stream.take = take
        yield from merge(streams)

    def position(self) -> dict[str, Any]:
        """See `EntryReader`."""
        return {"writers": {name: stream.offsets() for name, stream in self._writers.items() if stream.segments}}

    def writers(self) -> set[str]:
        """Return the writers that had segments at the last `read_new`."""
        return {name for name, stream in self._writers.items() if stream.segments}

    def save_position(self, name: str, *, job: str | None = None) -> None:
        """Save the position for `load_position`: also the promise that what was read is not needed again.

        An entry that no cloud has is dropped by the journal's cap only when all saved positions that cover it have
        passed it.

        Args:
            name: The reader's name.
            job: The promise covers entries of this job alone; None covers all of the log.
        """
        write_state(reader_position_path(self._root, self._log_id, name), {**self.position(), "job": job})

    @staticmethod
    def load_position(name: str, log_id: str, *, root: Path) -> dict[str, Any] | None:
        """Return the position that `save_position` saved under that name, or None."""
        return read_state(reader_position_path(root, log_id, name))

    @property
    def skipped(self) -> Mapping[str, int]:
        """Counts by reason of what was read and not yielded. A part of a line at the end of a file counts as torn."""
        torn_ends = sum(stream.torn_ends() for stream in self._writers.values())
        return self._skipped + Counter(torn=torn_ends)


class _Stream(Protocol):
    """A source of entries in order; `head` holds those that were read and not yielded."""

    head: list[LogEntry]

    def fill(self) -> bool:
        """Read more into an empty head; return False if there is nothing more now."""
        ...

    def has_unread(self) -> bool:
        """Return False if `fill` would certainly find nothing now."""
        ...


class _WriterStream:
    """Read one writer's segments in order."""

    def __init__(
        self,
        log_id: str,
        writer: str,
        skipped: Counter[str],
        offsets: Mapping[int, int],
        resource_labels: Mapping[str, Set[str]] | None = None,
    ) -> None:
        self.writer = writer
        self._log_id = log_id
        self.head: list[LogEntry] = []
        self.chunk_bytes = _CHUNK_BYTES
        self.take: Take | None = None
        self.segments: dict[int, SegmentReader] = {
            number: SegmentReader(Segment(writer, number, "", offset), skipped, offset, resource_labels, log_id)
            for number, offset in offsets.items()
        }
        self._head_segment = 0
        self._head_offset = 0
        self._skipped = skipped
        self._resource_labels = resource_labels

    def update(self, segments: Sequence[Segment]) -> None:
        """Set the segments that exist now. A finished one may still grow by a line that a thread is writing."""
        present = {}
        for segment in segments:
            reader = self.segments.get(segment.number) or SegmentReader(
                segment, self._skipped, resource_labels=self._resource_labels, log_id=self._log_id
            )
            reader.segment = segment
            present[segment.number] = reader
        self.segments = present

    def has_more(self) -> bool:
        return bool(self.head) or self.has_unread()

    def has_unread(self) -> bool:
        return any(reader.has_more() for reader in self.segments.values())

    def fill(self) -> bool:
        for number, reader in self.segments.items():
            while reader.has_more():
                self._head_segment, self._head_offset = number, reader.offset
                try:
                    entries = reader.read(self.chunk_bytes)
                except FileNotFoundError:
                    break  # Dropped by the cap since it was listed.
                except OSError:
                    self._skipped["unreadable_segment"] += 1
                    break
                if entries:
                    ordered = in_order(entries)
                    self.head = ordered if self.take is None else self.take(ordered)
                if self.head:
                    return True
        return False

    def offsets(self) -> dict[str, int]:
        """Return for each segment how far its entries were yielded."""
        offsets = {str(number): reader.offset for number, reader in self.segments.items()}
        if self.head:
            offsets[str(self._head_segment)] = self._head_offset
        return offsets

    def torn_ends(self) -> int:
        return sum(reader.ends_torn for reader in self.segments.values())


class UnionReader:
    """The union of several readers of one log: an entry of the journal and of the cloud is yielded once."""

    def __init__(self, readers: Sequence[EntryReader], *, position: Mapping[str, Any] | None = None) -> None:
        """Create a reader that has read nothing.

        Args:
            readers: Each already at its own position.
            position: The position of an earlier union; its `readers` are the positions of these.
        """
        self._streams = [_ReaderStream(reader) for reader in readers]
        self._seen = SeenSequences.from_json((position or {}).get("seen", {}))

    def read_new(self) -> Iterator[list[LogEntry]]:
        """See `EntryReader`."""
        for stream in self._streams:
            stream.start()
        for batch in merge(self._streams):
            new = [entry for entry in batch if self._is_new(entry)]
            if new:
                yield new

    def _is_new(self, entry: LogEntry) -> bool:
        # Entries of other writers have no sequence number, and only one reader yields them.
        writer = entry.context.writer
        return writer is None or self._seen.add(writer, entry.sequence)

    def covers(self, writer: str, first: int, last: int) -> bool:
        """Return True if all entries of a writer from a sequence number to another were yielded, by any of them."""
        return self._seen.covers(writer, first, last)

    def position(self) -> dict[str, Any]:
        """See `EntryReader`."""
        return {"readers": [stream.position() for stream in self._streams], "seen": self._seen.to_json()}


class _ReaderStream:
    """One reader's entries. The head outlives a call that ended early: the reader will not yield them again."""

    def __init__(self, reader: EntryReader) -> None:
        self.reader = reader
        self.head: list[LogEntry] = []
        self._position_before_head: dict[str, Any] = {}
        self._batches: Iterator[list[LogEntry]] = iter(())

    def start(self) -> None:
        self._batches = self.reader.read_new()

    def fill(self) -> bool:
        self._position_before_head = self.reader.position()
        self.head = next(self._batches, [])
        return bool(self.head)

    def has_unread(self) -> bool:
        return True  # Known only after reading.

    def position(self) -> dict[str, Any]:
        return self._position_before_head if self.head else self.reader.position()


def merge(streams: Sequence[_Stream]) -> Iterator[list[LogEntry]]:
    """Yield batches in the order of time from streams in order; at equal times in the order of the streams.

    A batch ends where the first of the heads ends that may continue. A stream is read only if it has a part in the
    batch: thousands of writers, one after the other or small, cost no more than one that wrote as much.
    """
    firsts: list[tuple[int, int]] = []
    """Time of the first entry in each head that is not empty, and the number of its stream; a heap."""
    lasts: list[tuple[int, int]] = []
    """The same of the last entry, of streams that may have more; a heap."""

    def enter(number: int) -> None:
        stream = streams[number]
        if stream.head or stream.fill():
            heappush(firsts, (stream.head[0].timestamp_ns, number))
            if stream.has_unread():
                heappush(lasts, (stream.head[-1].timestamp_ns, number))

    for number in range(len(streams)):
        enter(number)
    while firsts:
        horizon = lasts[0] if lasts and len(firsts) > 1 else _END
        parts: list[tuple[int, list[LogEntry]]] = []
        taken: list[int] = []
        while firsts and firsts[0] <= horizon:
            _, number = heappop(firsts)
            head = streams[number].head
            if (head[-1].timestamp_ns, number) <= horizon:
                parts.append((number, head))
                streams[number].head = []
                taken.append(number)
                continue
            bisect = bisect_right if number <= horizon[1] else bisect_left
            cut = bisect(head, horizon[0], key=_timestamp_ns)
            parts.append((number, head[:cut]))
            streams[number].head = head[cut:]
            heappush(firsts, (head[cut].timestamp_ns, number))
        while lasts and lasts[0] <= horizon:
            heappop(lasts)
        if len(parts) == 1:
            yield parts[0][1]
        else:
            parts.sort(key=itemgetter(0))
            batch = list(chain.from_iterable(map(itemgetter(1), parts)))
            batch.sort(key=_timestamp_ns)
            yield batch
        for number in taken:
            enter(number)


_END = (math.inf, 0)
"""After every entry: a line of a journal may have any integer as its time."""


def in_order(entries: list[LogEntry]) -> list[LogEntry]:
    """Return the entries by time and number. Most often they are sorted; threads may write a few lines out of order."""
    times, numbers = list(map(_timestamp_ns, entries)), list(map(_sequence, entries))
    if times != sorted(times) or numbers != sorted(numbers):
        entries.sort(key=lambda entry: (entry.timestamp_ns, entry.sequence))
    return entries


def _writers_of(position: Mapping[str, Any] | None) -> dict[str, dict[int, int]]:
    """Return the offsets in a saved position; a segment without a valid one is read from the start."""
    writers = position.get("writers") if position is not None else None
    if not isinstance(writers, dict):
        return {}
    return {
        writer: {
            int(number): offset
            for number, offset in offsets.items()
            if number.isdecimal() and isinstance(offset, int) and offset >= 0
        }
        for writer, offsets in writers.items()
        if isinstance(offsets, dict)
    }
