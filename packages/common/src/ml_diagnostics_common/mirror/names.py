"""The names of a mirror's objects; pure.

    <mirror>/v1/segments/log=<log>/day=2026-11-22/<writer>.<first>-<last>.<level>.jsonl.gz    entries
    <mirror>/v1/segments/log=<log>/day=2026-11-22/<writer>.end     the writer has ended, and all of it is in the mirror
    <mirror>/v1/segments/log=<log>/<writer>.watch                  a command watches: the writer writes more often

`<log>` is the name of the log's folder in the journal. `day` is the UTC day of an object's first entry, and the numbers
are the least and the greatest sequence number in it: a reader selects objects by their names. Level 0 is what a writer
writes every 30 s to two minutes, level 1 the objects of an hour as one.
"""

from __future__ import annotations

import re
import time
from typing import Final, NamedTuple
from urllib.parse import unquote

from ml_diagnostics_common.journal._layout import log_folder_name

__all__ = [
    "CONTENT_TYPE",
    "LAYOUT",
    "EndName",
    "LogPaths",
    "SegmentName",
    "day_of",
    "newer_layout",
    "parse_name",
    "plain_log_id",
    "shown_log_id",
]

LAYOUT: Final = 1
CONTENT_TYPE: Final = "application/gzip"
"""Without a Content-Encoding, with which Cloud Storage unpacks on the way: ranges and sizes would be wrong."""

_SUFFIX = ".jsonl.gz"
_SEGMENT = re.compile(r"(?P<writer>.+)\.(?P<first>\d{12})-(?P<last>\d{12})\.(?P<level>\d)\.jsonl\.gz", re.ASCII)
_DAY = re.compile(r"day=(\d{4}-\d\d-\d\d)", re.ASCII)
_FIRST_DAY, _LAST_DAY = -30_610_224_000, 253_402_300_800  # From the year 1000 to 9999.
_VERSION = re.compile(r"v(\d{1,4})", re.ASCII)


class SegmentName(NamedTuple):
    """The name of an object with entries of one writer.

    Attributes:
        day: The UTC day of its first entry, as 2026-11-22.
        writer: The writer.
        first: The least sequence number in it.
        last: The greatest.
        level: 0, or 1 for the objects of an hour as one.
    """

    day: str
    writer: str
    first: int
    last: int
    level: int

    def __str__(self) -> str:
        """Return the name below the log's folder."""
        return f"day={self.day}/{self.writer}.{self.first:012d}-{self.last:012d}.{self.level}{_SUFFIX}"

    def covers(self, other: SegmentName) -> bool:
        """Return True if the range of another object of the same writer is within this one's."""
        return self.writer == other.writer and self.first <= other.first and other.last <= self.last


class EndName(NamedTuple):
    """The name of the object that a writer has ended.

    Attributes:
        day: The day of the writer's last object.
        writer: The writer.
    """

    day: str
    writer: str

    def __str__(self) -> str:
        """Return the name below the log's folder."""
        return f"day={self.day}/{self.writer}.end"


class LogPaths:
    """The paths of one log's objects in a mirror.

    Args:
        mirror: The mirror: `gs://bucket/prefix`, or an absolute local path, without a slash at the end.
        folder_name: The name of the log's folder in the journal.
    """

    def __init__(self, mirror: str, folder_name: str) -> None:
        self.folder_name = folder_name
        self.folder = f"{segments_path(mirror)}log={folder_name}/"
        """All of the log's objects have this prefix."""

    @classmethod
    def of(cls, mirror: str, log_id: str) -> LogPaths:
        """Return the paths of a log by its name."""
        return cls(mirror, log_folder_name(log_id))

    def path(self, name: SegmentName | EndName) -> str:
        """Return the path of an object."""
        return f"{self.folder}{name}"

    def day(self, day: str) -> str:
        """Return the prefix of a day's objects."""
        return f"{self.folder}day={day}/"

    def watch(self, writer: str) -> str:
        """Return the path of the object by which a writer is asked to write more often."""
        return f"{self.folder}{writer}.watch"


def segments_path(mirror: str) -> str:
    """Return the prefix of all logs' objects."""
    return f"{mirror}/v{LAYOUT}/segments/"


def parse_name(path: str) -> SegmentName | EndName | None:
    """Return the name of an object from its path; None for any other object."""
    folder, _, name = path.replace("\\", "/").rpartition("/")
    day = _DAY.fullmatch(folder.rpartition("/")[2])
    if day is None:
        return None
    found = _SEGMENT.fullmatch(name)
    if found is not None:
        segment = SegmentName(day[1], found["writer"], int(found["first"]), int(found["last"]), int(found["level"]))
        return segment if segment.first <= segment.last else None
    return EndName(day[1], name.removesuffix(".end")) if name.endswith(".end") and name != ".end" else None


def day_of(timestamp_ns: int) -> str:
    """Return the UTC day of a time in ns since 1970, as 2026-11-22."""
    seconds = timestamp_ns // 1_000_000_000
    # A caller may pass any integer as a time, and a year of other than four digits is not read back from a name.
    return time.strftime("%Y-%m-%d", time.gmtime(seconds)) if _FIRST_DAY <= seconds < _LAST_DAY else "1970-01-01"


def newer_layout(path: str, mirror: str) -> int | None:
    """Return the version of an object's layout if it is newer than this one; else None.

    Args:
        path: The object's path.
        mirror: The mirror.
    """
    found = _VERSION.fullmatch(path.removeprefix(f"{mirror}/").partition("/")[0])
    return int(found[1]) if found is not None and int(found[1]) > LAYOUT else None


def plain_log_id(folder_name: str) -> str | None:
    """Return a log's name from that of its folder; None if that is hashed: then a header has it."""
    return None if "%-" in folder_name else unquote(folder_name)


def shown_log_id(folder_name: str) -> str:
    """Return a log's name from that of its folder, or the folder's if that is hashed."""
    return plain_log_id(folder_name) or folder_name
