"""The files of events of a mirror: written by group, merged when many are small, and deleted a week after their end.

A file counts when a manifest names it. What a killed process leaves is in no manifest, and is deleted by its age.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import IO, Final

import pyarrow as pa
from ml_diagnostics_common.exceptions import ObjectNotFoundError, StorageError

from ml_diagnostics_fleet._paths import FleetPaths, age_ns, new_run
from ml_diagnostics_fleet.event_tables import EventTables, deduplicated
from ml_diagnostics_fleet.events import DamagedEventsError, EventsFile, EventsWriter, RowGroup, checksum
from ml_diagnostics_fleet.manifest import (
    EventsEntry,
    EventsManifest,
    Gap,
    commit,
    delete_old_manifests,
    latest_events,
    until_committed,
)
from ml_diagnostics_fleet.schemas import JobKey, group_of

__all__ = [
    "EventFilesWriter",
    "MergedFiles",
    "TableChanges",
    "delete_old",
    "delete_old_files",
    "merge_files",
    "merge_small_files",
    "still_removed",
]

_DAY_NS: Final = 86_400 * 10**9
_KEPT_NS: Final = 7 * _DAY_NS
"""Files that no manifest names are deleted after this time."""
_SMALL_BYTES: Final = 64 * 2**20
_MOST_SMALL: Final = 8
_LARGEST_BYTES: Final = 256 * 2**20
_MOST_SORTED: Final = 4_000_000
"""Events of a job that are sorted at a time when files are merged."""
_MOST_SORTED_BYTES: Final = 2**30
"""The same in bytes: a column of text has 2 GiB at most."""


@dataclass(slots=True)
class TableChanges:
    """The changes of the table of events, whatever its entries come from.

    Attributes:
        version: The version of the manifest.
        events: The number of events that were added.
        files: The files that were added, and not merged since.
        merged: The number of files that were replaced.
        without_job: Entries that name no job, which are in no table.
        deleted: The number of old files that were deleted.
        gaps: All entries that are missing in the table.
        warnings: Sentences for the user.
    """

    version: int = 0
    events: int = 0
    files: list[str] = field(default_factory=list)
    merged: int = 0
    without_job: int = 0
    deleted: int = 0
    gaps: list[Gap] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


class EventFilesWriter:
    """Writes files of events by group, first on this machine: in files without a name, so a killed process leaves none.

    Args:
        paths: The mirror.
        now_ns: The time, in ns since 1970.
    """

    def __init__(self, paths: FleetPaths, now_ns: int) -> None:
        self._paths, self._run = paths, new_run(now_ns)
        self._open: dict[str, tuple[EventsWriter, IO[bytes]]] = {}
        self._done: list[EventsEntry] = []

    def __enter__(self) -> EventFilesWriter:
        return self

    def __exit__(self, *error: object) -> None:
        for writer, file in self._open.values():
            writer.discard()
            file.close()
        self._open.clear()

    def add(self, tables: EventTables) -> int:
        """Add the events that were collected; return their number."""
        count = 0
        for key, table in tables.take().items():
            self.write(key, table)
            count += table.num_rows
        return count

    def write(self, key: JobKey, table: pa.Table) -> None:
        """Add events of one job, in order."""
        group = group_of(key)
        if group not in self._open:
            file: IO[bytes] = tempfile.TemporaryFile(prefix="ml-diagnostics-")  # noqa: SIM115
            self._open[group] = EventsWriter(file), file
        writer, file = self._open[group]
        writer.write(key, table)
        if file.tell() > _LARGEST_BYTES:
            self._store(group)

    def finish(self) -> list[EventsEntry]:
        """Store all files in the mirror, and return them."""
        for group in sorted(self._open):
            self._store(group)
        return self._done

    def _store(self, group: str) -> None:
        writer, file = self._open[group]
        writer.close()
        path = f"events/group={group}/{self._run}-{len(self._done)}-{checksum(file)}.parquet"
        file.seek(0)
        data = file.read()
        file.close()
        del self._open[group]
        self._paths.storage.write(self._paths.full(path), data, if_generation=0)
        self._done.append(
            EventsEntry(path, group, writer.rows, len(data), len(writer.jobs), writer.first_t_ns, writer.last_t_ns)
        )


@dataclass(frozen=True, slots=True)
class MergedFiles:
    """Files that others replace.

    Attributes:
        manifest: The manifest without and with them, which is not created yet.
        replaced: Their paths.
        added: The paths of the others.
        damaged: Reasons why files of a group cannot be read: none of the group is merged.
    """

    manifest: EventsManifest
    replaced: set[str]
    added: list[str]
    damaged: list[str]


def merge_small_files(paths: FleetPaths, manifest: EventsManifest, now_ns: int) -> MergedFiles:
    """Merge the small files of each group that has more than eight of them.

    Args:
        paths: The mirror.
        manifest: The files.
        now_ns: The time, in ns since 1970.

    Raises:
        StorageError: The mirror cannot be read or written.
    """
    replaced, added, damaged = set[str](), list[EventsEntry](), list[str]()
    for _, entries in sorted(manifest.groups().items()):
        small = [entry for entry in entries if entry.bytes < _SMALL_BYTES]
        if len(small) <= _MOST_SMALL:
            continue
        with EventFilesWriter(paths, max(now_ns, manifest.created_ns)) as output:
            try:
                _merge(paths, small, output)
            except (DamagedEventsError, ObjectNotFoundError) as error:
                damaged.append(str(error))
                continue
            added += output.finish()
        replaced.update(entry.path for entry in small)
    files = (*(entry for entry in manifest.files if entry.path not in replaced), *added)
    removed = {**still_removed(manifest, now_ns), **dict.fromkeys(replaced, now_ns)}
    following = replace(manifest, files=files, removed=removed)
    return MergedFiles(following, replaced, [entry.path for entry in added], damaged)


def merge_files(paths: FleetPaths, done: TableChanges, now_ns: int) -> EventsManifest:
    """Merge the small files of groups that have many of them, and commit that; return the newest manifest.

    Args:
        paths: The mirror.
        done: The changes, to which the merged files and reasons of others are added.
        now_ns: The time, in ns since 1970.

    Raises:
        ManifestConflictError: Others were faster, many times.
        StorageError: The mirror cannot be read or written.
    """

    def merge() -> EventsManifest:
        manifest = latest_events(paths.mirror)
        merged = merge_small_files(paths, manifest, now_ns)
        warnings = [f"{reason}: the files of its group are not merged" for reason in merged.damaged]
        done.warnings += [warning for warning in warnings if warning not in done.warnings]
        if not merged.replaced:
            return manifest
        following = commit(paths.mirror, merged.manifest, now_ns)
        done.merged += len(merged.replaced)
        done.files = [path for path in done.files if path not in merged.replaced] + merged.added
        return following

    return until_committed(merge)


def delete_old(paths: FleetPaths, manifest: EventsManifest, done: TableChanges, now_ns: int) -> None:
    """Delete old files and old manifests; if that is refused, there is a warning, for the table counts already.

    Args:
        paths: The mirror.
        manifest: The newest manifest.
        done: The changes, to which the number of files is added.
        now_ns: The time, in ns since 1970.
    """
    try:
        for _ in delete_old_files(paths, manifest, now_ns):
            done.deleted += 1
        delete_old_manifests(paths.mirror, EventsManifest.TABLE, now_ns)
    except StorageError as error:
        done.warnings.append(f"old files of events are kept, for they cannot be deleted: {error}")


def _merge(paths: FleetPaths, entries: Sequence[EventsEntry], output: EventFilesWriter) -> None:
    """Write the events of some files of one group as one."""
    files: list[EventsFile] = []
    try:
        found: dict[JobKey, list[tuple[EventsFile, list[RowGroup]]]] = {}
        for entry in entries:
            files.append(EventsFile(paths.full(entry.path)))
            for key, groups in files[-1].jobs().items():
                found.setdefault(key, []).append((files[-1], groups))
        for key, parts in sorted(found.items()):
            waiting: list[pa.Table] = []
            # Files are of different days, mostly; a job that is too large to be sorted as a whole is sorted in parts.
            for file, groups in sorted(parts, key=lambda part: min(group.first_t_ns for group in part[1])):
                waiting.append(file.table(groups))
                rows, size = (sum(getattr(table, name) for table in waiting) for name in ("num_rows", "nbytes"))
                if rows > _MOST_SORTED or size > _MOST_SORTED_BYTES:
                    output.write(key, deduplicated(pa.concat_tables(waiting)))
                    waiting = []
            if waiting:
                output.write(key, deduplicated(pa.concat_tables(waiting)))
    finally:
        for file in files:
            file.close()


def still_removed(manifest: EventsManifest, now_ns: int) -> dict[str, int]:
    """Return the removed files of a manifest that the next one has to name, too."""
    return {path: at_ns for path, at_ns in manifest.removed.items() if now_ns - at_ns <= _KEPT_NS + _DAY_NS}


def delete_old_files(paths: FleetPaths, manifest: EventsManifest, now_ns: int) -> Iterator[str]:
    """Delete files that left the manifest 7 days ago, or that are in none and as old; yield the path of each.

    Args:
        paths: The mirror.
        manifest: The files that are kept.
        now_ns: The time, in ns since 1970.

    Raises:
        StorageError: The mirror cannot be listed, or a file cannot be deleted.
    """
    kept = {entry.path for entry in manifest.files}
    for path in paths.listed(paths.full("events/")):
        name = paths.relative(path)
        if name in kept:
            continue
        removed_ns = manifest.removed.get(name)
        age = age_ns(name, now_ns) if removed_ns is None else now_ns - removed_ns
        if age is None or age <= _KEPT_NS:
            continue
        try:
            paths.storage.delete(path)
        except ObjectNotFoundError:
            continue
        yield name
