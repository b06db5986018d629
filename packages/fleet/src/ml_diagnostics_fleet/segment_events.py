"""Events that are in segments of a mirror: of those that no compactor has read, or of all."""

from __future__ import annotations

import contextlib
import gc
import json
import logging
import os
from collections.abc import Collection, Iterator, Sequence
from typing import Final, NamedTuple

import pyarrow as pa
from ml_diagnostics_common.entry import LogEntry, SeenSequences
from ml_diagnostics_common.exceptions import ObjectNotFoundError
from ml_diagnostics_common.journal import log_folder_name
from ml_diagnostics_common.mirror.names import (
    EndName,
    LogPaths,
    SegmentName,
    parse_name,
    plain_log_id,
    segments_path,
)
from ml_diagnostics_common.mirror.reader import MirrorReader
from ml_diagnostics_common.mirror.segments import DamagedObjectError, SegmentContent
from ml_diagnostics_common.worker import in_parallel

from ml_diagnostics_fleet._paths import FleetPaths
from ml_diagnostics_fleet.event_tables import EventTables
from ml_diagnostics_fleet.manifest import LogState
from ml_diagnostics_fleet.schemas import JobKey

__all__ = ["LogPart", "SegmentEvents", "folder_of", "parts_of_logs"]

_MOST_EVENTS: Final = 200_000
"""Events that are converted at a time: many more than the 10,000 that make a batch worth its overhead."""
_READS: Final = 16

_logger = logging.getLogger(__name__)


class LogPart(NamedTuple):
    """Some writers of a log in a mirror: all of them if they have few entries.

    Attributes:
        log: The logger's name.
        writers: Their names.
        ends: The paths of the ends of those that have ended.
    """

    log: str
    writers: tuple[str, ...]
    ends: tuple[str, ...]


class SegmentEvents:
    """The events of one log that are in segments of a mirror.

    Args:
        mirror: The mirror.
        log: The logger's name.
        writers: Only those of these writers; None for all.
        ends: The paths of the ends of writers; None to list them.
        known: How far the log is in the table of events: what is there is not read.

    Attributes:
        state: How far the log is read: complete when `tables` has ended.
    """

    def __init__(
        self,
        mirror: str | os.PathLike[str],
        log: str,
        *,
        writers: Collection[str] | None = None,
        ends: Collection[str] | None = None,
        known: LogState | None = None,
    ) -> None:
        known = LogState(log) if known is None else known
        position = {"mirror": {"seen": known.seen.to_json(), "read": sorted(known.gapped), "writers": {}}}
        self._paths = FleetPaths(mirror)
        self._reader = MirrorReader(
            log,
            mirror=self._paths.mirror,
            position=position,
            writers=None if writers is None else set(writers),
        )
        self._log, self._ends = log, ends
        self.state = known.copy()

    @property
    def damaged(self) -> list[str]:
        """Paths of the segments that were read, are damaged, and were passed over with a warning."""
        return list(self._reader.damaged)

    def tables(self) -> Iterator[tuple[JobKey, pa.Table]]:
        """Yield events of each job, some times for a job; each event once.

        Raises:
            ObjectNotFoundError: An object is listed and does not exist, twice.
            NewerFormatError: The mirror was written by a newer version.
            StorageError: It cannot be listed or read.
        """
        entries = self._reader.read_new()
        is_rest = False
        while not is_rest:
            tables, is_rest = self._next_tables(entries)
            yield from tables.items()
        self.state.seen = SeenSequences.from_json(self._reader.position()["mirror"]["seen"])
        for path in self.damaged:
            name = parse_name(path)
            if isinstance(name, SegmentName):
                self.state.expect(name.writer, name.last)
        self._add_ends()

    def _add_ends(self) -> None:
        """Add the ends of writers, with the number of the last entry of each: the compactor does the same."""
        storage, ends = self._paths.storage, self._ends
        if ends is None:
            ends = storage.list_prefix(f"{LogPaths.of(self._paths.mirror, self._log).folder}day=")
        named = [(name.writer, path) for path in ends if isinstance(name := parse_name(path), EndName)]
        new = [(writer, path) for writer, path in named if writer not in self.state.ended]
        contents = in_parallel(lambda one: storage.read(one[1]), new, _READS)
        for (writer, _), data in zip(new, contents, strict=True):
            if isinstance(data, ObjectNotFoundError):
                continue
            if isinstance(data, Exception):
                raise data
            self.state.ended.add(writer)
            with contextlib.suppress(ValueError, TypeError, KeyError):
                self.state.expect(writer, int(json.loads(data)["last"]))

    def _next_tables(self, entries: Iterator[list[LogEntry]]) -> tuple[dict[JobKey, pa.Table], bool]:
        """Return the next events of each job, and True if there are no more.

        Entries have no reference cycles, and a collection of garbage takes a third of the time where Beam is loaded.
        """
        collected, collects = EventTables(self._log), gc.isenabled()
        gc.disable()
        try:
            for some in entries:
                collected.add(some)
                if len(collected) >= _MOST_EVENTS:
                    return collected.take(), False
            return collected.take(), True
        finally:
            if collects:
                gc.enable()


def parts_of_logs(mirror: str | os.PathLike[str]) -> list[LogPart]:
    """Return all writers of which a mirror has segments, from the names of its objects.

    Raises:
        StorageError: The mirror cannot be listed.
    """
    paths = FleetPaths(mirror)
    entries: dict[str, dict[str, int]] = {}
    paths_of_logs: dict[str, list[str]] = {}
    ends: dict[tuple[str, str], str] = {}
    for path in paths.storage.list_prefix(segments_path(paths.mirror)):
        name, folder = parse_name(path), folder_of(paths, path)
        if isinstance(name, SegmentName):
            counts = entries.setdefault(folder, {})
            counts[name.writer] = counts.get(name.writer, 0) + name.last - name.first + 1
            paths_of_logs.setdefault(folder, []).append(path)
        elif isinstance(name, EndName):
            ends[folder, name.writer] = path
    parts = []
    for folder, counts in entries.items():
        segments = paths_of_logs[folder]
        log = _log_of(paths, folder, segments)
        if log is None:
            _logger.warning(
                "%d segments of log folder %s are damaged: their entries are missing", len(segments), folder
            )
            continue
        for writers in _together(counts):
            parts.append(LogPart(log, writers, tuple(ends[folder, one] for one in writers if (folder, one) in ends)))
    return parts


def _together(counts: dict[str, int]) -> Iterator[tuple[str, ...]]:
    """Yield writers that are read together: a writer with few entries is not worth an element of its own."""
    waiting: list[str] = []
    for writer in sorted(counts):
        waiting.append(writer)
        if sum(counts[one] for one in waiting) >= _MOST_EVENTS:
            yield tuple(waiting)
            waiting = []
    if waiting:
        yield tuple(waiting)


def folder_of(paths: FleetPaths, path: str) -> str:
    """Return the name of the log's folder in the path of an object."""
    prefix = segments_path(paths.mirror).replace(os.sep, "/")
    return path.replace(os.sep, "/").removeprefix(prefix).partition("/")[0].removeprefix("log=")


def _log_of(paths: FleetPaths, folder: str, segments: Sequence[str]) -> str | None:
    """Return the name of a log; of a long one the folder has a hash, and each of its segments has the name."""
    log = plain_log_id(folder)
    if log is not None and log_folder_name(log) == folder:
        return log
    for path in segments:
        try:
            return SegmentContent(paths.storage.read(path), path).header.log_id
        except (DamagedObjectError, ObjectNotFoundError):  # Another one has the name, too.
            continue
    return None
