"""GoodputCalculator: reads a job's log and says where its time went."""

from __future__ import annotations

import datetime
import hashlib
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ml_diagnostics_common.environment import diagnostics_directory
from ml_diagnostics_common.exceptions import ConfigurationError

from ml_goodput_measurement.deviation import StepDeviations
from ml_goodput_measurement.exceptions import NoGoodputError
from ml_goodput_measurement.goodput_utils import BadputType, GoodputType, UnproductiveTimeDict, WorkloadMetricDetails
from ml_goodput_measurement.job_goodput import JobGoodput
from ml_goodput_measurement.ledger import Summary
from ml_goodput_measurement.names import checked_name
from ml_goodput_measurement.partition import Bucket, JobReport
from ml_goodput_measurement.recorders import Recorders
from ml_goodput_measurement.saved_state import load_state, save_state
from ml_goodput_measurement.sources import LogSource, PayloadSource, UserLogger, UserLoggerSource

__all__ = ["GoodputCalculator"]

_CHUNK = 10_000
"""Payloads that are turned into events at a time: enough to be fast, few enough to need no memory."""

_SAVE_AFTER_EVENTS = 20_000

_DEFAULT_CACHE_DIR = "/tmp"

_OTHER = (Bucket.UNKNOWN, Bucket.IN_FLIGHT)
_ELASTIC = {BadputType.ELASTIC_SLICE_DOWN, BadputType.ELASTIC_SCALE_UP, BadputType.ELASTIC_REINITIALIZATION}


class GoodputCalculator:
    """Computes the goodput of a job from what was recorded.

    The first query reads the job's whole log, each further one what came since. Several processes may query one job
    at once, and a new process goes on from the state that an earlier one saved.
    """

    def __init__(
        self,
        job_name: str,
        logger_name: str,
        cloud_logger: UserLogger | None = None,
        using_pathways: bool = False,
        max_logs_retention_period: datetime.timedelta | float | None = None,
        gcs_path: str | None = None,
        cache_dir: str = _DEFAULT_CACHE_DIR,
        *,
        _clock_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        """Reads nothing yet.

        Args:
            job_name: The job, as its recorder was given it.
            logger_name: The log, as the recorder was given it.
            cloud_logger: Holds the payloads, in place of the journal and Cloud Logging.
            using_pathways: Kept for callers that pass it; it changes nothing.
            max_logs_retention_period: How far back Cloud Logging is read: a timedelta, or seconds; None is all of it.
            gcs_path: Kept for callers that pass it.
            cache_dir: Folder of the saved state; the default means the one in ML_DIAGNOSTICS_DIR.

        Raises:
            ConfigurationError: An argument, or ML_DIAGNOSTICS_BACKEND, cannot be used.
            CredentialsError: ML_DIAGNOSTICS_BACKEND is `cloud` and no cloud is found.
        """
        self.job_name = checked_name("job_name", job_name)
        self.logger_name = checked_name("logger_name", logger_name)
        self.using_pathways = using_pathways
        self.gcs_path = gcs_path
        self._retention_ns = _retention_ns(max_logs_retention_period)
        if cloud_logger is not None and not callable(getattr(cloud_logger, "read_cloud_logging_entries", None)):
            raise ConfigurationError(
                f"cloud_logger is a {type(cloud_logger).__name__} without read_cloud_logging_entries(); "
                "pass an object that has it, or nothing to read the journal and Cloud Logging"
            )
        self._clock_ns = _clock_ns
        self._lock = threading.RLock()
        self._summary: Summary | None = None
        self._configured_ideal_seconds: float | None = None
        self._cloud_logger = cloud_logger
        self._cache_dir = cache_dir
        self._begin()

    def _begin(self) -> None:
        """Goes on from the saved state, or begins with nothing."""
        self._was_interrupted, self._is_resumed, self._unsaved_events = False, False, 0
        self._recorders = Recorders(self.job_name)
        self._state_path: Path | None = None
        self._source: PayloadSource
        if self._cloud_logger is not None:
            self._source = UserLoggerSource(self._cloud_logger)
            return
        start_ns = None if self._retention_ns is None else self._clock_ns() - self._retention_ns
        self._source = LogSource(self.logger_name, self.job_name, root=diagnostics_directory(), start_ns=start_ns)

    def _resume(self) -> None:
        """Goes on from the saved state of the same log, project and reach, if there is one."""
        self._is_resumed = True
        if not isinstance(self._source, LogSource):
            return
        project, root = self._source.project(), diagnostics_directory()
        self._state_path = _state_path(
            root, self._cache_dir, self.job_name, self.logger_name, project, self._retention_ns
        )
        state = load_state(self._state_path, self.job_name)
        if state is not None:
            self._recorders = state.recorders
            self._source.resume(state.position)

    def get_job_goodput(
        self, include_badput_breakdown: bool = False, configured_ideal_step_time: float | None = None
    ) -> JobGoodput:
        """Reads what is new and returns the job's goodput.

        Args:
            include_badput_breakdown: Whether the breakdown is filled.
            configured_ideal_step_time: Seconds; taken for the ideal step time in the details, in place of the mean of
                the steps that are not anomalous.

        Returns:
            Goodput in percent, badput in percent by kind, and the last step that is done and was kept; the tuple
            also behaves as the percentage.

        Raises:
            ConfigurationError: `configured_ideal_step_time` is no number of seconds.
            NoGoodputError: Nothing was recorded for the job, or all of it at one moment; also a ValueError.
        """
        configured_seconds = _ideal_seconds(configured_ideal_step_time)
        with self._lock:
            summary = self._query()
            self._configured_ideal_seconds = configured_seconds
        breakdown: UnproductiveTimeDict = {}
        if include_badput_breakdown:
            breakdown = _badput(summary, summary.wall_ns / 100)
        return JobGoodput(100 * summary.buckets[Bucket.PRODUCTIVE] / summary.wall_ns, breakdown, summary.last_step)

    def get_job_goodput_details(self) -> WorkloadMetricDetails:
        """Returns what the last query found, in seconds; asks nothing anew (the first call does query).

        Raises:
            NoGoodputError: As `get_job_goodput`.
        """
        with self._lock:
            if self._summary is None:
                self.get_job_goodput()
            summary = self._summary
            assert summary is not None
            ideal = self._configured_ideal_seconds or summary.ideal_step_seconds
            deviations = StepDeviations(self._step_seconds, ideal)
        return WorkloadMetricDetails(
            goodput_time={GoodputType.TOTAL: summary.buckets[Bucket.PRODUCTIVE] / 1e9},
            badput_time=_badput(summary, 1e9),
            max_productive_step=summary.last_step,
            total_elapsed_time=summary.wall_ns / 1e9,
            disruption_count=summary.disruptions,
            step_time_deviation=deviations,
            ideal_step_time=ideal or 0.0,
            total_excluded_time=summary.buckets[Bucket.EXCLUDED] / 1e9,
        )

    def report(self, *, include_timeline: bool = True) -> JobReport:
        """Reads what is new and returns all that is known of the job: attempts, disruptions, the timeline.

        Args:
            include_timeline: Whether the timeline is filled; where trainers record the end of every step it has two
                pieces a step.

        Raises:
            NoGoodputError: As `get_job_goodput`.
        """
        with self._lock:
            summary = self._query()
            ledger, now_ns = self._recorders.ledger, summary.end_ns
            attempts = ledger.attempts(now_ns)
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
                disruptions=ledger.disruptions(attempts),
                timeline=ledger.timeline(now_ns) if include_timeline else (),
                notes=[*self._source.notes(), *self._recorders.notes()],
            )

    def save_state(self) -> None:
        """Saves what was read, so that another process goes on from here; nothing to do with a `cloud_logger`."""
        with self._lock:
            position = self._source.position()
            if self._state_path is None or position is None:
                return
            is_saved = save_state(self._state_path, self._recorders, position)
            # The journal drops nothing on the word of a state in a folder that may be anybody's to wipe.
            if is_saved and isinstance(self._source, LogSource) and self._cache_dir == _DEFAULT_CACHE_DIR:
                self._source.save_position()
            self._unsaved_events = 0

    def _step_seconds(self) -> dict[int, float]:
        with self._lock:
            return self._recorders.ledger.step_seconds()

    def _query(self) -> Summary:
        if self._was_interrupted:
            self._begin()
        try:
            summary = self._read()
        except (KeyboardInterrupt, SystemExit):
            # It may have struck anywhere, so nothing that was half done is gone on from.
            self._was_interrupted = True
            raise
        if summary is None:
            raise NoGoodputError(
                f"Nothing was recorded for job {self.job_name[:200]!r} in log {self.logger_name[:200]!r}, looking in "
                f"{self._source.searched()}{''.join('; ' + note for note in self._source.notes())}. Was its "
                "GoodputRecorder given the same two names and logging_enabled=True?"
            )
        if not summary.wall_ns:
            raise NoGoodputError(
                f"Total job time is zero, Goodput cannot be calculated: all that was recorded for job "
                f"{self.job_name[:200]!r} is of one moment. Ask again when it has run for a while."
            )
        self._summary = summary
        return summary

    def _read(self) -> Summary | None:
        """Reads what is new, and saves the state after much of it."""
        if not self._is_resumed:
            self._resume()
        for process_index, payloads in self._source.read_new():
            for begin in range(0, len(payloads), _CHUNK):
                self._recorders.add(process_index, payloads[begin : begin + _CHUNK])
            self._unsaved_events += len(payloads)
        summary = self._recorders.ledger.summary(self._clock_ns())
        if self._unsaved_events >= _SAVE_AFTER_EVENTS:
            self.save_state()
        return summary


def _badput(summary: Summary, unit_ns: float) -> UnproductiveTimeDict:
    """Returns every kind of badput, in units of so many nanoseconds."""
    badput: UnproductiveTimeDict = {}
    for kind in BadputType:
        if kind is BadputType.CUSTOM_BADPUT_EVENTS:
            badput[kind] = {label: length / unit_ns for label, length in summary.custom.items()}
            continue
        if kind is BadputType.DATA_LOADING_ASYNC:
            length = summary.data_loading_async_ns
        elif kind is BadputType.OTHER:
            length = sum(summary.buckets[bucket] for bucket in _OTHER)
        else:
            length = summary.buckets[Bucket(kind.name)]
        if length or kind not in _ELASTIC:
            badput[kind] = length / unit_ns
    return badput


def _ideal_seconds(value: Any) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1e10:
        raise ConfigurationError(f"configured_ideal_step_time must be a number of seconds, not {value!r:.200}")
    return float(value)


def _retention_ns(period: datetime.timedelta | float | None) -> int | None:
    if period is None:
        return None
    seconds = period.total_seconds() if isinstance(period, datetime.timedelta) else period
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0 < seconds < 1e10:
        raise ConfigurationError(
            f"max_logs_retention_period must be a positive timedelta or number of seconds, not {period!r:.200}"
        )
    return int(seconds * 1e9)


def _state_path(
    root: Path, cache_dir: str, job_name: str, logger_name: str, project: str = "", retention_ns: int | None = None
) -> Path:
    """Returns where the state of a job is saved: a file for each log, project and reach that it was read with."""
    folder = root / "state" / "goodput" if cache_dir == _DEFAULT_CACHE_DIR else Path(cache_dir)
    # The names may be of any length and hold anything.
    whose = repr((logger_name, job_name, project, retention_ns))
    return folder / f"{hashlib.sha256(whose.encode()).hexdigest()[:32]}.goodput"
