"""Advice on how often to save, with how sure it is: never a number without its range. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ml_diagnostics_common.exceptions import ConfigurationError

from ml_goodput_measurement.advice.history import JobHistory
from ml_goodput_measurement.advice.interval import Costs, availability_optimal, daly, young
from ml_goodput_measurement.advice.replay import LEVEL, Plan, Prediction, predict

__all__ = ["FEWEST_FAILURES", "Advice", "Method", "Range", "advise", "what_if"]

FEWEST_FAILURES = 3
"""With fewer failures, there is a range and no recommendation."""
_LEVER_SECONDS = 60.0

Range = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Method:
    """The interval that one method has, for the range of the mean time between failures.

    Attributes:
        name: The method.
        seconds: The range of its intervals, in seconds.
    """

    name: str
    seconds: Range


@dataclass(frozen=True, slots=True)
class Advice:
    """How often a job should save. Points are percentage points of goodput.

    Attributes:
        failures: The number of failures that this is from.
        uptime_seconds: The uptime that they were in.
        between_seconds: The 80 % range of the mean time between failures; without failures only its start is known,
            and the end is infinite.
        save_seconds: How long a save blocks.
        restart_seconds: How long a restart takes.
        interval_seconds: The 80 % range of the best interval; its end is infinite without failures.
        recommended_seconds: The interval with the least regret, in whole steps; None with too few failures.
        recommended_steps: The same in steps.
        worst_regret_points: The most that it may lose against the best interval; None without it.
        now_seconds: The job's interval; None if it is not known.
        now_regret_points: The range of what the job's interval loses against the best one; None if it is not known.
        lever_seconds: The seconds by which a restart could be shorter: 60, or all of it.
        lever_points: The range of what that is worth; None without failures.
        floor_seconds: No interval below this is recommended: the background part of a save, or the detection time.
        background_seconds: How long the background part of a save takes; None if it is not known.
        methods: The intervals by known methods; empty without failures.
    """

    failures: int
    uptime_seconds: float
    between_seconds: Range
    save_seconds: float
    restart_seconds: float
    interval_seconds: Range
    recommended_seconds: float | None
    recommended_steps: int | None
    worst_regret_points: float | None
    now_seconds: float | None
    now_regret_points: Range | None
    lever_seconds: float
    lever_points: Range | None
    floor_seconds: float
    background_seconds: float | None
    methods: tuple[Method, ...] = ()

    @property
    def has_few_failures(self) -> bool:
        """True if there are too few failures for a recommendation."""
        return self.failures < FEWEST_FAILURES


def advise(
    history: JobHistory,
    *,
    save_seconds: float | None = None,
    background_seconds: float | None = None,
    detection_seconds: float = 0.0,
) -> Advice:
    """Return advice on how often a job should save.

    Args:
        history: The job so far.
        save_seconds: How long a save blocks; None for the mean of those that were recorded.
        background_seconds: How long the background part of a save takes; None for what was recorded of it.
        detection_seconds: How long a failure may stay undetected: no interval below this is recommended.

    Raises:
        ConfigurationError: No save was recorded, and `save_seconds` is None.
    """
    save = _save_seconds(history, save_seconds)
    background = history.background_seconds if background_seconds is None else background_seconds
    floor = max(background or 0.0, detection_seconds)
    rate = history.failure_rate
    costs = Costs(save, history.restart_seconds)
    low, high = rate.mean_seconds_between(LEVEL)
    if not history.failures:
        low, high = rate.least_mean_seconds(1 - (1 - LEVEL) / 2), math.inf
    now = None if history.interval_steps is None else history.interval_steps * history.period_seconds
    best = (
        max(floor, costs.best_interval(low)),
        math.inf if not history.failures else max(floor, costs.best_interval(high)),
    )
    points = 100 * history.productive_share
    lever = min(_LEVER_SECONDS, history.restart_seconds)
    steps = None
    if history.failures >= FEWEST_FAILURES:
        steps = _whole_steps(costs.least_regret(low, high), floor, history.period_seconds)
    recommended = None if steps is None else steps * history.period_seconds
    has_range = history.failures > 0
    return Advice(
        failures=history.failures,
        uptime_seconds=history.uptime_seconds,
        between_seconds=(low, high),
        save_seconds=save,
        restart_seconds=history.restart_seconds,
        interval_seconds=best,
        recommended_seconds=recommended,
        recommended_steps=steps,
        worst_regret_points=None if recommended is None else points * costs.regret_range(recommended, low, high)[1],
        now_seconds=now,
        now_regret_points=_scaled(points, costs.regret_range(now, low, high)) if now and has_range else None,
        lever_seconds=lever,
        lever_points=_lever_points(costs, now or recommended or best[0], lever, low, high, points)
        if has_range and lever
        else None,
        floor_seconds=floor,
        background_seconds=background,
        methods=_methods(costs, low, high) if has_range else (),
    )


def what_if(
    history: JobHistory,
    *,
    interval_seconds: float | None = None,
    restart_seconds: float | None = None,
    save_seconds: float | None = None,
    background_seconds: float | None = None,
    seed: int = 0,
) -> Prediction:
    """Return the goodput that a job would have had with other saves or restarts.

    Args:
        history: The job so far.
        interval_seconds: The training time between saves, which is rounded to whole steps; None for the job's own.
        restart_seconds: The mean time of a restart; None for the job's own.
        save_seconds: How long a save blocks; None for the mean of those that were recorded.
        background_seconds: How long the background part of a save takes; None for what was recorded of it.
        seed: The same seed has the same result.

    Raises:
        ConfigurationError: A value that is None was not recorded.
    """
    if interval_seconds is None and history.interval_steps is None:
        raise ConfigurationError(
            "the job recorded no two saves: give the interval between saves, such as --interval 10m"
        )
    if restart_seconds is not None and not history.restart_seconds:
        raise ConfigurationError("the job was not restarted: how long a restart takes would change nothing")
    steps = history.interval_steps or 1
    if interval_seconds is not None:
        steps = _whole_steps(interval_seconds, 0.0, history.period_seconds)
    background = history.background_seconds if background_seconds is None else background_seconds
    plan = Plan(
        interval_steps=steps,
        save_seconds=_save_seconds(history, save_seconds),
        restart_factor=1.0 if restart_seconds is None else restart_seconds / history.restart_seconds,
        background_seconds=background or 0.0,
    )
    return predict(history, plan, seed=seed)


def _save_seconds(history: JobHistory, given: float | None) -> float:
    if given is not None:
        return given
    if history.save_seconds is None:
        raise ConfigurationError(
            "no save was recorded for this job: record saves with a CheckpointLogger, or give the time for which "
            "one blocks, such as --save 5s"
        )
    return history.save_seconds


def _whole_steps(seconds: float, floor_seconds: float, period_seconds: float) -> int:
    """Return an interval in steps: the nearest number, but not below the floor."""
    return max(1, round(seconds / period_seconds), math.ceil(floor_seconds / period_seconds - 1e-9))


def _lever_points(costs: Costs, interval: float, lever: float, low: float, high: float, points: float) -> Range:
    """Return the range of what shorter restarts are worth."""
    shorter = Costs(costs.save, costs.restart - lever)
    gains = sorted(points * (shorter.share(interval, mean) - costs.share(interval, mean)) for mean in (low, high))
    return gains[0], gains[1]


def _scaled(factor: float, values: Range) -> Range:
    return factor * values[0], factor * values[1]


def _methods(costs: Costs, low: float, high: float) -> tuple[Method, ...]:
    save, restart = costs.save, costs.restart
    return (
        Method("Young 1974", (young(save, low), young(save, high))),
        Method("Daly 2006", (daly(save, low), daly(save, high))),
        Method(
            "availability-optimal, arXiv 2410.18124",
            (availability_optimal(save, low, restart), availability_optimal(save, high, restart)),
        ),
    )
