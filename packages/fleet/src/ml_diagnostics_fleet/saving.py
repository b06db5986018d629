"""Jobs that save too rarely: the advice of `ml_goodput_measurement.advice`, for all jobs of a fleet. Pure.

What is lost is a range, since a job's few failures show its failure rate in a range only.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Final

from ml_goodput_measurement.advice import Advice, JobHistory, advise
from ml_goodput_measurement.advice.history import Life
from ml_goodput_measurement.advice.interval import Costs
from ml_goodput_measurement.advice.posterior import gamma_quantile

from ml_diagnostics_fleet.answers import SaveSums

__all__ = ["RareSaver", "SavingAdvice", "saving_advice"]

_SECOND: Final = 10**9
_LOW: Final = 0.1
"""The probability below the 80 % range."""


@dataclass(frozen=True, slots=True)
class RareSaver:
    """A job that saves more rarely than the 80 % range of its best interval.

    Attributes:
        job: The job.
        advice: The advice for it.
        lost_share: The range of what it loses against the best interval, as shares of its time.
        lost_cost: The same as costs, as in `answers.Sums`.
        lost_chip_ns: The same as chip-time.
    """

    job: SaveSums
    advice: Advice
    lost_share: tuple[Fraction, Fraction]
    lost_cost: tuple[Fraction, Fraction]
    lost_chip_ns: tuple[Fraction, Fraction]


@dataclass(frozen=True, slots=True)
class SavingAdvice:
    """How often the jobs of a fleet save.

    Attributes:
        rare: The jobs that save too rarely, the one first that loses most for sure.
        jobs: The number of jobs by team for which that is known: those with saves, steps and a failure.
        never: The number of jobs by team that failed and recorded no save.
    """

    rare: list[RareSaver]
    jobs: dict[str, int]
    never: dict[str, int]


def saving_advice(jobs: Iterable[SaveSums]) -> SavingAdvice:
    """Return the jobs that save too rarely.

    Args:
        jobs: The jobs, see `FleetReports.saves`.
    """
    rare, known, never = list[RareSaver](), dict[str, int](), dict[str, int]()
    for job in jobs:
        history = _history(job)
        if history is None or not history.failures:
            if job.failures and not job.saves:
                never[job.team] = never.get(job.team, 0) + 1
            continue
        known[job.team] = known.get(job.team, 0) + 1
        if _may_be_rare(history):
            found = _rare_saver(job, history)
            if found is not None:
                rare.append(found)
    rare.sort(key=lambda one: (-one.lost_cost[0], -one.lost_chip_ns[0], -one.lost_share[0], one.job.key))
    return SavingAdvice(rare, known, never)


def _history(job: SaveSums) -> JobHistory | None:
    """Return what rows show of a job; None if it is too little."""
    trained = job.uptime_ns - job.save_ns - job.startup_ns
    if not job.steps_kept or not job.steps_made or not job.saves or job.productive_ns <= 0 or trained <= 0:
        return None
    step_seconds = job.productive_ns / job.steps_kept / _SECOND
    # Each attempt ends, on average, half an interval after its last save.
    interval = round(job.steps_made / (job.saves + Fraction(job.stepping_attempts, 2)))
    return JobHistory(
        goodput_percent=100 * job.productive_ns / job.job_ns,
        wall_seconds=job.job_ns / _SECOND,
        steps=job.steps_kept,
        step_seconds=step_seconds,
        other_seconds=max(0.0, trained / job.steps_made / _SECOND - step_seconds),
        step_noise=0.0,
        start_seconds=0.0,
        lives=(Life(0.0, job.restart_ns / job.disruptions / _SECOND),) if job.disruptions else (),
        failures=job.failures,
        uptime_seconds=job.uptime_ns / _SECOND,
        saves=job.saves,
        save_seconds=job.save_ns / job.saves / _SECOND,
        interval_steps=max(1, interval),
    )


@lru_cache(maxsize=10_000)
def _quantile(probability: float, failures: int) -> float:
    return gamma_quantile(probability, failures + 0.5)


def _may_be_rare(history: JobHistory) -> bool:
    """Return False for a job within its range: that takes a hundredth of the time of all advice."""
    if not history.save_seconds or history.interval_steps is None:
        return False
    between = max(history.uptime_seconds, history.period_seconds) / _quantile(_LOW, history.failures)
    best = Costs(history.save_seconds, history.restart_seconds).best_interval(between)
    return history.interval_steps * history.period_seconds > best


def _rare_saver(job: SaveSums, history: JobHistory) -> RareSaver | None:
    advice = advise(history)
    if advice.now_seconds is None or advice.now_regret_points is None:
        return None
    if advice.now_seconds <= advice.interval_seconds[1]:
        return None
    low, high = (Fraction(points) / 100 for points in advice.now_regret_points)
    return RareSaver(
        job, advice, (low, high), (low * job.cost, high * job.cost), (low * job.chip_ns, high * job.chip_ns)
    )
