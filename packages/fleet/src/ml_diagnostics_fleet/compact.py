"""Compaction: from segments of a mirror to the table of events, outside of the jobs, and safe to repeat.

    segments of closed days, less the entries that are in the table -> files of events by group -> the next manifest

Nothing counts until the manifest is created, so a compactor may be killed at any moment, and of two that run at once
one starts again. An entry is known by its writer and number, whatever object it is in.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import pyarrow as pa
from ml_diagnostics_common.entry import LogEntry, SeenSequences
from ml_diagnostics_common.exceptions import ObjectNotFoundError, StorageError
from ml_diagnostics_common.mirror._bucket import Bucket
from ml_diagnostics_common.mirror.names import EndName, LogPaths, SegmentName, day_of, parse_name, segments_path
from ml_diagnostics_common.mirror.rollup import roll_up_ended
from ml_diagnostics_common.mirror.segments import DamagedObjectError, SegmentContent
from ml_diagnostics_common.worker import in_parallel

from ml_diagnostics_fleet._paths import FleetPaths, age_ns, new_run
from ml_diagnostics_fleet.events import EventsFile, EventsWriter, EventTables, RowGroup, deduplicated
from ml_diagnostics_fleet.manifest import (
    EventsEntry,
    EventsManifest,
    Gap,
    LogState,
    ManifestConflictError,
    commit,
    latest_events,
)
from ml_diagnostics_fleet.schemas import JobKey, group_of

__all__ = ["Compaction", "compact"]

_DAY_NS: Final = 86_400 * 10**9
_KEPT_NS: Final = 7 * _DAY_NS
"""Files that no manifest names are deleted after this time."""
_LATE_NS: Final = 20 * _DAY_NS
"""Segments that were not compacted for this time are in danger: a rule of the bucket may delete them after 30 days."""
_SMALL_BYTES: Final = 64 * 2**20
_MOST_SMALL: Final = 8
_LARGEST_BYTES: Final = 256 * 2**20
_MOST_ROWS: Final = 250_000
"""Entries that are converted at a time."""
_MOST_SORTED: Final = 4_000_000
"""Events of a job that are sorted at a time when files are merged."""
_READS: Final = 16
_TRIES: Final = 10


@dataclass(slots=True)
class Compaction:
    """A compaction's results.

    Attributes:
        version: The version of the manifest.
        segments: The number of segments that were read.
        events: The number of events that were added.
        files: The files that were added, and not merged since.
        merged: The number of files that were replaced.
        without_job: Entries that name no job, which are in no table.
        deleted: The number of old files that were deleted.
        rolled_up: The number of larger segments that were written in place of small ones.
        gaps: All entries that are missing in the table.
        damaged: Segments that cannot be read.
        warnings: Sentences for the user.
        vanished: Segments that were listed, and deleted before they were read.
    """

    version: int = 0
    segments: int = 0
    events: int = 0
    files: list[str] = field(default_factory=list)
    merged: int = 0
    without_job: int = 0
    deleted: int = 0
    rolled_up: int = 0
    gaps: list[Gap] = field(default_factory=list)
    damaged: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
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
    manifest = _repeated(lambda: _add_segments(paths, done, now_ns, through_ns))
    if merges:
        manifest = _repeated(lambda: _merge_files(paths, latest_events(paths.mirror), done, now_ns))
    if rolls_up:
        done.rolled_up = _roll_up(paths, manifest, day_of(through_ns), done)
    done.version, done.gaps, done.damaged = manifest.version, manifest.gaps(), list(manifest.damaged)
    done.deleted = _delete_old(paths, manifest, now_ns)
    return done


def _repeated(action: Callable[[], EventsManifest]) -> EventsManifest:
    """Return the result of an action, which starts again while other compactors are faster."""
    for _ in range(_TRIES - 1):
        try:
            return action()
        except ManifestConflictError:
            continue
    return action()


# --- Segments ---------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _LogObjects:
    """The objects of one log that are not in the table."""

    segments: list[tuple[SegmentName, str]] = field(default_factory=list)
    ended: set[str] = field(default_factory=set)


def _add_segments(paths: FleetPaths, total: Compaction, now_ns: int, through_ns: int) -> EventsManifest:
    """Add what is new to the table; return the manifest, which is a new one if there was anything."""
    manifest, vanished = latest_events(paths.mirror), set[str]()
    while True:
        done = Compaction()
        following = _with_new_segments(paths, manifest, done, now_ns, through_ns)
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
    paths: FleetPaths, manifest: EventsManifest, done: Compaction, now_ns: int, through_ns: int
) -> EventsManifest:
    """Return the manifest with what is new, before it is created; the same one if there is nothing."""
    found = _new_objects(paths, manifest, day_of(through_ns))
    oldest = min((name.day for objects in found.values() for name, _ in objects.segments), default="")
    if oldest and oldest < day_of(now_ns - _LATE_NS):
        done.warnings.append(
            f"segments of {oldest} were not compacted for more than 20 days: if a rule of the bucket deletes segments "
            "after 30 days, run this every day"
        )
    if not found:
        return manifest
    logs, damaged = dict(manifest.logs), list(manifest.damaged)
    with tempfile.TemporaryDirectory(prefix="ml-diagnostics-compact-") as folder:
        output = _Output(paths, Path(folder), new_run(now_ns))
        for name, objects in sorted(found.items()):
            known = logs.get(name)
            state = LogState("") if known is None else _copy_of(known)
            state.ended |= objects.ended
            _add_log(paths, state, objects, output, done, damaged)
            if state.log:
                logs[name] = state
        entries = output.finish()
    done.files = [entry.path for entry in entries]
    if not done.segments and len(damaged) == len(manifest.damaged) and not any(one.ended for one in found.values()):
        return manifest
    return replace(
        manifest,
        files=(*manifest.files, *entries),
        logs=logs,
        damaged=tuple(damaged),
        removed=_still_removed(manifest, now_ns),
    )


def _still_removed(manifest: EventsManifest, now_ns: int) -> dict[str, int]:
    return {path: at_ns for path, at_ns in manifest.removed.items() if now_ns - at_ns <= _KEPT_NS + _DAY_NS}


def _new_objects(paths: FleetPaths, manifest: EventsManifest, today: str) -> dict[str, _LogObjects]:
    """Return the objects of closed days that are not in the table, by the name of their log's folder."""
    found: dict[str, _LogObjects] = {}
    damaged = set(manifest.damaged)
    prefix = segments_path(paths.mirror).replace(os.sep, "/")
    for path in paths.storage.list_prefix(segments_path(paths.mirror)):
        name = parse_name(path)
        folder = path.replace(os.sep, "/").removeprefix(prefix).partition("/")[0]
        if name is None or not folder.startswith("log="):
            continue
        state = manifest.logs.get(folder[4:])
        if isinstance(name, EndName):
            if state is None or name.writer not in state.ended:
                found.setdefault(folder[4:], _LogObjects()).ended.add(name.writer)
            continue
        if name.day >= today or paths.relative(path) in damaged or (state is not None and _has(state, name)):
            continue
        found.setdefault(folder[4:], _LogObjects()).segments.append((name, path))
    # The end of a writer counts with its entries.
    return {name: objects for name, objects in found.items() if objects.segments or name in manifest.logs}


def _has(state: LogState, name: SegmentName) -> bool:
    """Return True if all of a segment is in the table."""
    return f"{name}" in state.gapped or _covers(state.seen, name)


def _covers(seen: SeenSequences, name: SegmentName) -> bool:
    if (name.writer, name.first) not in seen or (name.writer, name.last) not in seen:
        return False
    return any(first <= name.first and name.last <= last for first, last in seen.ranges(name.writer))


def _copy_of(state: LogState) -> LogState:
    seen = SeenSequences.from_json(state.seen.to_json())
    return LogState(state.log, seen, set(state.ended), set(state.gapped))


def _add_log(
    paths: FleetPaths, state: LogState, objects: _LogObjects, output: _Output, done: Compaction, damaged: list[str]
) -> None:
    """Add the entries of one log."""
    # By writer and number; of objects from one number on the largest first, which often has all of the others.
    ordered = sorted(objects.segments, key=lambda one: (one[0].writer, one[0].first, -one[0].last, -one[0].level))
    tables: EventTables | None = None
    for chunk in _chunks(ordered, _READS):
        chunk = [(name, path) for name, path in chunk if not _covers(state.seen, name)]
        contents = in_parallel(lambda one: paths.storage.read(one[1]), chunk, _READS)
        for (name, path), data in zip(chunk, contents, strict=True):
            if _covers(state.seen, name):
                continue
            if isinstance(data, ObjectNotFoundError):
                done.vanished.append(path)
                continue
            if isinstance(data, Exception):
                raise data
            try:
                content = SegmentContent(data, path)
            except DamagedObjectError:
                damaged.append(paths.relative(path))
                continue
            state.log = state.log or content.header.log_id
            tables = tables or EventTables(state.log)
            done.segments += 1
            for entries in content.entries(Counter()):
                tables.add(_unseen(entries, state.seen))
                if len(tables) >= _MOST_ROWS:
                    done.events += output.add(tables)
            if not _covers(state.seen, name):
                state.gapped.add(f"{name}")
    if tables is not None:
        done.events += output.add(tables)
        done.without_job += tables.without_job


def _unseen(entries: Iterable[LogEntry], seen: SeenSequences) -> Iterator[LogEntry]:
    for entry in entries:
        if seen.add(entry.context.writer or "", entry.sequence):
            yield entry


def _chunks(items: Sequence[tuple[SegmentName, str]], size: int) -> Iterator[Sequence[tuple[SegmentName, str]]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]


def _roll_up(paths: FleetPaths, manifest: EventsManifest, today: str, done: Compaction) -> int:
    """Roll up what ended writers left at level 0, if all of it is in the table; return the number of new objects."""
    small: dict[tuple[str, str], list[SegmentName]] = {}
    prefix = segments_path(paths.mirror).replace(os.sep, "/")
    for path in paths.storage.list_prefix(segments_path(paths.mirror)):
        name, folder = parse_name(path), path.replace(os.sep, "/").removeprefix(prefix).partition("/")[0][4:]
        state = manifest.logs.get(folder)
        if isinstance(name, SegmentName) and state is not None and name.writer in state.ended:
            small.setdefault((folder, name.writer), []).append(name)
    bucket, written = Bucket(paths.mirror, storage=paths.storage), 0
    for (folder, _), names in sorted(small.items()):
        state = manifest.logs[folder]
        if sum(name.level == 0 for name in names) < 2 or not all(
            name.day < today and _has(state, name) for name in names
        ):
            continue
        try:
            written += roll_up_ended(bucket, LogPaths(bucket.path, folder), names)
        except StorageError as error:
            done.warnings.append(f"segments of log folder {folder} stay small, for they cannot be rolled up: {error}")
            break
    return written


# --- Files of events --------------------------------------------------------------------------------------------------


class _Output:
    """Writes files of events by group, first on this machine."""

    def __init__(self, paths: FleetPaths, folder: Path, run: str) -> None:
        self._paths, self._folder, self._run = paths, folder, run
        self._open: dict[str, tuple[EventsWriter, Path]] = {}
        self._done: list[EventsEntry] = []
        self._count = 0

    def add(self, tables: EventTables) -> int:
        """Add the events that were collected; return their number."""
        count = 0
        for key, table in tables.take().items():
            self.write(key, table)
            count += table.num_rows
        return count

    def write(self, key: JobKey, table: pa.Table) -> None:
        """Add events of one job."""
        group = group_of(key)
        if group not in self._open:
            file = self._folder / f"{group}.parquet"
            self._open[group] = EventsWriter(str(file)), file
        writer, file = self._open[group]
        writer.write(key, table)
        if file.stat().st_size > _LARGEST_BYTES:
            self._store(group)

    def finish(self) -> list[EventsEntry]:
        """Store all files, and return them."""
        for group in sorted(self._open):
            self._store(group)
        return self._done

    def _store(self, group: str) -> None:
        writer, file = self._open.pop(group)
        writer.close()
        data = file.read_bytes()
        path = f"events/group={group}/{self._run}-{self._count}.parquet"
        self._count += 1
        self._paths.storage.write(self._paths.full(path), data, if_generation=0)
        file.unlink()
        self._done.append(
            EventsEntry(path, group, writer.rows, len(data), len(writer.jobs), writer.first_t_ns, writer.last_t_ns)
        )


def _merge_files(paths: FleetPaths, manifest: EventsManifest, done: Compaction, now_ns: int) -> EventsManifest:
    """Merge the small files of groups that have many of them."""
    small = {
        group: [entry for entry in entries if entry.bytes < _SMALL_BYTES]
        for group, entries in manifest.groups().items()
    }
    many = {group: entries for group, entries in small.items() if len(entries) > _MOST_SMALL}
    if not many:
        return manifest
    with tempfile.TemporaryDirectory(prefix="ml-diagnostics-compact-") as folder:
        output = _Output(paths, Path(folder), new_run(now_ns))
        for _, entries in sorted(many.items()):
            _merge(paths, entries, output)
        added = output.finish()
    replaced = {entry.path for entries in many.values() for entry in entries}
    files = (*(entry for entry in manifest.files if entry.path not in replaced), *added)
    removed = {**_still_removed(manifest, now_ns), **dict.fromkeys(replaced, now_ns)}
    following = commit(paths.mirror, replace(manifest, files=files, removed=removed), now_ns)
    done.merged += len(replaced)
    done.files = [path for path in done.files if path not in replaced] + [entry.path for entry in added]
    return following


def _merge(paths: FleetPaths, entries: Sequence[EventsEntry], output: _Output) -> None:
    """Write the events of some files of one group as one."""
    files = [EventsFile(paths.full(entry.path)) for entry in entries]
    try:
        found: dict[JobKey, list[tuple[EventsFile, list[RowGroup]]]] = {}
        for file in files:
            for key, groups in file.jobs().items():
                found.setdefault(key, []).append((file, groups))
        for key, parts in sorted(found.items()):
            waiting: list[pa.Table] = []
            # Files are of different days, mostly; a job that is too large to be sorted as a whole is sorted in parts.
            for file, groups in sorted(parts, key=lambda part: min(group.first_t_ns for group in part[1])):
                waiting.append(file.table(groups))
                if sum(table.num_rows for table in waiting) > _MOST_SORTED:
                    output.write(key, deduplicated(pa.concat_tables(waiting)))
                    waiting = []
            if waiting:
                output.write(key, deduplicated(pa.concat_tables(waiting)))
    finally:
        for file in files:
            file.close()


def _delete_old(paths: FleetPaths, manifest: EventsManifest, now_ns: int) -> int:
    """Delete files that left the manifest 7 days ago, or that are in none and as old; return their number."""
    kept = {entry.path for entry in manifest.files}
    count = 0
    for path in paths.storage.list_prefix(paths.full("events/")):
        name = paths.relative(path)
        if name in kept:
            continue
        removed_ns = manifest.removed.get(name)
        age = age_ns(name, now_ns) if removed_ns is None else now_ns - removed_ns
        if age is not None and age > _KEPT_NS:
            try:
                paths.storage.delete(path)
            except ObjectNotFoundError:
                continue
            count += 1
    return count
