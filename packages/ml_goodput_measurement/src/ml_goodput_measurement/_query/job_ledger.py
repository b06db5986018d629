"""A job's report from entries that the caller reads: for programs that read the logs of many jobs. Pure."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from ml_diagnostics_common.entry import LogEntry
from ml_diagnostics_common.texts import format_count, format_duration

from ml_goodput_measurement._ledger import PROCESS_GONE, Ledger, Summary, Window
from ml_goodput_measurement._ledger.recorders import Recorders
from ml_goodput_measurement._query.payloads import by_writer
from ml_goodput_measurement.partition import AttemptEnd, AttemptSummary, DaySum, Inference, JobReport, Piece

if TYPE_CHECKING:
    from ml_goodput_measurement._ledger.events import EventBatch
    from ml_goodput_measurement._ledger.writers import Writer

__all__ = ["JobLedger", "job_report"]


class JobLedger:
    """The ledger of one job, with the entries that were added so far.

    Args:
        job_name: The job's name, the same as its recorder's.
    """

    def __init__(self, job_name: str) -> None:
        self.job_name = job_name
        self._recorders = Recorders(job_name)

    @property
    def fact_count(self) -> int:
        """The number of facts: it grows with each entry that changes a result."""
        return self._recorders.fact_count

    def add(self, entries: Iterable[LogEntry]) -> None:
        """Add entries of the job's log, in any order; those of other jobs are skipped."""
        entries = list(entries)
        if entries:
            for writer, payloads in by_writer(entries):
                self._recorders.add(writer, payloads)

    def add_batch(self, writer: Writer, batch: EventBatch) -> None:
        """Add events of one writer, for example those of `batch_from_rows`, in any order and with repetitions.

        Args:
            writer: The writer.
            batch: Its events; the caller must not use it any more.
        """
        self._recorders.add_batch(writer, batch)

    @property
    def skipped(self) -> Counter[str]:
        """The entries of this job that could not be read, by reason; an argument of `batch_from_rows`."""
        return self._recorders.skipped

    @property
    def lost(self) -> int:
        """The number of entries that recorders reported as not written."""
        return sum(sum(counts.values()) for counts in self._recorders.lost.values())

    def end_of_life(self, now_ns: int) -> int:
        """Return the moment up to which a job's time counts: `now_ns`, or `PROCESS_GONE` for one that is silent.

        A job whose process may be gone without a record is silent after three times its longest step, at least ten
        minutes: then its life ended with its last record. It follows from the facts and the moment alone.

        Args:
            now_ns: Now, in ns since 1970.
        """
        ledger = self._recorders.ledger
        summary = ledger.summary(now_ns, include_ideal=False)
        return PROCESS_GONE if summary is not None and summary.running and ledger.is_silent(now_ns) else now_ns

    def days(self, as_of_ns: int) -> list[DaySum]:
        """Return the sums by attempt, day (UTC), bucket and type of custom event; none without a fact.

        They sum to the wall time.

        Args:
            as_of_ns: See `report`.
        """
        return self._recorders.ledger.days(as_of_ns)

    def saves(self) -> int:
        """Return the number of saves, of each step, storage and attempt, however many hosts reported them."""
        return self._recorders.ledger.saves()

    def first_step_times(self) -> list[int | None]:
        """Return when the first step of each attempt started, in ns since 1970; None for one without steps."""
        return self._recorders.ledger.first_step_times()

    def report(self, as_of_ns: int, *, include_timeline: bool = False, include_ideal: bool = True) -> JobReport | None:
        """Return everything about the job as of a moment.

        Args:
            as_of_ns: Now for a job that runs, else when it ended, in ns since 1970: the time of a job that recorded no
                end counts up to then, and not beyond; or `PROCESS_GONE`. No event is left out.
            include_timeline: True to fill the timeline, which has two pieces for each step with a recorded end.
            include_ideal: False to leave out the ideal step time, for which the times of all steps are sorted.

        Returns:
            None while nothing is recorded, or only a single moment.
        """
        ledger = self._recorders.ledger
        summary = ledger.summary(as_of_ns, include_ideal=include_ideal)
        if summary is None or not summary.wall_ns:
            return None
        return job_report(
            self.job_name,
            ledger,
            summary,
            as_of_ns,
            notes=self._recorders.notes(),
            inferred=tuple(self._recorders.inferred),
            include_timeline=include_timeline,
        )

    def timeline(self, as_of_ns: int, start_ns: int, end_ns: int, *, most: int | None = None) -> Sequence[Piece]:
        """Return the pieces of the job's time in a window, cut at its borders, in order. Costs what lies in it.

        Args:
            as_of_ns: See `report`.
            start_ns: The start of the window, in ns since 1970.
            end_ns: Its end.
            most: If there are more pieces than this, only the first ones are returned, and one more; None for all.
        """
        return self._recorders.ledger.timeline(as_of_ns, between=(start_ns, end_ns), most=most)

    def windows(self, as_of_ns: int, spans: Iterable[tuple[int, int]]) -> list[Window]:
        """Return the sums of windows; none without a fact. Costs a little for each window, however long.

        Args:
            as_of_ns: See `report`.
            spans: Start and end of each, in ns since 1970.
        """
        return self._recorders.ledger.windows(spans, as_of_ns)

    def steps_between(self, start_ns: int, end_ns: int) -> int:
        """Return how many steps started in a window: it has about three pieces for each."""
        return self._recorders.ledger.steps_between(start_ns, end_ns)


def job_report(
    job_name: str,
    ledger: Ledger,
    summary: Summary,
    now_ns: int,
    *,
    notes: Sequence[str],
    inferred: Sequence[Inference],
    include_timeline: bool,
    excluded: Sequence[tuple[int, int]] = (),
) -> JobReport:
    """Return the report of a job.

    Args:
        job_name: The job.
        ledger: Its ledger.
        summary: The summary of that ledger, at the same moment and with the same exclusions.
        now_ns: The moment of the query, or `PROCESS_GONE`.
        notes: Notes for the reader.
        inferred: The kinds of time that were inferred.
        include_timeline: True to fill the timeline.
        excluded: Disjoint intervals that count for nothing.
    """
    attempts = ledger.attempts(now_ns, excluded)
    return JobReport(
        job_name=job_name,
        start_ns=summary.start_ns,
        end_ns=summary.end_ns,
        running=summary.running,
        buckets=summary.buckets,
        custom=summary.custom,
        data_loading_async_ns=summary.data_loading_async_ns,
        estimated_ns=summary.estimated_ns,
        last_step=summary.last_step,
        steps_kept=summary.steps_kept,
        ideal_step_seconds=summary.ideal_step_seconds,
        attempts=attempts,
        disruptions=ledger.disruptions(attempts, excluded),
        timeline=ledger.timeline(now_ns, excluded) if include_timeline else (),
        notes=[*notes, *_continuation_notes(attempts)],
        inferred=inferred,
    )


def _continuation_notes(attempts: Sequence[AttemptSummary]) -> list[str]:
    """Return a note if the job was started again after it had recorded its end: often a name used for two jobs."""
    continued = [
        (before, after)
        for before, after in itertools.pairwise(attempts)
        if before.ended is AttemptEnd.JOB_END and not before.exception and after.start_ns >= before.end_ns
    ]
    if not continued:
        return []
    before, after = continued[0]
    more = f" (so did {format_count(len(continued) - 1, 'later attempt')})" if len(continued) > 1 else ""
    pause = format_duration((after.start_ns - before.end_ns) / 1e9)
    return [
        f"attempt {after.number} continued this job {pause} after attempt {before.number} had recorded its end{more}; "
        "the time between them counts as lost. If it was another job, give that one another name"
    ]
