"""GoodputCalculator and ElasticGoodputCalculator: queries of a job's ledger."""

from __future__ import annotations

import contextlib
import datetime
import itertools
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, cast

from ml_diagnostics_common.exceptions import ConfigurationError
from ml_diagnostics_common.guard import job_logger
from ml_diagnostics_common.texts import format_count, format_duration

from ml_goodput_measurement._ledger import PROCESS_GONE, Ledger, Summary, Window
from ml_goodput_measurement._query.job_reader import DEFAULT_CACHE_DIR, JobReader
from ml_goodput_measurement._query.results import StepDeviations, badput
from ml_goodput_measurement._query.step_statistics import compute_step_deviation_from_baseline
from ml_goodput_measurement._record.arguments import (
    LONGEST_SECONDS,
    Moment,
    RebuiltFromArguments,
    nanoseconds,
    seconds_of,
    shown,
)
from ml_goodput_measurement.exceptions import NoGoodputError
from ml_goodput_measurement.goodput_exclusion import ExclusionInterval, GoodputExclusion, excluded_intervals
from ml_goodput_measurement.metric_details import (
    BadputType,
    ElasticIntervalWorkloadMetricDetails,
    ElasticWorkloadMetricDetails,
    GoodputType,
    IntervalWorkloadMetricDetails,
    JobGoodput,
    UnproductiveTimeDict,
    WorkloadMetricDetails,
)
from ml_goodput_measurement.partition import AttemptEnd, AttemptSummary, Bucket, JobReport
from ml_goodput_measurement.snapshot import (
    Cumulative,
    DeviatingStep,
    Deviation,
    RollingWindow,
    SliceEfficiency,
    Snapshot,
)

if TYPE_CHECKING:
    from ml_goodput_measurement._query.payloads import UserLogger

__all__ = ["ElasticGoodputCalculator", "GoodputCalculator"]

_log = job_logger("ml_diagnostics.goodput")

_LATEST_STEPS = 1100
"""The number of steps that `compute_step_deviation_from_baseline` uses."""

_NO_STEP_TIMES = (
    "No step times available and no previous step deviations found. A step has a time once the next one has started."
)


class GoodputCalculator(GoodputExclusion, RebuiltFromArguments):
    """Computes the goodput of a job from what was recorded.

    The first query reads the job's whole log, each further one only new entries. Several processes may query one job
    at once, and a new process goes on from the state that an earlier one saved. A copy, and what a pickle is restored
    to, is a new calculator of the same job.
    """

    _is_elastic = False
    """True to include the kinds of badput of elastic jobs also if they took no time."""

    def __init__(
        self,
        job_name: str,
        logger_name: str,
        cloud_logger: UserLogger | None = None,
        using_pathways: bool = False,
        max_logs_retention_period: datetime.timedelta | float | None = None,
        gcs_path: str | None = None,
        cache_dir: str = DEFAULT_CACHE_DIR,
        *,
        _clock_ns: Callable[[], int] = time.time_ns,
        _patience_seconds: float | None = None,
        _logs_failures: bool = True,
    ) -> None:
        """Read nothing yet.

        Args:
            job_name: The job, as its recorder was given it.
            logger_name: The log, as the recorder was given it.
            cloud_logger: Holds the payloads, in place of the journal and Cloud Logging.
            using_pathways: Kept for callers that pass it; it changes nothing.
            max_logs_retention_period: How far back Cloud Logging is read: a timedelta, or seconds; None is all of it.
            gcs_path: Folder, `gs://bucket/folder` or a local one, in which `sync_to_gcs` keeps a copy of the saved
                state for other machines to go on from.
            cache_dir: Folder of the saved state; the default means the one in ML_DIAGNOSTICS_DIR.

        Raises:
            ConfigurationError: An argument, or ML_DIAGNOSTICS_BACKEND, cannot be used.
            CredentialsError: ML_DIAGNOSTICS_BACKEND is `cloud` and no cloud is found.
        """
        arguments, names_before = dict(locals()), frozenset(vars(self))
        self._reader = JobReader(
            job_name,
            logger_name,
            cloud_logger,
            max_logs_retention_period,
            gcs_path,
            cache_dir,
            _clock_ns,
            _patience_seconds,
            _logs_failures,
        )
        self.job_name, self.logger_name = self._reader.job_name, self._reader.logger_name
        self.using_pathways = using_pathways
        self.gcs_path = gcs_path
        self._clock_ns = _clock_ns
        self._lock = threading.RLock()
        self._ledger = Ledger()
        self._summary: Summary | None = None
        self._configured_ideal_seconds: float | None = None
        self._now_ns = 0
        """The moment of the last query, or `PROCESS_GONE`."""
        self._remember(GoodputCalculator, arguments, names_before)

    def get_job_goodput(
        self, include_badput_breakdown: bool = False, configured_ideal_step_time: float | None = None
    ) -> JobGoodput:
        """Read what is new and returns the job's goodput.

        Args:
            include_badput_breakdown: Whether the breakdown is filled.
            configured_ideal_step_time: Seconds; taken for the ideal step time in the details, in place of the mean of
                the steps that are not anomalous.

        Returns:
            Goodput in percent, badput in percent by kind, and the last step that is done and was kept; the tuple
            also behaves as the percentage.

        Raises:
            ConfigurationError: `configured_ideal_step_time` is not a number of seconds.
            NoGoodputError: Nothing was recorded for the job, or all of it at one moment; also a ValueError.
        """
        summary = self._query(configured_ideal_step_time)
        breakdown = self._badput(summary, summary.counted_ns / 100) if include_badput_breakdown else {}
        return JobGoodput(summary.goodput_percent, breakdown, summary.last_step)

    def get_job_goodput_details(self) -> WorkloadMetricDetails:
        """Return what the last query found, in seconds; only the first call queries.

        Never raises: while nothing is known of the job, or the query fails, all numbers are 0.
        """
        with self._lock:
            if self._summary is None:
                try:
                    self.get_job_goodput()
                except NoGoodputError:
                    pass
                except Exception as error:
                    _log.warning("The details of job %r are not known: %s", self.job_name[:200], error)
            summary = self._summary
            if summary is None:
                return self._no_details()
            ideal = self._configured_ideal_seconds or summary.ideal_step_seconds
            deviations = StepDeviations(self._step_seconds, ideal)
        return WorkloadMetricDetails(
            goodput_time={GoodputType.TOTAL: summary.buckets[Bucket.PRODUCTIVE] / 1e9},
            badput_time=self._badput(summary, 1e9),
            max_productive_step=summary.last_step,
            total_elapsed_time=summary.counted_ns / 1e9,
            disruption_count=summary.disruptions,
            step_time_deviation=deviations,
            ideal_step_time=ideal or 0.0,
            total_excluded_time=summary.buckets[Bucket.EXCLUDED] / 1e9,
        )

    def get_job_goodput_interval(
        self, interval_start: Moment, interval_end: Moment
    ) -> tuple[float, UnproductiveTimeDict, int, float, int]:
        """Read what is new and returns the goodput of a stretch of the job's time.

        The window that is asked for is the whole of which shares are taken, up to now; what of it lies before the
        job or after its end is OTHER. Events are interpreted with the whole history, not with the window alone.

        Args:
            interval_start: A datetime (naive: local time), or seconds since 1970.
            interval_end: Likewise, later.

        Returns:
            A tuple: goodput in percent; badput in percent by kind; the last kept step that was done by its end; its
            length in seconds; the number of restarts in it after a disruption.

        Raises:
            ConfigurationError: The window has no length.
            NoGoodputError: Nothing was recorded, or the job did not live then; also a ValueError.
        """
        window = self._window(interval_start, interval_end)
        seconds = window.counted_ns / 1e9
        breakdown = self._badput(window, window.counted_ns / 100)
        return window.goodput_percent, breakdown, window.last_step, seconds, window.disruptions

    def get_interval_metric_details(
        self, interval_start: Moment, interval_end: Moment
    ) -> IntervalWorkloadMetricDetails:
        """Return what `get_job_goodput_interval` does by name; empty where it raises a ValueError."""
        try:
            return self._interval_details(self._window(interval_start, interval_end))
        except ValueError:
            return self._interval_details(None)

    def get_step_deviation(self, configured_ideal_step_time: float | None = None) -> dict[int, float]:
        """Read what is new and returns by how much the time of each kept step differs from the ideal one.

        Args:
            configured_ideal_step_time: Seconds; in place of the mean of the steps that are not anomalous.

        Returns:
            Absolute seconds by step; costs time in proportion to the steps.

        Raises:
            NoGoodputError: As `get_job_goodput`, or no step is complete.
        """
        with self._asking():
            summary = self._query(configured_ideal_step_time)
            ideal = self._configured_ideal_seconds or summary.ideal_step_seconds
            deviations = dict(StepDeviations(self._step_seconds, ideal))
        if not deviations:
            raise NoGoodputError(_NO_STEP_TIMES)
        return deviations

    def report(self, *, include_timeline: bool = True, exclusions: Iterable[ExclusionInterval] = ()) -> JobReport:
        """Read what is new and returns all that is known of the job: attempts, disruptions, the timeline.

        Args:
            include_timeline: Whether the timeline is filled; where trainers record the end of every step it has two
                pieces a step.
            exclusions: Stretches to leave out, as `get_job_goodput_with_exclusions` takes them.

        Raises:
            NoGoodputError: As `get_job_goodput`.
        """
        excluded = excluded_intervals(exclusions)
        with self._asking():
            summary = self._query(excluded=excluded, is_kept=False)
            ledger, now_ns = self._ledger, PROCESS_GONE if self._now_ns == PROCESS_GONE else summary.end_ns
            attempts = ledger.attempts(now_ns, excluded)
            notes = [*self._reader.notes(), *_continuation_notes(attempts)]
            if now_ns == PROCESS_GONE:
                notes += self._reader.notes_on_end()
            return JobReport(
                job_name=self.job_name,
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
                notes=notes,
            )

    def snapshot(
        self,
        *,
        cumulative: bool = True,
        deviation: bool = False,
        window_seconds: Sequence[int] = (),
        configured_ideal_step_time: float | None = None,
        local_only: bool = False,
    ) -> Snapshot:
        """Read what is new and returns what exporters are given: costs what is new, and a little for each part.

        Args:
            cumulative: True to include the job's whole life.
            deviation: True to include step times.
            window_seconds: Lengths of rolling windows; each ends with the job's life so far.
            configured_ideal_step_time: As in `get_job_goodput`.
            local_only: Whether to wait for no network: for the last moments of a process. Where this machine's journal
                knows nothing of the job, the cloud is asked all the same.

        Raises:
            ConfigurationError: A window has no length.
            NoGoodputError: As `get_job_goodput`.
        """
        lengths = [_window_ns(length) for length in window_seconds]
        with self._asking():
            summary = self._query(configured_ideal_step_time, local_only=local_only)
            spans = [(max(summary.start_ns, summary.end_ns - length_ns), summary.end_ns) for length_ns in lengths]
            windows = zip(window_seconds, self._ledger.windows(spans, self._now_ns), strict=True)
            return Snapshot(
                job_name=self.job_name,
                time_ns=self._clock_ns(),
                cumulative=self._cumulative(summary) if cumulative else None,
                deviation=self._deviation(summary) if deviation else None,
                windows=tuple(self._rolling(length, window) for length, window in windows),
            )

    def save_state(self) -> None:
        """Save what was read, so that another process goes on from here; nothing to do with a `cloud_logger`."""
        with self._lock:
            self._reader.save_state()

    def sync_to_gcs(self) -> None:
        """Copy what was read to `gcs_path`, for other machines to go on from; nothing to do without one.

        What another machine put there is never replaced by less. A failure is logged, not raised.
        """
        with self._lock:
            self._reader.sync_to_gcs()

    def _interval_details(self, window: Window | None) -> IntervalWorkloadMetricDetails:
        if window is None:
            return IntervalWorkloadMetricDetails(interval_goodput={}, interval_badput={}, interval_size=0)
        return IntervalWorkloadMetricDetails(
            interval_goodput={GoodputType.TOTAL: window.goodput_percent},
            interval_badput=self._badput(window, window.counted_ns / 100),
            interval_size=window.counted_ns / 1e9,
        )

    def _badput(self, part: Summary | Window, unit_ns: float) -> UnproductiveTimeDict:
        return badput(part, unit_ns, elastic=self._is_elastic)

    def _no_details(self) -> WorkloadMetricDetails:
        kinds: UnproductiveTimeDict = {
            kind: 0.0 for kind in BadputType if self._is_elastic or "ELASTIC" not in kind.name
        }
        kinds[BadputType.CUSTOM_BADPUT_EVENTS] = {}
        return WorkloadMetricDetails(
            goodput_time={GoodputType.TOTAL: 0.0},
            badput_time=kinds,
            max_productive_step=0,
            total_elapsed_time=0.0,
            disruption_count=0,
            step_time_deviation={},
            ideal_step_time=0.0,
            total_excluded_time=0.0,
        )

    def _cumulative(self, summary: Summary) -> Cumulative:
        return Cumulative(
            goodput_seconds=summary.buckets[Bucket.PRODUCTIVE] / 1e9,
            goodput_percent=summary.goodput_percent,
            badput_seconds=self._badput(summary, 1e9),
            badput_percent=self._badput(summary, summary.counted_ns / 100),
            max_productive_step=summary.last_step,
            total_elapsed_seconds=summary.wall_ns / 1e9,
            disruptions=summary.disruptions,
            ideal_step_seconds=self._configured_ideal_seconds or summary.ideal_step_seconds,
            slice_efficiency=_slice_efficiency(summary),
        )

    def _deviation(self, summary: Summary) -> Deviation:
        ledger = self._ledger
        ideal = self._configured_ideal_seconds or summary.ideal_step_seconds
        if ideal is None:
            return Deviation(None, lambda _: iter(()))
        latest = [abs(seconds - ideal) for seconds in ledger.latest_step_seconds(_LATEST_STEPS)]

        def steps_since(start_ns: int) -> Iterator[DeviatingStep]:
            for step, started_ns, seconds in ledger.steps_since(start_ns):
                yield DeviatingStep(step, started_ns, abs(seconds - ideal))

        return Deviation(compute_step_deviation_from_baseline(latest) if latest else None, steps_since)

    def _rolling(self, window_seconds: int, window: Window) -> RollingWindow:
        return RollingWindow(
            window_seconds=window_seconds,
            goodput_percent=window.goodput_percent,
            badput_percent=self._badput(window, window.counted_ns / 100),
            slice_efficiency=_slice_efficiency(window),
        )

    @contextlib.contextmanager
    def _asking(self) -> Iterator[None]:
        """One query at a time; where one is broken off, by whatever, nothing that was half done is gone on from."""
        with self._lock:
            try:
                yield
            except (NoGoodputError, ConfigurationError):
                raise
            except BaseException as error:
                self._reader.broken_off_by(error)
                raise

    def _step_seconds(self) -> dict[int, float]:
        with self._asking():
            return self._ledger.step_seconds()

    def _query(
        self,
        configured_ideal_step_time: float | None = None,
        excluded: Sequence[tuple[int, int]] = (),
        *,
        is_kept: bool = True,
        local_only: bool = False,
    ) -> Summary:
        """Read what is new, and return the sums of the job's life; the details have them, too, if they are kept."""
        configured_seconds = _ideal_seconds(configured_ideal_step_time)
        with self._asking():
            self._ledger = self._reader.read(local_only=local_only)
            summary = self._summarize(excluded)
            if summary is None and local_only:
                self._ledger = self._reader.read()
                summary = self._summarize(excluded)
            if summary is None:
                raise self._reader.nothing_recorded()
            if not summary.wall_ns and self._now_ns == PROCESS_GONE:
                raise NoGoodputError(
                    f"Total job time is zero, Goodput cannot be calculated: job {self.job_name[:200]!r} recorded "
                    "nothing after its start, and its process is gone."
                )
            if not summary.wall_ns:
                raise NoGoodputError(
                    f"Total job time is zero, Goodput cannot be calculated: all that was recorded for job "
                    f"{self.job_name[:200]!r} is of one moment. Ask again when it has run for a while."
                )
            if is_kept and not summary.counted_ns:
                raise NoGoodputError("Total job time is zero, Goodput cannot be calculated: all of it is excluded.")
            if is_kept:
                self._summary, self._configured_ideal_seconds = summary, configured_seconds
            return summary

    def _summarize(self, excluded: Sequence[tuple[int, int]] = ()) -> Summary | None:
        """Return the sums up to now; up to the last event if the job's process is gone."""
        self._now_ns = self._clock_ns()
        summary = self._ledger.summary(self._now_ns, excluded)
        if summary is not None and summary.running and self._reader.is_gone(self._ledger, self._now_ns):
            self._now_ns = PROCESS_GONE
            summary = self._ledger.summary(PROCESS_GONE, excluded)
        return summary

    def _window(self, interval_start: Moment, interval_end: Moment) -> Window:
        try:
            start_ns, end_ns = nanoseconds(interval_start), nanoseconds(interval_end)
        except (TypeError, ValueError, OverflowError) as error:
            raise ConfigurationError(
                "Start and end times are required: datetimes, or seconds since 1970, not "
                f"{shown(interval_start)} and {shown(interval_end)} ({error})"
            ) from None
        if start_ns >= end_ns:
            raise ConfigurationError(
                f"Start time is on or after end time, cannot compute total job time: {interval_start}, {interval_end}"
            )
        with self._asking():
            self._ledger = ledger = self._reader.read()
            whole = self._summarize()
            if whole is None:
                raise self._reader.nothing_recorded()
            # What is still to come is in no window.
            end_ns = min(end_ns, max(self._clock_ns(), whole.end_ns))
            if end_ns <= whole.start_ns or start_ns >= whole.end_ns:
                raise NoGoodputError(
                    f"No log entries found within the interval window between {interval_start} and {interval_end}: "
                    f"what was recorded of job {self.job_name[:200]!r} is {_description_of(whole)}"
                )
            (window,) = ledger.windows([(start_ns, end_ns)], self._now_ns)
            return window


def _slice_efficiency(part: Summary | Window) -> SliceEfficiency | None:
    return None if part.slice_shares is None else SliceEfficiency(*part.slice_shares)


def _description_of(summary: Summary) -> str:
    first, last = (
        datetime.datetime.fromtimestamp(moment_ns // 10**9, datetime.timezone.utc).isoformat()
        for moment_ns in (summary.start_ns, summary.end_ns)
    )
    return f"from {first} to {last}"


def _window_ns(seconds: Any) -> int:
    length = seconds_of(seconds)
    if length is None or not 0 < length < LONGEST_SECONDS:
        raise ConfigurationError(f"window_seconds has {shown(seconds)}; give numbers of seconds above zero")
    return int(length * 1e9)


def _ideal_seconds(value: Any) -> float | None:
    if value is None:
        return None
    seconds = seconds_of(value)
    if seconds is None or not 0 <= seconds < LONGEST_SECONDS:
        raise ConfigurationError(f"configured_ideal_step_time must be a number of seconds, not {shown(value)}")
    return seconds


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


class ElasticGoodputCalculator(GoodputCalculator):
    """Compute the goodput of an elastic job.

    Waiting for slices and initializing again are three kinds of badput, which are always included. The details also
    have the slice efficiencies: means over time, from the first report of slices on, of the slices that trained
    (`stepping_slice_efficiency`) and that were available (`available_slice_efficiency`), as shares of all; 0.0 without
    reports.
    """

    _is_elastic = True

    def get_job_goodput_details(self) -> ElasticWorkloadMetricDetails:
        """Return what `GoodputCalculator.get_job_goodput_details` does, and the slice efficiencies."""
        with self._lock:
            details = super().get_job_goodput_details()
            return cast(ElasticWorkloadMetricDetails, {**details, **_efficiencies(self._summary)})

    def get_interval_metric_details(
        self, interval_start: Moment, interval_end: Moment
    ) -> ElasticIntervalWorkloadMetricDetails:
        """Return what `GoodputCalculator.get_interval_metric_details` does, and the slice efficiencies."""
        return cast(
            ElasticIntervalWorkloadMetricDetails, super().get_interval_metric_details(interval_start, interval_end)
        )

    def _interval_details(self, window: Window | None) -> ElasticIntervalWorkloadMetricDetails:
        return cast(
            ElasticIntervalWorkloadMetricDetails, {**super()._interval_details(window), **_efficiencies(window)}
        )


def _efficiencies(part: Summary | Window | None) -> dict[str, float]:
    stepping, available = (part.slice_shares if part is not None else None) or (0.0, 0.0)
    return {"stepping_slice_efficiency": stepping, "available_slice_efficiency": available}


# Pickles contain the public names.
GoodputCalculator.__module__ = "ml_goodput_measurement.goodput"
ElasticGoodputCalculator.__module__ = "ml_goodput_measurement.goodput_elastic"
