"""Ledgers of jobs that were never run, for tests of rules: `report`, `summary` and `disruption`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ml_diagnostics_console._facts.facts import Fact
from ml_goodput_measurement.partition import AttemptEnd, AttemptSummary, Bucket, Disruption, JobReport

from tests.console.made_facts import after


def summary(number: int, start: float, end: float, **fields: Any) -> AttemptSummary:
    """Return an attempt of 31 steps, from and to so many seconds after the start of the job."""
    known: dict[str, Any] = {
        "ended": AttemptEnd.LOST,
        "first_step": 0,
        "last_step": 30,
        "steps_kept": 31,
        "steps_lost": 0,
        "last_checkpoint_step": None,
        "buckets": {},
    }
    return AttemptSummary(number, after(start), after(end), **{**known, **fields})


def report(
    attempts: Sequence[AttemptSummary],
    disruptions: Sequence[Disruption] = (),
    *,
    seconds: float = 1000.0,
    buckets: Mapping[Bucket, float] | None = None,
    **fields: Any,
) -> Fact[JobReport]:
    """Return a ledger; what is in no other bucket is productive."""
    times = dict.fromkeys(Bucket, 0) | {bucket: round(s * 1e9) for bucket, s in (buckets or {}).items()}
    times[Bucket.PRODUCTIVE] += round(seconds * 1e9) - sum(times.values())
    known: dict[str, Any] = {
        "job_name": "job",
        "start_ns": after(0),
        "end_ns": after(seconds),
        "running": False,
        "custom": {},
        "data_loading_async_ns": 0,
        "estimated_ns": 0,
        "last_step": 30,
        "steps_kept": 31,
        "ideal_step_seconds": 2.0,
        "timeline": (),
    }
    return Fact(
        JobReport(buckets=times, attempts=tuple(attempts), disruptions=tuple(disruptions), **{**known, **fields})
    )


def disruption(number: int = 1, attempt_number: int = 1, **fields: Any) -> Disruption:
    """Return a disruption at 60 s that cost 150 s."""
    known: dict[str, Any] = {
        "last_event_ns": after(60),
        "step_in_flight": 31,
        "resumed_ns": after(180),
        "resumed_step": 20,
        "failed_attempts": 0,
        "steps_lost": 10,
        "infrastructure_ns": 120 * 10**9,
        "init_ns": 5 * 10**9,
        "restore_ns": 3 * 10**9,
        "data_loading_ns": 0,
        "startup_ns": 2 * 10**9,
        "recompute_ns": 20 * 10**9,
    }
    return Disruption(number, attempt_number, **{**known, **fields})
