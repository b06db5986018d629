"""The goodput of a job with other saves and restarts: its failures, replayed many times. Pure.

Each replay runs the same number of steps through the uptimes and restarts of the job. A failure costs the steps since
the last save, so it matters where between two saves it falls. That is moved by the noise of step times, which differ
in each replay: by up to a whole interval where the noise of an uptime is as long. The job's last attempt did not fail:
it may go on, until a failure that is drawn from the distribution of the job's failure rate.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from ml_goodput_measurement.advice.history import JobHistory, Life

__all__ = ["DRAWS", "LEVEL", "Plan", "Prediction", "predict"]

DRAWS = 100
"""The number of replays of each kind."""
LEVEL = 0.8
"""The probability with which a range holds the value."""
_MOST_LIVES = 2_000
_LEAST_RATE = 1e-12
"""A failure in 30,000 years: a draw that is zero has no mean time between failures."""
_RESTART_NOISE = 0.1
"""The relative standard deviation of a restart time, if the same restart is done again."""
_RESTART_SPREAD = 0.3
"""The usual standard deviation of the logarithm of restart times, for jobs that show too few to know it."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The saves and restarts to replay a job with.

    Attributes:
        interval_steps: The steps between two saves.
        save_seconds: How long a save blocks.
        restart_factor: Multiplies all restart times.
        background_seconds: How long a save goes on in the background, until it can be restored.
    """

    interval_steps: int
    save_seconds: float
    restart_factor: float = 1.0
    background_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Prediction:
    """The goodput of a job with another plan, in percent.

    Attributes:
        percent: The middle of the replays of the same failures.
        same_failures: The 80 % range for the same failures.
        other_failures: The 80 % range for another run with as many failures.
    """

    percent: float
    same_failures: tuple[float, float]
    other_failures: tuple[float, float]


def predict(history: JobHistory, plan: Plan, *, draws: int = DRAWS, seed: int = 0) -> Prediction:
    """Return the goodput that a plan would have had.

    Args:
        history: The job so far.
        plan: The plan.
        draws: The number of replays of each kind.
        seed: The same seed has the same result.
    """
    rng = random.Random(seed)
    replay = _Replay(history, plan)
    same = sorted(100 * replay.share(_same(history, rng), _noise(history, rng)) for _ in range(draws))
    other = sorted(100 * replay.share(_other(history, rng), _noise(history, rng)) for _ in range(draws))
    return Prediction(_quantile(same, 0.5), _range(same), _range(other))


@dataclass(frozen=True, slots=True)
class _Uptime:
    """The uptime of an attempt that fails, and the restart after it."""

    seconds: float
    restart_seconds: float
    kept_all: bool = False


class _Replay:
    """Replays a job with a plan."""

    def __init__(self, history: JobHistory, plan: Plan) -> None:
        self.history, self.plan = history, plan

    def share(self, uptimes: Iterator[_Uptime], noise: Callable[[], float]) -> float:
        """Return the productive share of the wall time until all steps are done.

        Args:
            uptimes: The attempts that fail, in order; when there are none left, the next attempt is the last.
            noise: Returns the relative step time of an attempt.
        """
        history, plan = self.history, self.plan
        left, wall, productive = history.steps, history.start_seconds, 0.0
        for uptime in uptimes:
            factor = noise()
            needed = self.needed_seconds(left, factor)
            if uptime.seconds >= needed:
                break
            kept = self.kept_steps(uptime, left, factor)
            left -= kept
            wall += uptime.seconds + uptime.restart_seconds * plan.restart_factor
            productive += kept * history.step_seconds * factor
        else:
            factor = noise()
            needed = self.needed_seconds(left, factor)
        wall += needed
        productive += left * history.step_seconds * factor
        return min(1.0, productive / wall) if wall > 0 else 0.0

    def needed_seconds(self, steps: int, factor: float) -> float:
        """Return the uptime that some steps take, with the saves between them."""
        saves = max(0, steps - 1) // self.plan.interval_steps
        return steps * self.history.period_seconds * factor + saves * self.plan.save_seconds

    def kept_steps(self, uptime: _Uptime, left: int, factor: float) -> int:
        """Return how many steps of an attempt are not lost."""
        plan = self.plan
        period = self.history.period_seconds * factor
        cycle = plan.interval_steps * period + plan.save_seconds
        saves = max(0, math.floor((uptime.seconds - plan.background_seconds) / cycle))
        kept = saves * plan.interval_steps
        if uptime.kept_all:
            into = max(0.0, uptime.seconds - saves * cycle)
            kept += min(plan.interval_steps, math.floor(into / period))
        return min(kept, left)


def _same(history: JobHistory, rng: random.Random) -> Iterator[_Uptime]:
    """Yield the uptimes and restarts of the job, then drawn ones: its last attempt goes on until it fails."""
    *ended, last = history.lives
    for life in ended:
        restart = life.restart_seconds or 0.0
        unseen = min(restart, _unseen_seconds(history, life, rng)) if life.failed else 0.0
        again = (restart - unseen) * max(0.0, rng.gauss(1.0, _RESTART_NOISE))
        yield _Uptime(life.uptime_seconds + unseen, again, life.kept_all)
    yield from _further(history, last.uptime_seconds, _restarts(history, rng), rng)


def _unseen_seconds(history: JobHistory, life: Life, rng: random.Random) -> float:
    """Return how long an attempt may have lived after its last record, the start of a step."""
    save = history.save_seconds or 0.0
    return rng.random() * (history.period_seconds + (save if life.is_save_due else 0.0))


def _noise(history: JobHistory, rng: random.Random) -> Callable[[], float]:
    """Return a function that draws the relative step time of an attempt; the mean of the job is not exactly known."""
    mean = rng.gauss(1.0, history.step_noise / math.sqrt(len(history.lives)))
    return lambda: max(0.5, rng.gauss(mean, history.step_noise))


def _restarts(history: JobHistory, rng: random.Random) -> list[float]:
    """Return restart times that the job could have had: those that it had are only a sample of them."""
    known = history.restarts or [history.start_seconds]
    shift = math.exp(rng.gauss(0.0, _RESTART_SPREAD / len(known)))
    return [shift * rng.choice(known) for _ in known]


def _other(history: JobHistory, rng: random.Random) -> Iterator[_Uptime]:
    """Yield the uptimes and restarts of another run of the job with as many failures, then drawn ones.

    At a constant rate, each of so many failures is anywhere in the uptime.
    """
    ended, pool = history.lives[:-1], _restarts(history, rng)
    kept_all = _shuffled([life.kept_all for life in ended], rng)
    total, before = sum(life.uptime_seconds for life in history.lives), 0.0
    for part, kept in zip(sorted(rng.random() for _ in ended), kept_all, strict=True):
        yield _Uptime(part * total - before, rng.choice(pool), kept)
        before = part * total
    yield from _further(history, total - before, pool, rng)


def _further(history: JobHistory, elapsed: float, pool: Sequence[float], rng: random.Random) -> Iterator[_Uptime]:
    """Yield drawn uptimes: first that of an attempt that has trained for some seconds, and goes on until it fails."""
    rate = max(_LEAST_RATE, history.failure_rate.draw(rng))
    for _ in range(_MOST_LIVES):
        yield _Uptime(elapsed + rng.expovariate(rate), rng.choice(pool))
        elapsed = 0.0


def _shuffled(items: list[bool], rng: random.Random) -> list[bool]:
    rng.shuffle(items)
    return items


def _range(values: Sequence[float]) -> tuple[float, float]:
    outside = (1 - LEVEL) / 2
    return _quantile(values, outside), _quantile(values, 1 - outside)


def _quantile(values: Sequence[float], probability: float) -> float:
    """Return a quantile of sorted values, between two of them: of n values, the k-th is at k / (n + 1)."""
    position = min(max(probability * (len(values) + 1) - 1, 0.0), len(values) - 1.0)
    index = math.floor(position)
    following = values[min(index + 1, len(values) - 1)]
    return values[index] + (position - index) * (following - values[index])
