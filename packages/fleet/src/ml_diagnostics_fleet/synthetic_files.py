"""Writes a synthetic fleet into a mirror: as its jobs would, in segments, or at once as files of events."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa
from ml_diagnostics_common.files import in_bucket
from ml_diagnostics_common.journal import log_folder_name
from ml_diagnostics_common.mirror.names import EndName, LogPaths, SegmentName, day_of
from ml_diagnostics_common.mirror.segments import encode_segment

from ml_diagnostics_fleet._paths import FleetPaths, new_run
from ml_diagnostics_fleet._workers import Failed, run_tasks
from ml_diagnostics_fleet.events import EventsWriter, checksum
from ml_diagnostics_fleet.manifest import EventsEntry, EventsManifest, commit, latest_events
from ml_diagnostics_fleet.rows_files import write_dimensions
from ml_diagnostics_fleet.schemas import group_of
from ml_diagnostics_fleet.synthetic import AS_OF_NS, SyntheticFleet, dimension_tables
from ml_diagnostics_fleet.synthetic_job import SyntheticJob

__all__ = ["segments_of", "write_event_files", "write_segments"]

_BUCKET: Final = "gs://synthetic/checkpoints"
_TIMES: Final = {
    "load_start": "data_loading_start_time",
    "load_end": "data_loading_end_time",
    "job_start": "job_start_time",
    "job_end": "job_end_time",
    "init_start": "tpu_init_start_time",
    "init_end": "tpu_init_end_time",
    "prep_start": "training_prep_start_time",
    "prep_end": "training_prep_end_time",
}


def write_segments(mirror: str | os.PathLike[str], fleet: SyntheticFleet) -> int:
    """Write what the processes of a fleet would have mirrored, and its dimensions; return the number of entries."""
    paths, count = FleetPaths(mirror), 0
    for job in fleet:
        table = job.table()
        for path, data in segments_of(paths.mirror, job, table):
            if in_bucket(path):
                paths.storage.write(path, data)
            else:  # Without fsync, which real writers need, and which takes most of the time here.
                Path(path).parent.mkdir(parents=True, exist_ok=True)
                Path(path).write_bytes(data)
        count += table.num_rows
    write_dimensions(mirror, dimension_tables(fleet))
    return count


def segments_of(mirror: str, job: SyntheticJob, table: pa.Table) -> Iterator[tuple[str, bytes]]:
    """Yield path and content of each object that the processes of a job would have written, one a writer and day.

    Args:
        mirror: The mirror.
        job: The job.
        table: Its events.
    """
    objects = LogPaths(mirror, log_folder_name(job.key.log))
    by_writer: dict[str, list[dict[str, Any]]] = {}
    for row in table.to_pylist():
        by_writer.setdefault(row["writer"], []).append(row)
    for writer, rows in by_writer.items():
        rows.sort(key=lambda row: row["seq"])
        header = _header(job, rows[0])
        by_day: dict[str, list[dict[str, Any]]] = {}
        for row in rows:
            by_day.setdefault(day_of(row["t_ns"]), []).append(row)
        for day, entries in by_day.items():
            name = SegmentName(day, writer, entries[0]["seq"], entries[-1]["seq"], 1)
            lines = b"".join(map(_line, entries))
            yield objects.path(name), encode_segment(header, lines, 1)
        if job.end == "ended" or rows[-1]["labels"] != table["labels"][-1].as_py():
            end = {"last": rows[-1]["seq"], "by": "self"}
            yield objects.path(EndName(day_of(rows[-1]["t_ns"]), writer)), json.dumps(end).encode()


class _GroupTask(NamedTuple):
    mirror: str
    fleet: SyntheticFleet
    run: str
    group: str
    jobs: tuple[int, ...]


def write_event_files(mirror: str | os.PathLike[str], fleet: SyntheticFleet, *, processes: int = 1) -> EventsManifest:
    """Write the events of a fleet as a compactor would, without segments; return the manifest.

    Args:
        mirror: The mirror.
        fleet: The fleet.
        processes: The number of worker processes; each takes the memory of one file. 1 works in this process.
    """
    paths, run = FleetPaths(mirror), new_run(AS_OF_NS)
    by_group: dict[str, list[SyntheticJob]] = {}
    for job in fleet:
        by_group.setdefault(group_of(job.key), []).append(job)
    tasks = []
    for number, (group, jobs) in enumerate(sorted(by_group.items())):
        members = tuple(job.index for job in sorted(jobs, key=lambda job: job.key))
        tasks.append(_GroupTask(paths.mirror, fleet, f"{run}-{number}", group, members))
    entries: list[EventsEntry] = []
    done = run_tasks(_write_group, tasks, processes) if processes > 1 else ((one, _write_group(one)) for one in tasks)
    for _, entry in done:
        if isinstance(entry, Failed):
            raise RuntimeError(f"events of group {entry.task.group}: {entry.reason}")
        entries.append(entry)
    known = latest_events(mirror)
    files = (*known.files, *sorted(entries, key=lambda entry: entry.path))
    return commit(mirror, dataclasses.replace(known, files=files), AS_OF_NS)


def _write_group(task: _GroupTask) -> EventsEntry:
    with tempfile.TemporaryDirectory(prefix="ml-diagnostics-synthetic-") as folder:
        file = Path(folder) / "events.parquet"
        with EventsWriter(str(file)) as writer:
            for index in task.jobs:
                job = task.fleet.job(index)
                writer.write(job.key, job.table())
        data, paths = file.read_bytes(), FleetPaths(task.mirror)
    path = f"events/group={task.group}/{task.run}-{checksum(io.BytesIO(data))}.parquet"
    paths.storage.write(paths.full(path), data, if_generation=0)
    times = writer.first_t_ns, writer.last_t_ns
    return EventsEntry(path, task.group, writer.rows, len(data), len(writer.jobs), *times)


def _header(job: SyntheticJob, row: Mapping[str, Any]) -> bytes:
    labels = {"job": job.key.job, "host": row["host"], "process_index": str(row["process_index"])}
    labels |= json.loads(row["labels"])
    header = {"schema": 1, "log": job.key.log, "writer": row["writer"], "labels": labels}
    return json.dumps({**header, "resource": {}, "severity": "INFO", "ship": True}).encode()


def _line(row: Mapping[str, Any]) -> bytes:
    payload = {"job_name": row["job"], **_payload(row)}
    return b"\n" + json.dumps({"t": row["t_ns"], "s": row["seq"], "p": payload}, separators=(",", ":")).encode()


def _payload(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys that a recorder or Orbax writes for an event."""
    kind, at = row["kind"], row["at_ns"] / 1e9
    if kind == "step_start":
        return {"step_count": row["step"], "step_start_time": at}
    if kind in _TIMES:
        return {_TIMES[kind]: at}
    if kind in ("custom_start", "custom_end"):
        return {"custom_badput_event_type": row["label"], f"custom_badput_event_{kind[7:]}_time": at}
    prefix = "checkpoint_manager_blocking" if kind == "save" else "checkpoint_manager"
    seconds = row["duration_ns"] / 1e9
    times = {f"{prefix}_start_time": at, f"{prefix}_duration_secs": seconds}
    return {"event_type": kind, "step": row["step"], "directory": _BUCKET, **times}
