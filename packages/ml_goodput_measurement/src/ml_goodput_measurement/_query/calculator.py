"""GoodputCalculator and ElasticGoodputCalculator: queries of a job's ledger."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, cast

from ml_diagnostics_common.exceptions import ConfigurationError
from ml_diagnostics_common.guard import job_logger

from ml_goodput_measurement._ledger import PROCESS_GONE, Ledger, Summary, Window
from ml_goodput_measurement._query import results
from ml_goodput_measurement._query.job_ledger import job_report
from ml_goodput_measurement._query.job_reader import DEFAULT_CACHE_DIR, JobReader
from ml_goodput_measurement._query.sources import Sources
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
    ElasticIntervalWorkloadMetricDetails,
    ElasticWorkloadMetricDetails,
    IntervalWorkloadMetricDetails,
    JobGoodput,
    UnproductiveTimeDict,
    WorkloadMetricDetails,
)
from ml_goodput_measurement.partition import JobReport
from ml_goodput_measurement.snapshot import DeviatingStep, Deviation, Snapshot

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
    """Compute the goodput of a job from its records.

    The first query reads the job's whole log, each later one only new entries. Several processes may query one job at
    once, and a new process continues from the state that an earlier one saved. A copy, and a restored pickle, is a new
    calculator of the same job.
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
        _sources: Sources | None = None,
    ) -> None:
        """Read nothing yet.

        Args:
            job_name: The job's name, the same as its recorder's.
            logger_name: The log's name, the same as the recorder's.
            cloud_logger: Holds the payloads, in place of the journal, the mirror and Cloud Logging.
            using_pathways: Accepted for existing callers; it has no effect.
            max_logs_retention_period: How far back Cloud Logging is read: a timedelta, or seconds; None reads it all.
            gcs_path: Folder, `gs://bucket/folder` or a local one, in which `sync_to_gcs` keeps a copy of the saved
                state, so that other machines can continue from it.
            cache_dir: Folder of the saved state; the default means the one in ML_DIAGNOSTICS_DIR.

        Raises:
            ConfigurationError: An argument, or ML_DIAGNOSTICS_BACKEND, is not valid.
            CredentialsError: ML_DIAGNOSTICS_BACKEND is `cloud` and no cloud is found.
        """
        arguments, names_before = dict(locals()), frozenset(vars(self))
        self._reader = JobReader(
            job_name,
            logger_name,
            cloud_logger,
            retention=max_logs_retention_period,
            gcs_path=gcs_path,
            cache_dir=cache_dir,
            clock_ns=_clock_ns,
            patience_seconds=_patience_seconds,
            logs_failures=_logs_failures,
            sources=_sources,
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
        """Read new entries, and return the job's goodput.

        Args:
            include_badput_breakdown: True to fill the breakdown.
            configured_ideal_step_time: Seconds; the ideal step time of the details, instead of the mean of the steps
                that are not anomalous.

        Returns:
            Goodput in percent, badput in percent by kind, and the last step that is done and was kept; the tuple
            also behaves as the percentage.

        Raises:
            ConfigurationError: `configured_ideal_step_time` is not a number of seconds.
            NoGoodputError: Nothing was recorded for the job, or only at one moment; also a ValueError.
        """
        summary = self._query(configured_ideal_step_time)
        breakdown = self._badput_percent(summary) if include_badput_breakdown else {}
        return JobGoodput(summary.goodput_percent, breakdown, summary.last_step)

    def get_job_goodput_details(self) -> WorkloadMetricDetails:
        """Return the result of the last query, in seconds; only the first call queries.

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
            summary = self._summary or results.NOTHING
            ideal = self._ideal_seconds(summary)
            deviations = results.StepDeviations(self._step_seconds, ideal)
        return results.details(summary, deviations, ideal, elastic=self._is_elastic)

    def get_job_goodput_interval(
        self, interval_start: Moment, interval_end: Moment
    ) -> tuple[float, UnproductiveTimeDict, int, float, int]:
        """Read new entries, and return the goodput of a window of the job's time.

        Percentages refer to the window, up to now; its time before the job or after its end is OTHER. Events are
        interpreted with the whole history, not with the window alone.

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
        breakdown = self._badput_percent(window)
        return window.goodput_percent, breakdown, window.last_step, seconds, window.disruptions

    def get_interval_metric_details(
        self, interval_start: Moment, interval_end: Moment
    ) -> IntervalWorkloadMetricDetails:
        """Return the results of `get_job_goodput_interval` by name; empty ones if it raises a ValueError."""
        try:
            return self._interval_details(self._window(interval_start, interval_end))
        except ValueError:
            return self._interval_details(None)

    def get_step_deviation(self, configured_ideal_step_time: float | None = None) -> dict[int, float]:
        """Read new entries, and return the difference of each kept step's time from the ideal one.

        Args:
            configured_ideal_step_time: Seconds, instead of the mean of the steps that are not anomalous.

        Returns:
            Absolute seconds by step; costs time in proportion to the steps.

        Raises:
            NoGoodputError: See `get_job_goodput`; also if no step is complete.
        """
        with self._querying():
            summary = self._query(configured_ideal_step_time)
            ideal = self._ideal_seconds(summary)
            deviations = dict(results.StepDeviations(self._step_seconds, ideal))
        if not deviations:
            raise NoGoodputError(_NO_STEP_TIMES)
        return deviations

    def report(
        self,
        *,
        include_timeline: bool = True,
        exclusions: Iterable[ExclusionInterval] = (),
        as_of_ns: int | None = None,
    ) -> JobReport:
        """Read new entries, and return everything about the job: attempts, disruptions, the timeline.

        Args:
            include_timeline: True to fill the timeline, which has two pieces for each step with a recorded end.
            exclusions: Intervals to exclude, as of `get_job_goodput_with_exclusions`.
            as_of_ns: When the job ended, as far as another record shows that, in ns since 1970: the time of a job
                that recorded no end itself counts up to then, and not beyond. None is now, for a job that may run. No
                event is left out.

        Raises:
            NoGoodputError: See `get_job_goodput`.
        """
        excluded = excluded_intervals(exclusions)
        with self._querying():
            summary = self._query(excluded=excluded, is_kept=False, as_of_ns=as_of_ns)
            now_ns = self._now_ns if self._now_ns == PROCESS_GONE else summary.end_ns
            report = job_report(
                self.job_name,
                self._ledger,
                summary,
                now_ns,
                notes=self._reader.notes(),
                inferred=self._reader.inferred(),
                include_timeline=include_timeline,
                excluded=excluded,
            )
            if now_ns != PROCESS_GONE:
                return report
            return dataclasses.replace(report, notes=[*report.notes, *self._reader.notes_on_end()])

    def snapshot(
        self,
        *,
        cumulative: bool = True,
        deviation: bool = False,
        window_seconds: Sequence[int] = (),
        configured_ideal_step_time: float | None = None,
        local_only: bool = False,
    ) -> Snapshot:
        """Read new entries, and return the input of exporters. Costs what is new, and a little for each part.

        Args:
            cumulative: True to include the job's whole life.
            deviation: True to include step times.
            window_seconds: Lengths of rolling windows; each ends with the job's life so far.
            configured_ideal_step_time: See `get_job_goodput`.
            local_only: True to read only this machine's journal, in the last moments of a process. If that has no
                entry of the job, the cloud is read all the same.

        Raises:
            ConfigurationError: A window has no length.
            NoGoodputError: See `get_job_goodput`.
        """
        lengths = [_window_ns(length) for length in window_seconds]
        with self._querying():
            summary = self._query(configured_ideal_step_time, local_only=local_only)
            spans = [(max(summary.start_ns, summary.end_ns - length_ns), summary.end_ns) for length_ns in lengths]
            windows = zip(window_seconds, self._ledger.windows(spans, self._now_ns), strict=True)
            return Snapshot(
                job_name=self.job_name,
                time_ns=self._clock_ns(),
                cumulative=results.cumulative(summary, self._ideal_seconds(summary), elastic=self._is_elastic)
                if cumulative
                else None,
                deviation=self._deviation(summary) if deviation else None,
                windows=tuple(
                    results.rolling_window(length, window, elastic=self._is_elastic) for length, window in windows
                ),
            )

    def save_state(self) -> None:
        """Save the state, so that another process continues from here; do nothing with a `cloud_logger`."""
        with self._lock:
            self._reader.save_state()

    def sync_to_gcs(self) -> None:
        """Copy the state to `gcs_path`, so that other machines continue from it; do nothing without one.

        A copy that knows more is never replaced. A failure is logged, not raised.
        """
        with self._lock:
            self._reader.sync_to_gcs()

    def _interval_details(self, window: Window | None) -> IntervalWorkloadMetricDetails:
        return results.interval_details(window, elastic=self._is_elastic)

    def _badput_percent(self, part: Summary | Window) -> UnproductiveTimeDict:
        return results.badput_percent(part, elastic=self._is_elastic)

    def _ideal_seconds(self, summary: Summary) -> float | None:
        return self._configured_ideal_seconds or summary.ideal_step_seconds

    def _deviation(self, summary: Summary) -> Deviation:
        ledger = self._ledger
        ideal = self._ideal_seconds(summary)
        if ideal is None:
            return Deviation(None, lambda _: iter(()))
        latest = [abs(seconds - ideal) for seconds in ledger.latest_step_seconds(_LATEST_STEPS)]

        def steps_since(start_ns: int) -> Iterator[DeviatingStep]:
            for step, started_ns, seconds in ledger.steps_since(start_ns):
                yield DeviatingStep(step, started_ns, abs(seconds - ideal))

        return Deviation(compute_step_deviation_from_baseline(latest) if latest else None, steps_since)

    @contextlib.contextmanager
    def _querying(self) -> Iterator[None]:
        """Allow one query at a time; after one that was interrupted, start from the saved state."""
        with self._lock:
            try:
                yield
            except (NoGoodputError, ConfigurationError):
                raise
            except BaseException as error:
                self._reader.broken_off_by(error)
                raise

    def _step_seconds(self) -> dict[int, float]:
        with self._querying():
            return self._ledger.step_seconds()

    def _query(
        self,
        configured_ideal_step_time: float | None = None,
        excluded: Sequence[tuple[int, int]] = (),
        *,
        is_kept: bool = True,
        local_only: bool = False,
        as_of_ns: int | None = None,
    ) -> Summary:
        """Read new entries, and return the sums of the job's life; keep them for the details if `is_kept`."""
        configured_seconds = _checked_ideal_seconds(configured_ideal_step_time)
        with self._querying():
            self._ledger = self._reader.read(local_only=local_only)
            summary = self._summarize(excluded, as_of_ns)
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

    def _summarize(self, excluded: Sequence[tuple[int, int]] = (), as_of_ns: int | None = None) -> Summary | None:
        """Return the sums up to a moment, or now; up to the last event if the job's process is gone by now."""
        self._now_ns = self._clock_ns() if as_of_ns is None else as_of_ns
        summary = self._ledger.summary(self._now_ns, excluded)
        if (
            as_of_ns is None
            and summary is not None
            and summary.running
            and self._reader.is_gone(self._ledger, self._now_ns)
        ):
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
        with self._querying():
            self._ledger = ledger = self._reader.read()
            whole = self._summarize()
            if whole is None:
                raise self._reader.nothing_recorded()
            # No window includes the future.
            end_ns = min(end_ns, max(self._clock_ns(), whole.end_ns))
            if end_ns <= whole.start_ns or start_ns >= whole.end_ns:
                raise NoGoodputError(
                    f"No log entries found within the interval window between {interval_start} and {interval_end}: "
                    f"what was recorded of job {self.job_name[:200]!r} is {_description_of(whole)}"
                )
            (window,) = ledger.windows([(start_ns, end_ns)], self._now_ns)
            return window


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


def _checked_ideal_seconds(value: Any) -> float | None:
    if value is None:
        return None
    seconds = seconds_of(value)
    if seconds is None or not 0 <= seconds < LONGEST_SECONDS:
        raise ConfigurationError(f"configured_ideal_step_time must be a number of seconds, not {shown(value)}")
    return seconds


class ElasticGoodputCalculator(GoodputCalculator):
    """Compute the goodput of an elastic job.

    Waiting for slices and initializing again are three kinds of badput, which are always included. The details also
    have the slice efficiencies: means over time, from the first report of slices on, of the slices that trained
    (`stepping_slice_efficiency`) and that were available (`available_slice_efficiency`), as shares of all; 0.0 without
    reports.
    """

    _is_elastic = True

    def get_job_goodput_details(self) -> ElasticWorkloadMetricDetails:
        """Return the details of `GoodputCalculator.get_job_goodput_details`, and the slice efficiencies."""
        with self._lock:
            details = super().get_job_goodput_details()
            return cast(ElasticWorkloadMetricDetails, {**details, **results.efficiencies(self._summary)})

    def get_interval_metric_details(
        self, interval_start: Moment, interval_end: Moment
    ) -> ElasticIntervalWorkloadMetricDetails:
        """Return the details of `GoodputCalculator.get_interval_metric_details`, and the slice efficiencies."""
        return cast(
            ElasticIntervalWorkloadMetricDetails, super().get_interval_metric_details(interval_start, interval_end)
        )

    def _interval_details(self, window: Window | None) -> ElasticIntervalWorkloadMetricDetails:
        return cast(
            ElasticIntervalWorkloadMetricDetails, {**super()._interval_details(window), **results.efficiencies(window)}
        )


# Pickles contain the public names.
GoodputCalculator.__module__ = "ml_goodput_measurement.goodput"
ElasticGoodputCalculator.__module__ = "ml_goodput_measurement.goodput_elastic"
