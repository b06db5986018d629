"""The entries of one writer that are not in Cloud Logging yet: read in batches, and acknowledged when they are sent."""

from __future__ import annotations

import enum
import errno
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from ml_diagnostics_common.entry import LogEntry
from ml_diagnostics_common.files import open_lock_file, read_at, try_lock, write_state
from ml_diagnostics_common.guard import Counters, warn_once
from ml_diagnostics_common.journal._layout import (
    Header,
    JournalPosition,
    Segment,
    decode_header,
    first_line,
    is_damaged_header,
    opened_segment,
    shipped_offset_path,
    shipped_position,
    sibling_header,
)
from ml_diagnostics_common.journal._own_journals import host_name, is_writer_of_this_process
from ml_diagnostics_common.processes import process_started_ns

__all__ = ["Batch", "Outbox", "OutboxLock", "Owner", "WriterName", "owner"]

_SETTLING_SECONDS = 1.0
_NOTHING_CAN_BE_MADE = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
_decode_line = msgspec.json.Decoder(LogEntry).decode


class Batch(NamedTuple):
    """Consecutive entries of a journal.

    Attributes:
        entries: The entries; none if there is only text to skip.
        line_bytes: The length of each entry's line.
        end: The position behind them.
        header: The header of their segment.
    """

    entries: list[LogEntry]
    line_bytes: list[int]
    end: JournalPosition
    header: Header


class OutboxLock:
    """Keep two processes from shipping one writer: flock, which the kernel releases whatever ends the process.

    A forked child must `abandon` what it inherited: the lock belongs to both until both have closed it.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    @classmethod
    def take(cls, path: Path) -> OutboxLock | None:
        """Return the lock, or None while another process has it.

        If there can be no lock file, as on Windows, or on a disk that is full or read-only, return a lock without one:
        two processes may then send the same entries, which have the same insertIds.

        Raises:
            OSError: The lock file cannot be opened.
        """
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = open_lock_file(path)
        except OSError as error:
            if error.errno not in _NOTHING_CAN_BE_MADE:
                raise
            return cls(-1)
        try:
            is_ours = try_lock(descriptor)
        except OSError:  # No locks here: as on Windows.
            is_ours = True
        if is_ours:
            return cls(descriptor)
        os.close(descriptor)
        return None

    def abandon(self) -> None:
        """Close the lock file; the lock is free once no process has it open."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class Outbox:
    """The unsent entries of one writer, in the order of its files.

    Args:
        root: The diagnostics folder.
        log_id: The log's id.
        writer: The writer.
        skipped: Counts lines that are not entries, by reason.
        clock: Monotonic seconds.
        chunk_bytes: How much is read at first; more if that is less than one line.
        longest_line_bytes: A line that is longer is skipped, so that a read needs a bounded amount of memory.
    """

    def __init__(
        self,
        root: Path,
        log_id: str,
        writer: str,
        skipped: Counters,
        clock: Callable[[], float] = time.monotonic,
        *,
        chunk_bytes: int = 256 * 1024,
        longest_line_bytes: int = 16 * 2**20,
    ) -> None:
        self.writer = writer
        self.settling = False
        """True if there is more, in a segment that is too new to be read: see `next_batch`."""
        self._skipped = skipped
        self._clock = clock
        self._chunk_bytes, self._longest_line_bytes = chunk_bytes, longest_line_bytes
        self._state_path = shipped_offset_path(root, log_id, writer)
        self._position = shipped_position(root, log_id, writer)
        self._header: tuple[int, Header] | None = None
        self._header_bytes = 0
        self._rotated_at: tuple[int, float] = (-1, 0.0)
        self._pending: Batch | None = None

    @property
    def position(self) -> JournalPosition:
        """The position of the first unsent byte."""
        return self._position

    def next_batch(
        self, segments: Sequence[Segment], *, most_entries: int, most_bytes: int, ended: bool
    ) -> Batch | None:
        """Return the same batch until `acknowledge`.

        The newest segment is read one second after it was first seen, because a thread may still be writing a
        line to the one before it.

        Args:
            segments: The writer's segments as they are now, by number.
            most_entries: Entries at most.
            most_bytes: Bytes to send at most, about; but always one entry.
            ended: True if the writer cannot write any more.

        Returns:
            The batch; None if there is nothing to send now.
        """
        self.settling = False
        if self._pending is None:
            self._pending = self._find_batch(segments, most_entries, most_bytes, ended)
        return self._pending

    def _find_batch(self, segments: Sequence[Segment], most_entries: int, most_bytes: int, ended: bool) -> Batch | None:
        for segment in segments:
            if segment.number < self._position.segment:
                continue
            is_newest = segment.number == segments[-1].number
            if segment.number > self._position.segment and is_newest and not (ended or self._has_settled(segment)):
                self.settling = True
                return None
            complete = ended or not is_newest
            try:
                batch = self._read(segment, most_entries, most_bytes, complete)
            except FileNotFoundError:  # Dropped by the journal's cap since it was listed.
                continue
            if batch is not None:
                return batch
        return None

    def acknowledge(self, batch: Batch) -> None:
        """Move behind a batch, on disk first: after a crash the next process starts here or earlier, never later.

        If the position cannot be saved, this process moves on nevertheless: it would send one batch for ever.
        """
        try:
            write_state(self._state_path, {"segment": batch.end.segment, "offset": batch.end.offset})
        except OSError as error:
            self._skipped.add("offset_not_saved")
            warn_once(
                ("shipper", "offset_not_saved"),
                "The position up to which entries are sent to Cloud Logging cannot be saved in %s: %s. The job goes "
                "on, and so does sending; a later process may send entries again, and Cloud Logging drops duplicates. "
                "Free space, or set ML_DIAGNOSTICS_DIR to another folder.",
                self._state_path,
                error,
            )
        self._position = batch.end
        self._pending = None

    def read_again(self) -> None:
        """Drop the batch that `next_batch` returned: the next one may contain newer entries."""
        self._pending = None

    def _has_settled(self, segment: Segment) -> bool:
        number, seen_at = self._rotated_at
        if number != segment.number:
            self._rotated_at = (segment.number, self._clock())
            return False
        return self._clock() - seen_at >= _SETTLING_SECONDS

    def _read(self, segment: Segment, most_entries: int, most_bytes: int, complete: bool) -> Batch | None:
        offset = self._position.offset if segment.number == self._position.segment else 0
        if offset == segment.size:
            return None
        with opened_segment(segment.path) as descriptor:
            if offset > segment.size:
                if os.fstat(descriptor).st_size >= offset:
                    return None  # It grew since it was listed, and was sent.
                self._skipped.add("truncated_segment")  # As logrotate does. Duplicates have the same insertIds.
                self._position = JournalPosition(segment.number, offset := 0)
            line, is_end = first_line(descriptor)
            header = self._header_of(segment, line, is_whole=not is_end)
            if header is None:
                if not complete:
                    return None  # Just created; or of a later version, with shippers that will ship it.
                self._skipped.add("unreadable_segment")
            if header is None or not header.ship:
                end = JournalPosition(segment.number, os.fstat(descriptor).st_size)
                return Batch([], [], end, header or _NO_HEADER)
            start = JournalPosition(segment.number, offset or len(line))
            batch = self._read_lines(descriptor, start, header, most_entries, most_bytes, complete)
            return batch if batch.end.offset > offset else None

    def _header_of(self, segment: Segment, line: bytes, *, is_whole: bool) -> Header | None:
        if self._header is None or self._header[0] != segment.number:
            header = decode_header(line)
            if header is None and is_whole and is_damaged_header(line):
                # Not one made from the path: only a header shows whether, and where, the entries may be sent.
                header = sibling_header(segment)
            if header is None:
                return None
            self._header, self._header_bytes = (segment.number, header), len(line)
        return self._header[1]

    def _read_lines(
        self,
        descriptor: int,
        start: JournalPosition,
        header: Header,
        most_entries: int,
        most_bytes: int,
        complete: bool,
    ) -> Batch:
        """Return whole lines, if there are any. Each has its newline in front; the last is whole if it parses."""
        data, at_end = self._read_chunk(descriptor, start.offset)
        may_be_cut = not (complete and at_end) and len(data) < self._longest_line_bytes
        entries: list[LogEntry] = []
        lengths: list[int] = []
        lines = data.split(b"\n")
        position = end = start.offset
        total = 0
        for index, line in enumerate(lines):
            entry = _entry(line)
            if entry is None and index == len(lines) - 1 and may_be_cut:
                break  # The rest of it is not written yet, or is in the next chunk.
            if entry is not None:
                # Each entry is sent with the fields of the header.
                weight = len(line) + self._header_bytes
                if entries and (len(entries) == most_entries or total + weight > most_bytes):
                    break
                entries.append(entry)
                lengths.append(len(line))
                total += weight
            elif line:
                self._skipped.add("damaged_line")
            end = position + len(line)
            position = end + 1
        return Batch(entries, lengths, JournalPosition(start.segment, end), header)

    def _read_chunk(self, descriptor: int, offset: int) -> tuple[bytes, bool]:
        """Return at least one whole line from `offset`, if there is one; and True if that is the end of the file."""
        size = self._chunk_bytes
        while True:
            data = read_at(descriptor, size, offset)
            if len(data) < size:
                return data, True
            if b"\n" in data[1:] or size >= self._longest_line_bytes:
                return data, False
            size *= 4


_NO_HEADER = Header(log_id="", writer="", ship=False)


def _entry(line: bytes) -> LogEntry | None:
    try:
        return _decode_line(line) if line else None
    except (msgspec.DecodeError, RecursionError):
        return None


_SLACK_NS = 2_000_000_000


class Owner(enum.Enum):
    """The process that a writer belongs to."""

    US = "this process"
    ALIVE = "another process of this host, which is running"
    GONE = "a process of this host that has ended"
    UNKNOWN = "a process of another host"


class WriterName(NamedTuple):
    """The parts of a writer's name."""

    host: str
    pid: int
    started_ns: int

    @classmethod
    def parse(cls, writer: str) -> WriterName | None:
        """Parse `host-pid-start-n`; return None for anything else."""
        parts = writer.rsplit("-", 3)
        if len(parts) != 4 or not all(part.isdecimal() for part in parts[1:]):
            return None
        return cls(parts[0], int(parts[1]), int(parts[2]))


def owner(writer: str) -> Owner:
    """Return the owner of a writer. A reused pid (in a container, always) is recognized by its start.

    Our own writers are known by name: their start, by the wall clock, changes when the clock is set.
    """
    if is_writer_of_this_process(writer):
        return Owner.US
    name = WriterName.parse(writer)
    if name is None or name.host != host_name():
        return Owner.UNKNOWN
    started_ns = process_started_ns(name.pid)
    if started_ns is None or name.started_ns < started_ns - _SLACK_NS:
        return Owner.GONE
    # With our pid, but not ours: of another container, or the clock was set back since.
    return Owner.UNKNOWN if name.pid == os.getpid() else Owner.ALIVE
