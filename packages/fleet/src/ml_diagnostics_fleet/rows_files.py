"""Rows in Parquet, below `rows/<table>/as_of=<ns>/`, and the manifest that names them.

The rows of one moment are replaced as a whole; a reader takes those of the newest moment, or of one that it names.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from ml_diagnostics_common.exceptions import ObjectNotFoundError, StorageError
from ml_goodput_measurement.reading import RULES

from ml_diagnostics_fleet._parquet import decoded, encoded
from ml_diagnostics_fleet._paths import FleetPaths, age_ns, new_run
from ml_diagnostics_fleet.dimensions import as_dimension, dimension_path, read_causes
from ml_diagnostics_fleet.job_rows import ERROR, JobRows
from ml_diagnostics_fleet.manifest import (
    ManifestError,
    RowsManifest,
    RowsSnapshot,
    commit,
    delete_old_manifests,
    latest_rows,
    until_committed,
)
from ml_diagnostics_fleet.schemas import TABLES, JobKey

__all__ = [
    "RowsWriter",
    "WrittenRows",
    "check_rules",
    "commit_rows",
    "newest_rows",
    "read_causes",
    "read_table",
    "replace_jobs",
    "replace_tables",
    "row_paths",
    "write_dimensions",
]

_logger = logging.getLogger(__name__)

_MOST_ROWS: Final = 500_000
_AS_OF: Final = TABLES["jobs"].get_field_index("as_of_ns")
_KEPT_NS: Final = 7 * 86_400 * 10**9
_HOUR_NS: Final = 3_600 * 10**9


class WrittenRows(NamedTuple):
    """Files of rows that no manifest names yet.

    Attributes:
        files: Paths by table, relative to the layout's folder.
        jobs: The number of jobs.
        errors: The number of jobs of which the map failed.
    """

    files: Mapping[str, tuple[str, ...]]
    jobs: int
    errors: int


class RowsWriter:
    """Writes the rows of a run over the fleet.

    Args:
        mirror: The mirror.
        as_of_ns: The moment at which jobs that run end, the same for all rows.
        now_ns: The time, in ns since 1970.
    """

    def __init__(self, mirror: str | os.PathLike[str], as_of_ns: int, now_ns: int) -> None:
        self._paths, self._as_of_ns, self._now_ns = FleetPaths(mirror), as_of_ns, now_ns
        self._run = new_run(now_ns)
        self._rows = JobRows()
        self._files: dict[str, list[str]] = {name: [] for name in TABLES}
        self._jobs = self._errors = 0

    def add(self, rows: JobRows) -> None:
        """Add the rows of some jobs."""
        rules = TABLES["jobs"].get_field_index("rules")
        self._jobs += len(rows.jobs)
        self._errors += sum(row[rules].startswith(ERROR) for row in rows.jobs)
        self._rows.extend(rows)
        if len(self._rows.ledger_rows) + len(self._rows.jobs) >= _MOST_ROWS:
            self._write()

    def commit(self, *, events_version: int, events: int) -> RowsSnapshot:
        """Write what is left, and create the manifest that names all of it.

        Args:
            events_version: The version of the manifest of events that was read.
            events: The number of events that were read.
        """
        return commit_rows(
            self._paths.mirror,
            self._as_of_ns,
            [self.finish()],
            events_version=events_version,
            events=events,
            now_ns=self._now_ns,
        )

    def finish(self) -> WrittenRows:
        """Write what is left; return all files, which count when `commit_rows` names them."""
        self._write()
        return WrittenRows({name: tuple(files) for name, files in self._files.items()}, self._jobs, self._errors)

    def _write(self) -> None:
        rows, self._rows = self._rows, JobRows()
        for name, files in self._files.items():
            table = rows.table(name)
            if not table.num_rows and files:
                continue
            path = f"rows/{name}/as_of={self._as_of_ns}/{self._run}-{len(files)}.parquet"
            self._paths.storage.write(self._paths.full(path), encoded(table), if_generation=0)
            files.append(path)


def commit_rows(
    mirror: str | os.PathLike[str],
    as_of_ns: int,
    parts: Iterable[WrittenRows],
    *,
    events_version: int,
    events: int,
    now_ns: int,
) -> RowsSnapshot:
    """Create the manifest that names the rows of a run; a second call with the same files changes nothing.

    Args:
        mirror: The mirror.
        as_of_ns: The moment at which jobs that run end: rows of the same moment are replaced.
        parts: The files that the run has written.
        events_version: The version of the manifest of events that was read; 0 if none was.
        events: The number of events that were read.
        now_ns: The time, in ns since 1970.
    """
    written = list(parts)
    snapshot = RowsSnapshot(
        as_of_ns=as_of_ns,
        rules=RULES,
        events_version=events_version,
        jobs=sum(part.jobs for part in written),
        events=events,
        errors=sum(part.errors for part in written),
        files={name: tuple(sorted(path for part in written for path in part.files[name])) for name in TABLES},
    )

    def add() -> RowsSnapshot:
        known = latest_rows(mirror)
        return snapshot if snapshot in known.snapshots else _committed(mirror, known, snapshot, now_ns)

    return until_committed(add)


def replace_jobs(mirror: str | os.PathLike[str], jobs: Iterable[JobRows], now_ns: int) -> RowsSnapshot | None:
    """Replace the rows of some jobs as a whole, in a snapshot that has all other jobs of the newest one, too.

    The rows of a job with the latest moment count, whatever order they come in, so a second call changes nothing.

    Args:
        mirror: The mirror.
        jobs: The rows of one job each; a job may come several times.
        now_ns: The time, in ns since 1970.

    Returns:
        The newest snapshot; None if there is none.

    Raises:
        ManifestError: There are rows of another version of the rules, which must not be mixed; or a damaged manifest.
        StorageError: The mirror cannot be read or written.
    """
    latest: dict[JobKey, tuple[int, JobRows]] = {}
    for rows in jobs:
        key, as_of_ns = JobKey(*rows.jobs[0][:2]), rows.jobs[0][_AS_OF]
        if key not in latest or latest[key][0] <= as_of_ns:
            latest[key] = as_of_ns, rows
    paths = FleetPaths(mirror)

    def replace_older() -> RowsSnapshot | None:
        known = latest_rows(mirror)
        base = known.snapshots[0] if known.snapshots else None
        check_rules(base)
        tables = {
            name: TABLES[name].empty_table() if base is None else read_table(mirror, base, name) for name in TABLES
        }
        moments = {
            JobKey(row["log"], row["job"]): row["as_of_ns"]
            for row in tables["jobs"].select(["log", "job", "as_of_ns"]).to_pylist()
        }
        newer = {key: one for key, one in latest.items() if one[0] > moments.get(key, -1)}
        if not newer:
            return base
        snapshot = _write_replaced(paths, base, tables, newer, now_ns)
        return _committed(mirror, _without_continuous(known, now_ns), snapshot, now_ns)

    return until_committed(replace_older)


def replace_tables(
    mirror: str | os.PathLike[str], changed: Callable[[RowsSnapshot], Mapping[str, pa.Table]], now_ns: int
) -> RowsSnapshot | None:
    """Replace some tables of the newest snapshot, which keeps its moment.

    Args:
        mirror: The mirror.
        changed: Returns the new tables by name, of the snapshot that it is given; none if nothing changes. Called again
            if another process has written rows meanwhile.
        now_ns: The time, in ns since 1970.

    Returns:
        The newest snapshot; None if there is none.

    Raises:
        ManifestError: The manifest is damaged.
        StorageError: The mirror cannot be read or written.
    """
    paths = FleetPaths(mirror)

    def write_changed() -> RowsSnapshot | None:
        known = latest_rows(mirror)
        base = known.snapshots[0] if known.snapshots else None
        tables = {} if base is None else changed(base)
        if base is None or not tables:
            return base
        files, run = dict(base.files), new_run(now_ns)
        for name, table in tables.items():
            path = f"rows/{name}/as_of={base.as_of_ns}/{run}-0.parquet"
            paths.storage.write(paths.full(path), encoded(table), if_generation=0)
            files[name] = (path,)
        return _committed(mirror, known, replace(base, files=files), now_ns)

    return until_committed(write_changed)


def _committed(
    mirror: str | os.PathLike[str], known: RowsManifest, snapshot: RowsSnapshot, now_ns: int
) -> RowsSnapshot:
    """Commit a snapshot beside the known ones, delete what is old, and return it."""
    manifest = commit(mirror, _with_snapshot(known, snapshot, now_ns), now_ns)
    _delete_old(FleetPaths(mirror), manifest, now_ns)
    return snapshot


def check_rules(snapshot: RowsSnapshot | None) -> None:
    """Check that rows can be added to a snapshot.

    Raises:
        ManifestError: It has rows of another version of the rules.
    """
    if snapshot is not None and snapshot.rules != RULES:
        raise ManifestError(
            f"the rows of the mirror are of version {snapshot.rules} of the rules, and this is version {RULES}: make "
            "the rows of all jobs first, with the engine for one machine or a pipeline that ends"
        )


def _write_replaced(
    paths: FleetPaths,
    base: RowsSnapshot | None,
    tables: Mapping[str, pa.Table],
    newer: Mapping[JobKey, tuple[int, JobRows]],
    now_ns: int,
) -> RowsSnapshot:
    """Write all rows, some of them replaced; return the snapshot, which no manifest names yet."""
    added = JobRows()
    for _, (_, rows) in sorted(newer.items()):
        added.extend(rows)
    replaced = pa.array([f"{key.log}\0{key.job}" for key in newer])
    moments, run = [as_of_ns for as_of_ns, _ in newer.values()], new_run(now_ns)
    if base is not None:
        moments.append(base.as_of_ns + (0 if base.continuous else 1))  # A snapshot of a moment of its own is kept.
    as_of_ns = max(moments)
    files, whole = {}, {}
    for name, table in tables.items():
        keys = pc.binary_join_element_wise(table["log"], table["job"], "\0")
        whole[name] = pa.concat_tables([table.filter(pc.invert(pc.is_in(keys, replaced))), added.table(name)])
        path = f"rows/{name}/as_of={as_of_ns}/{run}-0.parquet"
        paths.storage.write(paths.full(path), encoded(whole[name]), if_generation=0)
        files[name] = (path,)
    return RowsSnapshot(
        as_of_ns=as_of_ns,
        rules=RULES,
        events_version=0 if base is None else base.events_version,
        jobs=whole["jobs"].num_rows,
        events=pc.sum(whole["jobs"]["entries"]).as_py(),
        errors=pc.sum(pc.starts_with(whole["jobs"]["rules"], ERROR)).as_py(),
        files=files,
        continuous=True,
    )


def newest_rows(mirror: str | os.PathLike[str], as_of_ns: int | None = None) -> RowsSnapshot | None:
    """Return the rows of the newest moment, or of the newest one that is not after `as_of_ns`; None without any."""
    snapshots = latest_rows(mirror).snapshots
    return next((one for one in snapshots if as_of_ns is None or one.as_of_ns <= as_of_ns), None)


def row_paths(mirror: str | os.PathLike[str], snapshot: RowsSnapshot, table: str) -> list[str]:
    """Return the paths of the files of a table of rows."""
    paths = FleetPaths(mirror)
    return [paths.full(path) for path in snapshot.files[table]]


def read_table(mirror: str | os.PathLike[str], snapshot: RowsSnapshot, table: str) -> pa.Table:
    """Return a table of rows.

    Raises:
        ObjectNotFoundError: One of its files does not exist.
        StorageError: A file cannot be read, or is damaged.
    """
    paths = FleetPaths(mirror)
    files = [_read(paths, path) for path in snapshot.files[table]]
    return pa.concat_tables(files) if files else TABLES[table].empty_table()


def _read(paths: FleetPaths, path: str) -> pa.Table:
    data = paths.storage.read(paths.full(path))
    try:
        return decoded(data)
    except (pa.ArrowException, OSError) as error:
        raise StorageError(f"{paths.full(path)} is damaged: {error}; make the rows of that moment again") from None


def write_dimensions(mirror: str | os.PathLike[str], tables: Mapping[str, pa.Table]) -> None:
    """Write tables of `DIMENSIONS`, and replace those that exist.

    Raises:
        ConfigurationError: A table lacks a column, or has one of another type.
        StorageError: It cannot be written.
    """
    paths = FleetPaths(mirror)
    for name, table in tables.items():
        file = dimension_path(name)
        paths.storage.write(paths.full(file), encoded(as_dimension(table, name, file)))


def _without_continuous(known: RowsManifest, now_ns: int) -> RowsManifest:
    """Return a manifest without continuous snapshots. There is one a minute, so their files are kept for an hour."""
    removed_ns = now_ns - _KEPT_NS + _HOUR_NS
    replaced = [path for one in known.snapshots if one.continuous for files in one.files.values() for path in files]
    removed = {path: at_ns for path, at_ns in known.removed.items() if now_ns - at_ns <= _KEPT_NS + _HOUR_NS}
    return replace(
        known,
        snapshots=tuple(one for one in known.snapshots if not one.continuous),
        removed={**removed, **dict.fromkeys(replaced, removed_ns)},
    )


def _with_snapshot(known: RowsManifest, snapshot: RowsSnapshot, now_ns: int) -> RowsManifest:
    """Return a manifest with one more snapshot, in place of that of the same moment."""
    others = [one for one in known.snapshots if one.as_of_ns != snapshot.as_of_ns]
    replaced = [one for one in known.snapshots if one.as_of_ns == snapshot.as_of_ns]
    kept = {path for files in snapshot.files.values() for path in files}
    removed = {path: at_ns for path, at_ns in known.removed.items() if now_ns - at_ns <= 2 * _KEPT_NS}
    removed |= {path: now_ns for one in replaced for files in one.files.values() for path in files if path not in kept}
    snapshots = tuple(sorted([*others, snapshot], key=lambda one: -one.as_of_ns))
    return RowsManifest(known.version, known.created_ns, snapshots, removed)


def _delete_old(paths: FleetPaths, manifest: RowsManifest, now_ns: int) -> None:
    """Delete files that left the manifest 7 days ago, or that are in none and as old, and old manifests."""
    kept = {path for one in manifest.snapshots for files in one.files.values() for path in files}
    try:
        for full in paths.listed(paths.full("rows/")):
            path = paths.relative(full)
            at_ns = manifest.removed.get(path)
            age = age_ns(path, now_ns) if at_ns is None else now_ns - at_ns
            if path not in kept and age is not None and age > _KEPT_NS:
                with contextlib.suppress(ObjectNotFoundError):
                    paths.storage.delete(full)
        delete_old_manifests(paths.mirror, RowsManifest.TABLE, now_ns)
    except StorageError as error:  # The rows count already.
        _logger.warning("Old files of rows are kept, for they cannot be deleted: %s", error)
