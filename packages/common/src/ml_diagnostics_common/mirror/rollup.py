"""The roll-up: the objects of an hour of one writer are written as one, and then deleted.

A job of a million entries has 11,000 objects of 30 s, or 93 of an hour: a reader makes one request for each. The object
of the hour is read back before the others are deleted, so that a killed process loses nothing; what it leaves, the next
roll-up of the writer deletes. A reader in the middle of it drops an entry that it meets twice by its sequence number.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from ml_diagnostics_common.exceptions import ObjectNotFoundError
from ml_diagnostics_common.mirror._bucket import Bucket
from ml_diagnostics_common.mirror.names import LogPaths, SegmentName
from ml_diagnostics_common.mirror.segments import (
    DamagedObjectError,
    SegmentContent,
    encode_segment,
    first_time_ns,
    sequence_numbers,
)

__all__ = ["NS_PER_HOUR", "ROLLED_UP_BYTES", "delete_covered", "roll_up", "roll_up_ended"]

NS_PER_HOUR = 3_600 * 10**9
ROLLED_UP_BYTES = 16 * 2**20
"""Bytes of lines in an object of level 1, at most: it is made in a training process."""
_MOST_THREADS = 4


class _Part(NamedTuple):
    """The content of an object of level 0."""

    name: SegmentName
    header: bytes
    text: bytes
    hour: int


def roll_up(bucket: Bucket, paths: LogPaths, names: Sequence[SegmentName]) -> SegmentName | None:
    """Replace objects of level 0 by one of level 1.

    Args:
        bucket: The mirror.
        paths: The paths of the log.
        names: Objects of one writer, in the order of its journal.

    Returns:
        The name of the object of level 1; None if there is nothing to do, or an object is damaged, has vanished or has
        another header: then nothing is deleted.

    Raises:
        StorageError: The mirror does not permit it, or failed.
    """
    parts = list(_parts(bucket, paths, names))
    is_whole = len(parts) > 1 and len(parts) == len(names) and len({part.header for part in parts}) == 1
    return _replace(bucket, paths, parts) if is_whole else None


def roll_up_ended(bucket: Bucket, paths: LogPaths, names: Iterable[SegmentName]) -> int:
    """Roll up what an ended writer has left at level 0, hour by hour.

    Args:
        bucket: The mirror.
        paths: The paths of the log.
        names: All objects of the writer.

    Returns:
        The number of objects of level 1 that were written.

    Raises:
        StorageError: The mirror does not permit it, or failed.
    """
    names = list(names)
    delete_covered(bucket, paths, names)
    covering = [name for name in names if name.level > 0]
    small = [name for name in names if name.level == 0 and not any(each.covers(name) for each in covering)]
    small.sort(key=lambda name: (name.day, name.first, name.last))
    written = 0
    for parts in _groups(_parts(bucket, paths, small)):
        written += len(parts) > 1 and _replace(bucket, paths, parts) is not None
    return written


def delete_covered(bucket: Bucket, paths: LogPaths, names: Iterable[SegmentName]) -> int:
    """Delete objects of level 0 with entries that one of level 1 has, which a killed process left; return how many.

    Raises:
        StorageError: The mirror does not permit it, or failed.
    """
    names = list(names)
    deleted = 0
    for large in [name for name in names if name.level > 0]:
        covered = [name for name in names if name.level == 0 and large.covers(name)]
        if not covered:
            continue
        content = _read(bucket, paths, large)
        numbers = set() if content is None else _numbers(content.lines())
        for name in covered:
            part = _read(bucket, paths, name)
            if part is not None and _numbers(part.lines()) <= numbers:
                bucket.delete(paths.path(name))
                deleted += 1
    return deleted


def _replace(bucket: Bucket, paths: LogPaths, parts: Sequence[_Part]) -> SegmentName | None:
    names = [part.name for part in parts]
    first, last = min(name.first for name in names), max(name.last for name in names)
    large = SegmentName(names[0].day, names[0].writer, first, last, 1)
    data = encode_segment(parts[0].header, b"".join(part.text for part in parts), 1)
    path = paths.path(large)
    is_ours = bucket.create(path, data)
    # Read back: what is deleted now must be in it, whichever process wrote it.
    if bucket.read(path) != data and (is_ours or not _has_all(bucket, paths, large, parts)):
        return None
    for name in names:
        bucket.delete(paths.path(name))
    return large


def _has_all(bucket: Bucket, paths: LogPaths, large: SegmentName, parts: Sequence[_Part]) -> bool:
    content = _read(bucket, paths, large)
    if content is None:
        return False
    return _numbers(part.text for part in parts) <= _numbers(content.lines())


def _numbers(pieces: Iterable[bytes]) -> set[int]:
    return {number for lines in pieces for number in sequence_numbers(lines)}


def _read(bucket: Bucket, paths: LogPaths, name: SegmentName) -> SegmentContent | None:
    """Return the content of an object; None if it is damaged, or not there any more."""
    path = paths.path(name)
    try:
        return SegmentContent(bucket.read(path), path, writer=name.writer)
    except (DamagedObjectError, ObjectNotFoundError):
        return None


def _parts(bucket: Bucket, paths: LogPaths, names: Sequence[SegmentName]) -> Iterator[_Part]:
    """Yield the contents of objects; those that are damaged or have vanished are left out."""
    for start in range(0, len(names), 4 * _MOST_THREADS):
        some = names[start : start + 4 * _MOST_THREADS]
        for name, data in zip(some, bucket.read_each([paths.path(name) for name in some], _MOST_THREADS), strict=True):
            if isinstance(data, ObjectNotFoundError):
                continue
            if isinstance(data, Exception):
                raise data
            try:
                content = SegmentContent(data, paths.path(name), writer=name.writer)
            except DamagedObjectError:
                continue
            text = b"".join(content.lines())
            first_ns = first_time_ns(text)  # Not of each line: a trainer's interpreter would wait for 4 MB of them.
            if first_ns is not None:
                yield _Part(name, content.header_line, text, first_ns // NS_PER_HOUR)


def _groups(parts: Iterable[_Part]) -> Iterator[list[_Part]]:
    """Yield the parts of each hour, and of a day and a header, up to a size."""
    group: list[_Part] = []
    size = 0
    for part in parts:
        is_other = bool(group) and (
            part.hour != group[0].hour or part.name.day != group[0].name.day or part.header != group[0].header
        )
        if is_other or size + len(part.text) > ROLLED_UP_BYTES:
            yield group
            group, size = [], 0
        group.append(part)
        size += len(part.text)
    yield group
