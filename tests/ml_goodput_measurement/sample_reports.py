"""Reports of written-down histories, for the tests of what is made of a report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ml_goodput_measurement.events import read_events
from ml_goodput_measurement.ledger import Ledger
from ml_goodput_measurement.partition import JobReport

from .histories import BASE, JOB, History


def report_of(history: History, now: float = 10**9, notes: Sequence[str] = ()) -> JobReport:
    """The report of a history at `now`, in seconds after its zero."""
    ledger = Ledger()
    ledger.add(read_events(history.payloads, history.job, Counter()))
    now_ns = round((BASE + now) * 1_000_000) * 1000
    summary = ledger.summary(now_ns)
    assert summary is not None
    return JobReport(
        job_name=history.job,
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
        attempts=ledger.attempts(now_ns),
        disruptions=ledger.disruptions(ledger.attempts(now_ns)),
        timeline=ledger.timeline(now_ns),
        notes=notes,
    )


def killed_and_resumed(job: str = JOB) -> History:
    """200 s: killed in step 9, back from the checkpoint of step 5, and done."""
    history = History(job).start(0).init(1, 4).prepare(4, 10).load(10, 12)
    history.steps(range(6), at=12).save(6, 72, 73).steps(range(6, 10), at=73)
    history.start(130).init(131, 134).prepare(134, 140).restore(6, 136, 139).load(140, 142)
    return history.steps(range(6, 10), at=142).custom(184, 189, "evaluation").end(200)
