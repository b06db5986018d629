"""How far each writer of a journal is in a mirror, as the notes beside the journal have it: without any request."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from ml_diagnostics_common.journal import Header, JournalPosition, Segment, list_segments, read_header
from ml_diagnostics_common.mirror._bucket import mirror_path
from ml_diagnostics_common.mirror._notes import MirrorNote, journal_folders, read_note
from ml_diagnostics_common.mirror.names import shown_log_id
from ml_diagnostics_common.shipper._outbox import Owner, owner

__all__ = ["WriterStatus", "status"]


class WriterStatus(NamedTuple):
    """How far a writer's journal is in the mirror, as this machine knows it: without any request.

    Attributes:
        log: The log's name.
        writer: The writer.
        labels: The labels of its entries.
        is_running: True if its process runs, or may run on another host.
        last: The greatest sequence number in the mirror; 0 if nothing is.
        written_ns: When the last object was written, in ns since 1970; 0 if nothing was.
        behind_bytes: The bytes of its journal that the mirror lacks.
        has_ended: True if the mirror has all of it, and its end.
    """

    log: str
    writer: str
    labels: Mapping[str, str]
    is_running: bool
    last: int
    written_ns: int
    behind_bytes: int
    has_ended: bool


def status(root: Path, mirror: str) -> list[WriterStatus]:
    """Return how far each writer of a journal is in a mirror, by log and writer.

    Args:
        root: The diagnostics folder.
        mirror: `gs://bucket/prefix`, or a local folder.

    Raises:
        ConfigurationError: The mirror is neither in a bucket nor a local folder.
    """
    path = mirror_path(mirror)
    found = []
    for folder in journal_folders(root):
        by_writer: dict[str, list[Segment]] = {}
        for segment in list_segments(folder):
            by_writer.setdefault(segment.writer, []).append(segment)
        for writer, segments in by_writer.items():
            header = _header(segments)
            if header is not None and not header.mirror:
                continue  # It stays on this machine.
            note = read_note(root, folder.name, writer, path) or MirrorNote(path)
            found.append(
                WriterStatus(
                    shown_log_id(folder.name) if header is None else header.log_id,
                    writer,
                    {} if header is None else header.labels,
                    owner(writer) is not Owner.GONE and not note.has_ended,
                    note.last,
                    note.written_ns,
                    _behind_bytes(segments, note.position),
                    note.has_ended,
                )
            )
    return found


def _behind_bytes(segments: list[Segment], position: JournalPosition) -> int:
    later = [segment for segment in segments if segment.number >= position.segment]
    return sum(segment.size - (position.offset if segment.number == position.segment else 0) for segment in later)


def _header(segments: list[Segment]) -> Header | None:
    for segment in segments:
        try:
            header = read_header(segment)
        except OSError:
            continue
        if header is not None:
            return header
    return None
