"""One life of a job, written to the journal as processes do, and its report."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ml_diagnostics_common.journal import Journal
from ml_goodput_measurement.goodput import GoodputCalculator
from ml_goodput_measurement.partition import JobReport

from .histories import BASE, JOB, History, Payload

LOG = "goodput_job"
NOW_NS = int((BASE + 2000) * 1e9)

LIFE = (
    History()
    .start(0)
    .init(0, 5)
    .prepare(5, 8)
    .load(8, 9)
    .steps(range(10), at=10)
    .save(5, 60, 63)
    .custom(70, 74)
    .start(300)
    .restore(5, 301, 305)
    .steps(range(6, 20), at=310)
    .end(450)
)
"""One crash, with something of every kind."""


def root() -> Path:
    return Path(os.environ["ML_DIAGNOSTICS_DIR"])


def journal_folder() -> Path:
    return root() / "journal" / LOG


def record(payloads: Iterable[Payload], **labels: str) -> Journal:
    """Write payloads as one process does, with the clock of the payloads."""
    journal = Journal(LOG, root=root(), labels={"job": JOB, "process_index": "0", **labels})
    for payload in payloads:
        journal.append(payload)
    return journal


def calculator(**arguments: Any) -> GoodputCalculator:
    return GoodputCalculator(JOB, LOG, _clock_ns=lambda: NOW_NS, **arguments)


def contents_of(report: JobReport) -> tuple[Any, ...]:
    """All of a report but its notes."""
    return (
        report.start_ns,
        report.end_ns,
        dict(report.buckets),
        dict(report.custom),
        report.last_step,
        report.attempts,
        report.disruptions,
        report.timeline,
    )
