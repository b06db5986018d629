"""Events that are in segments of a mirror: of those that no compactor has read, or of all."""

from __future__ import annotations

import gc
import os
from collections.abc import Collection, Iterator
from typing import Final, NamedTuple

import pyarrow as pa
from ml_diagnostics_common.entry import LogEntry, SeenSequences
from ml_diagnostics_common.journal import log_folder_name
from ml_diagnostics_common.mirror.names import EndName, SegmentName, parse_name, plain_log_id, segments_path
from ml_diagnostics_common.mirror.reader import MirrorReader
from ml_diagnostics_common.mirror.segments import SegmentContent

from ml_diagnostics_fleet._paths import FleetPaths
from ml_diagnostics_fleet.event_tables import EventTables
from ml_diagnostics_fleet.manifest import LogState
from ml_diagnostics_fleet.schemas import JobKey

__all__ = ["LogPart", "SegmentEvents", "folder_of", "parts_of_logs"]

_MOST_EVENTS: Final = 200_000
"""Events that are converted at a time: many more than the 10,000 that make a batch worth its overhead."""


class LogPart(NamedTuple):
    """Some writers of a log in a mirror: all of them if they have few entries.

    Attributes:
        log: The logger's name.
        writers: Their names.
        ended: The names of those that have ended.
    """

    log: str
    writers: tuple[str, ...]
    ended: tuple[str, ...]


class SegmentEvents:
    """The events of one log that are in segments of a mirror.

    Args:
        mirror: The mirror.
        log: The logger's name.
        writers: Only those of these writers; None for all.
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
        known: LogState | None = None,
    ) -> None:
        known = LogState(log) if known is None else known
        position = {"mirror": {"seen": known.seen.to_json(), "read": sorted(known.gapped), "writers": {}}}
        self._reader = MirrorReader(
            log,
            mirror=FleetPaths(mirror).mirror,
            position=position,
            writers=None if writers is None else set(writers),
        )
        self._log = log
        self.state = LogState(log, known.seen, set(known.ended))

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
        self.state.ended |= {writer.writer for writer in self._reader.writers() if writer.has_ended}

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
    paths_of_logs: dict[str, str] = {}
    ended: set[tuple[str, str]] = set()
    for path in paths.storage.list_prefix(segments_path(paths.mirror)):
        name, folder = parse_name(path), folder_of(paths, path)
        if isinstance(name, SegmentName):
            counts = entries.setdefault(folder, {})
            counts[name.writer] = counts.get(name.writer, 0) + name.last - name.first + 1
            paths_of_logs[folder] = path
        elif isinstance(name, EndName):
            ended.add((folder, name.writer))
    parts = []
    for folder, counts in entries.items():
        log = _log_of(paths, folder, paths_of_logs[folder])
        for writers in _together(counts):
            parts.append(LogPart(log, writers, tuple(one for one in writers if (folder, one) in ended)))
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


def _log_of(paths: FleetPaths, folder: str, path: str) -> str:
    """Return the name of a log; of a long one the folder has a hash, and its segments have the name."""
    log = plain_log_id(folder)
    if log is None or log_folder_name(log) != folder:
        return SegmentContent(paths.storage.read(path), path).header.log_id
    return log
