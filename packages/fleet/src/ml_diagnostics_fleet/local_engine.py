"""The engine for one machine: worker processes that apply the map to the jobs of one group at a time, largest first."""

from __future__ import annotations

import functools
import multiprocessing
import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import pyarrow as pa

from ml_diagnostics_fleet._paths import FleetPaths
from ml_diagnostics_fleet._workers import Failed, run_tasks
from ml_diagnostics_fleet.job_map import JobQuality, events_of, parts_of_jobs, qualities_of, rows_of_job
from ml_diagnostics_fleet.job_rows import Cause, JobRows, error_rows
from ml_diagnostics_fleet.manifest import RowsSnapshot, latest_events
from ml_diagnostics_fleet.rows_files import RowsWriter, read_causes
from ml_diagnostics_fleet.schemas import JobKey

__all__ = ["FleetRun", "map_files", "run_local"]


@dataclass(slots=True)
class FleetRun:
    """The results of a run over the fleet.

    Attributes:
        snapshot: The rows that were written.
        jobs: The number of jobs.
        events: The number of events that were read.
        errors: The jobs of which the map failed, and why.
        failed_groups: The groups of which the worker died twice, and how.
    """

    snapshot: RowsSnapshot
    jobs: int = 0
    events: int = 0
    errors: list[tuple[JobKey, str]] = field(default_factory=list)
    failed_groups: list[tuple[str, str]] = field(default_factory=list)


class _Task(NamedTuple):
    mirror: str
    version: int
    as_of_ns: int
    group: str
    files: tuple[str, ...]


@dataclass(slots=True)
class _GroupResult:
    rows: JobRows = field(default_factory=JobRows)
    events: int = 0
    errors: list[tuple[JobKey, str]] = field(default_factory=list)


def run_local(
    mirror: str | os.PathLike[str], as_of_ns: int, *, processes: int | None = None, now_ns: int | None = None
) -> FleetRun:
    """Apply the map to all jobs of a mirror, and write their rows.

    Args:
        mirror: The mirror.
        as_of_ns: The moment at which jobs that run end, in ns since 1970.
        processes: The number of worker processes; 1 works in this process, None is one for each core.
        now_ns: The time; None for this machine's.

    Raises:
        ManifestError: The manifest is damaged, or of a newer version.
        ConfigurationError: A table of causes or of hosts is damaged.
        StorageError: The mirror cannot be read or written.
    """
    paths = FleetPaths(mirror)
    manifest = latest_events(mirror)
    _known_of.cache_clear()  # Causes may have changed since an earlier run of this process.
    read_causes(mirror)  # A damaged table is an error here, not one of each job.
    writer = RowsWriter(mirror, as_of_ns, time.time_ns() if now_ns is None else now_ns)
    groups = sorted(manifest.groups().items(), key=lambda one: (-sum(entry.rows for entry in one[1]), one[0]))
    tasks = [
        _Task(paths.mirror, manifest.version, as_of_ns, group, tuple(sorted(entry.path for entry in entries)))
        for group, entries in groups
    ]
    count = min(processes or os.cpu_count() or 1, len(tasks))
    total, failed = _GroupResult(), list[tuple[str, str]]()
    done = run_tasks(_map_group, tasks, count) if count > 1 else ((task, _map_group(task)) for task in tasks)
    for task, result in done:
        if isinstance(result, Failed):
            failed.append((task.group, result.reason))
            result = _failed_rows(task, f"group {task.group} failed twice: {result.reason}")
        total.events += result.events
        total.errors += result.errors
        writer.add(result.rows)
    snapshot = writer.commit(events_version=manifest.version, events=total.events)
    return FleetRun(snapshot, snapshot.jobs, total.events, sorted(total.errors), sorted(failed))


def map_files(
    files: Iterable[str],
    as_of_ns: int,
    *,
    qualities: Mapping[str, JobQuality] | None = None,
    causes: Mapping[JobKey, Mapping[int, Cause]] | None = None,
) -> JobRows:
    """Return the rows of all jobs of some files of events; the map is applied in this process.

    Args:
        files: Their paths.
        as_of_ns: The moment at which jobs that run end, in ns since 1970.
        qualities: The state of the writers of each log, see `qualities_of`.
        causes: The causes of disruptions, by job and number.
    """
    rows = JobRows()
    for key, parts in sorted(parts_of_jobs(files).items()):
        rows.extend(rows_of_job(key, parts, as_of_ns, quality=(qualities or {}).get(key.log), causes=causes))
    return rows


@functools.lru_cache(maxsize=1)
def _known_of(mirror: str, version: int) -> tuple[dict[str, JobQuality], dict[JobKey, dict[int, Cause]]]:
    """Return what all tasks of a run need, once in each process."""
    return qualities_of(latest_events(mirror, version)), read_causes(mirror)


def _map_group(task: _Task) -> _GroupResult:
    if multiprocessing.parent_process() is not None:
        # There is a worker for each core. The default pool keeps 40 MB more than it uses.
        pa.set_cpu_count(1)
        pa.set_memory_pool(pa.system_memory_pool())
    paths, result = FleetPaths(task.mirror), _GroupResult()
    qualities, causes = _known_of(task.mirror, task.version)
    for key, parts in sorted(parts_of_jobs(map(paths.full, task.files)).items()):
        rows = rows_of_job(key, parts, task.as_of_ns, quality=qualities.get(key.log), causes=causes)
        result.events += events_of(parts)
        _note_errors(result, key, rows)
        result.rows.extend(rows)
    return result


def _failed_rows(task: _Task, reason: str) -> _GroupResult:
    """Return the errors of all jobs of a group."""
    result, paths = _GroupResult(), FleetPaths(task.mirror)
    for key in sorted(parts_of_jobs(map(paths.full, task.files))):
        rows = error_rows(key, reason, task.as_of_ns)
        _note_errors(result, key, rows)
        result.rows.extend(rows)
    return result


def _note_errors(result: _GroupResult, key: JobKey, rows: JobRows) -> None:
    error = rows.error()
    if error:
        result.errors.append((key, error))
