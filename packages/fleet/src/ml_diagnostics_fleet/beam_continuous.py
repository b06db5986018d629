"""The pipeline that keeps the rows of a fleet up to date: a new object makes its jobs due, and no state has a ledger.

    notifications, or a list every 5 minutes -> (log, job) -> global window, every 10 minutes of processing time ->
    GroupByKey -> all facts of the job, read again -> its rows, as of now -> global window, every minute -> manifest

There is no watermark and no limit of lateness: what counts is that an object came, and not when. Rows of a job are
replaced as a whole, and those of the latest moment count: see `replace_jobs`.
"""

from __future__ import annotations

import functools
import itertools
import json
import logging
import math
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

import apache_beam as beam
from apache_beam.coders import StrUtf8Coder
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.transforms import trigger, window
from apache_beam.transforms.periodicsequence import PeriodicImpulse
from apache_beam.transforms.userstate import ReadModifyWriteStateSpec
from ml_diagnostics_common.entry import SeenSequences
from ml_diagnostics_common.exceptions import ObjectNotFoundError
from ml_diagnostics_common.journal import log_folder_name
from ml_diagnostics_common.mirror.names import EndName, LogPaths, SegmentName, parse_name, segments_path
from ml_diagnostics_common.mirror.segments import DamagedObjectError, SegmentContent

from ml_diagnostics_fleet._paths import FleetPaths
from ml_diagnostics_fleet.event_tables import EventTables
from ml_diagnostics_fleet.job_map import (
    CountedBatches,
    JobQuality,
    batches_of,
    events_of,
    may_be_cured,
    parts_of_jobs,
    qualities_of,
    rows_or_error,
)
from ml_diagnostics_fleet.job_rows import Cause, JobRows, error_rows
from ml_diagnostics_fleet.manifest import EventsManifest, latest_events
from ml_diagnostics_fleet.rows_files import read_causes, replace_jobs
from ml_diagnostics_fleet.schemas import JobKey, group_of
from ml_diagnostics_fleet.segment_events import SegmentEvents, folder_of

__all__ = ["NewObjects", "keep_rows", "objects_of_message", "pipeline"]

_LISTING_SECONDS: Final = 300
_COMMIT_SECONDS: Final = 60
_FRESH_SECONDS: Final = 60
"""The table of events may be as old: what is not in it is read from segments."""

_log = logging.getLogger(__name__)


def pipeline(options: Sequence[str], mirror: str, subscription: str, pace_seconds: float) -> beam.Pipeline:
    """Return a pipeline that keeps the rows of a mirror up to date, until it is cancelled."""
    root = beam.Pipeline(options=PipelineOptions(list(options)))
    if subscription:
        messages = root | "Messages" >> beam.io.ReadFromPubSub(subscription=subscription, with_attributes=True)
        objects = messages | "Objects" >> beam.FlatMap(objects_of_message).with_output_types(str)
    else:
        ticks = root | "Ticks" >> PeriodicImpulse(fire_interval=_LISTING_SECONDS)
        listed = ticks | "List" >> beam.FlatMap(_listed, mirror).with_output_types(tuple[str, Any])
        objects = listed | "NewObjects" >> beam.ParDo(NewObjects()).with_output_types(str)
    keep_rows(objects, mirror, pace_seconds=pace_seconds, commit_seconds=min(_COMMIT_SECONDS, pace_seconds))
    return root


def keep_rows(
    objects: Any,
    mirror: str,
    *,
    pace_seconds: float,
    commit_seconds: float = _COMMIT_SECONDS,
    clock_ns: Callable[[], int] = time.time_ns,
) -> Any:
    """Make the rows of the jobs of new objects, and put them into the newest snapshot.

    Args:
        objects: A PCollection of paths, in any order, with repetitions.
        mirror: The mirror.
        pace_seconds: A job's rows are made at most this often.
        commit_seconds: A manifest is created at most this often.
        clock_ns: Return the time, in ns since 1970; a function of a module.

    Returns:
        A PCollection with the moment of each snapshot.
    """
    return (
        objects
        | "JobsOfObject" >> beam.FlatMap(_jobs_of_object, mirror).with_output_types(tuple[tuple[str, str], None])
        | "Due" >> _every(pace_seconds)
        | "ByJob" >> beam.GroupByKey()
        | "RowsOfJob" >> beam.FlatMap(_rows_of_due_job, mirror, clock_ns).with_output_types(tuple[int, Any])
        | "Commits" >> _every(commit_seconds)
        | "AllRows" >> beam.GroupByKey()
        | "Commit" >> beam.FlatMap(_replace, mirror, clock_ns)
    )


def _every(seconds: float) -> Any:
    """Return the global window with a pane after so much processing time, if there is anything.

    Beam sends a delay to runners in whole seconds, and only as an integer.
    """
    return beam.WindowInto(
        window.GlobalWindows(),
        trigger=trigger.Repeatedly(trigger.AfterProcessingTime(math.ceil(seconds))),
        accumulation_mode=trigger.AccumulationMode.DISCARDING,
    )


# --- What is new ------------------------------------------------------------------------------------------------------


def objects_of_message(message: Any) -> Iterator[str]:
    """Yield the path of the object that a notification of Cloud Storage is about, if it was created."""
    attributes = message.attributes or {}
    # A message of another kind is passed over: an error would bring it back for ever.
    if attributes.get("eventType") == "OBJECT_FINALIZE":
        yield f"gs://{attributes.get('bucketId')}/{attributes.get('objectId')}"


def _listed(_tick: object, mirror: str) -> Iterator[tuple[str, list[str]]]:
    """Yield the objects of each log, by the name of its folder."""
    paths = FleetPaths(mirror)
    found: dict[str, list[str]] = {}
    for path in paths.storage.list_prefix(segments_path(paths.mirror)):
        if parse_name(path) is not None:
            found.setdefault(folder_of(paths, path), []).append(path)
    yield from found.items()


_SEEN: Final = beam.DoFn.StateParam(ReadModifyWriteStateSpec("seen", StrUtf8Coder()))


class NewObjects(beam.DoFn):
    """Yields the objects of a log with entries that no earlier list had: their numbers are its only state."""

    def process(self, element: tuple[str, Iterable[str]], state: Any = _SEEN) -> Iterator[str]:
        """Yield what is new in a list of a log's objects."""
        known = json.loads(state.read() or '{"seen": {}, "ended": []}')
        seen, ended, is_new = SeenSequences.from_json(known["seen"]), set(known["ended"]), False
        for path in element[1]:
            name = parse_name(path)
            if isinstance(name, SegmentName) and not seen.covers(name.writer, name.first, name.last):
                seen.add_range(name.writer, name.first, name.last)
            elif isinstance(name, EndName) and name.writer not in ended:
                ended.add(name.writer)
            else:
                continue
            is_new = True
            yield path
        if is_new:  # Most lists of most logs have nothing new.
            state.write(json.dumps({"seen": seen.to_json(), "ended": sorted(ended)}))


def _jobs_of_object(path: str, mirror: str) -> Iterator[tuple[tuple[str, str], None]]:
    """Yield the jobs that have entries in an object."""
    paths, name = FleetPaths(mirror), parse_name(path)
    if name is None or not path.replace(os.sep, "/").startswith(segments_path(paths.mirror).replace(os.sep, "/")):
        return
    content = None if isinstance(name, EndName) else _content(paths, path)
    if content is None:  # The end of a writer, or an object that the object of its hour has replaced.
        other = _other_object(paths, folder_of(paths, path), name)
        content = None if other is None else _content(paths, other)
    if content is None:
        return
    tables = EventTables(content.header.log_id)
    for entries in content.entries(Counter()):
        tables.add(entries)
    for log, job in tables.take():
        yield (log, job), None


def _content(paths: FleetPaths, path: str) -> SegmentContent | None:
    try:
        return SegmentContent(paths.storage.read(path), path)
    except DamagedObjectError as error:
        _log.warning("%s. Its entries are missing.", error)
    except ObjectNotFoundError:
        pass
    return None


def _other_object(paths: FleetPaths, folder: str, name: SegmentName | EndName) -> str | None:
    """Return an object that has the entries of another one; for the end of a writer, one of its last day."""
    log = LogPaths(paths.mirror, folder)
    found: str | None = None
    for path in paths.storage.list_prefix(f"{log.day(name.day)}{name.writer}."):
        one = parse_name(path)
        if not isinstance(one, SegmentName) or one.writer != name.writer or one == name:
            continue
        if isinstance(name, EndName) or one.covers(name):
            found = path
    return found


# --- Rows -------------------------------------------------------------------------------------------------------------


def _rows_of_due_job(
    element: tuple[tuple[str, str], Iterable[None]], mirror: str, clock_ns: Callable[[], int]
) -> Iterator[tuple[int, JobRows]]:
    """Yield the rows of a job; none if its objects were deleted since they came: then it keeps the rows that it has."""
    key, as_of_ns = JobKey(*element[0]), clock_ns()
    manifest, causes = _known_of(mirror, int(time.monotonic() // _FRESH_SECONDS))
    try:
        batches, quality = _facts_of(FleetPaths(mirror), key, manifest)
    except Exception as error:
        if may_be_cured(error):
            raise
        yield 0, error_rows(key, error, as_of_ns)
        return
    if batches.events:
        yield 0, rows_or_error(key, batches, as_of_ns, quality=quality, causes=causes)


def _facts_of(paths: FleetPaths, key: JobKey, manifest: EventsManifest) -> tuple[CountedBatches, JobQuality]:
    """Return the events of a job, from the table of events and the segments that are not in it."""
    segments = SegmentEvents(paths.mirror, key.log, known=manifest.logs.get(log_folder_name(key.log)))
    new = [table for one, table in segments.tables() if one == key]
    quality = qualities_of(EventsManifest(logs={key.log: segments.state}))[key.log]
    parts = parts_of_jobs(paths.full(entry.path) for entry in manifest.groups().get(group_of(key), [])).get(key, [])
    known = events_of(parts) + sum(table.num_rows for table in new)
    batches = itertools.chain(batches_of(parts), *(table.to_batches() for table in new))
    return CountedBatches(batches, known), quality


@functools.lru_cache(maxsize=1)
def _known_of(mirror: str, _minute: int) -> tuple[EventsManifest, dict[JobKey, dict[int, Cause]]]:
    """Return the table of events and the causes, read at most once a minute in each process."""
    return latest_events(mirror), read_causes(mirror)


def _replace(element: tuple[int, Iterable[JobRows]], mirror: str, clock_ns: Callable[[], int]) -> Iterator[int]:
    snapshot = replace_jobs(mirror, element[1], clock_ns())
    if snapshot is not None:
        yield snapshot.as_of_ns
