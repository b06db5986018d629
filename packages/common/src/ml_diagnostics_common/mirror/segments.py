"""The content of a mirror's objects: the journal's own lines, gzip.

The first line is the header of the journal's segment. Each further line starts with its newline, as in the journal, in
the journal's order. Nothing is added, so what reads a journal's segment reads an unpacked object.
"""

from __future__ import annotations

import gzip
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence

import msgspec

from ml_diagnostics_common.entry import EntryContext, LogEntry
from ml_diagnostics_common.exceptions import StorageError
from ml_diagnostics_common.journal._layout import SCHEMA, Header, decode_header, is_damaged_header
from ml_diagnostics_common.journal._segment_reader import decode_entries

__all__ = [
    "DamagedObjectError",
    "NewerFormatError",
    "SegmentContent",
    "Stamp",
    "encode_segment",
    "first_time_ns",
    "read_stamps",
    "sequence_numbers",
]

_COMPRESSION = {0: 1, 1: 6}
"""The compression by level: at 0 it costs a job as little as possible, at 1 the objects are smaller."""
_GZIP = 16 + zlib.MAX_WBITS
_PIECE_BYTES = 2**18
_LONGEST_LINE_BYTES = 2**25  # Of entries, a writer copies up to half of that.
_MOST_BYTES = 2**30


class DamagedObjectError(StorageError):
    """An object is not what was written: its checksum or its format is wrong."""


class NewerFormatError(StorageError):
    """An object was written by a newer version of these libraries."""


class _AnyObject(msgspec.Struct, gc=False):
    """A JSON object, whatever is in it: it is checked, and not kept."""


class Stamp(msgspec.Struct, gc=False):
    """The time and the sequence number of a line: all that a mirror needs to know of an entry."""

    timestamp_ns: int = msgspec.field(name="t")
    sequence: int = msgspec.field(name="s")
    payload: _AnyObject = msgspec.field(name="p")


_stamps = msgspec.json.Decoder(Stamp)


def read_stamps(lines: bytes) -> list[Stamp] | None:
    """Return the stamps of whole lines; None if one of the lines is not an entry."""
    try:
        return _stamps.decode_lines(lines)
    except (msgspec.DecodeError, RecursionError, ValueError):
        return None


def sequence_numbers(lines: bytes) -> list[int]:
    """Return the sequence numbers of whole lines, in their order."""
    entries: Sequence[Stamp | LogEntry] | None = read_stamps(lines)
    if entries is None:  # Some lines are entries for a reader, and not for msgspec.
        entries = decode_entries(lines, Counter())
    return [entry.sequence for entry in entries]


def first_time_ns(lines: bytes) -> int | None:
    """Return the time of the first of whole lines that start with a newline, in ns since 1970; None without one."""
    end = lines.find(b"\n", 1)
    line = lines if end < 0 else lines[:end]
    entries: Sequence[Stamp | LogEntry] = read_stamps(line) or decode_entries(line, Counter())
    return entries[0].timestamp_ns if entries else None


def encode_segment(header: bytes, lines: bytes, level: int) -> bytes:
    """Return the content of an object; the same for the same lines, whichever process makes it.

    Args:
        header: The header's line, without a newline.
        lines: The entries' lines, each with its newline in front.
        level: 0 or 1, as in the object's name.
    """
    return gzip.compress(header + lines, _COMPRESSION[level], mtime=0)


class SegmentContent:
    """The content of one object, read in pieces.

    Args:
        data: The object's bytes.
        path: Its path, for errors.
        writer: The writer in its name; empty for any.

    Raises:
        DamagedObjectError: It is not gzip, its checksum or its header is wrong, or that of another writer, or a line is
            longer than that of any entry. Nothing of it may be used.
        NewerFormatError: Its header is of a newer schema than that of this version.
    """

    def __init__(self, data: bytes, path: str, *, writer: str = "") -> None:
        # All of it is unpacked once for its checksum: a wrong bit in the middle may still be valid JSON.
        self.size = _checked_size(data, path)
        """Bytes, unpacked."""
        self._chunks = _unpacked(data)
        self._rest = b""
        self.header_line = self._read_header_line()
        self.header: Header = _decoded_header(self.header_line, path)
        if writer and self.header.writer != writer:
            raise DamagedObjectError(f"{path} is damaged: its header is that of the writer {self.header.writer}")
        self.context = EntryContext(
            log_id=self.header.log_id,
            log_name="",
            resource=self.header.resource,
            labels=self.header.labels,
            severity=self.header.severity,
            writer=self.header.writer,
        )

    def _read_header_line(self) -> bytes:
        data = b""
        for chunk in self._chunks:
            data += chunk
            if b"\n" in data:
                break
        end = data.find(b"\n")
        line, self._rest = (data, b"") if end < 0 else (data[:end], data[end:])
        return line

    def lines(self) -> Iterator[bytes]:
        """Yield the lines that were not yielded before, in pieces of about 256 KiB; each starts with a newline."""
        for chunk in self._chunks:
            data = self._rest + chunk
            end = data.rfind(b"\n")
            if end <= 0:
                self._rest = data
                continue
            self._rest = data[end:]
            yield data[:end]
        rest, self._rest = self._rest, b""
        if rest:
            yield rest

    def entries(self, skipped: Counter[str]) -> Iterator[list[LogEntry]]:
        """Yield the entries that were not yielded before, in batches, in the object's order.

        Args:
            skipped: Counts lines that are not entries, by reason.
        """
        for lines in self.lines():
            entries = decode_entries(lines, skipped)
            for entry in entries:
                entry.context = self.context
            if entries:
                yield entries


def _unpacked(data: bytes) -> Iterator[bytes]:
    """Yield the unpacked bytes in pieces. Members may follow each other, as in any gzip file."""
    while data:
        unpacker = zlib.decompressobj(_GZIP)
        while not unpacker.eof:
            piece = unpacker.decompress(data, _PIECE_BYTES)
            data = unpacker.unconsumed_tail
            if not piece and not unpacker.eof:
                raise zlib.error("the content ends too early")
            if piece:
                yield piece
        data = unpacker.unused_data


def _checked_size(data: bytes, path: str) -> int:
    size = line_start = 0
    try:
        for piece in _unpacked(data):
            newline = piece.rfind(b"\n")
            line_start = size + newline if newline >= 0 else line_start
            size += len(piece)
            if size > _MOST_BYTES:
                raise DamagedObjectError(f"{path} is damaged: it has more than {_MOST_BYTES:,} bytes, unpacked")
            if size - line_start > _LONGEST_LINE_BYTES:
                raise DamagedObjectError(f"{path} is damaged: a line has more than {_LONGEST_LINE_BYTES:,} bytes")
    except zlib.error as error:
        raise DamagedObjectError(f"{path} is damaged: {error}") from error
    if not size:
        raise DamagedObjectError(f"{path} is damaged: it is empty")
    return size


def _decoded_header(line: bytes, path: str) -> Header:
    header = decode_header(line)
    if header is not None:
        return header
    if is_damaged_header(line):
        raise DamagedObjectError(f"{path} is damaged: its first line is not a journal's header")
    raise NewerFormatError(
        f"{path} was written by a newer version of ml-diagnostics-common: its header is not of schema {SCHEMA} or "
        "earlier; upgrade ml-diagnostics-common"
    )
