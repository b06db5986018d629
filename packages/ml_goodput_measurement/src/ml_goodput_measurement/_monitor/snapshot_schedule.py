"""The times and the contents of snapshots: what the helper process does, without the process around it."""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from ml_diagnostics_common.backoff import Backoff
from ml_diagnostics_common.guard import job_logger
from ml_diagnostics_common.worker import Interval

from ml_goodput_measurement._monitor.settings import Upload
from ml_goodput_measurement._monitor.sinks import Sink
from ml_goodput_measurement.exceptions import NoGoodputError
from ml_goodput_measurement.snapshot import DeviatingStep, Deviation, Snapshot

if TYPE_CHECKING:
    from ml_goodput_measurement._query.calculator import GoodputCalculator

__all__ = ["SnapshotSchedule"]

_log = job_logger("ml_diagnostics.goodput")

_LONGEST_BACKOFF_SECONDS = 600.0
_RECHECK_SECONDS = 0.2
_TOGETHER = 0.05
"""Uploads that are due within this share of their interval (and a second) are done now, with those that are due."""
_SHARE_FOR_UNFINISHED = 0.25
"""The share of the time of a final flush that exports under way may take."""


def _is_due(timer: Interval, now: float) -> bool:
    return now >= timer.due - min(1.0, _TOGETHER * timer.seconds)


class SnapshotSchedule:
    """Takes snapshots of a job when they are due, and passes them to the sinks.

    Args:
        calculator: The source of snapshots.
        sinks: Their destinations.
        interval_seconds: Returns the seconds between two uploads of a kind.
        configured_ideal_step_seconds: Used instead of the mean of the steps that are not anomalous.
        sync_interval_seconds: Seconds between two copies of the saved state to the bucket; None if there is no bucket.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        calculator: GoodputCalculator,
        sinks: Sequence[Sink],
        *,
        interval_seconds: Callable[[Upload], float],
        configured_ideal_step_seconds: float | None = None,
        sync_interval_seconds: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._calculator, self._sinks = calculator, sinks
        self._interval_seconds, self._clock = interval_seconds, clock
        self._configured_ideal_step_seconds = configured_ideal_step_seconds
        self._timers: dict[Upload, Interval] = {}
        self._windows: Sequence[int] = ()
        self._sync: Interval | None = None
        if sync_interval_seconds is not None:
            self._sync = Interval(sync_interval_seconds, clock() + sync_interval_seconds)
        self._query_backoff = Backoff(first_seconds=5.0, longest_seconds=_LONGEST_BACKOFF_SECONDS)
        self._no_query_before = -float("inf")
        self._logged: set[tuple[str, str]] = set()
        self._queries = 0

    # --- The uploads that are on -----------------------------------------------------------------------------------

    def set_uploads(self, uploads: Mapping[Upload, Sequence[int]], *, flush: bool, flush_seconds: float) -> bool:
        """Start and end uploads, so that exactly these are on.

        Args:
            uploads: The uploads that are to be on; for rolling windows, their lengths in seconds.
            flush: True to do those that end once more.
            flush_seconds: How long that may last. The process enforces it on queries.

        Returns:
            True if everything was flushed.
        """
        ended = [upload for upload in self._timers if upload not in uploads]
        ended_windows = self._windows
        now = self._clock()
        for upload in uploads:
            interval_seconds = self._interval_seconds(upload)
            self._timers.setdefault(upload, Interval(interval_seconds, now + interval_seconds))
        for upload in ended:
            del self._timers[upload]
        self._windows = tuple(uploads.get(Upload.WINDOWS, ()))
        if not (flush and ended):
            return True
        return self._finish(ended, ended_windows, is_all=not uploads, flush_seconds=flush_seconds)

    # --- The uploads that are due ----------------------------------------------------------------------------------

    def seconds_to_next(self) -> float | None:
        """Return the seconds until something is due; None while nothing is on."""
        timers = [*self._timers.values(), *([self._sync] if self._sync and self._timers else [])]
        if not timers:
            return None
        now = self._clock()
        wait_seconds = max(0.0, min(timer.due for timer in timers) - now)
        return max(wait_seconds, _RECHECK_SECONDS) if self._is_exporting() else wait_seconds

    def tick(self) -> None:
        """Do everything that is due, from one snapshot.

        It does not wait for the sinks. A copy to the bucket, which is rare, may take 20 s.
        """
        if self._is_exporting():
            return  # Their snapshot is recent enough until the next one.
        now = self._clock()
        due = [upload for upload, timer in self._timers.items() if _is_due(timer, now)]
        for upload in due:
            self._timers[upload].advance(now)
        if due and now >= self._no_query_before:
            self._offer(self._query(due, self._windows))
        if self._sync and self._timers and _is_due(self._sync, now):
            self._sync.advance(now)
            self.sync()

    def sync(self) -> None:
        """Save the state in the job's bucket, if there is one; that may take 20 s."""
        if self._sync:
            self._try("the saved state could not be written to the bucket", self._calculator.sync_to_gcs)

    def wait_for_sinks(self, timeout_seconds: float) -> bool:
        """Wait until no export is under way; return False after the timeout."""
        deadline = time.monotonic() + timeout_seconds
        return all(sink.wait(max(0.0, deadline - time.monotonic())) for sink in self._sinks)

    def _is_exporting(self) -> bool:
        """Return True if an export is under way that is worth waiting for."""
        return any(sink.is_busy() and not sink.is_stuck() for sink in self._sinks)

    def _finish(self, ended: Iterable[Upload], windows: Sequence[int], *, is_all: bool, flush_seconds: float) -> bool:
        """Do the uploads that end once more; if no other is on, save the state and close the sinks."""
        deadline = time.monotonic() + flush_seconds
        self.wait_for_sinks(_SHARE_FOR_UNFINISHED * flush_seconds)
        # A network that does not answer must not delay the last point.
        self._offer(self._query(ended, windows, local_only=True), is_last=True)
        if is_all:
            self._try("the state could not be saved", self._calculator.save_state)
            for sink in self._sinks:
                sink.finish(deadline)
        return self.wait_for_sinks(deadline - time.monotonic())

    # --- Snapshots ------------------------------------------------------------------------------------

    def _offer(self, snapshot: Snapshot | None, *, is_last: bool = False) -> None:
        if snapshot is not None:
            for sink in self._sinks:
                sink.offer(snapshot, is_last=is_last)

    def _query(self, uploads: Iterable[Upload], windows: Sequence[int], *, local_only: bool = False) -> Snapshot | None:
        """Return a snapshot; None if there can be none now."""
        self._queries += 1
        uploads = set(uploads)
        try:
            snapshot = self._calculator.snapshot(
                cumulative=Upload.CUMULATIVE in uploads,
                deviation=Upload.DEVIATION in uploads,
                window_seconds=windows if Upload.WINDOWS in uploads else (),
                configured_ideal_step_time=self._configured_ideal_step_seconds,
                local_only=local_only,
            )
        except NoGoodputError as error:
            self._log_once(logging.INFO, "there is nothing to upload yet", error)
            return None
        except BaseException as error:
            wait_seconds = self._query_backoff.failed()
            self._no_query_before = self._clock() + wait_seconds
            self._log_once(logging.WARNING, f"the job could not be queried; next try in {wait_seconds:.0f} s", error)
            return None
        self._query_backoff.succeeded()
        self._no_query_before = -float("inf")
        if snapshot.deviation is None:
            return snapshot
        return dataclasses.replace(snapshot, deviation=self._while_current(snapshot.deviation))

    def _while_current(self, deviation: Deviation) -> Deviation:
        """Return the deviation, which fails after the next query instead of returning a mixture."""
        query = self._queries

        def steps_since(moment_ns: int) -> Iterator[DeviatingStep]:
            for step in deviation.steps_since(moment_ns):
                if self._queries != query:
                    raise RuntimeError("it took so long that there is a newer snapshot")
                yield step

        return dataclasses.replace(deviation, steps_since=steps_since)

    def _try(self, problem: str, action: Callable[[], object]) -> None:
        try:
            action()
        except BaseException as error:
            self._log_once(logging.WARNING, problem, error)

    def _log_once(self, level: int, what: str, error: BaseException) -> None:
        """Log each kind of failure once."""
        kind = (what.partition(";")[0], type(error).__name__)
        if kind not in self._logged:
            self._logged.add(kind)
            _log.log(level, "Goodput monitor: %s (%s: %.500s)", what, type(error).__name__, error)
