"""The contents of a mirror, by the names of its objects: logs, their jobs and writers. Entries are not read."""

from __future__ import annotations

from typing import NamedTuple

from ml_diagnostics_common.entry import SeenSequences
from ml_diagnostics_common.exceptions import StorageError
from ml_diagnostics_common.journal._layout import FIRST_SEQUENCE
from ml_diagnostics_common.mirror._bucket import Bucket
from ml_diagnostics_common.mirror.names import EndName, LogPaths, SegmentName, day_of, parse_name
from ml_diagnostics_common.mirror.segments import NewerFormatError, SegmentContent

__all__ = ["ListedWriter", "has_log", "jobs_in_mirror", "listed_writers"]

_MOST_THREADS = 32


class ListedWriter(NamedTuple):
    """One writer, by the names of its objects.

    Attributes:
        writer: Its name.
        objects: The number of its objects with entries.
        last: The greatest sequence number in them; 0 without one.
        last_day: The newest UTC day of one, as 2026-11-22.
        gaps: The (first, last) sequence numbers in no object's range, from the first that a journal gives on.
        has_ended: True if it has ended, and all of its entries are in the mirror.
        smallest: The name of the object with the fewest entries; None without one.
    """

    writer: str
    objects: int
    last: int
    last_day: str
    gaps: list[tuple[int, int]]
    has_ended: bool
    smallest: SegmentName | None


def listed_writers(bucket: Bucket, paths: LogPaths) -> list[ListedWriter]:
    """Return the writers of a log, by name, with one request for each thousand objects.

    Args:
        bucket: The mirror.
        paths: The log.

    Raises:
        StorageError: The mirror cannot be listed.
        CredentialsError: The credentials were not accepted.
    """
    segments: dict[str, list[SegmentName]] = {}
    ended: set[str] = set()
    for path in bucket.list_paths(f"{paths.folder}day="):
        name = parse_name(path)
        if isinstance(name, SegmentName):
            segments.setdefault(name.writer, []).append(name)
        elif isinstance(name, EndName):
            ended.add(name.writer)
            segments.setdefault(name.writer, [])
    return [_listed(writer, names, has_ended=writer in ended) for writer, names in sorted(segments.items())]


def has_log(mirror: str, log_id: str) -> bool:
    """Return True if a mirror has an object of a log; one request.

    Raises:
        ConfigurationError: The mirror is neither in a bucket nor a local folder.
        StorageError: The mirror cannot be listed.
        CredentialsError: The credentials were not accepted.
        MissingExtraError: A `gs://` path needs the extra `gcs`.
    """
    bucket = Bucket(mirror)
    return bool(bucket.list_paths(f"{bucket.log(log_id).folder}day=", limit=1))


def jobs_in_mirror(mirror: str, *, since_ns: int = 0) -> dict[str, set[str]]:
    """Return the names of the jobs in each log of a mirror, with two requests for a log and one for each writer.

    Args:
        mirror: `gs://bucket/prefix`, or a local folder.
        since_ns: Only writers with an object of that day or a later one, in ns since 1970.

    Raises:
        ConfigurationError: The mirror is neither in a bucket nor a local folder.
        NewerFormatError: The mirror was written by a newer version.
        StorageError: The mirror cannot be listed or read.
        CredentialsError: The credentials were not accepted.
        MissingExtraError: A `gs://` path needs the extra `gcs`.
    """
    bucket = Bucket(mirror)
    bucket.check_layout()
    since_day = day_of(max(0, since_ns))
    jobs: dict[str, set[str]] = {}
    for folder_name in bucket.log_folders():
        paths = LogPaths(bucket.path, folder_name)
        wanted = [
            paths.path(writer.smallest)
            for writer in listed_writers(bucket, paths)
            if writer.smallest is not None and writer.last_day >= since_day
        ]
        for path, data in zip(wanted, bucket.read_each(wanted, _MOST_THREADS), strict=True):
            if isinstance(data, FileNotFoundError):
                continue  # Replaced by the object of its hour meanwhile.
            if isinstance(data, Exception):
                raise data
            try:
                header = SegmentContent(data, path).header
            except NewerFormatError:
                raise
            except StorageError:
                continue  # Damaged: readers of the log name it.
            if job := header.labels.get("job"):
                jobs.setdefault(header.log_id, set()).add(job)
    return jobs


def _listed(writer: str, names: list[SegmentName], *, has_ended: bool) -> ListedWriter:
    seen = SeenSequences()
    seen.add_range(writer, FIRST_SEQUENCE - 1, FIRST_SEQUENCE - 1)
    for name in names:
        seen.add_range(writer, name.first, name.last)
    return ListedWriter(
        writer,
        objects=len(names),
        last=max((name.last for name in names), default=0),
        last_day=max((name.day for name in names), default=""),
        gaps=seen.gaps().get(writer, []),
        has_ended=has_ended,
        smallest=min(names, key=lambda name: (name.last - name.first, -name.level), default=None),
    )
