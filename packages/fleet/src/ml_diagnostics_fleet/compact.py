"""Compaction: from segments of a mirror to the table of events, outside of the jobs, and safe to repeat.

    segments of closed days, less the entries that are in the table -> files of events by group -> the next manifest

Nothing counts until the manifest is created, so a compactor may be killed at any moment, and of two that run at once
one starts again. An entry is known by its writer and number, whatever object it is in.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from ml_diagnostics_common.entry import LogEntry, SeenSequences
from ml_diagnostics_common.exceptions import ObjectNotFoundError, StorageError
from ml_diagnostics_common.mirror._bucket import Bucket
from ml_diagnostics_common.mirror.names import (
    EndName,
    LogPaths,
    SegmentName,
    day_of,
    parse_name,
    plain_log_id,
    segments_path,
)
from ml_diagnostics_common.mirror.rollup import roll_up_ended
from ml_diagnostics_common.mirror.segments import DamagedObjectError, SegmentContent
from ml_diagnostics_common.worker import in_parallel

from ml_diagnostics_fleet._paths import FleetPaths
from ml_diagnostics_fleet.event_files import EventFilesWriter, TableChanges, delete_old, merge_files, still_removed
from ml_diagnostics_fleet.event_tables import EventTables
from ml_diagnostics_fleet.manifest import (
    EventsManifest,
    LogState,
    commit,
    latest_events,
    until_committed,
)

__all__ = ["Compaction", "compact"]

_DAY_NS: Final = 86_400 * 10**9
_LATE_NS: Final = 20 * _DAY_NS
"""Segments that were not compacted for this time are in danger: a rule of the bucket may delete them after 30 days."""
_CLOCK_SET: Final = "2000"
"""Days before this year are those of a host without a clock, and no age."""
_END_OF_NUMBERS: Final = 10**12
_MOST_ROWS: Final = 250_000
"""Entries that are converted at a time."""
_CHUNK: Final = 32
"""Segments that are read ahead."""
_READS: Final = 16


@dataclass(slots=True)
class Compaction(TableChanges):
    """A compaction's results.

    Attributes:
        segments: The number of segments that were read.
        rolled_up: The number of larger segments that were written in place of small ones.
        damaged: Segments that cannot be read.
        vanished: Segments that were listed, and deleted before they were read.
    """

    segments: int = 0
    rolled_up: int = 0
    damaged: list[str] = field(default_factory=list)
    vanished: list[str] = field(default_factory=list)


def compact(
    mirror: str | os.PathLike[str],
    *,
    now_ns: int | None = None,
    through_ns: int | None = None,
    merges: bool = True,
    rolls_up: bool = True,
) -> Compaction:
    """Add the segments of closed days to the table of events, merge small files, and delete old ones.

    Args:
        mirror: The mirror: `gs://bucket/prefix`, or a local folder.
        now_ns: The time, in ns since 1970; None for this machine's.
        through_ns: Days that end by this moment are closed; None is `now_ns`. A later one takes days that still go on.
            Days that are more than one ahead of `now_ns` are of wrong clocks, and closed.
        merges: True to merge small files.
        rolls_up: True to write the small segments of writers that have ended as larger ones, by the hour, for readers
            of the mirror; writers do so themselves if they may delete objects.

    Raises:
        ManifestError: The manifest is damaged, or of a newer version.
        ManifestConflictError: Other compactors were faster, many times.
        NewerFormatError: A segment was written by a newer version.
        StorageError: The mirror cannot be read or written.
    """
    now_ns = time.time_ns() if now_ns is None else now_ns
    through_ns = now_ns if through_ns is None else through_ns
    paths, done = FleetPaths(mirror), Compaction()
    days = _ClosedDays(day_of(through_ns), day_of(now_ns + _DAY_NS))
    manifest = until_committed(lambda: _add_segments(paths, done, now_ns, days))
    if merges:
        manifest = merge_files(paths, done, now_ns)
    if rolls_up:
        done.rolled_up = _roll_up(paths, manifest, days, done)
    done.version, done.gaps, done.damaged = manifest.version, manifest.gaps(), list(manifest.damaged)
    delete_old(paths, manifest, done, now_ns)
    return done


# --- Segments ---------------------------------------------------------------------------------------------------------


class _ClosedDays(NamedTuple):
    """The days of which all segments are expected to be in the mirror, as 2026-11-22.

    Attributes:
        today: The first day that goes on.
        tomorrow: No clock is further ahead than this day, unless it is wrong. What is of a later day is not waited for.
    """

    today: str
    tomorrow: str

    def __contains__(self, day: object) -> bool:
        return str(day) < self.today or str(day) > self.tomorrow


@dataclass(slots=True)
class _LogObjects:
    """The objects of one log that are not in the table."""

    segments: list[tuple[SegmentName, str]] = field(default_factory=list)
    ends: dict[str, str] = field(default_factory=dict)
    """Paths of the ends of writers."""


def _add_segments(paths: FleetPaths, total: Compaction, now_ns: int, days: _ClosedDays) -> EventsManifest:
    """Add what is new to the table; return the manifest, which is a new one if there was anything."""
    manifest, vanished = latest_events(paths.mirror), set[str]()
    while True:
        done = Compaction()
        following = _with_new_segments(paths, manifest, done, now_ns, days)
        again = vanished.intersection(done.vanished)
        if again:
            raise ObjectNotFoundError(f"{min(again)} is listed, and does not exist")
        if following is not manifest:
            manifest = commit(paths.mirror, following, now_ns)
        total.segments += done.segments
        total.events += done.events
        total.without_job += done.without_job
        total.files += done.files
        total.warnings += [warning for warning in done.warnings if warning not in total.warnings]
        if not done.vanished:
            return manifest
        vanished.update(done.vanished)  # By now the objects of their hour have replaced them.


def _with_new_segments(
    paths: FleetPaths, manifest: EventsManifest, done: Compaction, now_ns: int, days: _ClosedDays
) -> EventsManifest:
    """Return the manifest with what is new, before it is created; the same one if there is nothing."""
    found = _new_objects(paths, manifest, days)
    known_days = [name.day for objects in found.values() for name, _ in objects.segments if name.day > _CLOCK_SET]
    oldest = min(known_days, default="")
    if oldest and oldest < day_of(now_ns - _LATE_NS):
        done.warnings.append(
            f"segments of {oldest} were not compacted for more than 20 days: if a rule of the bucket deletes segments "
            "after 30 days, run this every day"
        )
    if not found:
        return manifest
    logs, damaged = dict(manifest.logs), list(manifest.damaged)
    states = {name: logs[name].copy() if name in logs else LogState("") for name in found}
    with EventFilesWriter(paths, max(now_ns, manifest.created_ns)) as output:
        _add_entries(paths, states, found, output, done, damaged)
        entries = output.finish()
    _add_ends(paths, states, found)
    logs.update((name, state) for name, state in states.items() if state.log)
    done.files = [entry.path for entry in entries]
    if not done.segments and len(damaged) == len(manifest.damaged) and not any(one.ends for one in found.values()):
        return manifest
    return replace(
        manifest,
        files=(*manifest.files, *entries),
        logs=logs,
        damaged=tuple(damaged),
        removed=still_removed(manifest, now_ns),
    )


def _new_objects(paths: FleetPaths, manifest: EventsManifest, days: _ClosedDays) -> dict[str, _LogObjects]:
    """Return the objects of closed days that are not in the table, by the name of their log's folder."""
    found: dict[str, _LogObjects] = {}
    damaged = set(manifest.damaged)
    for folder, name, path in _listed(paths):
        state = manifest.logs.get(folder)
        if name.day not in days:
            continue
        if isinstance(name, EndName):
            if state is None or name.writer not in state.ended:
                found.setdefault(folder, _LogObjects()).ends[name.writer] = path
        elif paths.relative(path) not in damaged and (state is None or not state.has(name)):
            found.setdefault(folder, _LogObjects()).segments.append((name, path))
    # The end of a writer counts with its entries.
    return {name: objects for name, objects in found.items() if objects.segments or name in manifest.logs}


def _listed(paths: FleetPaths) -> Iterator[tuple[str, SegmentName | EndName, str]]:
    """Yield all objects of the mirror's logs: the name of the log's folder, the object's name, and its path."""
    prefix = segments_path(paths.mirror).replace(os.sep, "/")
    for path in paths.listed(segments_path(paths.mirror)):
        name = parse_name(path)
        folder = path.replace(os.sep, "/").removeprefix(prefix).partition("/")[0]
        if name is not None and folder.startswith("log="):
            yield folder.removeprefix("log="), name, path


def _add_entries(
    paths: FleetPaths,
    states: dict[str, LogState],
    found: dict[str, _LogObjects],
    output: EventFilesWriter,
    done: Compaction,
    damaged: list[str],
) -> None:
    """Add the entries of segments to files of events, and to the states of their logs."""
    tables: EventTables | None = None
    added_to = ""
    for folder, name, path, data in _contents(paths, states, found):
        state = states[folder]
        if isinstance(data, ObjectNotFoundError):
            done.vanished.append(path)
            continue
        if isinstance(data, Exception):
            raise data
        try:
            content = SegmentContent(data, path, writer=name.writer)
        except DamagedObjectError:
            damaged.append(paths.relative(path))
            state.log = state.log or plain_log_id(folder) or ""
            state.expect(name.writer, name.last)
            continue
        state.log = state.log or content.header.log_id
        if tables is None or added_to != folder:
            _take(tables, output, done)
            tables, added_to = EventTables(state.log), folder
        done.segments += 1
        for entries in content.entries(Counter()):
            tables.add(_unseen(entries, state.seen))
            if len(tables) >= _MOST_ROWS:
                done.events += output.add(tables)
        if not state.covers(name):
            state.gapped.add(f"{name}")
    _take(tables, output, done)


def _take(tables: EventTables | None, output: EventFilesWriter, done: Compaction) -> None:
    """Add the entries of one log that are left."""
    if tables is not None:
        done.events += output.add(tables)
        done.without_job += tables.without_job


def _add_ends(paths: FleetPaths, states: dict[str, LogState], found: dict[str, _LogObjects]) -> None:
    """Add the ends of writers to the states of their logs, with the number of the last entry of each."""
    ends = [(states[name], *end) for name, objects in found.items() for end in objects.ends.items()]
    contents = in_parallel(lambda one: paths.storage.read(one[2]), ends, _READS)
    for (state, writer, _), data in zip(ends, contents, strict=True):
        if isinstance(data, ObjectNotFoundError):
            continue  # A rule of the bucket has deleted it since it was listed.
        if isinstance(data, Exception):
            raise data
        state.ended.add(writer)
        with contextlib.suppress(ValueError, TypeError, KeyError):
            state.expect(writer, int(json.loads(data)["last"]))


def _contents(
    paths: FleetPaths, states: dict[str, LogState], found: dict[str, _LogObjects]
) -> Iterator[tuple[str, SegmentName, str, bytes | Exception]]:
    """Yield the segments that have entries which are not in the table, by log, and their contents."""
    # By writer and number; of objects from one number on the largest first, which often has all of the others.
    waiting = (
        (folder, name, path)
        for folder, objects in sorted(found.items())
        for name, path in sorted(objects.segments, key=lambda one: _order(one[0]))
        if not states[folder].covers(name)
    )
    while chunk := list(itertools.islice(waiting, _CHUNK)):
        contents = in_parallel(lambda one: paths.storage.read(one[2]), chunk, _READS)
        for (folder, name, path), data in zip(chunk, contents, strict=True):
            if not states[folder].covers(name):
                yield folder, name, path, data


def _order(name: SegmentName) -> tuple[str, int, int, int]:
    return name.writer, name.first, -name.last, -name.level


def _unseen(entries: Iterable[LogEntry], seen: SeenSequences) -> Iterator[LogEntry]:
    for entry in entries:
        # A line with a number that no writer gives would be a gap of all numbers below it.
        if not 0 <= entry.sequence < _END_OF_NUMBERS or seen.add(entry.context.writer or "", entry.sequence):
            yield entry


def _roll_up(paths: FleetPaths, manifest: EventsManifest, days: _ClosedDays, done: Compaction) -> int:
    """Roll up what ended writers left at level 0, if all of it is in the table; return the number of new objects."""
    small: dict[tuple[str, str], list[SegmentName]] = {}
    for folder, name, _ in _listed(paths):
        state = manifest.logs.get(folder)
        if isinstance(name, SegmentName) and state is not None and name.writer in state.ended:
            small.setdefault((folder, name.writer), []).append(name)
    bucket, written = Bucket(paths.mirror, storage=paths.storage), 0
    for (folder, _), names in sorted(small.items()):
        state = manifest.logs[folder]
        if sum(name.level == 0 for name in names) < 2 or not all(
            name.day in days and state.has(name) for name in names
        ):
            continue
        try:
            written += roll_up_ended(bucket, LogPaths(bucket.path, folder), names)
        except StorageError as error:
            done.warnings.append(f"segments of log folder {folder} stay small, for they cannot be rolled up: {error}")
            break
    return written
