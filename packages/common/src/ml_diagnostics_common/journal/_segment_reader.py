"""Reading one segment of a journal, from a byte offset, while it may still be written."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Mapping, Set
from typing import Any

import msgspec

from ml_diagnostics_common.entry import EntryContext, LogEntry
from ml_diagnostics_common.files import read_at
from ml_diagnostics_common.guard import warn_once
from ml_diagnostics_common.journal._layout import (
    SCHEMA,
    Header,
    Segment,
    decode_header,
    first_bytes,
    is_damaged_header,
    opened_segment,
    sibling_header,
    split_first_line,
)

__all__ = ["SegmentReader", "decode_entries"]

_LONGEST_LINE_BYTES = 16 * 2**20
_SKIP_BYTES = 2**20
_decoder = msgspec.json.Decoder(LogEntry)
_UNREADABLE = (msgspec.DecodeError, RecursionError, ValueError)


class SegmentReader:
    """A cursor in one segment: `read` returns what follows `offset`, and moves it on.

    Args:
        segment: The segment.
        skipped: Counts the lines that are not entries: torn, foreign.
        offset: In bytes, where an earlier reader stopped; 0 for the start.
        log_id: The log, if the header does not name it.
        resource_labels: A segment is skipped if its header has none of the values of one of these labels.
    """

    def __init__(
        self,
        segment: Segment,
        skipped: Counter[str],
        offset: int = 0,
        resource_labels: Mapping[str, Set[str]] | None = None,
        log_id: str = "",
    ) -> None:
        self._log_id = log_id
        self.segment = segment
        self.offset = offset
        self.ends_torn = False
        """True if a part of a line follows `offset`: of an unfinished write, or of a writer that was killed."""
        self._context: EntryContext | None = None
        self._skipped = skipped
        self._size_at_end = -1  # The file's size when all of it had been read.
        self._size_not_cut = -1  # The listed size that is less than `offset` because the file grew since.
        self._last_sequence = -1
        self._returned_until = -1  # Lines of a truncated file up to this sequence number were returned before.
        self._is_passed_over = False
        self._resource_labels = resource_labels or {}

    def has_more(self) -> bool:
        """Return True if the segment, as it was listed, may hold bytes that were never read."""
        size = self.segment.size
        return (size > self.offset and size != self._size_at_end) or (size < self.offset and size != self._size_not_cut)

    def read(self, limit_bytes: int) -> list[LogEntry]:
        """Return the next entries, from about `limit_bytes` bytes; empty until a whole entry is written.

        Raises:
            OSError: the file cannot be read; `offset` stands where it stood.
        """
        if self._is_passed_over:
            self._size_at_end = self.segment.size
            return []
        with opened_segment(self.segment.path) as descriptor:
            if self.segment.size < self.offset and not self._starts_over(descriptor):
                return []
            if self._context is None:
                data, is_whole = first_bytes(descriptor)
                if not self._read_header(*split_first_line(data, is_whole)):
                    return []
                if is_whole and len(data) - self.offset < limit_bytes:  # A small file is read once.
                    return self._entries_of(data[self.offset :], is_end=True)
            return self._read_lines(descriptor, limit_bytes)

    def _starts_over(self, descriptor: int) -> bool:
        """Go back to the start of a file that was truncated, such as by logrotate."""
        self._size_not_cut = self.segment.size
        if os.fstat(descriptor).st_size >= self.offset:
            return False
        self._skipped["truncated_segment"] += 1
        self._context = None
        self.offset, self._size_at_end, self._returned_until = 0, -1, self._last_sequence
        return True

    def _read_header(self, line: bytes, is_end: bool) -> bool:
        header = decode_header(line)
        if header is None and not is_end and is_damaged_header(line):
            header = self._recovered_header()
        if header is not None and not self._is_wanted(header):
            self._is_passed_over = True
            self._size_at_end = self.segment.size
            return False
        if header is not None:
            self.offset = max(self.offset, len(line))
            self._context = EntryContext(
                log_id=header.log_id,
                log_name="",
                resource=header.resource,
                labels=header.labels,
                severity=header.severity,
                writer=header.writer,
            )
            return True
        self._size_at_end = self.segment.size
        if not is_end:  # A whole line, and not a header of ours: otherwise the header may still follow.
            self._is_passed_over = True
            self._skipped["foreign_segment"] += 1
            warn_once(
                ("foreign segment", self.segment.path),
                "%s is skipped: its first line is not a journal's header of schema %d or earlier.",
                self.segment.path,
                SCHEMA,
            )
        return False

    def _recovered_header(self) -> Header:
        """Return a header in place of a damaged one: of the writer's other segments, or made from the path."""
        header = sibling_header(self.segment)
        self._skipped["damaged_header"] += 1
        warn_once(
            ("damaged header", self.segment.path),
            "The header of %s is damaged. Its entries are read%s.",
            self.segment.path,
            "" if header else "; their labels are lost",
        )
        return header or Header(self._log_id, self.segment.writer)

    def _is_wanted(self, header: Header) -> bool:
        labels = header.resource.get("labels")
        has = labels if isinstance(labels, dict) else {}
        return all(has.get(name) in values for name, values in self._resource_labels.items())

    def _read_lines(self, descriptor: int, limit_bytes: int) -> list[LogEntry]:
        data, is_end = _read_whole_lines(descriptor, self.offset, limit_bytes)
        if data is None:
            self.ends_torn = False
            return self._skip_endless_line(descriptor)
        return self._entries_of(data, is_end=is_end)

    def _entries_of(self, data: bytes, *, is_end: bool) -> list[LogEntry]:
        self.ends_torn = False
        try:
            entries = _decoder.decode_lines(data)
            consumed = len(data)
        except _UNREADABLE:
            entries, consumed = self._decode_one_by_one(data, is_end)
        self.offset += consumed
        if is_end:
            self._size_at_end = self.offset + len(data) - consumed
        return self._in_context(entries)

    def _in_context(self, entries: list[LogEntry]) -> list[LogEntry]:
        context = self._context
        assert context is not None
        for entry in entries:
            entry.context = context
        if self._returned_until >= 0:
            entries = [entry for entry in entries if entry.sequence > self._returned_until]
        if entries:
            self._last_sequence = entries[-1].sequence
        return entries

    def _skip_endless_line(self, descriptor: int) -> list[LogEntry]:
        """Skip to the next line, or to the end, in bounded memory; return the entry that is followed by NULs."""
        entry = _decode_line(read_at(descriptor, _LONGEST_LINE_BYTES, self.offset).strip(b"\n\0"))
        self._skipped["endless_line"] += 1
        self.offset += 1
        while data := read_at(descriptor, _SKIP_BYTES, self.offset):
            end = data.find(b"\n")
            self.offset += len(data) if end < 0 else end
            if end >= 0:
                break
        return self._in_context([entry]) if isinstance(entry, LogEntry) else []

    def _decode_one_by_one(self, data: bytes, is_end: bool) -> tuple[list[LogEntry], int]:
        """Return the entries among the lines, and the bytes read: not a last line that may be unfinished."""
        entries = []
        lines = data.split(b"\n")
        for number, line in enumerate(lines, 1):
            if not line:
                continue
            # NULs stand where the system did not get to write before the power was cut, or has not yet.
            entry = _decode_line(line.rstrip(b"\0"))
            if isinstance(entry, LogEntry):
                entries.append(entry)
            elif is_end and number == len(lines) and entry == "torn":
                self.ends_torn = True
                return entries, max(0, len(data) - len(line) - 1)
            else:
                self._skipped[entry] += 1
        return entries, len(data.rstrip(b"\0") if is_end else data)


def decode_entries(lines: bytes, skipped: Counter[str]) -> list[LogEntry]:
    """Return the entries of whole lines, without their context.

    Args:
        lines: The lines.
        skipped: Counts the lines that are not entries: torn, foreign.
    """
    try:
        return _decoder.decode_lines(lines)
    except _UNREADABLE:
        pass
    entries = []
    for line in lines.split(b"\n"):
        entry = _decode_line(line.rstrip(b"\0")) if line else None
        if isinstance(entry, LogEntry):
            entries.append(entry)
        elif entry is not None:
            skipped[entry] += 1
    return entries


def _decode_line(line: bytes) -> LogEntry | str:
    """Return the entry, or the reason why there is none."""
    try:
        return _decoder.decode(line)
    except _UNREADABLE:
        pass
    try:  # The standard library reads some JSON that msgspec does not: integers of a thousand digits.
        decoded: Any = json.loads(line)
    except (ValueError, RecursionError):
        return "torn"
    if isinstance(decoded, dict):
        timestamp_ns, sequence, payload = decoded.get("t"), decoded.get("s"), decoded.get("p")
        severity = decoded.get("severity")
        if type(timestamp_ns) is int and type(sequence) is int and isinstance(payload, dict):
            labels = decoded.get("r")
            return LogEntry(
                timestamp_ns,
                sequence,
                payload,
                own_severity=str(severity) if severity else None,
                own_resource_labels={str(name): str(label) for name, label in labels.items()}
                if isinstance(labels, dict)
                else None,
            )
    return "foreign"


def _read_whole_lines(descriptor: int, offset: int, limit_bytes: int) -> tuple[bytes | None, bool]:
    """Return lines from `offset`, which starts with a newline: about `limit_bytes`, and at least one line.

    Returns:
        The bytes, None for a line without end; and whether they reach the end of the file: then the last line may be
        incomplete.
    """
    size = limit_bytes
    while True:
        data = read_at(descriptor, size, offset)
        if len(data) < size:
            return data, True
        last = data.rfind(b"\n")
        if last > 0:
            return data[:last], False
        if size >= _LONGEST_LINE_BYTES:
            return None, False
        size *= 2
