"""The last states of some jobs: refreshed in a thread, read without waiting."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from ml_diagnostics_common.environment import configured_mirror
from ml_diagnostics_common.exceptions import DiagnosticsError
from ml_diagnostics_common.guard import job_logger

from ml_goodput_measurement._query.job_state import JobFollower, JobState
from ml_goodput_measurement._query.sources import last_written_ns, logs_of_jobs, mirror_lags
from ml_goodput_measurement.exceptions import NoGoodputError

__all__ = ["MOST_JOBS", "REFRESH_SECONDS", "Board", "Shown", "jobs_of_this_machine"]

_log = job_logger("ml_diagnostics.goodput")

MOST_JOBS = 500
"""The most jobs of one endpoint: a scrape of 2,000 would take a third of a second and 2.7 MB."""
REFRESH_SECONDS = 10.0
"""Jobs are read again at most so often."""
_AFTER_END_NS = 600 * 10**9
_AFTER_EVENT_NS = 3_600 * 10**9

JobName = tuple[str, str]
"""A job's name and its log."""


@dataclass(frozen=True, slots=True)
class Shown:
    """The jobs to export.

    Attributes:
        states: The jobs, the latest first.
        hidden: How many more there are.
    """

    states: Sequence[JobState]
    hidden: int


def jobs_of_this_machine() -> list[JobName]:
    """Return the jobs with a log that was written to in the last hour."""
    now_ns = time.time_ns()
    return [
        (job, log)
        for log, jobs in logs_of_jobs().items()
        if now_ns - last_written_ns(log) < _AFTER_EVENT_NS
        for job in sorted(jobs)
    ]


class Board:
    """Keeps the last states of jobs.

    Args:
        jobs: Returns the jobs to follow; called at each refresh.
        local_only: True to read this machine's journal alone.
        warns_of_missing: True to log a warning for a job without records, as one that a user named.
        refresh_seconds: The time between refreshes.
        clock_ns: The clock.
    """

    def __init__(
        self,
        jobs: Callable[[], Iterable[JobName]],
        *,
        local_only: bool = False,
        warns_of_missing: bool = False,
        refresh_seconds: float = REFRESH_SECONDS,
        clock_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self._jobs, self._local_only, self._warns_of_missing = jobs, local_only, warns_of_missing
        self._refresh_seconds, self._clock_ns = max(refresh_seconds, 0.1), clock_ns
        self._followers: dict[JobName, JobFollower] = {}
        self._states: dict[JobName, JobState] = {}
        self._failed: set[JobName] = set()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start to refresh, in a thread."""
        self._thread = threading.Thread(target=self._run, name="goodput-board", daemon=True)
        self._thread.start()

    def stop(self, timeout_seconds: float = 1.0) -> None:
        """Stop to refresh; wait at most so long for the refresh that is running."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join(timeout_seconds)

    def shown(self) -> Shown:
        """Return what to export now; never waits.

        A job is left out 10 minutes after its end, and one hour after its last event.
        """
        now_ns = self._clock_ns()
        fresh = sorted(
            (state for state in self._states.values() if _is_fresh(state, now_ns)),
            key=lambda state: (-state.last_event_ns, state.job_name, state.log_id),
        )
        single = _with_single_names(fresh)
        return Shown(single[:MOST_JOBS], max(0, len(single) - MOST_JOBS))

    def refresh(self) -> None:
        """Read what is new of each job."""
        wanted = list(self._jobs())
        lags = self._mirror_lags() if self._local_only else {}
        states: dict[JobName, JobState] = {}
        for name in wanted:
            if self._stopped.is_set():
                return
            state = self._read(name) or self._states.get(name)
            if state is not None and self._local_only:
                state = dataclasses.replace(state, mirror_lag_seconds=lags.get(state.log_id))
            if state is not None:
                states[name] = state
        self._followers = {name: self._followers[name] for name in wanted if name in self._followers}
        self._states = states  # At once: a scrape meanwhile has the states of one refresh.

    def _read(self, name: JobName) -> JobState | None:
        """Return the state of a job; None if it cannot be read. A failure is logged once until it is over."""
        try:
            if name not in self._followers:
                self._followers[name] = JobFollower(*name, clock_ns=self._clock_ns)
            state = self._followers[name].read(local_only=self._local_only)
        except NoGoodputError:  # It has recorded nothing yet.
            if self._warns_of_missing:
                self._warn_once(name, f"has recorded nothing yet in log {name[1][:200]!r}")
            return None
        except Exception as error:  # Whatever one job's records do, the others are read.
            detail = error if isinstance(error, (DiagnosticsError, OSError)) else f"{type(error).__name__}: {error}"
            self._warn_once(name, f"cannot be read: {detail}")
            return None
        self._failed.discard(name)
        return state

    def _mirror_lags(self) -> dict[str, float]:
        """Return how far the mirror of each log is behind, without a request; empty without a mirror."""
        mirror = configured_mirror()
        try:
            return mirror_lags(mirror, self._clock_ns()) if mirror else {}
        except (DiagnosticsError, OSError):
            return {}  # The jobs have the same error.

    def _warn_once(self, name: JobName, problem: str) -> None:
        if name not in self._failed:
            _log.warning("job %r %s", name[0][:200], problem)
            self._failed.add(name)

    def _run(self) -> None:
        while not self._stopped.is_set():
            started = time.monotonic()
            try:
                self.refresh()
            except Exception:  # The next refresh may succeed.
                _log.exception("the jobs cannot be listed")
            self._stopped.wait(max(0.0, self._refresh_seconds - (time.monotonic() - started)))


def _is_fresh(state: JobState, now_ns: int) -> bool:
    if not state.running and now_ns - state.end_ns > _AFTER_END_NS:
        return False
    return now_ns - state.last_event_ns <= _AFTER_EVENT_NS


def _with_single_names(states: Sequence[JobState]) -> list[JobState]:
    """Return the states without those of a job with a name that a later one has, in another log."""
    names: set[str] = set()
    single = []
    for state in states:
        if state.job_name not in names:
            names.add(state.job_name)
            single.append(state)
    return single
