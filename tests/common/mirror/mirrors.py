"""Common parts of the tests of the mirror: stores, objects made by hand, and what a mirror holds."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from ml_diagnostics_common.entry import LogEntry
from ml_diagnostics_common.files import read_at
from ml_diagnostics_common.journal import list_segments, log_directory
from ml_diagnostics_common.journal._layout import opened_segment
from ml_diagnostics_common.mirror._bucket import Bucket
from ml_diagnostics_common.mirror._round import MirrorRound
from ml_diagnostics_common.mirror.names import EndName, LogPaths, SegmentName, day_of, parse_name
from ml_diagnostics_common.mirror.reader import MirrorReader
from ml_diagnostics_common.mirror.segments import SegmentContent, encode_segment, read_stamps

from ..journals import LOG

__all__ = [
    "ends",
    "flat",
    "identities",
    "journal_lines",
    "mirror_by_hand",
    "objects",
    "put",
    "raw_identities",
    "read_mirror",
    "write",
]


def flat(batches: Iterator[list[LogEntry]]) -> list[LogEntry]:
    return [entry for batch in batches for entry in batch]


def journal_lines(root: Path, log_id: str = LOG) -> dict[str, tuple[bytes, list[bytes]]]:
    """Return the header and the lines of each writer in a journal, in its order."""
    found: dict[str, tuple[bytes, list[bytes]]] = {}
    for segment in list_segments(log_directory(root, log_id)):
        with opened_segment(segment.path) as descriptor:
            header, *lines = read_at(descriptor, 2**30, 0).split(b"\n")
        _, known = found.setdefault(segment.writer, (header, []))
        known += lines
    return found


def put(mirror: str, writer: str, header: bytes, lines: list[bytes], *, level: int = 0, log_id: str = LOG) -> str:
    """Create the object of some lines; return its path."""
    text = b"".join(b"\n" + line for line in lines)
    stamps = read_stamps(text)
    assert stamps
    numbers = [stamp.sequence for stamp in stamps]
    name = SegmentName(day_of(stamps[0].timestamp_ns), writer, min(numbers), max(numbers), level)
    path = LogPaths.of(mirror, log_id).path(name)
    Bucket(mirror).create(path, encode_segment(header, text, level))
    return path


def mirror_by_hand(
    root: Path, mirror: str, lines_each: Iterable[int] = (10,), *, level: int = 0, log_id: str = LOG
) -> list[str]:
    """Create a mirror of a journal, without the code that does so in a job; return the paths of its objects."""
    sizes = itertools.cycle(lines_each)
    paths = []
    for writer, (header, lines) in journal_lines(root, log_id).items():
        start = 0
        while start < len(lines):
            end = start + next(sizes)
            paths.append(put(mirror, writer, header, lines[start:end], level=level, log_id=log_id))
            start = end
    return paths


def read_mirror(mirror: str, log_id: str = LOG, **options: Any) -> list[LogEntry]:
    return flat(MirrorReader(log_id, mirror=mirror, **options).read_new())


def identities(entries: Iterable[LogEntry]) -> list[tuple[int, str]]:
    return [(entry.timestamp_ns, entry.insert_id) for entry in entries]


def objects(mirror: str, log_id: str = LOG) -> list[SegmentName]:
    """Return the names of the objects with entries."""
    bucket = Bucket(mirror)
    names = map(parse_name, bucket.list_paths(LogPaths.of(bucket.path, log_id).folder))
    return [name for name in names if isinstance(name, SegmentName)]


def raw_identities(mirror: str, log_id: str = LOG) -> list[str]:
    """Return the insertId of each line of each object, also of those that are there twice."""
    bucket = Bucket(mirror)
    found = []
    for name in objects(mirror, log_id):
        path = LogPaths.of(bucket.path, log_id).path(name)
        for lines in SegmentContent(bucket.read(path), path).lines():
            found += [f"{name.writer}.{stamp.sequence}" for stamp in read_stamps(lines) or []]
    return found


def write(round_: MirrorRound, *, is_last: bool = False) -> bool:
    return round_.write_own(deadline=lambda: 1e18, is_last=is_last)


def ends(mirror: str) -> dict[str, Any]:
    bucket = Bucket(mirror)
    paths = bucket.list_paths(LogPaths.of(bucket.path, LOG).folder)
    return {
        name.writer: json.loads(bucket.read(path)) for path in paths if isinstance(name := parse_name(path), EndName)
    }
