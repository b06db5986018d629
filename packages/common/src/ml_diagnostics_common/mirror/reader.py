"""The entries of a log in a mirror, as an `EntryReader`.

An entry is identified by its writer and its sequence number, never by an object's name: objects may overlap, be written
twice, or be replaced by the object of their hour while they are read.
"""

from __future__ import annotations

import datetime
import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from typing import Any, NamedTuple

from ml_diagnostics_common.entry import LogEntry, SeenSequences
from ml_diagnostics_common.exceptions import ObjectNotFoundError, StorageError
from ml_diagnostics_common.guard import warn_once
from ml_diagnostics_common.journal._layout import FIRST_SEQUENCE
from ml_diagnostics_common.mirror._bucket import Bucket
from ml_diagnostics_common.mirror._objects import ObjectCache, UnreadObjects, without
from ml_diagnostics_common.mirror.names import EndName, SegmentName, day_of, parse_name
from ml_diagnostics_common.mirror.segments import DamagedObjectError, SegmentContent
from ml_diagnostics_common.reader import Take, in_order, merge
from ml_diagnostics_common.storage import Storage

__all__ = ["MirrorReader", "MirroredWriter"]

_FULL_LISTING_SECONDS = 600.0
_FRESH_NS = 300 * 10**9
_LIVE_NS = 3_600 * 10**9
# Entries of one writer that are put in order together: those of many small objects, as a journal's are in one chunk.
_BATCH, _LEAST_BATCH, _ALL_BATCHES = 2_000, 100, 130_000


class MirroredWriter(NamedTuple):
    """One writer, as far as a reader has read it.

    Attributes:
        writer: Its name.
        labels: The labels of its entries.
        first: The least sequence number that was read.
        last: The greatest.
        last_ns: The greatest time of its entries, in ns since 1970.
        has_ended: True if it has ended, and all of its entries are in the mirror.
        gaps: The (first, last) sequence numbers that are missing, from its first entry on: entries that were dropped
            because the disk was full, or that are not in the mirror.
    """

    writer: str
    labels: Mapping[str, str]
    first: int
    last: int
    last_ns: int
    has_ended: bool
    gaps: list[tuple[int, int]]


class MirrorReader:
    """Read a log's entries from a mirror: an `EntryReader`, as `JournalReader` is.

    New entries of any age are found at the latest after `full_listing_seconds`: before that, only the days from the one
    before the newest on are listed.
    """

    def __init__(
        self,
        log_id: str,
        *,
        mirror: str,
        position: Mapping[str, Any] | None = None,
        resource_labels: Mapping[str, Set[str]] | None = None,
        writers: Set[str] | None = None,
        full_listing_seconds: float = _FULL_LISTING_SECONDS,
        storage: Storage | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Create a reader that has read nothing, and made no request.

        Args:
            log_id: The log's name.
            mirror: `gs://bucket/prefix`, or a local folder.
            position: The position of an earlier reader; None for the start.
            resource_labels: Reads only writers with one of the values of each of these labels in their monitored
                resource.
            writers: Reads only these; None for all.
            full_listing_seconds: How often objects of all days are listed; 0 for each time.
            storage: The storage; None for that of the path.
            clock: Return monotonic seconds.

        Raises:
            ConfigurationError: The mirror is neither in a bucket nor a local folder.
        """
        self._bucket = Bucket(mirror, storage=storage)
        self._paths = self._bucket.log(log_id)
        self._log_id = log_id
        self._resource_labels = resource_labels or {}
        self._only = writers
        self._full_listing_seconds, self._clock = full_listing_seconds, clock
        self._skipped: Counter[str] = Counter()
        self.damaged: list[str] = []
        """The paths of objects that are damaged: their entries are missing, unless the journal has them."""
        self._cache = ObjectCache(self._bucket)
        self._seen, self._read = _restored(position)
        self._streams: dict[str, _WriterStream] = {}
        for writer, known in _writers_of(position).items():
            self._stream(writer).restore(known)
        self._newest_day = ""
        self._listed_all_at: float | None = None
        self._vanished: set[str] = set()

    def read_new(self, take: Take | None = None) -> Iterator[list[LogEntry]]:
        """See `EntryReader`.

        Args:
            take: See `JournalReader.read_new`.

        Raises:
            ObjectNotFoundError: An object is listed and does not exist, twice.
            NewerFormatError: The mirror was written by a newer version.
            StorageError: The mirror cannot be listed or read. A later call goes on where this one stopped.
            CredentialsError: The credentials were not accepted.
            MissingExtraError: A `gs://` path needs the extra `gcs`.
        """
        self._vanished.clear()
        self._list()
        streams = [stream for stream in self._streams.values() if stream.head or stream.has_unread()]
        streams.sort(key=lambda stream: stream.writer + ".")  # As insertIds sort, which start with it.
        self._cache.share_among(len(streams))
        for stream in streams:
            stream.take, stream.batch_entries = take, max(_LEAST_BATCH, min(_BATCH, _ALL_BATCHES // len(streams)))
        if len(streams) > 1:
            self._cache.fetch(path for stream in streams if (path := stream.next_path()))
        yield from merge(streams)

    def position(self) -> dict[str, Any]:
        """See `EntryReader`."""
        ranges = self._seen.to_json()
        read = set(self._read)
        for stream in self._streams.values():
            if stream.head:  # Read, and not yielded.
                numbers = [entry.sequence for entry in stream.head]
                ranges[stream.writer] = without(ranges.get(stream.writer, []), numbers)
                read -= stream.read_for_head
        writers = {stream.writer: stream.to_json() for stream in self._streams.values() if stream.last_ns is not None}
        return {"mirror": {"seen": ranges, "read": sorted(read), "writers": writers}}

    @property
    def skipped(self) -> Mapping[str, int]:
        """Counts by reason of what was read and not yielded: lines (torn, foreign), and damaged_object."""
        return Counter(self._skipped)

    def writers(self) -> list[MirroredWriter]:
        """Return the writers of which something was read, by name."""
        return [
            MirroredWriter(
                stream.writer,
                stream.labels,
                ranges[0][0],
                ranges[-1][1],
                stream.last_ns or 0,
                stream.has_ended,
                _gaps(ranges),
            )
            for stream in sorted(self._streams.values(), key=lambda stream: stream.writer)
            if (ranges := self._seen.ranges(stream.writer))
        ]

    def is_complete(self, now_ns: int, *, job: str | None = None) -> bool:
        """Return True if nothing is missing in what was read: no gaps, each writer ended or younger than 5 minutes.

        Args:
            now_ns: The time, in ns since 1970.
            job: Only writers of this job; None for all. False if there are none.
        """
        writers = [writer for writer in self.writers() if job is None or writer.labels.get("job") == job]
        return bool(writers) and not any(
            writer.gaps or not (writer.has_ended or now_ns - writer.last_ns < _FRESH_NS) for writer in writers
        )

    def notes(self, now_ns: int, *, job: str | None = None) -> list[str]:
        """Return sentences for the user on what is missing in the mirror, each once.

        Args:
            now_ns: The time, in ns since 1970.
            job: Only writers of this job; None for all.
        """
        notes = [f"{path} is damaged: its entries are missing, unless the journal has them" for path in self.damaged]
        for writer in self.writers():
            if job is not None and writer.labels.get("job") != job:
                continue
            for first, last in writer.gaps:
                notes.append(f"entries {first} to {last} of writer {writer.writer} are not in the mirror")
            if not writer.has_ended and now_ns - writer.last_ns >= _FRESH_NS:
                notes.append(f"no end from writer {writer.writer}: its last entries may be missing")
        return notes

    def ask_to_hurry(self, now_ns: int) -> int:
        """Ask the writers that run to write every 30 s for the next five minutes, and not every two minutes.

        Args:
            now_ns: The time, in ns since 1970.

        Returns:
            The number of writers that were asked; 0 if this user may not create objects.
        """
        asked = 0
        for writer in self.writers():
            if writer.has_ended or now_ns - writer.last_ns > _LIVE_NS:
                continue
            path = self._paths.watch(writer.writer)
            try:
                self._bucket.storage.write(path, json.dumps({"at": now_ns}).encode(), content_type="application/json")
            except StorageError:
                return asked  # Readers need no permission to write.
            asked += 1
        return asked

    # --- Objects --------------------------------------------------------------------------------------

    def _list(self, *, is_full: bool = False) -> None:
        """List objects, and hand them to the streams of their writers."""
        now = self._clock()
        is_full = (
            is_full
            or self._listed_all_at is None
            or now - self._listed_all_at >= self._full_listing_seconds
            or any(stream.has_unread() for stream in self._streams.values())  # Of an earlier list, perhaps of old days.
        )
        if self._listed_all_at is None:
            self._bucket.check_layout()
        prefix = f"{self._paths.folder}day="
        after = "" if is_full else self._paths.day(_day_before(min(self._newest_day, day_of(time.time_ns()))))
        names = [name for path in self._bucket.list_paths(prefix, after=after) if (name := parse_name(path))]
        if is_full:
            self._listed_all_at = now
        by_writer: dict[str, list[SegmentName]] = {}
        for name in names:
            if self._only is not None and name.writer not in self._only:
                continue
            self._newest_day = max(self._newest_day, name.day)
            if isinstance(name, EndName):
                self._stream(name.writer).has_ended = True
            else:
                by_writer.setdefault(name.writer, []).append(name)
        for writer in by_writer.keys() | (self._streams.keys() if is_full else set()):
            self._stream(writer).unread.update(by_writer.get(writer, []))

    def _stream(self, writer: str) -> _WriterStream:
        if writer not in self._streams:
            self._streams[writer] = _WriterStream(writer, self)
        return self._streams[writer]

    def is_read(self, name: SegmentName) -> bool:
        """Return True if an object has nothing that was not read."""
        return self._seen.covers(name.writer, name.first, name.last) or str(name) in self._read

    def open(self, name: SegmentName, ahead: list[SegmentName]) -> SegmentContent | None:
        """Return an object's content; None if it is damaged, or not there any more.

        Args:
            name: The object.
            ahead: Objects that will be opened next.
        """
        path = self._paths.path(name)
        try:
            data = self._cache.read(path, [self._paths.path(each) for each in ahead])
        except ObjectNotFoundError:
            if path in self._vanished:
                raise
            # Rolled up since it was listed: the object of its hour has its entries.
            self._vanished.add(path)
            self._list(is_full=True)
            return None
        try:
            return SegmentContent(data, path)
        except DamagedObjectError as error:
            self._read.add(str(name))
            self._skipped["damaged_object"] += 1
            self.damaged.append(path)
            warn_once(
                ("damaged object", path),
                "%s. Its entries are missing, unless the journal has them.",
                error,
            )
            return None

    def finished(self, name: SegmentName) -> None:
        """Note that all of an object was read."""
        if not self._seen.covers(name.writer, name.first, name.last):
            self._read.add(str(name))

    def new_entries(self, writer: str, entries: list[LogEntry]) -> list[LogEntry]:
        """Return those entries of a writer that were not read before, and note that they are read."""
        first, last = entries[0].sequence, entries[-1].sequence
        numbers = [entry.sequence for entry in entries]
        ranges = self._seen.ranges(writer)
        is_run = numbers == list(range(first, first + len(numbers)))
        if is_run and (not ranges or first > ranges[-1][1]):
            self._seen.add_range(writer, first, last)
            return entries
        return [entry for entry in entries if self._seen.add(writer, entry.sequence)]

    def is_wanted(self, content: SegmentContent) -> bool:
        """Return True if an object's resource has the labels that are read."""
        labels = content.header.resource.get("labels")
        has = labels if isinstance(labels, dict) else {}
        return all(has.get(name) in values for name, values in self._resource_labels.items())

    def new_path(self, name: SegmentName) -> str:
        """Return the path of an object."""
        return self._paths.path(name)

    @property
    def window(self) -> int:
        """The number of objects that a stream reads at once."""
        return self._cache.window

    @property
    def skipped_lines(self) -> Counter[str]:
        """The counter of lines that are not entries."""
        return self._skipped


class _WriterStream:
    """One writer's entries in the order of its objects."""

    def __init__(self, writer: str, reader: MirrorReader) -> None:
        self.writer = writer
        self.head: list[LogEntry] = []
        self.take: Take | None = None
        self.labels: Mapping[str, str] = {}
        self.last_ns: int | None = None
        self.has_ended = False
        self.unread = UnreadObjects(reader.is_read)
        self.batch_entries = _BATCH
        self.read_for_head: set[str] = set()
        """Objects that were read to their ends for the head: what is in the head was not yielded yet."""
        self._reader = reader
        self._name: SegmentName | None = None
        self._entries: Iterator[list[LogEntry]] = iter(())

    def restore(self, known: Mapping[str, Any]) -> None:
        """Set what an earlier reader knew."""
        labels = known.get("labels")
        self.labels = {str(key): str(value) for key, value in labels.items()} if isinstance(labels, dict) else {}
        self.last_ns = known["last_ns"] if isinstance(known.get("last_ns"), int) else None
        self.has_ended = known.get("has_ended") is True

    def to_json(self) -> dict[str, Any]:
        return {"labels": dict(self.labels), "last_ns": self.last_ns, "has_ended": self.has_ended}

    def has_unread(self) -> bool:
        return self._name is not None or bool(self.unread)

    def next_path(self) -> str:
        """Return the path of the object that is opened next; empty if there is none, or one is open."""
        if self._name is not None:
            return ""
        return next((self._reader.new_path(name) for name in self.unread.ahead(1)), "")

    def fill(self) -> bool:
        self.read_for_head = set()
        while found := self._next_batch():
            ordered = in_order(found)
            self.last_ns = max(self.last_ns or 0, ordered[-1].timestamp_ns)
            self.head = ordered if self.take is None else self.take(ordered)
            if self.head:
                return True
        return False

    def _next_batch(self) -> list[LogEntry]:
        """Return new entries of one or several objects; none if there are no more."""
        found: list[LogEntry] = []
        try:
            while len(found) < self.batch_entries and (self._name is not None or self._open_next()):
                entries = next(self._entries, None)
                if entries is None:
                    self._close()
                else:
                    found += self._reader.new_entries(self.writer, entries)
        except Exception:
            if not found:
                raise
            # They are read, so they must be yielded first; the next call meets the same error.
        return found

    def _open_next(self) -> bool:
        while name := self.unread.pop():
            try:
                content = self._reader.open(name, self.unread.ahead(self._reader.window - 1))
            except BaseException:
                self.unread.push_back(name)
                raise
            if content is None:
                continue
            self.labels = content.header.labels
            self._name = name
            is_wanted = self._reader.is_wanted(content)
            self._entries = content.entries(self._reader.skipped_lines) if is_wanted else iter(())
            return True
        return False

    def _close(self) -> None:
        name, self._name = self._name, None
        assert name is not None
        self._reader.finished(name)
        self.read_for_head.add(str(name))


def _gaps(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the (first, last) numbers that are missing, from the first that a journal gives on."""
    ends = [FIRST_SEQUENCE - 1, *(last for _, last in ranges)]
    return [(end + 1, first - 1) for end, (first, _) in zip(ends, ranges, strict=False) if end + 1 < first]


def _day_before(day: str) -> str:
    """Return the day before another; what takes over an ended writer may write objects of its last day."""
    try:
        return (datetime.date.fromisoformat(day) - datetime.timedelta(days=1)).isoformat()
    except (ValueError, OverflowError):
        return ""


def _part_of(position: Mapping[str, Any] | None, key: str) -> Any:
    mirror = position.get("mirror") if position is not None else None
    return mirror.get(key) if isinstance(mirror, dict) else None


def _restored(position: Mapping[str, Any] | None) -> tuple[SeenSequences, set[str]]:
    """Return the entries and the objects in a saved position; a damaged one is the start."""
    try:
        seen = SeenSequences.from_json(_part_of(position, "seen") or {})
        read: Iterable[Any] = _part_of(position, "read") or []
        return seen, {name for name in read if isinstance(name, str)}
    except (AttributeError, TypeError, ValueError):
        return SeenSequences(), set()


def _writers_of(position: Mapping[str, Any] | None) -> dict[str, dict[str, Any]]:
    writers = _part_of(position, "writers")
    if not isinstance(writers, dict):
        return {}
    return {writer: known for writer, known in writers.items() if isinstance(known, dict)}
