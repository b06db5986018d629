"""Reports of written-down histories, for the tests of what is made of a report."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Sequence

from ml_goodput_measurement.goodput import GoodputCalculator
from ml_goodput_measurement.partition import Bucket, JobReport

from .accounts import moment_ns
from .histories import BASE, JOB, History, MemoryLog


def report_of(history: History, now: float = 10**9, excluded: Sequence[tuple[float, float]] = ()) -> JobReport:
    """The report of a history at `now`, without what is excluded, all in seconds after its zero."""
    calculator = GoodputCalculator(history.job, "log", MemoryLog(history.payloads), _clock_ns=lambda: moment_ns(now))
    return calculator.report(exclusions=[(_utc(first), _utc(last)) for first, last in excluded])


def without_time() -> JobReport:
    """A report of a job that has only started, for tests that construct reports."""
    started_at = report_of(History().start(0), now=1)
    attempts = [dataclasses.replace(started_at.attempts[0], end_ns=started_at.start_ns, buckets={})]
    nothing = dict.fromkeys(Bucket, 0)
    return dataclasses.replace(started_at, end_ns=started_at.start_ns, buckets=nothing, attempts=attempts, timeline=())


def killed_and_resumed(job: str = JOB) -> History:
    """200 s: killed in step 9, back from the checkpoint of step 5, and done."""
    history = History(job).start(0).init(1, 4).prepare(4, 10).load(10, 12)
    history.steps(range(6), at=12).save(6, 72, 73).steps(range(6, 10), at=73)
    history.start(130).init(131, 134).prepare(134, 140).restore(6, 136, 139).load(140, 142)
    return history.steps(range(6, 10), at=142).custom(184, 189, "evaluation").end(200)


def _utc(at: float) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(BASE + at, datetime.timezone.utc)
