"""The accuracy of advice and what-if: simulated jobs that fail at random, run again with what was predicted.

The floor is the job itself: run twice with the same failures and other noise in its step times, it differs from itself,
since it is chance which save comes before a failure. No prediction can be better than that.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from ml_goodput_measurement._ledger.recorders import Recorders
from ml_goodput_measurement._ledger.writers import Writer
from ml_goodput_measurement.advice import JobHistory, advise, history_of, what_if
from ml_goodput_measurement.advice.interval import Costs, young

from benchmarks.results import Row, Table
from benchmarks.simulated_jobs import BASE, Run, SimulatedJob, draw_job

__all__ = ["Judgement", "judge", "measure"]

_NEAR_POINTS = 2.0
_SHORT, _LONG = (2, 9), (16, 72)


@dataclass
class Judgement:
    """The results for some jobs. Errors are in percentage points of goodput.

    Attributes:
        jobs: The number of jobs.
        errors: The distance of each prediction from one run.
        floor: The distance of a second run from that run.
        restart_errors: The same for restarts of half the time.
        restart_floor: The same floor.
        covered: For each prediction, True if the range for the same failures held the run.
        other_covered: For each prediction, True if the range for other failures held another run with as many.
        widths: The widths of the ranges for the same failures.
        other_widths: The widths of the ranges for other failures.
        ours: The loss of the advised interval against the best one.
        young: The loss of Young's interval, at the estimated rate.
        had: The loss of the job's own interval.
        seconds: The CPU time of each prediction.
    """

    jobs: int = 0
    errors: list[float] = field(default_factory=list)
    floor: list[float] = field(default_factory=list)
    restart_errors: list[float] = field(default_factory=list)
    restart_floor: list[float] = field(default_factory=list)
    covered: list[bool] = field(default_factory=list)
    other_covered: list[bool] = field(default_factory=list)
    widths: list[float] = field(default_factory=list)
    other_widths: list[float] = field(default_factory=list)
    ours: list[float] = field(default_factory=list)
    young: list[float] = field(default_factory=list)
    had: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)


def history_of_run(job: SimulatedJob, run: Run) -> JobHistory:
    """Return the history of a recorded run, through the ledger."""
    recorders = Recorders(job.name)
    recorders.add(Writer(), run.payloads)
    history = history_of(recorders.ledger, int((BASE + run.wall) * 1e9))
    assert history is not None
    return history


def judge(jobs: int, least: int, most: int) -> Judgement:
    """Predict jobs with other intervals between saves, and with shorter restarts, and run them so.

    Args:
        jobs: The number of jobs, of the seeds from 0 on.
        least: The fewest failures of a job.
        most: The most failures.
    """
    found = Judgement(jobs)
    for seed in range(jobs):
        job = draw_job(seed, least, most)
        recorded = job.run(noise_seed=1, is_recorded=True)
        _judge_job(found, seed, job, recorded)
    return found


def _judge_job(found: Judgement, seed: int, job: SimulatedJob, recorded: Run) -> None:
    history = history_of_run(job, recorded)
    # A job that failed before its second save has recorded none: then a user has to give its cost.
    save = job.save_seconds if history.save_seconds is None else history.save_seconds
    advice = advise(history, save_seconds=save)
    best = advice.recommended_seconds or math.sqrt(advice.interval_seconds[0] * min(advice.interval_seconds[1], 1e6))
    costs = Costs(job.save_seconds, job.restart_seconds)
    had = job.interval_steps * job.step_seconds
    at_estimate = young(save, history.uptime_seconds / max(1, history.failures))
    for values, interval in ((found.ours, best), (found.young, at_estimate), (found.had, had)):
        values.append(100 * costs.regret(interval, job.between))
    for number, interval in enumerate((best / 2, best, 2 * best, had / 2, 2 * had)):
        steps = max(1, round(interval / history.period_seconds))
        started = time.process_time()
        prediction = what_if(history, interval_seconds=steps * history.period_seconds, save_seconds=save)
        found.seconds.append(time.process_time() - started)
        run = job.run(noise_seed=100 + seed, interval_steps=steps)
        again = job.run(noise_seed=200 + seed, interval_steps=steps)
        found.errors.append(abs(prediction.percent - run.goodput))
        found.floor.append(abs(again.goodput - run.goodput))
        low, high = prediction.same_failures
        found.covered.append(low <= run.goodput <= high)
        found.widths.append(high - low)
        other = job.run_with_as_many(
            recorded.failures, interval_steps=steps, first_seed=10**6 + 10**5 * seed + 10**4 * number
        )
        if other is not None:
            low, high = prediction.other_failures
            found.other_covered.append(low <= other.goodput <= high)
            found.other_widths.append(high - low)
    if history.failures and history.interval_steps is not None:
        shorter = what_if(history, restart_seconds=history.restart_seconds / 2, save_seconds=save)
        run = job.run(noise_seed=100 + seed, restart_factor=0.5)
        again = job.run(noise_seed=200 + seed, restart_factor=0.5)
        found.restart_errors.append(abs(shorter.percent - run.goodput))
        found.restart_floor.append(abs(again.goodput - run.goodput))


def measure(*, quick: bool) -> list[Table]:
    """Judge short jobs and long ones."""
    jobs = 8 if quick else 40
    short, long = judge(jobs, *_SHORT), judge(jobs, *_LONG)
    return [
        _table("Advice: jobs with 2 to 9 failures", short, is_long=False),
        _table("Advice: jobs with 16 to 72 failures", long, is_long=True),
    ]


def _table(title: str, found: Judgement, *, is_long: bool) -> Table:
    near, floor = near_share(found.errors), near_share(found.floor)
    covered, other = _share(found.covered), _share(found.other_covered)
    is_near = near >= 0.9 and near >= floor - 0.05
    rows = [
        Row(
            f"predictions within 2 points of one run, of {len(found.errors)}",
            f"{near:.1%} (median {statistics.median(found.errors):.2f})",
            f"{floor:.1%} (median {statistics.median(found.floor):.2f}): the run, done again",
            target=">= 90 %, and no 5 points below the floor" if is_long else "",
            met=is_near if is_long else None,
        ),
        Row(
            f"restarts of half the time: within 2 points, of {len(found.restart_errors)}",
            f"{near_share(found.restart_errors):.1%} (median {statistics.median(found.restart_errors):.2f})",
            f"{near_share(found.restart_floor):.1%} (median {statistics.median(found.restart_floor):.2f})",
        ),
        Row(
            "80 % range for the same failures holds the run",
            f"{covered:.1%} ({statistics.fmean(found.widths):.1f} points wide)",
            target="" if is_long else ">= 75 %",
            met=None if is_long else covered >= 0.75,
        ),
        Row(
            f"80 % range for other failures holds another run with as many, of {len(found.other_covered)}",
            f"{other:.1%} ({statistics.fmean(found.other_widths):.1f} points wide)",
            target="" if is_long else ">= 75 %",
            met=None if is_long else other >= 0.75,
        ),
        Row(
            "loss against the best interval, points: advised",
            _mean_and_most(found.ours),
            f"{_mean_and_most(found.young)}: Young at the estimate",
        ),
        Row("the same: the intervals that the jobs had", _mean_and_most(found.had)),
        Row("CPU time of a prediction", f"{1000 * statistics.fmean(found.seconds):.0f} ms", target="<= 100 ms",
            met=statistics.fmean(found.seconds) <= 0.1),
    ]  # fmt: skip
    note = (
        f"{found.jobs} simulated jobs, recorded and read through the ledger; each predicted with five intervals between"
        " saves: the advised one, half and twice that, half and twice the job's own. All runs have the same jobs."
    )
    return Table(title, note, rows)


def near_share(errors: Sequence[float]) -> float:
    """Return the share of errors of at most 2 points."""
    return _share([error <= _NEAR_POINTS for error in errors])


def _share(found: Sequence[bool]) -> float:
    return sum(found) / len(found) if found else 0.0


def _mean_and_most(values: Sequence[float]) -> str:
    return f"{statistics.fmean(values):.2f} in the mean (most {max(values):.1f})"
