"""Simulated jobs of the benchmarks, as histories and as recorded jobs."""

from __future__ import annotations

import json
import time
from typing import Any

from ml_goodput_measurement._ledger.recorders import Recorders
from ml_goodput_measurement._ledger.writers import Writer
from ml_goodput_measurement.advice import JobHistory, history_of
from ml_goodput_measurement.goodput import GoodputRecorder

from benchmarks.simulated_jobs import BASE, Run, SimulatedJob

JOB = SimulatedJob("run-7", 3, 9_000, 9.0, 14.0, 110, 9_000.0, 380.0)
"""A job of a day that fails ten times and saves too rarely."""
SHORT_JOB = SimulatedJob("run-7", 3, 600, 9.0, 14.0, 40, 900_000.0, 380.0)
"""A job of 90 minutes that does not fail."""


def history_of_run(run: Run, job: str = "run-7") -> JobHistory:
    """Return the history of a recorded run."""
    history = history_of_payloads(run.payloads, BASE + run.wall, job)
    assert history is not None
    return history


def history_of_payloads(payloads: list[dict[str, Any]], now: float, job: str = "run-7") -> JobHistory | None:
    """Return the history of some payloads, at a moment in seconds since 1970."""
    recorders = Recorders(job)
    recorders.add(Writer(), payloads)
    return history_of(recorders.ledger, int(now * 1e9))


def record(job: SimulatedJob, name: str, *, ends_at: float, is_ended: bool = True) -> Run:
    """Record a run of a job in the journal; it ends at a moment in seconds since 1970.

    Args:
        job: The job.
        name: Its name.
        ends_at: The moment.
        is_ended: False for a job that has not recorded its end.
    """
    run = job.run(noise_seed=1, is_recorded=True)
    recorder = GoodputRecorder(name, f"goodput_{name}", logging_enabled=True)
    shift, now = ends_at - run.wall - BASE, str(time.time_ns())
    for payload in run.payloads:
        if is_ended or "job_end_time" not in payload:
            shifted = {
                key: value + shift if isinstance(value, float) and value > 1e9 else value
                for key, value in payload.items()
            }
            # Thousands of entries at once: without the redaction of payloads that are not the recorder's own.
            recorder._journal.append_text(now, json.dumps({**shifted, "job_name": name}))
    recorder.flush()
    return run
