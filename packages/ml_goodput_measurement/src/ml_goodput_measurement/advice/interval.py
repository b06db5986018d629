"""How often to save: what an interval costs at a rate of failures, the best one, and the one with the least regret.

An interval is the training time between two saves. Failures are equally likely at any moment of the training, a save
blocks it, and a failure costs a restart and the training since the last save. All arguments are in seconds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

__all__ = ["Costs", "availability_optimal", "daly", "young"]

_LARGEST_EXPONENT = 700.0
_HALVINGS = 80
_MEANS = 33


def young(save: float, between: float) -> float:
    """Return the interval of Young, 1974: the first-order optimum.

    Args:
        save: How long a save blocks.
        between: The mean time between failures.
    """
    return math.sqrt(2 * save * between)


def daly(save: float, between: float) -> float:
    """Return the interval of Daly, 2006: the optimum of higher order.

    Args:
        save: How long a save blocks.
        between: The mean time between failures.
    """
    if save >= 2 * between:
        return between
    half = save / (2 * between)
    return math.sqrt(2 * save * between) * (1 + math.sqrt(half) / 3 + half / 9) - save


def availability_optimal(save: float, between: float, restart: float) -> float:
    """Return the period between the starts of saves with the best availability, by arXiv 2410.18124.

    Args:
        save: How long a save blocks.
        between: The mean time between failures.
        restart: How long a restart takes.
    """
    return save + math.sqrt(2 * (between + restart) * save + save**2)


@dataclass(frozen=True, slots=True)
class Costs:
    """The costs of a job's saves and failures.

    Attributes:
        save: How long a save blocks.
        restart: How long a restart takes, from the failure to the first step.
    """

    save: float
    restart: float

    def share(self, interval: float, between: float) -> float:
        """Return the share of the time that makes lasting progress, from 0 to 1.

        Args:
            interval: The training time between saves.
            between: The mean time between failures.
        """
        exponent = (interval + self.save) / between
        if exponent > _LARGEST_EXPONENT:
            return 0.0
        return interval / ((between + self.restart) * math.expm1(exponent))

    def best_interval(self, between: float) -> float:
        """Return the interval with the largest share: the root of T = M (1 - exp(-(T + C) / M))."""
        low, high = 0.0, between
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            if middle < -between * math.expm1(-(middle + self.save) / between):
                low = middle
            else:
                high = middle
        return (low + high) / 2

    def regret(self, interval: float, between: float) -> float:
        """Return how much of the time an interval loses against the best one, from 0 to 1."""
        return max(0.0, self.share(self.best_interval(between), between) - self.share(interval, between))

    def least_regret(self, low: float, high: float) -> float:
        """Return the interval with the least largest regret.

        The regret is largest at an end of the range, and there it changes in one direction between the best intervals
        of both ends: so the answer is where both are equal.

        Args:
            low: The smallest mean time between failures that is considered.
            high: The largest one.
        """
        first, last = self.best_interval(low), self.best_interval(high)
        # As in `regret`, without a search for the best interval at each step: a report of a fleet advises many jobs.
        best_low, best_high = self.share(first, low), self.share(last, high)
        for _ in range(_HALVINGS):
            middle = (first + last) / 2
            if max(0.0, best_low - self.share(middle, low)) < max(0.0, best_high - self.share(middle, high)):
                first = middle
            else:
                last = middle
        return (first + last) / 2

    def regret_range(self, interval: float, low: float, high: float) -> tuple[float, float]:
        """Return the least and the largest regret of an interval over a range of mean times between failures."""
        means = [low * (high / low) ** (number / (_MEANS - 1)) for number in range(_MEANS)]
        regrets = [self.regret(interval, between) for between in means]
        within = self.best_interval(low) <= interval <= self.best_interval(high)
        return 0.0 if within else min(regrets), max(regrets)
