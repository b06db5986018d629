"""A job in the journal, and the results of its calculators and their saved state."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from ml_diagnostics_common.journal import Journal
from ml_goodput_measurement._ledger.recorders import Recorders
from ml_goodput_measurement._ledger.writers import Writer
from ml_goodput_measurement._query import state_store
from ml_goodput_measurement.goodput import GoodputCalculator

from ..waiting import LONG_SECONDS
from .accounts import moment_ns
from .histories import BASE, JOB, History, Payload

LOG = "goodput_job"
NOW_NS = moment_ns(5000)
LIFE = (
    History()
    .start(0)
    .init(0, 5)
    .load(8, 9)
    .steps(range(10), at=10)
    .save(5, 60, 63)
    .custom(70, 74)
    .start(300)
    .restore(5, 301, 305)
    .steps(range(6, 20), at=310)
    .step_end(19, 449)
    .add(checkpoint_progress_step=15, checkpoint_progress_started=BASE + 400)
    .end(450)
)


def root() -> Path:
    return Path(os.environ["ML_DIAGNOSTICS_DIR"])


def record(payloads: Iterable[Payload], process_index: int = 0) -> None:
    journal = Journal(LOG, root=root(), labels={"job": JOB, "process_index": str(process_index)})
    for payload in payloads:
        journal.append(payload)
    journal.close()


def calculator(**arguments: Any) -> GoodputCalculator:
    return GoodputCalculator(JOB, LOG, _clock_ns=lambda: NOW_NS, **arguments)


def saved_file() -> Path:
    [path] = (root() / "state" / "goodput").glob("[!.]*")
    return path


def save() -> Path:
    """Query the job, save its state, and return the file."""
    subject = calculator()
    subject.report()
    subject.save_state()
    return saved_file()


def recorders_of(payloads: Iterable[Payload], process_index: int = 0) -> Recorders:
    recorders = Recorders(JOB)
    recorders.add(Writer(process_index), payloads)
    return recorders


def wait_long_for_copies(patch: pytest.MonkeyPatch) -> None:
    """Have queries wait longer for the copy of a state than those of users: a busy machine is slow as well."""
    patch.setattr(state_store, "_CHECK_PATIENCE_SECONDS", LONG_SECONDS)
    patch.setattr(state_store._StateCopy._store, "__defaults__", (LONG_SECONDS,))


def contents_of(recorders: Recorders, now_ns: int = NOW_NS) -> tuple[Any, ...]:
    """Return all results of the recorders."""
    ledger = recorders.ledger
    return (
        ledger.summary(now_ns),
        ledger.timeline(now_ns),
        ledger.attempts(now_ns),
        ledger.disruptions(ledger.attempts(now_ns)),
        ledger.step_seconds(),
        len(ledger.facts),
        recorders.notes(),
    )
