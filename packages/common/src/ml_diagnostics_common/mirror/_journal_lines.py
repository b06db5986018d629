"""The lines of one writer's journal from a position on, as they are in its files."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, TypeAlias

from ml_diagnostics_common.entry import LogEntry
from ml_diagnostics_common.files import read_at
from ml_diagnostics_common.guard import Counters
from ml_diagnostics_common.journal import JournalPosition, Segment
from ml_diagnostics_common.journal._layout import (
    decode_header,
    encode_header,
    first_line,
    is_damaged_header,
    opened_segment,
    sibling_header,
)
from ml_diagnostics_common.journal._segment_reader import decode_entries
from ml_diagnostics_common.mirror.names import day_of
from ml_diagnostics_common.mirror.segments import Stamp, read_stamps

__all__ = ["JournalLines", "Lines", "position_behind"]

_PIECE_BYTES = 2**18
_LONGEST_LINE_BYTES = 16 * 2**20
_SETTLING_SECONDS = 1.0
_GREATEST_SEQUENCE = 10**12 - 1  # Names of objects have twelve digits.


_Stamp: TypeAlias = Stamp | LogEntry


class Lines(NamedTuple):
    """Consecutive lines of a writer that belong into one object.

    Attributes:
        header: The header's line of their segment, without a newline.
        text: The lines, each with its newline in front.
        entries: How many they are; 0 if there is only text to pass over.
        first: The least sequence number.
        last: The greatest.
        first_ns: The time of the first line, in ns since 1970.
        end: The position behind them.
        labels: The labels in the header.
    """

    header: bytes
    text: bytes
    entries: int
    first: int
    last: int
    first_ns: int
    end: JournalPosition
    labels: Mapping[str, str]


class JournalLines:
    """Reads the lines of one writer that are behind a position.

    Args:
        writer: The writer.
        log_folder: The log's folder in the journal.
        skipped: Counts lines that are not entries, by reason.
        clock: Return monotonic seconds.
    """

    def __init__(
        self, writer: str, log_folder: Path, skipped: Counters, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.settling = False
        """True if there is more, in a segment that is too new: a thread may still write to the one before."""
        self._writer = writer
        self._log_folder = log_folder
        self._skipped = skipped
        self._clock = clock
        self._rotated_at: tuple[int, float] = (-1, 0.0)

    def next(
        self, segments: Sequence[Segment], position: JournalPosition, *, most_bytes: int, ended: bool
    ) -> Lines | None:
        """Return the lines behind a position: of one segment, and of one day as far as they are in order.

        Args:
            segments: The writer's segments as they are now, by number.
            position: The position.
            most_bytes: Bytes at most, about; but always one line.
            ended: True if the writer cannot write any more.

        Returns:
            The lines; None if there is nothing new.

        Raises:
            OSError: A segment cannot be read.
        """
        self.settling = False
        for segment in segments:
            if segment.number < position.segment:
                continue
            is_newest = segment.number == segments[-1].number
            if segment.number > position.segment and is_newest and not (ended or self._has_settled(segment)):
                self.settling = True
                return None
            start = position if segment.number == position.segment else JournalPosition(segment.number, 0)
            if segment.size == start.offset:
                continue
            try:
                lines = self._read(segment, start, most_bytes, complete=ended or not is_newest)
            except FileNotFoundError:  # Dropped by the journal's cap since it was listed.
                continue
            if lines is not None:
                return lines
        return None

    def _has_settled(self, segment: Segment) -> bool:
        number, seen_at = self._rotated_at
        if number != segment.number:
            self._rotated_at = (segment.number, self._clock())
            return False
        return self._clock() - seen_at >= _SETTLING_SECONDS

    def _read(self, segment: Segment, start: JournalPosition, most_bytes: int, *, complete: bool) -> Lines | None:
        with opened_segment(segment.path) as descriptor:
            size = os.fstat(descriptor).st_size
            offset = start.offset
            if offset > size:
                self._skipped.add("truncated_segment")  # As logrotate does. Readers drop an entry that they meet twice.
                offset = 0
            if offset == size:
                return None
            line, is_end = first_line(descriptor)
            header, header_bytes = decode_header(line), len(line)
            if header is None and (not is_end or complete) and is_damaged_header(line):
                # Not one made from the path: only a header shows whether the entries may leave this machine.
                header = sibling_header(segment)
                line = line if header is None else encode_header(header)
            if header is None:
                if not complete and is_end:
                    return None  # It is being written.
                self._skipped.add("unreadable_segment")
            if header is None or not header.mirror:
                return Lines(b"", b"", 0, 0, 0, 0, JournalPosition(segment.number, size), {})
            reading = _Reading(descriptor, max(offset, header_bytes), self._skipped)
            reading.read(most_bytes, size, complete=complete)
            if reading.offset == offset:
                return None
            return reading.lines(line, header.labels, segment.number)


class _Reading:
    """The lines of one object, collected in pieces, so that other threads run in between."""

    def __init__(self, descriptor: int, offset: int, skipped: Counters) -> None:
        self.offset = offset
        self._descriptor = descriptor
        self._skipped = skipped
        self._pieces: list[bytes] = []
        self._bytes = self._count = 0
        self._first, self._last = _GREATEST_SEQUENCE, -1
        self._first_ns: int | None = None
        self._day = ""

    def read(self, most_bytes: int, file_size: int, *, complete: bool) -> None:
        """Read until there is enough, the file or the day ends, or a line is not whole.

        Args:
            most_bytes: Bytes at most, about.
            file_size: The size of the file; what is appended meanwhile is for the next object.
            complete: True if the last line is not being written.
        """
        while self._bytes < most_bytes and self.offset < file_size:
            size = min(_PIECE_BYTES, most_bytes, file_size - self.offset + 1)
            data, at_end = _whole_lines(self._descriptor, self.offset, size)
            if not data or not self._add(data, at_end=at_end, complete=complete) or at_end:
                return

    def lines(self, header: bytes, labels: Mapping[str, str], segment: int) -> Lines:
        """Return what was read."""
        end = JournalPosition(segment, self.offset)
        first = self._first if self._count else 0
        text, first_ns = b"".join(self._pieces), self._first_ns or 0
        return Lines(header, text, self._count, first, max(0, self._last), first_ns, end, labels)

    def _add(self, data: bytes, *, at_end: bool, complete: bool) -> bool:
        """Add lines; return False if the object ends with them."""
        stamps = read_stamps(data)
        if stamps:
            times = [stamp.timestamp_ns for stamp in stamps]
            numbers = [stamp.sequence for stamp in stamps]
            first, last, day = min(numbers), max(numbers), self._day or day_of(times[0])
            if first >= 0 and last <= _GREATEST_SEQUENCE and day_of(min(times)) == day == day_of(max(times)):
                self._keep(data, len(data), len(times), first, last, times[0])
                return True
        return self._add_each(data, at_end=at_end, complete=complete)

    def _add_each(self, data: bytes, *, at_end: bool, complete: bool) -> bool:
        """Add the whole lines; those behind the last one of the object's day belong to another object."""
        found: list[tuple[bytes, _Stamp, int]] = []
        damaged: list[int] = []
        end = 0
        lines = data.split(b"\n")
        for number, line in enumerate(lines):
            end += len(line) + (number > 0)
            if not line:
                continue
            stamp = _stamp(line.rstrip(b"\0"))
            if stamp is not None:
                found.append((b"\n" + line.rstrip(b"\0"), stamp, end))
            elif at_end and number == len(lines) - 1 and not complete:
                end -= len(line) + 1  # The rest of it is not written yet.
            else:
                damaged.append(end)
        day = self._day or (day_of(found[0][1].timestamp_ns) if found else "")
        of_day = [index for index, (_, stamp, _) in enumerate(found) if day_of(stamp.timestamp_ns) == day]
        kept = found[: of_day[-1] + 1] if of_day else []
        is_all = len(kept) == len(found)
        consumed = end if is_all else kept[-1][2] if kept else 0
        self._skipped.add("damaged_line", sum(each <= consumed for each in damaged))
        if not kept:
            self.offset += consumed
            self._bytes += consumed
            return is_all
        numbers = [stamp.sequence for _, stamp, _ in kept]
        text = b"".join(line for line, _, _ in kept)
        self._keep(text, consumed, len(kept), min(numbers), max(numbers), kept[0][1].timestamp_ns)
        return is_all

    def _keep(self, text: bytes, consumed: int, count: int, first: int, last: int, first_ns: int) -> None:
        """Add lines to the object: their number, their least and greatest sequence number, the time of the first."""
        self.offset += consumed
        self._bytes += consumed
        self._pieces.append(text)
        self._count += count
        self._first, self._last = min(self._first, first), max(self._last, last)
        if self._first_ns is None:
            self._first_ns, self._day = first_ns, day_of(first_ns)


def _whole_lines(descriptor: int, offset: int, size: int) -> tuple[bytes, bool]:
    """Return lines from an offset, which starts with a newline, and True if they reach the end of the file.

    There, the last line may not be whole. A line without end is returned in part, and is then counted as damaged.
    """
    while True:
        data = read_at(descriptor, size, offset)
        if len(data) < size:
            return data, True
        end = data.rfind(b"\n")
        if end > 0:
            return data[:end], False
        if size >= _LONGEST_LINE_BYTES:
            return data, False
        size *= 4


def _stamp(line: bytes) -> _Stamp | None:
    """Return the stamp of a line; None if it is not an entry, or has a number that no object's name can have."""
    # Some lines are entries for a reader, and not for msgspec.
    stamps: Sequence[_Stamp] = read_stamps(line) or decode_entries(line, Counter())
    return stamps[0] if len(stamps) == 1 and 0 <= stamps[0].sequence <= _GREATEST_SEQUENCE else None


def position_behind(segments: Sequence[Segment], start: JournalPosition, sequence: int) -> JournalPosition | None:
    """Return the position behind the line with a sequence number; None if it is not behind `start`.

    Raises:
        OSError: A segment cannot be read.
    """
    for segment in segments:
        if segment.number < start.segment:
            continue
        offset = start.offset if segment.number == start.segment else 0
        with opened_segment(segment.path) as descriptor:
            offset = max(offset, len(first_line(descriptor)[0]))
            while True:
                data, at_end = _whole_lines(descriptor, offset, _PIECE_BYTES)
                stamps = read_stamps(data)
                if stamps is None or any(stamp.sequence == sequence for stamp in stamps):
                    end = 0
                    for number, line in enumerate(data.split(b"\n")):
                        end += len(line) + (number > 0)
                        stamp = _stamp(line.rstrip(b"\0")) if line else None
                        if stamp is not None and stamp.sequence == sequence:
                            return JournalPosition(segment.number, offset + end)
                offset += len(data)
                if at_end or not data:
                    break
    return None
