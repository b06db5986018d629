"""One writer's part in the mirror: its journal's lines, written as objects, and the note on how far they are."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from ml_diagnostics_common.exceptions import StorageError
from ml_diagnostics_common.guard import Counters, warn_once
from ml_diagnostics_common.journal import JournalPosition, Segment, list_segments
from ml_diagnostics_common.mirror._bucket import Bucket
from ml_diagnostics_common.mirror._journal_lines import JournalLines, Lines, position_behind
from ml_diagnostics_common.mirror._notes import MirrorNote, lock_path, read_note, write_note
from ml_diagnostics_common.mirror._pace import is_of_first_process
from ml_diagnostics_common.mirror.names import EndName, LogPaths, SegmentName, day_of
from ml_diagnostics_common.mirror.segments import SegmentContent, encode_segment, sequence_numbers
from ml_diagnostics_common.shipper._outbox import OutboxLock

__all__ = ["OBJECT_BYTES", "Upload", "WrittenObject"]

OBJECT_BYTES = 4 * 10**6
"""Bytes of lines in an object of level 0, at most."""


class WrittenObject(NamedTuple):
    """An object that was written.

    Attributes:
        name: Its name.
        first_ns: The time of its first entry, in ns since 1970.
        size: The bytes of its lines, unpacked.
        entries: Their number.
    """

    name: SegmentName
    first_ns: int
    size: int
    entries: int


class _Pending(NamedTuple):
    """An object that is to be created, until it is: the name and the content stay the same however often that fails."""

    name: SegmentName
    data: bytes
    lines: Lines


class Upload:
    """Writes what one writer's journal has, and the mirror does not have. Only one process does so for a writer.

    Args:
        bucket: The mirror.
        root: The diagnostics folder.
        folder_name: The name of the log's folder.
        writer: The writer.
        lock: The lock on the writer.
        counters: Counts objects, entries, bytes, and lines that are not entries by reason.
        clock: Return monotonic seconds.
    """

    def __init__(
        self,
        bucket: Bucket,
        root: Path,
        folder_name: str,
        writer: str,
        lock: OutboxLock,
        counters: Counters,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.writer = writer
        self.object_bytes = OBJECT_BYTES
        self.log_folder = root / "journal" / folder_name
        self.paths = LogPaths(bucket.path, folder_name)
        self._bucket, self._root, self._folder_name = bucket, root, folder_name
        self._lock, self._is_held = lock, True
        self._counters = counters
        self._lines = JournalLines(writer, self.log_folder, counters, clock)
        known = read_note(root, folder_name, writer, bucket.path)
        self.is_new = known is None
        self.note = known or MirrorNote(bucket.path)
        self.is_of_first_process = True
        """False if it is of another process of the job than the first, as far as an object showed that."""
        self._pending: _Pending | None = None

    @classmethod
    def claim(cls, bucket: Bucket, root: Path, folder_name: str, writer: str, counters: Counters) -> Upload | None:
        """Return the upload of a writer; None while another process has it. Raises OSError."""
        lock = OutboxLock.take(lock_path(root, folder_name, writer))
        return None if lock is None else cls(bucket, root, folder_name, writer, lock, counters)

    def hold(self) -> bool:
        """Take the lock again after `release`; return False while another process has it. Raises OSError."""
        if not self._is_held:
            lock = OutboxLock.take(lock_path(self._root, self._folder_name, self.writer))
            if lock is None:
                return False
            self._lock, self._is_held = lock, True
            # Another process may have gone on meanwhile, as a push by hand does.
            self.note = read_note(self._root, self._folder_name, self.writer, self._bucket.path) or self.note
            self._pending = None
        return True

    def release(self) -> None:
        """Leave the writer to other processes."""
        self._lock.abandon()
        self._is_held = False

    @property
    def settling(self) -> bool:
        """True if there is more, that can be read a second later."""
        return self._lines.settling

    def segments(self) -> list[Segment]:
        """Return the files of the writer's journal as they are now."""
        return list_segments(self.log_folder, {self.writer})

    def unwritten_bytes(self, segments: Iterable[Segment]) -> int:
        """Return how much of the journal is not in the mirror, in bytes."""
        segment, offset = self.note.position
        sizes = (each.size - (offset if each.number == segment else 0) for each in segments if each.number >= segment)
        return sum(max(0, size) for size in sizes)

    def recover(self, names: Iterable[SegmentName]) -> None:
        """Find how far the objects of an ended writer are, after a crash between an object and its note.

        Args:
            names: The objects of the writer that are in the mirror.

        Raises:
            OSError: The journal cannot be read.
        """
        newest = max(names, key=lambda name: (name.last, -name.level), default=None)
        if newest is None or newest.last <= self.note.last:
            return
        last = self._last_line_of(newest)
        position = None if last is None else position_behind(self.segments(), self.note.position, last)
        if position is not None:
            self.note = self.note._replace(position=position, last=newest.last, day=newest.day)
            self._save()

    def _last_line_of(self, name: SegmentName) -> int | None:
        """Return the sequence number of an object's last line; None if the object cannot be read."""
        path = self.paths.path(name)
        try:
            numbers: list[int] = []
            for lines in SegmentContent(self._bucket.read(path), path, writer=name.writer).lines():
                numbers = sequence_numbers(lines) or numbers
            return numbers[-1] if numbers else None
        except StorageError:
            return None  # What is written again is dropped by readers.

    def write_next(self, segments: Sequence[Segment], *, ended: bool) -> WrittenObject | None:
        """Write the next object, and then the note on it.

        Objects of the same name, which another process wrote, are passed over as far as they reach.

        Args:
            segments: The writer's segments as they are now.
            ended: True if the writer cannot write any more.

        Returns:
            The object; None if the mirror has everything.

        Raises:
            StorageError: The object cannot be created: the next call tries the same one again.
            OSError: The journal cannot be read.
        """
        while (pending := self._pending or self._next(segments, ended=ended)) is not None:
            self._pending = pending
            name, data, lines = pending
            self.is_of_first_process = is_of_first_process(lines.labels)
            self._counters.add("requests")
            is_created = self._bucket.create(self.paths.path(name), data)
            end = lines.end if is_created else self._end_of(name, segments) or lines.end
            self.note = self.note._replace(
                position=end, last=max(self.note.last, name.last), day=name.day, written_ns=time.time_ns()
            )
            self._pending = None
            self._save()
            self._counters.add("objects")
            self._counters.add("mirrored", lines.entries)
            self._counters.add("bytes", len(data))
            if is_created:
                return WrittenObject(name, lines.first_ns, len(lines.text), lines.entries)
            self._counters.add("refused_creates")
        return None

    def _next(self, segments: Sequence[Segment], *, ended: bool) -> _Pending | None:
        """Return the next object; None if the mirror has everything."""
        while True:
            lines = self._lines.next(segments, self.note.position, most_bytes=self.object_bytes, ended=ended)
            if lines is None:
                return None
            if lines.entries:
                name = SegmentName(day_of(lines.first_ns), self.writer, lines.first, lines.last, 0)
                return _Pending(name, encode_segment(lines.header, lines.text, 0), lines)
            self.note = self.note._replace(position=lines.end)  # Nothing but damaged lines.

    def _end_of(self, name: SegmentName, segments: Sequence[Segment]) -> JournalPosition | None:
        """Return the position behind an object that another process wrote.

        It may have fewer lines than ours of the same range: a late line between them may have come meanwhile.
        """
        last = self._last_line_of(name)
        return None if last is None else position_behind(segments, self.note.position, last)

    def note_rolled_up(self) -> None:
        """Note that an ended writer has no small objects left that this user can roll up."""
        self.note = self.note._replace(is_rolled_up=True)
        self._save()

    def write_end(self, by: str) -> None:
        """Write that the writer has ended, and that all of it is in the mirror.

        Args:
            by: The process that found so: self, next, companion or command.

        Raises:
            StorageError: The object cannot be created.
        """
        if self.note.has_ended:
            return
        if self.note.day:  # Else it has written nothing.
            end = json.dumps({"last": self.note.last, "by": by}).encode()
            self._bucket.create(
                self.paths.path(EndName(self.note.day, self.writer)), end, content_type="application/json"
            )
        self.note = self.note._replace(has_ended=True)
        self._save()

    def save_start(self) -> None:
        """Note that the writer is to be mirrored: a later process writes what this one does not."""
        if self.is_new:
            self.is_new = False
            self._save()

    def _save(self) -> None:
        try:
            write_note(self._root, self._folder_name, self.writer, self.note)
        except OSError as error:
            self._counters.add("note_not_saved")
            warn_once(
                ("mirror", "note_not_saved"),
                "How far the mirror is cannot be saved below %s: %s. The job and its mirror go on; after a crash, a "
                "later process lists the objects to find it. Free space, or set ML_DIAGNOSTICS_DIR to another folder.",
                self._root / "state" / "mirror",
                error,
            )
