"""The states and the rows of runs: worked out where there is news of a run, and where time alone changes it."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from threading import RLock
from typing import Any, Final, NamedTuple

import msgspec
from google_cloud_mldiagnostics.exceptions import ControlPlaneError
from google_cloud_mldiagnostics.reading import RunSource
from ml_diagnostics_common.exceptions import DiagnosticsError

from ml_diagnostics_console._web.changes import Changes
from ml_diagnostics_console._web.judging import Doctor
from ml_diagnostics_console._web.kept_run import KeptRun
from ml_diagnostics_console._web.ledger_view import bucket_percents
from ml_diagnostics_console._web.run_data import RunData
from ml_diagnostics_console._web.run_goodput import goodput_of
from ml_diagnostics_console._web.run_rows import pictures_of, row_of

__all__ = ["News", "RowUpdates"]

_UPDATE_NS: Final = 5_000_000_000
_QUIET_UPDATE_NS: Final = 60_000_000_000
_POINTS_NS: Final = 1_900_000_000
"""A curve takes what was appended each few seconds: it need not know of each value."""
_PICTURES_NS: Final = 10_000_000_000
_CLOUD_SESSIONS_NS: Final = 60_000_000_000
_UPDATES_AT_ONCE: Final = 50
"""Requests wait for so many updates at most."""
_GOODPUT_SECONDS: Final = 0.25


class News(NamedTuple):
    """The runs of which something was read since the last update.

    Attributes:
        touched: The runs with new entries, or another resource.
        changed: The runs among them that have others than values and signs of life.
        with_log: The runs with new records of companions.
        judged: The runs with another verdict.
    """

    touched: Collection[str]
    changed: Collection[str]
    with_log: Collection[str]
    judged: Collection[str]


class RowUpdates:
    """Updates runs, and their rows in `changes`.

    Args:
        source: The runs.
        lock: Held while runs are changed.
        changes: Takes the rows.
        doctor: Has the verdicts that are known.
    """

    def __init__(self, source: RunSource, lock: RLock, changes: Changes, doctor: Doctor) -> None:
        self._failures: dict[str, str] = {}
        self._source, self._lock, self._changes, self._doctor = source, lock, changes, doctor

    @property
    def failure(self) -> str:
        """A sentence on goodput that could not be read when it was last tried; empty without one."""
        return next(iter(self._failures.values()), "")

    def update(
        self, runs: Iterable[KeptRun], news: News, now_ns: int, *, with_sessions: Collection[str] | None = None
    ) -> list[RunData]:
        """Update the runs that may have changed, and return those that may have other processes than before.

        Args:
            runs: The runs that the control plane has.
            news: The runs of which something was read since the last update.
            now_ns: The time, in ns since 1970.
            with_sessions: The runs of a cloud of which sessions are read; None for those of this machine: all.
        """
        due = [kept for kept in runs if self._is_due(kept, news, now_ns)]
        for first in range(0, len(due), _UPDATES_AT_ONCE):
            part = due[first : first + _UPDATES_AT_ONCE]
            for kept in part:
                self._read_sessions(kept, now_ns, with_sessions)
            with self._lock:
                for kept in part:
                    self._update(kept, news, now_ns)
        return [kept.run for kept in due if kept.updated_ns == now_ns]

    def read_goodput(self, runs: Sequence[KeptRun]) -> None:
        """Read where the time of runs went, for a part of a second; the next call goes on.

        Args:
            runs: All runs, those first that are wanted first.
        """
        deadline = time.monotonic() + _GOODPUT_SECONDS
        for kept in runs:
            if kept.is_goodput_due:
                if time.monotonic() > deadline:
                    return
                with self._lock:
                    self._read_goodput(kept)

    @staticmethod
    def _is_due(kept: KeptRun, news: News, now_ns: int) -> bool:
        run = kept.run
        return (
            any(run.id in runs for runs in (news.touched, news.with_log, news.judged))
            or now_ns - kept.updated_ns >= _patience_ns(run)
            or (kept.has_new_points and now_ns - kept.points_ns >= _POINTS_NS)
            or (kept.pictures_version != run.version and now_ns - kept.pictures_ns >= _PICTURES_NS)
        )

    def _update(self, kept: KeptRun, news: News, now_ns: int) -> None:
        run, before = kept.run, _signature(kept.run)
        has_log = run.id in news.with_log
        has_news = has_log or run.id in news.touched
        only_values = run.id in news.touched and run.id not in news.changed and not has_log
        if not (only_values and now_ns - kept.updated_ns < _UPDATE_NS and run.update_signs(now_ns)):
            writers = run.journal.goodput.of(run.id, (), 0, 0)
            run.job_names = tuple(dict.fromkeys(writer.job for writer in writers))
            run.update_state(now_ns, self._source.is_gone)
            kept.updated_ns = now_ns
        grows = run.is_live and now_ns - kept.changed_ns >= _PICTURES_NS  # The durations of a live run do.
        if has_news or grows or _signature(run) != before:
            run.version += 1
            kept.changed_ns = now_ns
        self._update_pictures(kept, now_ns, is_other_state=run.state != before.state)
        self._update_row(kept)
        kept.has_new_points = kept.has_new_points or has_news
        if kept.has_new_points and now_ns - kept.points_ns >= _POINTS_NS:
            self._changes.update_points(run.id, {name: run.columns.points(name) for name in run.columns.names()})
            kept.has_new_points, kept.points_ns = False, now_ns
        if has_log:
            self._changes.update_log(run.id)

    @staticmethod
    def _update_pictures(kept: KeptRun, now_ns: int, *, is_other_state: bool) -> None:
        is_old = kept.pictures_version != kept.run.version
        if not kept.pictures or (is_old and (is_other_state or now_ns - kept.pictures_ns >= _PICTURES_NS)):
            kept.pictures = pictures_of(kept.run, kept.goodput)
            kept.pictures_ns, kept.pictures_version = now_ns, kept.run.version
            kept.is_goodput_due = True

    def _update_row(self, kept: KeptRun) -> None:
        row = row_of(kept.run, kept.pictures, self._doctor.finding(kept.run))
        if self._changes.update(kept.run.id, row) or not kept.encoded:
            kept.encoded = msgspec.json.encode(row)

    def _read_goodput(self, kept: KeptRun) -> None:
        """Read the goodput of a run, and show it; a long log takes several calls."""
        run, goodput = kept.run, goodput_of(kept.run)
        kept.is_goodput_due = False
        try:
            report = goodput.report(run)
        except (DiagnosticsError, OSError) as error:
            self._failures[run.id] = f"The goodput of {run.id} could not be read: {error}"
            return
        self._failures.pop(run.id, None)
        kept.is_goodput_due = goodput.is_due(run)
        if report is None:
            return
        buckets = [[bucket, round(percent, 2)] for bucket, percent in bucket_percents(report)]
        shown: Mapping[str, Any] = {"goodput": _rounded(report.goodput_percent), "buckets": buckets}
        if shown != kept.goodput:
            kept.goodput = dict(shown)
            run.version += 1  # Views that were made meanwhile show that it is still read.
            kept.pictures, kept.pictures_version = pictures_of(run, shown), run.version
            self._update_row(kept)

    def _read_sessions(self, kept: KeptRun, now_ns: int, with_sessions: Collection[str] | None) -> None:
        """Read the profiler sessions of a run in the control plane, outside the lock: a cloud takes its time."""
        patience_ns = _UPDATE_NS if with_sessions is None else _CLOUD_SESSIONS_NS
        if kept.sessions_ns is not None and (not kept.run.is_live or now_ns - kept.sessions_ns < patience_ns):
            return
        kept.sessions_ns = now_ns
        if with_sessions is not None and kept.run.id not in with_sessions:
            return
        with contextlib.suppress(ControlPlaneError, OSError):
            sessions = list(self._source.control_plane.list_sessions(kept.run.id))
            with self._lock:
                kept.run.sessions = sessions


class _Signature(NamedTuple):
    """The part of a run that makes another version of it when it changes by time alone."""

    state: str
    reason: str
    hangs: object
    attempts: int


def _signature(run: RunData) -> _Signature:
    return _Signature(run.state, run.reason, run.hangs, len(run.attempts))


def _patience_ns(run: RunData) -> float:
    """Return after which time a run is updated again, though it got no entries."""
    if run.is_live:
        return _UPDATE_NS
    return _QUIET_UPDATE_NS if run.state in ("silent", "unknown") else float("inf")


def _rounded(number: float | None) -> float | None:
    return round(number, 2) if number is not None and math.isfinite(number) else None
