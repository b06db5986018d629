"""Rows in Parquet, below `rows/<table>/as_of=<ns>/`, and the manifest that names them.

The rows of one moment are replaced as a whole; a reader takes those of the newest moment, or of one that it names.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final

import pyarrow as pa
from ml_diagnostics_common.exceptions import ObjectNotFoundError
from ml_goodput_measurement.reading import RULES

from ml_diagnostics_fleet._parquet import decoded, encoded
from ml_diagnostics_fleet._paths import FleetPaths, age_ns, new_run
from ml_diagnostics_fleet.job_rows import ERROR, Cause, JobRows
from ml_diagnostics_fleet.manifest import (
    ManifestConflictError,
    RowsManifest,
    RowsSnapshot,
    commit,
    latest_rows,
)
from ml_diagnostics_fleet.schemas import DIMENSIONS, TABLES, JobKey

__all__ = ["RowsWriter", "newest_rows", "read_causes", "read_table", "row_paths", "write_dimensions"]

_MOST_ROWS: Final = 500_000
_TRIES: Final = 10
_KEPT_NS: Final = 7 * 86_400 * 10**9


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
        self._write()
        snapshot = RowsSnapshot(
            as_of_ns=self._as_of_ns,
            rules=RULES,
            events_version=events_version,
            jobs=self._jobs,
            events=events,
            errors=self._errors,
            files={name: tuple(files) for name, files in self._files.items()},
        )
        for number in range(_TRIES):
            known = latest_rows(self._paths.mirror)
            try:
                manifest = commit(self._paths.mirror, _with_snapshot(known, snapshot, self._now_ns), self._now_ns)
            except ManifestConflictError:
                if number == _TRIES - 1:
                    raise
                continue
            break
        _delete_old(self._paths, manifest, self._now_ns)
        return snapshot

    def _write(self) -> None:
        rows, self._rows = self._rows, JobRows()
        for name, files in self._files.items():
            table = rows.table(name)
            if not table.num_rows and files:
                continue
            path = f"rows/{name}/as_of={self._as_of_ns}/{self._run}-{len(files)}.parquet"
            self._paths.storage.write(self._paths.full(path), encoded(table), if_generation=0)
            files.append(path)


def newest_rows(mirror: str | os.PathLike[str], as_of_ns: int | None = None) -> RowsSnapshot | None:
    """Return the rows of the newest moment, or of the newest one that is not after `as_of_ns`; None without any."""
    snapshots = latest_rows(mirror).snapshots
    return next((one for one in snapshots if as_of_ns is None or one.as_of_ns <= as_of_ns), None)


def row_paths(mirror: str | os.PathLike[str], snapshot: RowsSnapshot, table: str) -> list[str]:
    """Return the paths of the files of a table of rows."""
    paths = FleetPaths(mirror)
    return [paths.full(path) for path in snapshot.files[table]]


def read_table(mirror: str | os.PathLike[str], snapshot: RowsSnapshot, table: str) -> pa.Table:
    """Return a table of rows."""
    paths = FleetPaths(mirror)
    files = [decoded(paths.storage.read(paths.full(path))) for path in snapshot.files[table]]
    return pa.concat_tables(files) if files else TABLES[table].empty_table()


def write_dimensions(mirror: str | os.PathLike[str], tables: Mapping[str, pa.Table]) -> None:
    """Write tables of `DIMENSIONS`, and replace those that exist."""
    paths = FleetPaths(mirror)
    for name, table in tables.items():
        data = encoded(table.cast(DIMENSIONS[name]))
        paths.storage.write(paths.full(f"dimensions/{name}.parquet"), data)


def read_causes(mirror: str | os.PathLike[str]) -> dict[JobKey, dict[int, Cause]]:
    """Return the causes of disruptions, by job and number, as far as `dimensions/causes.parquet` has them."""
    paths = FleetPaths(mirror)
    try:
        table = decoded(paths.storage.read(paths.full("dimensions/causes.parquet")))
    except ObjectNotFoundError:
        return {}
    causes: dict[JobKey, dict[int, Cause]] = {}
    for row in table.select(DIMENSIONS["causes"].names).to_pylist():
        cause = Cause(row["cause"], row["cause_host"], row["confidence"])
        causes.setdefault(JobKey(row["log"], row["job"]), {})[row["number"]] = cause
    return causes


def _with_snapshot(known: RowsManifest, snapshot: RowsSnapshot, now_ns: int) -> RowsManifest:
    """Return a manifest with one more snapshot, in place of that of the same moment."""
    others = [one for one in known.snapshots if one.as_of_ns != snapshot.as_of_ns]
    replaced = [one for one in known.snapshots if one.as_of_ns == snapshot.as_of_ns]
    removed = {path: at_ns for path, at_ns in known.removed.items() if now_ns - at_ns <= 2 * _KEPT_NS}
    removed |= {path: now_ns for one in replaced for files in one.files.values() for path in files}
    snapshots = tuple(sorted([*others, snapshot], key=lambda one: -one.as_of_ns))
    return RowsManifest(known.version, known.created_ns, snapshots, removed)


def _delete_old(paths: FleetPaths, manifest: RowsManifest, now_ns: int) -> None:
    """Delete files that left the manifest 7 days ago, or that are in none and as old."""
    kept = {path for one in manifest.snapshots for files in one.files.values() for path in files}
    for full in paths.storage.list_prefix(paths.full("rows/")):
        path = paths.relative(full)
        at_ns = manifest.removed.get(path)
        age = age_ns(path, now_ns) if at_ns is None else now_ns - at_ns
        if path not in kept and age is not None and age > _KEPT_NS:
            try:
                paths.storage.delete(full)
            except ObjectNotFoundError:
                continue
