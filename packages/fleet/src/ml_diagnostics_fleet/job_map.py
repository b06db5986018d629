"""The map of a job for engines: its events, wherever they are, become its rows or the row of its error."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

import pyarrow as pa
from ml_diagnostics_common.exceptions import StorageError

from ml_diagnostics_fleet.events import DamagedEventsError, EventsFile, RowGroup
from ml_diagnostics_fleet.job_rows import Cause, JobRows, error_rows, job_rows
from ml_diagnostics_fleet.manifest import EventsManifest
from ml_diagnostics_fleet.schemas import JobKey

__all__ = [
    "MOST_EVENTS",
    "CountedBatches",
    "JobParts",
    "JobQuality",
    "TooManyEventsError",
    "batches_of",
    "events_of",
    "may_be_cured",
    "parts_of_jobs",
    "qualities_of",
    "rows_of_job",
    "rows_or_error",
]

MOST_EVENTS: Final = 300_000_000
"""A job with more events is refused by name: its ledger would take 8 GB."""


JobParts = list[tuple[str, list[RowGroup]]]
"""Files, and the row groups of one job in each."""


class JobQuality(NamedTuple):
    """The state of the writers of one log, as far as the table of events has it.

    Attributes:
        missing: The number of entries that did not arrive, by writer.
        ended: The writers that recorded their end; None if that is not known.
    """

    missing: Mapping[str, int]
    ended: frozenset[str] | None


def parts_of_jobs(files: Iterable[str]) -> dict[JobKey, JobParts]:
    """Return the parts of each job in some files of events, in order of time: an order in which a ledger is fast."""
    found: dict[JobKey, list[tuple[int, str, RowGroup]]] = {}
    for path in files:
        with EventsFile(path) as file:
            for key, groups in file.jobs().items():
                found.setdefault(key, []).extend((group.first_t_ns, path, group) for group in groups)
    return {
        key: [
            (path, [group for _, _, group in run])
            for path, run in itertools.groupby(sorted(parts), key=operator.itemgetter(1))
        ]
        for key, parts in found.items()
    }


def rows_of_job(
    key: JobKey,
    parts: JobParts,
    as_of_ns: int,
    *,
    quality: JobQuality | None = None,
    causes: Mapping[JobKey, Mapping[int, Cause]] | None = None,
) -> JobRows:
    """Return the rows of a job, or the row of its error: any engine may call this.

    Args:
        key: The job.
        parts: Its parts, see `parts_of_jobs`.
        as_of_ns: The moment at which jobs that run end, in ns since 1970.
        quality: The state of the writers of its log.
        causes: The causes of disruptions, by job and number.

    Raises:
        StorageError: The mirror refused to be read.
    """
    batches = CountedBatches(batches_of(parts), events_of(parts))
    return rows_or_error(key, batches, as_of_ns, quality=quality, causes=causes or {})


def rows_or_error(
    key: JobKey,
    batches: Iterable[pa.RecordBatch],
    as_of_ns: int,
    *,
    quality: JobQuality | None,
    causes: Mapping[JobKey, Mapping[int, Cause]],
) -> JobRows:
    """Return the rows of a job, or the row of its error.

    Args:
        key: The job.
        batches: Its events.
        as_of_ns: The moment at which jobs that run end, in ns since 1970.
        quality: The state of the writers of its log.
        causes: The causes of disruptions, by job and number.

    Raises:
        StorageError: The mirror refused to be read: the job is not at fault, and another try may succeed.
    """
    try:
        return job_rows(
            key,
            batches,
            as_of_ns,
            missing=None if quality is None else quality.missing,
            ended=None if quality is None else quality.ended,
            causes=causes.get(key),
        )
    except TooManyEventsError as error:
        return error_rows(key, str(error), as_of_ns)
    except Exception as error:
        if may_be_cured(error):
            raise
        return error_rows(key, error, as_of_ns)


def may_be_cured(error: Exception) -> bool:
    """Return True if another try may succeed: the mirror refused a read, and the job's data may be correct."""
    return isinstance(error, StorageError) and not isinstance(error, DamagedEventsError)


class TooManyEventsError(ValueError):
    """A job has more events than a ledger is made of."""


class CountedBatches:
    """Batches of the events of a job, of which too many are an error.

    Args:
        batches: The batches.
        known: The number of events, if it is known before they are read; else 0.

    Attributes:
        events: The number of events, so far as it is known.
    """

    def __init__(self, batches: Iterable[pa.RecordBatch], known: int = 0) -> None:
        self._batches, self._read = batches, 0
        self.events = known

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        """Yield the batches.

        Raises:
            TooManyEventsError: There are too many.
        """
        self._check()
        for batch in self._batches:
            self._read += batch.num_rows
            self.events = max(self.events, self._read)
            self._check()
            yield batch

    def _check(self) -> None:
        if self.events > MOST_EVENTS:
            raise TooManyEventsError(f"{self.events:,} events are more than {MOST_EVENTS:,}")


def batches_of(parts: JobParts) -> Iterator[pa.RecordBatch]:
    """Yield the events of a job from the files that have them."""
    for path, groups in parts:
        with EventsFile(path) as file:
            yield from file.batches(groups)


def events_of(parts: JobParts) -> int:
    """Return the number of events of a job."""
    return sum(group.rows for _, groups in parts for group in groups)


def qualities_of(manifest: EventsManifest) -> dict[str, JobQuality]:
    """Return what a manifest knows of the writers of each log."""
    qualities = {}
    for state in manifest.logs.values():
        missing: dict[str, int] = {}
        for gap in state.gaps():
            missing[gap.writer] = missing.get(gap.writer, 0) + gap.last - gap.first + 1
        qualities[state.log] = JobQuality(missing, frozenset(state.ended))
    return qualities
