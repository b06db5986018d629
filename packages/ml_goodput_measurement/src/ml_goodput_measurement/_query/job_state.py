"""The state of a job at one moment, from its ledger: what lists, comparisons, dashboards and advice start from."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ml_goodput_measurement._ledger import PROCESS_GONE, Ledger, Summary, Window
from ml_goodput_measurement._query.job_reader import DEFAULT_CACHE_DIR, JobReader
from ml_goodput_measurement._query.sources import Sources, job_labels, labels_of_processes
from ml_goodput_measurement.partition import AttemptEnd, Bucket, BucketedTime

__all__ = ["JobFollower", "JobState", "Span", "chips_in", "recorded_chips"]

_NEVER_NS = 2**62

Span = tuple[int, int]
"""The start and the end of a window, in ns since 1970."""


@dataclass(frozen=True, slots=True)
class JobState(BucketedTime):
    """The sums of a job's time, and what it did last.

    Attributes:
        job_name: The job.
        log_id: Its log.
        start_ns: When it started, in ns since 1970.
        end_ns: When it ended; now, while it runs.
        running: True while it runs.
        buckets: Nanoseconds by bucket, for every bucket; they sum to the wall time.
        custom: Nanoseconds by type of custom event.
        last_step: The highest kept step.
        steps_kept: The number of kept steps.
        attempts: The number of attempts.
        disruptions: The number of restarts after an attempt with steps.
        ended: The outcome of the last attempt.
        exception: The type of the exception that ended it; empty for none.
        last_event_ns: When it last recorded something.
        labels: The labels of its processes, such as team and chips.
        lost_entries: The number of entries that its recorders report as not written.
        notes: Sentences that a reader should know.
        windows: The sums of the windows that were asked for.
        mirror_lag_seconds: How far the mirror of the log is behind; None without one.
    """

    job_name: str
    log_id: str
    start_ns: int
    end_ns: int
    running: bool
    buckets: Mapping[Bucket, int]
    custom: Mapping[str, int]
    last_step: int
    steps_kept: int
    attempts: int
    disruptions: int
    ended: AttemptEnd
    exception: str
    last_event_ns: int
    labels: Mapping[str, str]
    lost_entries: int
    notes: Sequence[str]
    windows: Sequence[Window] = ()
    mirror_lag_seconds: float | None = None

    @property
    def chips(self) -> int | None:
        """The number of chips, if its processes recorded it."""
        return chips_in(self.labels)

    @property
    def state(self) -> str:
        """The state in one word: running, ended, failed or gone."""
        if self.running:
            return "running"
        return {AttemptEnd.FAILED: "failed", AttemptEnd.LOST: "gone"}.get(self.ended, "ended")


def recorded_chips(log_id: str, job_name: str) -> list[int]:
    """Return the numbers of chips that the last processes of a job recorded here, the newest first, each once."""
    numbers = map(chips_in, labels_of_processes(log_id, job_name))
    return list(dict.fromkeys(number for number in numbers if number is not None))


def chips_in(labels: Mapping[str, str]) -> int | None:
    """Return the number of chips in the labels of a process; None if it is not there."""
    text = labels.get("chips", "")
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 10 and int(text) else None


class JobFollower:
    """Follows one job: each `read` reads only what is new."""

    def __init__(
        self,
        job_name: str,
        log_id: str,
        *,
        clock_ns: Callable[[], int] = time.time_ns,
        patience_seconds: float | None = None,
        sources: Sources | None = None,
    ) -> None:
        """Read nothing yet.

        Args:
            job_name: The job.
            log_id: Its log.
            clock_ns: The clock.
            patience_seconds: How long requests to Cloud Logging may fail; None for the usual time.
            sources: The sources beside the journal; None for the configured mirror and Cloud Logging.

        Raises:
            ConfigurationError: A name, or ML_DIAGNOSTICS_BACKEND, is not valid.
            CredentialsError: ML_DIAGNOSTICS_BACKEND is `cloud` and no cloud is found.
        """
        self.job_name, self.log_id = job_name, log_id
        self._clock_ns = clock_ns
        self._reader = JobReader(
            job_name,
            log_id,
            None,
            retention=None,
            gcs_path=None,
            cache_dir=DEFAULT_CACHE_DIR,
            clock_ns=clock_ns,
            patience_seconds=patience_seconds,
            logs_failures=False,
            sources=sources,
        )
        self._ledger = Ledger()
        self._now_ns = 0

    def read(self, windows: Callable[[Summary], Sequence[Span]] | None = None, *, local_only: bool = False) -> JobState:
        """Read what is new, and return the state of the job.

        Args:
            windows: Returns the windows to sum; they should lie in the job's life.
            local_only: True to read this machine's journal alone.

        Raises:
            NoGoodputError: Nothing was recorded for the job.
        """
        self._ledger = ledger = self._reader.read(local_only=local_only)
        self._now_ns = self._clock_ns()
        summary = ledger.summary(self._now_ns)
        if summary is not None and summary.running and self._reader.is_gone(ledger, self._now_ns):
            self._now_ns = PROCESS_GONE
            summary = ledger.summary(PROCESS_GONE)
        if summary is None:
            raise self._reader.nothing_recorded()
        attempts = ledger.attempts(self._now_ns)
        last = attempts[-1]
        return JobState(
            job_name=self.job_name,
            log_id=self.log_id,
            start_ns=summary.start_ns,
            end_ns=summary.end_ns,
            running=summary.running,
            buckets=summary.buckets,
            custom=summary.custom,
            last_step=summary.last_step,
            steps_kept=summary.steps_kept,
            attempts=len(attempts),
            disruptions=summary.disruptions,
            ended=last.ended,
            exception=last.exception,
            last_event_ns=ledger.facts.last_before(_NEVER_NS),
            labels=job_labels(self.log_id, self.job_name) or self._reader.labels,
            lost_entries=self._reader.lost_entries(),
            notes=[*self._reader.notes(), *(self._reader.notes_on_end() if self._now_ns == PROCESS_GONE else [])],
            windows=ledger.windows(windows(summary), self._now_ns) if windows is not None else (),
            mirror_lag_seconds=self._reader.mirror_lag_seconds(),
        )

    def ledger(self) -> tuple[Ledger, int]:
        """Return the ledger as of the last `read`, and the moment of that: see `Ledger.summary`."""
        return self._ledger, self._now_ns

    def ask_to_hurry(self) -> None:
        """Ask the job's processes to write to the mirror more often for the next minutes; call it every minute."""
        self._reader.ask_to_hurry()

    def save_state(self) -> None:
        """Save the state, so that another process continues from here."""
        self._reader.save_state()
