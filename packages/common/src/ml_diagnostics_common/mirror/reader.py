"""The entries of a log in a mirror, as an `EntryReader`.

An entry is identified by its writer and its sequence number, never by an object's name: objects may overlap, be written
twice, or be replaced by the object of their hour while they are read.
"""

from __future__ import annotations

import datetime
import functools
import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from typing import Any

from ml_diagnostics_common.entry import LogEntry, SeenSequences
from ml_diagnostics_common.exceptions import CredentialsError, StorageError
from ml_diagnostics_common.journal._layout import FIRST_SEQUENCE
from ml_diagnostics_common.mirror._bucket import Bucket
from ml_diagnostics_common.mirror._completeness import MirroredWriter, is_complete, missing
from ml_diagnostics_common.mirror._objects import without
from ml_diagnostics_common.mirror._pace import process_index
from ml_diagnostics_common.mirror._streams import ReadObjects, WriterStream
from ml_diagnostics_common.mirror.names import EndName, SegmentName, day_of, parse_name
from ml_diagnostics_common.reader import Take, merge
from ml_diagnostics_common.storage import Storage
from ml_diagnostics_common.worker import in_parallel

__all__ = ["MirrorReader", "MirroredWriter"]

_FULL_LISTING_SECONDS = 600.0


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
        self._only = writers
        self._full_listing_seconds, self._clock = full_listing_seconds, clock
        self._objects = ReadObjects(
            self._bucket,
            self._paths,
            resource_labels or {},
            *_restored(position),
            functools.partial(self._list, is_full=True),
        )
        self._streams: dict[str, WriterStream] = {}
        for writer, known in _known_writers(position).items():
            self._stream(writer).restore(known)
        self._newest_day = ""
        self._listed_all_at: float | None = None

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
        self._objects.start()
        self._list()
        streams = [stream for stream in self._streams.values() if stream.head or stream.has_unread()]
        streams.sort(key=lambda stream: stream.writer + ".")  # As insertIds sort, which start with it.
        self._objects.cache.share_among(len(streams))
        for stream in streams:
            stream.start(take, len(streams))
        if len(streams) > 1:
            self._objects.cache.fetch(path for stream in streams if (path := stream.next_path()))
        yield from merge(streams)

    def position(self) -> dict[str, Any]:
        """See `EntryReader`."""
        ranges = self._objects.seen.to_json()
        read = set(self._objects.read)
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
        return Counter(self._objects.skipped)

    @property
    def damaged(self) -> list[str]:
        """The paths of objects that are damaged: their entries are missing, unless the journal has them."""
        return self._objects.damaged

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
            if (ranges := self._objects.seen.ranges(stream.writer))
        ]

    def is_complete(self, now_ns: int, *, job: str | None = None) -> bool:
        """Return True if nothing is missing in what was read: no gaps, each writer ended or younger than 5 minutes.

        Args:
            now_ns: The time, in ns since 1970.
            job: Only writers of this job; None for all. False if there are none.
        """
        return is_complete(self._writers_of(job), now_ns)

    def notes(self, now_ns: int, *, job: str | None = None) -> list[str]:
        """Return sentences for the user on what is missing in the mirror, each once.

        Args:
            now_ns: The time, in ns since 1970.
            job: Only writers of this job; None for all.
        """
        damaged = [f"{path} is damaged: its entries are missing, unless the journal has them" for path in self.damaged]
        return [*damaged, *missing(self._writers_of(job), now_ns)]

    def ask_to_hurry(self, now_ns: int, *, job: str | None = None) -> int:
        """Ask a job to write every 30 s for the next five minutes, and not every two or ten minutes.

        Args:
            now_ns: The time, in ns since 1970.
            job: Only writers of this job; None for all.

        Returns:
            The number of writers that were asked, those that run of the first process that records; 0 if this user may
            not create objects.
        """
        data = json.dumps({"at": now_ns}).encode()
        running = [writer for writer in self._writers_of(job) if writer.may_run(now_ns)]
        first = min((process_index(writer.labels) for writer in running), default=0)
        paths = [self._paths.watch(writer.writer) for writer in running if process_index(writer.labels) == first]

        def ask(path: str) -> None:
            self._bucket.storage.write(path, data, content_type="application/json")

        asked = in_parallel(ask, paths)
        for result in asked:
            if isinstance(result, Exception) and not isinstance(result, (StorageError, CredentialsError)):
                raise result
        return sum(not isinstance(result, Exception) for result in asked)  # Readers need no permission to write.

    def _writers_of(self, job: str | None) -> list[MirroredWriter]:
        return [writer for writer in self.writers() if job is None or writer.labels.get("job") == job]

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

    def _stream(self, writer: str) -> WriterStream:
        if writer not in self._streams:
            self._streams[writer] = WriterStream(writer, self._objects)
        return self._streams[writer]


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


def _known_writers(position: Mapping[str, Any] | None) -> dict[str, dict[str, Any]]:
    writers = _part_of(position, "writers")
    if not isinstance(writers, dict):
        return {}
    return {writer: known for writer, known in writers.items() if isinstance(known, dict)}
