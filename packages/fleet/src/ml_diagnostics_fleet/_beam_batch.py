"""The pipelines of a run over the fleet. No event is an element; elements are jobs, and their rows.

    manifest -> files of a group -> the parts of each job -> Reshuffle -> rows of a job -> GroupByKey, by number of
    file -> files of rows -> one list -> manifest

    segments -> writers of a log -> Reshuffle -> (job, batch of events in Arrow's format) -> GroupByKey, by job -> rows
    of a job

A bundle that is tried again writes files of other names, and only those of the bundle that counts reach the manifest.
All functions are of this module, so workers import them: nothing of the calling program is pickled.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import apache_beam as beam
import pyarrow as pa
from apache_beam.options.pipeline_options import PipelineOptions
from ml_diagnostics_common.entry import SeenSequences

from ml_diagnostics_fleet._paths import FleetPaths
from ml_diagnostics_fleet.job_map import (
    CountedBatches,
    JobParts,
    JobQuality,
    batches_of,
    events_of,
    parts_of_jobs,
    qualities_of,
    rows_or_error,
)
from ml_diagnostics_fleet.job_rows import Cause, JobRows
from ml_diagnostics_fleet.manifest import EventsManifest, LogState, latest_events
from ml_diagnostics_fleet.rows_files import RowsWriter, WrittenRows, commit_rows, read_causes
from ml_diagnostics_fleet.schemas import JobKey, group_of
from ml_diagnostics_fleet.segment_events import LogPart, SegmentEvents

__all__ = ["Run", "pipeline_of_events", "pipeline_of_segments"]

_JOBS_A_FILE: Final = 2_000
_BATCH_ROWS: Final = 1_000_000
"""Events of a job in one element, at most; at least 10,000 where a job has them."""

_damaged = beam.metrics.Metrics.counter("ml_diagnostics_fleet", "damaged_segments")
_Key = tuple[str, str]


class Run(NamedTuple):
    """A run over the fleet: what all steps need.

    Attributes:
        mirror: The mirror.
        name: The name that no other run has.
        as_of_ns: The moment at which jobs that run end, in ns since 1970.
        now_ns: The time of the start.
        version: The version of the table of events; 0 for a run over segments.
        files: The number of files that the rows of a table get, at most.
    """

    mirror: str
    name: str
    as_of_ns: int
    now_ns: int
    version: int = 0
    files: int = 1


class _Mapped(NamedTuple):
    """The rows of a job, and the number of its events."""

    rows: JobRows
    events: int


class _Written(NamedTuple):
    rows: WrittenRows
    events: int


def pipeline_of_events(options: Sequence[str], run: Run, manifest: EventsManifest) -> beam.Pipeline:
    """Return a pipeline that applies the map to the jobs of a table of events."""
    jobs = sum(entry.jobs for entry in manifest.files)
    run = run._replace(version=manifest.version, files=_files_for(jobs))
    groups = [tuple(sorted(entry.path for entry in entries)) for _, entries in sorted(manifest.groups().items())]
    root = beam.Pipeline(options=PipelineOptions(list(options)))
    rows = (
        root
        | "Groups" >> beam.Create(groups, reshuffle=False)
        | "SpreadGroups" >> beam.Reshuffle()
        | "JobsOfGroup" >> beam.FlatMap(_parts_of_group, run)
        | "SpreadJobs" >> beam.Reshuffle()
        | "RowsOfJob" >> beam.Map(_rows_of_parts, run).with_output_types(tuple[int, Any])
    )
    _commit(rows, run)
    return root


def pipeline_of_segments(options: Sequence[str], run: Run, logs: Sequence[LogPart]) -> beam.Pipeline:
    """Return a pipeline that applies the map to all jobs of some logs that have segments."""
    run = run._replace(files=_files_for(len(logs)))
    root = beam.Pipeline(options=PipelineOptions(list(options)))
    read = (
        root
        | "Logs" >> beam.Create(logs, reshuffle=False)
        | "SpreadLogs" >> beam.Reshuffle()
        | "EventsOfLog"
        >> beam.FlatMap(_events_of_log, run).with_output_types(tuple[_Key, bytes]).with_outputs("states", main="events")
    )
    states = read["states"] | "ByLog" >> beam.GroupByKey() | "QualityOfLog" >> beam.Map(_quality_of_log)
    rows = (
        read["events"]
        | "ByJob" >> beam.GroupByKey()
        | "RowsOfJob" >> beam.Map(_rows_of_blobs, run, beam.pvalue.AsDict(states)).with_output_types(tuple[int, Any])
    )
    _commit(rows, run)
    return root


def _files_for(jobs: int) -> int:
    return max(1, -(-jobs // _JOBS_A_FILE))


# --- The table of events ----------------------------------------------------------------------------------------------


def _parts_of_group(files: Sequence[str], run: Run) -> Iterator[tuple[JobKey, JobParts]]:
    yield from parts_of_jobs(map(FleetPaths(run.mirror).full, files)).items()


def _rows_of_parts(element: tuple[JobKey, JobParts], run: Run) -> tuple[int, _Mapped]:
    (key, parts), (qualities, causes) = element, _known_of(run)
    batches = CountedBatches(batches_of(parts), events_of(parts))
    rows = rows_or_error(JobKey(*key), batches, run.as_of_ns, quality=qualities.get(key[0]), causes=causes)
    return _file_of(key, run), _Mapped(rows, batches.events)


@functools.lru_cache(maxsize=1)
def _known_of(run: Run) -> tuple[dict[str, JobQuality], dict[JobKey, dict[int, Cause]]]:
    """Return what all elements of a run need, once in each process; a later run in this process reads it again."""
    return qualities_of(latest_events(run.mirror, run.version)), read_causes(run.mirror)


# --- Segments ---------------------------------------------------------------------------------------------------------


def _events_of_log(element: LogPart, run: Run) -> Iterator[Any]:
    """Yield the events of some writers in batches, then how far they were read, as another output."""
    log, writers, ends = element
    segments = SegmentEvents(run.mirror, log, writers=writers, ends=ends)
    for key, table in segments.tables():
        for batch in table.to_batches(max_chunksize=_BATCH_ROWS):
            yield tuple(key), _encoded(batch)
    _damaged.inc(len(segments.damaged))
    state = segments.state
    yield beam.pvalue.TaggedOutput("states", (log, (state.seen.to_json(), sorted(state.ended), state.lasts)))


def _quality_of_log(element: tuple[str, Iterable[tuple[Any, Sequence[str], Mapping[str, int]]]]) -> Any:
    """Return a log, and the state of its writers, of which each is in one part of it."""
    log, states = element
    ranges: dict[str, Any] = {}
    ended: set[str] = set()
    lasts: dict[str, int] = {}
    for seen, writers, numbers in states:
        ranges.update(seen)
        ended.update(writers)
        lasts.update(numbers)
    state = LogState(log, SeenSequences.from_json(ranges), ended, lasts=lasts)
    return log, qualities_of(EventsManifest(logs={log: state}))[log]


def _rows_of_blobs(
    element: tuple[_Key, Iterable[bytes]], run: Run, qualities: Mapping[str, JobQuality]
) -> tuple[int, _Mapped]:
    key, batches = JobKey(*element[0]), CountedBatches(_decoded(element[1]))
    rows = rows_or_error(key, batches, run.as_of_ns, quality=qualities[key.log], causes=_known_of(run)[1])
    return _file_of(key, run), _Mapped(rows, batches.events)


def _decoded(blobs: Iterable[bytes]) -> Iterator[pa.RecordBatch]:
    for blob in blobs:
        yield from pa.ipc.open_stream(pa.BufferReader(blob), options=pa.ipc.IpcReadOptions(use_threads=False))


def _encoded(batch: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="lz4", use_threads=False)
    with pa.ipc.new_stream(sink, batch.schema, options=options) as stream:
        stream.write_batch(batch)
    data: bytes = sink.getvalue().to_pybytes()
    return data


# --- Rows -------------------------------------------------------------------------------------------------------------


def _file_of(key: _Key, run: Run) -> int:
    """Return the number of the file with the rows of a job."""
    return int(group_of(JobKey(*key)), 16) % run.files


def _commit(rows: Any, run: Run) -> None:
    """Write rows, and create the manifest that names them."""
    _ = (
        rows
        | "ByFile" >> beam.GroupByKey()
        | "WriteRows" >> beam.Map(_write, run)
        | "AllFiles" >> beam.combiners.ToList()
        | "Commit" >> beam.Map(_commit_files, run)
    )


def _write(element: tuple[int, Iterable[_Mapped]], run: Run) -> _Written:
    writer, total = RowsWriter(run.mirror, run.as_of_ns, run.now_ns), 0
    for rows, events in element[1]:
        writer.add(rows)
        total += events
    return _Written(writer.finish(), total)


def _commit_files(written: Sequence[_Written], run: Run) -> None:
    parts = [rows for rows, _ in written] or [RowsWriter(run.mirror, run.as_of_ns, run.now_ns).finish()]
    events = sum(events for _, events in written)
    commit_rows(run.mirror, run.as_of_ns, parts, events_version=run.version, events=events, now_ns=run.now_ns)
