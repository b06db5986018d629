"""The map of one job as a step of a pipeline: an error is the job's row, but for one that another try may cure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import pyarrow as pa
from ml_diagnostics_common.exceptions import StorageError

from ml_diagnostics_fleet import local_engine
from ml_diagnostics_fleet.events import DamagedEventsError, EventsFile
from ml_diagnostics_fleet.job_rows import Cause, JobRows, error_rows, job_rows
from ml_diagnostics_fleet.local_engine import JobParts, JobQuality
from ml_diagnostics_fleet.schemas import JobKey

__all__ = ["CountedBatches", "batches_of", "events_of", "may_be_cured", "rows_or_error"]


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
            ValueError: There are too many events.
        """
        self._check()
        for batch in self._batches:
            self._read += batch.num_rows
            self.events = max(self.events, self._read)
            self._check()
            yield batch

    def _check(self) -> None:
        if self.events > local_engine.MOST_EVENTS:
            raise ValueError(f"{self.events:,} events are more than {local_engine.MOST_EVENTS:,}")


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
        StorageError: The mirror refused to be read: the runner tries the bundle again.
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
    except Exception as error:
        if may_be_cured(error):
            raise
        return error_rows(key, error, as_of_ns)


def may_be_cured(error: Exception) -> bool:
    """Return True if another try may have another end: the mirror refused; nothing is wrong with the job's data."""
    return isinstance(error, StorageError) and not isinstance(error, DamagedEventsError)


def batches_of(parts: JobParts) -> Iterator[pa.RecordBatch]:
    """Yield the events of a job from the files that have them."""
    for path, groups in parts:
        with EventsFile(path) as file:
            yield from file.batches(groups)


def events_of(parts: JobParts) -> int:
    """Return the number of events of a job."""
    return sum(group.rows for _, groups in parts for group in groups)
