"""Compaction without a mirror: from a view of BigQuery with the entries of logs to the table of events.

    rows of closed days -> events on this machine's disk, by group -> those that are not in the table, in order
    -> files of events -> the next manifest

An entry is known by its writer and number, or its insert id if another library wrote it, wherever it was read. So
overlapping ranges, repeated runs, and a mirror of the same jobs give each entry once.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from ml_diagnostics_common.entry import SeenSequences
from ml_diagnostics_common.exceptions import ConfigurationError
from ml_diagnostics_common.journal import log_folder_name

from ml_diagnostics_fleet._batches import FOREIGN
from ml_diagnostics_fleet._bigquery_view import BigQueryView
from ml_diagnostics_fleet._event_spill import EventSpill
from ml_diagnostics_fleet._paths import FleetPaths
from ml_diagnostics_fleet._view_entries import UNTIMED, ViewEntries
from ml_diagnostics_fleet.event_files import EventFilesWriter, TableChanges, delete_old, merge_files, still_removed
from ml_diagnostics_fleet.event_tables import EventTables
from ml_diagnostics_fleet.events import EventsFile, RowGroup
from ml_diagnostics_fleet.manifest import EventsManifest, LogState, commit, latest_events, until_committed
from ml_diagnostics_fleet.schemas import JobKey

__all__ = ["ViewCompaction", "compact_view"]

_DAY_NS: Final = 86_400 * 10**9
_MOST_ROWS: Final = 100_000
"""Entries that are converted at a time."""


@dataclass(slots=True)
class ViewCompaction(TableChanges):
    """A compaction's results.

    Attributes:
        rows: The number of rows that were read.
        known: Rows whose entries were in the table already, or were read twice.
        without_payload: Rows without a JSON payload, such as lines of text: they are of other programs.
        unreadable: The number of rows that cannot be read, by reason.
        unreadable_ids: The insert ids of some of them, by reason.
    """

    rows: int = 0
    known: int = 0
    without_payload: int = 0
    unreadable: dict[str, int] = field(default_factory=dict)
    unreadable_ids: dict[str, list[str]] = field(default_factory=dict)


def compact_view(
    mirror: str | os.PathLike[str],
    view: str | BigQueryView,
    *,
    since_ns: int | None = None,
    through_ns: int | None = None,
    now_ns: int | None = None,
    merges: bool = True,
) -> ViewCompaction:
    """Add the entries of a view of BigQuery to the table of events, merge small files, and delete old ones.

    Args:
        mirror: The mirror with the table of events: `gs://bucket/prefix`, or a local folder.
        view: DATASET.VIEW or PROJECT.DATASET.VIEW: a Log Analytics view, or a table that a log sink writes.
        since_ns: Only entries from this time on, in ns since 1970; None for all.
        through_ns: Only entries of days that end by this moment; None is `now_ns`. Of a view without a column
            `timestamp`, all entries are read.
        now_ns: The time; None for this machine's.
        merges: True to merge small files.

    Raises:
        BigQueryError: The view cannot be read; nothing was added.
        ConfigurationError: The view lacks a column, or its name is not valid.
        CredentialsError: No project or credentials were found.
        ManifestError: The manifest is damaged, or of a newer version.
        ManifestConflictError: Other compactors were faster, many times.
        MissingExtraError: Google's clients are not installed: they are the extra `bigquery`.
        StorageError: The table of events cannot be read or written.
    """
    now_ns = time.time_ns() if now_ns is None else now_ns
    through_ns = now_ns if through_ns is None else through_ns
    paths, done = FleetPaths(mirror), ViewCompaction()
    latest_events(paths.mirror)  # Its errors, before anything is read.
    source = BigQueryView(view) if isinstance(view, str) else view
    if since_ns is not None and not source.has_times():
        raise ConfigurationError(f"{source} has no column timestamp: all of it can be read, and no part")
    with EventSpill() as spill:
        _read(source, since_ns, through_ns - through_ns % _DAY_NS, spill, done)
        manifest = until_committed(lambda: _add_events(paths, spill, done, now_ns))
    if merges:
        manifest = merge_files(paths, done, now_ns)
    passed_over = done.without_payload + done.without_job + sum(done.unreadable.values())
    done.known = done.rows - passed_over - done.events
    done.version, done.gaps = manifest.version, manifest.gaps()
    delete_old(paths, manifest, done, now_ns)
    return done


def _read(source: BigQueryView, since_ns: int | None, until_ns: int, spill: EventSpill, done: ViewCompaction) -> None:
    """Read the rows of a view as events on disk."""
    read, tables = ViewEntries(), dict[str, EventTables]()
    for batch in source.batches(since_ns, until_ns):
        for log, entries in read.entries(batch).items():
            if log not in tables:
                tables[log] = EventTables(log)
            tables[log].add(entries)
        if sum(map(len, tables.values())) >= _MOST_ROWS:
            _flush(tables, spill, done)
    _flush(tables, spill, done)
    done.rows, done.without_payload = read.rows, read.without_payload
    done.unreadable, done.unreadable_ids = dict(read.unreadable), read.examples


def _flush(tables: dict[str, EventTables], spill: EventSpill, done: ViewCompaction) -> None:
    for collected in tables.values():
        spill.add({key: _timed(table) for key, table in collected.take().items()})
        done.without_job += collected.without_job
    tables.clear()


def _timed(table: pa.Table) -> pa.Table:
    """Return events with the time of the event for entries without one."""
    times = table.column("t_ns")
    if pc.min(times).as_py() != UNTIMED:
        return table
    known = pc.if_else(pc.equal(times, UNTIMED), table.column("at_ns"), times)
    return table.set_column(table.schema.get_field_index("t_ns"), table.schema.field("t_ns"), known)


def _add_events(paths: FleetPaths, spill: EventSpill, done: ViewCompaction, now_ns: int) -> EventsManifest:
    """Add what is new to the table; return the manifest, which is a new one if there was anything."""
    manifest = latest_events(paths.mirror)
    logs, files = dict(manifest.logs), manifest.groups()
    changed = set[str]()
    done.events = 0
    with EventFilesWriter(paths, max(now_ns, manifest.created_ns)) as output:
        for group in spill.groups():
            paths_of_group = [paths.full(entry.path) for entry in files.get(group, ())]
            with contextlib.closing(_OtherEntries(paths_of_group)) as others:
                for key, table in spill.tables(group):
                    name = log_folder_name(key.log)
                    if name not in changed:
                        changed.add(name)
                        logs[name] = logs[name].copy() if name in logs else LogState(key.log)
                    new = _unseen(table, logs[name].seen, others.of(key))
                    if new.num_rows:
                        output.write(key, new)
                        done.events += new.num_rows
        entries = output.finish()
    done.files = [entry.path for entry in entries]
    if not entries:
        return manifest
    following = replace(manifest, files=(*manifest.files, *entries), logs=logs, removed=still_removed(manifest, now_ns))
    return commit(paths.mirror, following, now_ns)


class _OtherEntries:
    """The entries of other libraries in the table: they have no numbers, so their identities are read.

    Args:
        paths: The files of a group.
    """

    def __init__(self, paths: list[str]) -> None:
        self._paths = paths
        self._files: list[tuple[EventsFile, dict[JobKey, list[RowGroup]]]] | None = None
        self._key: JobKey | None = None
        self._known: set[str] | None = None

    def of(self, key: JobKey) -> _OtherEntries:
        """Select a job. The parts of a job follow one another."""
        if key != self._key:
            self._key, self._known = key, None
        return self

    def add_new(self, identities: list[str]) -> list[bool]:
        """Note identities of entries of the job; return True for each that is new."""
        if self._known is None:
            self._known = set(self._in_table())
        found = [identity not in self._known for identity in identities]
        self._known.update(identities)
        return found

    def close(self) -> None:
        """Close the files."""
        for file, _ in self._files or ():
            file.close()

    def _in_table(self) -> Iterator[str]:
        if self._files is None:
            self._files = [(file, file.jobs()) for file in map(EventsFile, self._paths)]
        for file, jobs in self._files:
            groups = jobs.get(self._key, []) if self._key is not None else []
            for batch in file.batches(groups, ["writer"]):
                names = batch.column(0).unique().to_pylist()
                yield from (name for name in names if name.startswith(FOREIGN))


def _unseen(table: pa.Table, seen: SeenSequences, others: _OtherEntries) -> pa.Table:
    """Return the events of one job that are new, and note them."""
    writers = table.column("writer").combine_chunks()
    writers = writers.chunk(0) if isinstance(writers, pa.ChunkedArray) else writers
    names = writers.dictionary.to_pylist()
    codes, numbers = writers.indices.to_numpy(), table.column("seq").to_numpy()
    is_other = np.fromiter((name.startswith(FOREIGN) for name in names), bool, len(names))
    is_new = np.zeros(len(codes), bool)
    rows = np.flatnonzero(is_other[codes])
    if len(rows):
        found, firsts = np.unique(codes[rows], return_index=True)
        is_new[rows[firsts]] = others.add_new([names[code] for code in found.tolist()])
    rows = np.flatnonzero(~is_other[codes])
    rows = rows[np.argsort(codes[rows], kind="stable")]
    starts = np.flatnonzero(np.diff(codes[rows], prepend=-1))
    for of_writer in np.split(rows, starts[1:]) if len(rows) else ():
        is_new[of_writer] = _add_new(seen, names[codes[of_writer[0]]], numbers[of_writer])
    return table if is_new.all() else table.filter(pa.array(is_new))


def _add_new(seen: SeenSequences, writer: str, numbers: Any) -> Any:
    """Note the numbers of some entries of a writer; return True for each that is new, once."""
    distinct, firsts = np.unique(numbers, return_index=True)
    ranges = np.array(seen.ranges(writer), np.int64).reshape(-1, 2)
    if len(ranges):
        before = np.searchsorted(ranges[:, 0], distinct, "right") - 1
        fresh = (before < 0) | (distinct > ranges[np.maximum(before, 0), 1])
        distinct, firsts = distinct[fresh], firsts[fresh]
    is_new = np.zeros(len(numbers), bool)
    is_new[firsts] = True
    for part in np.split(distinct, np.flatnonzero(np.diff(distinct) != 1) + 1):
        if len(part):
            seen.add_range(writer, int(part[0]), int(part[-1]))
    return is_new
