"""Reading entries: all writers of a log, in the order of time, each entry once, at the cost of what is new."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from heapq import heappop, heappush
from itertools import chain
from operator import attrgetter, itemgetter
from pathlib import Path
from typing import Any, Protocol

from ml_diagnostics_common.entry import LogEntry, SeenSequences
from ml_diagnostics_common.journal.layout import (
    Segment,
    list_segments,
    log_directory,
    read_state,
    reader_position_path,
    write_state,
)
from ml_diagnostics_common.journal.segment_reader import SegmentReader

__all__ = ["EntryReader", "JournalReader", "UnionReader", "count_unreadable", "note_of_unreadable"]

_CHUNK_BYTES = 2**18  # Twice as fast as 1 MiB: the allocator reuses memory of this size.
_SMALLEST_CHUNK_BYTES = 2**14
_ALL_CHUNKS_BYTES = 16 * 2**20  # Of all writers together; in memory an entry takes about five times its line.

_timestamp_ns = attrgetter("timestamp_ns")


class EntryReader(Protocol):
    """Returns the entries of a log, each once."""

    def read_new(self) -> Iterator[list[LogEntry]]:
        """Batches of the entries that are there now and were not returned before, merged by (timestamp, insertId).

        An entry that arrives late comes with the next call, whatever its timestamp.
        """
        ...

    def position(self) -> dict[str, Any]:
        """What was returned so far, as JSON: another reader of the same log goes on from it.

        Exact when `read_new` was read to its end; in the middle of it a few entries may come again.
        """
        ...

    @property
    def skipped(self) -> Mapping[str, int]:
        """What was there and is no entry, counted by reason."""
        ...


def count_unreadable(skipped: Mapping[str, int]) -> int:
    """Return how many entries a reader could not decode.

    Args:
        skipped: Of the reader: it holds entries of other jobs too.
    """
    return sum(skipped.get(reason, 0) for reason in _UNREADABLE_REASONS)


def note_of_unreadable(count: int) -> str:
    """Return the sentence that a command prints if a number of entries could not be decoded."""
    return f"{count:,} {'entry' if count == 1 else 'entries'} could not be read"


_UNREADABLE_REASONS = ("torn", "foreign", "endless_line", "undecodable_entry")


class JournalReader:
    """Reads a log's journal: every writer's segments, from where it stopped.

    Several readers and writers may be at it at once; a folder that is not there yet, segments that were dropped,
    torn and foreign lines are passed over, and counted.
    """

    def __init__(
        self,
        log_id: str,
        *,
        root: Path,
        position: Mapping[str, Any] | None = None,
        resource_labels: Mapping[str, str] | None = None,
    ) -> None:
        """Reads nothing yet.

        Args:
            log_id: the log's name.
            root: the diagnostics folder.
            position: of an earlier reader; None for the beginning.
            resource_labels: reads only writers whose header has these labels of the monitored resource: of the others
                no more than that is read.
        """
        self._log_id = log_id
        self._root = root
        self._folder = log_directory(root, log_id)
        self._skipped: Counter[str] = Counter()
        self._resource_labels = resource_labels
        self._writers: dict[str, _WriterStream] = {}
        for writer, offsets in _writers_of(position).items():
            self._writers[writer] = _WriterStream(log_id, writer, self._skipped, offsets, resource_labels)

    def read_new(self) -> Iterator[list[LogEntry]]:
        """See `EntryReader`."""
        by_writer: dict[str, list[Segment]] = {}
        for segment in list_segments(self._folder):
            by_writer.setdefault(segment.writer, []).append(segment)
        for writer, segments in by_writer.items():
            if writer not in self._writers:
                self._writers[writer] = _WriterStream(self._log_id, writer, self._skipped, {}, self._resource_labels)
            self._writers[writer].update(segments)
        for writer in self._writers.keys() - by_writer.keys():
            self._writers[writer].update([])
        streams = [stream for stream in self._writers.values() if stream.has_more()]
        streams.sort(key=lambda stream: stream.writer + ".")  # As the insertIds sort, which begin so.
        for stream in streams:
            stream.chunk_bytes = min(_CHUNK_BYTES, max(_SMALLEST_CHUNK_BYTES, _ALL_CHUNKS_BYTES // len(streams)))
        yield from _merge(streams)

    def position(self) -> dict[str, Any]:
        """See `EntryReader`."""
        return {"writers": {name: stream.offsets() for name, stream in self._writers.items() if stream.segments}}

    def save_position(self, name: str, *, job: str | None = None) -> None:
        """Saves the position for `load_position`: also the promise that what was read is not needed again.

        Where no cloud has it, the journal's cap drops only what all saved positions that speak for it have passed.

        Args:
            name: Of the reader.
            job: The promise is for entries of this job alone; None is for all of the log.
        """
        write_state(reader_position_path(self._root, self._log_id, name), {**self.position(), "job": job})

    @staticmethod
    def load_position(name: str, log_id: str, *, root: Path) -> dict[str, Any] | None:
        """What `save_position` saved under that name, or None."""
        return read_state(reader_position_path(root, log_id, name))

    @property
    def skipped(self) -> Mapping[str, int]:
        """See `EntryReader`; a part of a line at the end of a file counts as torn for as long as it stays so."""
        torn_ends = sum(stream.torn_ends() for stream in self._writers.values())
        return self._skipped + Counter(torn=torn_ends)


class _Stream(Protocol):
    """A source of entries in order; `head` holds those that were read and not returned."""

    head: list[LogEntry]

    def fill(self) -> bool:
        """Reads on into an empty head; False when nothing more is there now."""
        ...

    def has_unread(self) -> bool:
        """Return False if `fill` would certainly find nothing now."""
        ...


class _WriterStream:
    """One writer's entries, over its segments."""

    def __init__(
        self,
        log_id: str,
        writer: str,
        skipped: Counter[str],
        offsets: Mapping[int, int],
        resource_labels: Mapping[str, str] | None = None,
    ) -> None:
        self.writer = writer
        self._log_id = log_id
        self.head: list[LogEntry] = []
        self.chunk_bytes = _CHUNK_BYTES
        self.segments: dict[int, SegmentReader] = {
            number: SegmentReader(Segment(writer, number, "", offset), skipped, offset, resource_labels, log_id)
            for number, offset in offsets.items()
        }
        self._head_segment = 0
        self._head_offset = 0
        self._skipped = skipped
        self._resource_labels = resource_labels

    def update(self, segments: Sequence[Segment]) -> None:
        """Takes over what is on disk now. A finished segment may still grow by a line: a thread was in the middle."""
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
                    self.head = _in_order(entries)
                    return True
        return False

    def offsets(self) -> dict[str, int]:
        """Per segment, how far its entries were returned."""
        offsets = {str(number): reader.offset for number, reader in self.segments.items()}
        if self.head:
            offsets[str(self._head_segment)] = self._head_offset
        return offsets

    def torn_ends(self) -> int:
        return sum(reader.ends_torn for reader in self.segments.values())


class UnionReader:
    """The union of several readers of one log: what is in the journal and in the cloud comes once."""

    def __init__(self, readers: Sequence[EntryReader], *, position: Mapping[str, Any] | None = None) -> None:
        """Reads nothing yet.

        Args:
            readers: each already at its own position.
            position: of an earlier union; its `readers` are what these were given.
        """
        self._streams = [_ReaderStream(reader) for reader in readers]
        self._seen = SeenSequences.from_json((position or {}).get("seen", {}))

    def read_new(self) -> Iterator[list[LogEntry]]:
        """See `EntryReader`."""
        for stream in self._streams:
            stream.begin()
        for batch in _merge(self._streams):
            new = [entry for entry in batch if self._is_new(entry)]
            if new:
                yield new

    def _is_new(self, entry: LogEntry) -> bool:
        # Entries of other writers are in one place only.
        writer = entry.context.writer
        return writer is None or self._seen.add(writer, entry.sequence)

    def position(self) -> dict[str, Any]:
        """See `EntryReader`."""
        return {"readers": [stream.position() for stream in self._streams], "seen": self._seen.to_json()}

    @property
    def skipped(self) -> Mapping[str, int]:
        """See `EntryReader`."""
        total: Counter[str] = Counter()
        for stream in self._streams:
            total.update(stream.reader.skipped)
        return total


class _ReaderStream:
    """One reader's entries. Its head outlives a call that ended early: the reader will not give them again."""

    def __init__(self, reader: EntryReader) -> None:
        self.reader = reader
        self.head: list[LogEntry] = []
        self._position_before_head: dict[str, Any] = {}
        self._batches: Iterator[list[LogEntry]] = iter(())

    def begin(self) -> None:
        self._batches = self.reader.read_new()

    def fill(self) -> bool:
        self._position_before_head = self.reader.position()
        self.head = next(self._batches, [])
        return bool(self.head)

    def has_unread(self) -> bool:
        return True  # It is known once it was read.

    def position(self) -> dict[str, Any]:
        return self._position_before_head if self.head else self.reader.position()


def _merge(streams: Sequence[_Stream]) -> Iterator[list[LogEntry]]:
    """Yield batches in the order of time from streams in order; between equal times the order of the streams.

    A batch ends where the first of the heads ends that may go on. A stream is looked at only if it has a part in the
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


_END = (2**63, 0)
"""After every entry."""


def _in_order(entries: list[LogEntry]) -> list[LogEntry]:
    """The entries by time; most often they are so already, and threads put a few lines out of order."""
    times = list(map(_timestamp_ns, entries))
    if times != sorted(times):
        entries.sort(key=lambda entry: (entry.timestamp_ns, entry.sequence))
    return entries


def _writers_of(position: Mapping[str, Any] | None) -> dict[str, dict[int, int]]:
    """The offsets in a saved position; whatever in it is not one is read from the beginning."""
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
