"""How often a job fails, as far as its failures so far can show: a gamma distribution, and its quantiles.

Failures at a constant rate, with Jeffreys' prior: after n failures in an uptime E the rate has the distribution
Gamma(n + 1/2, E). https://en.wikipedia.org/wiki/Jeffreys_prior#Poisson_distribution_with_rate_parameter
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

__all__ = ["FailureRate", "gamma_quantile", "regularized_gamma"]

_PRECISION = 1e-15
_MOST_TERMS = 10_000
_MOST_STEPS = 200


@dataclass(frozen=True, slots=True)
class FailureRate:
    """The distribution of a job's failure rate.

    Attributes:
        failures: The failures so far.
        uptime_seconds: How long the job could have failed.
    """

    failures: int
    uptime_seconds: float

    @property
    def shape(self) -> float:
        """The shape of the gamma distribution."""
        return self.failures + 0.5

    def rate_quantile(self, probability: float) -> float:
        """Return the rate, in failures a second, that is not exceeded with a probability."""
        return gamma_quantile(probability, self.shape) / self.uptime_seconds

    def mean_seconds_between(self, level: float) -> tuple[float, float]:
        """Return the range of the mean time between failures, in seconds, that holds it with a probability.

        Args:
            level: The probability, such as 0.8.
        """
        outside = (1 - level) / 2
        return 1 / self.rate_quantile(1 - outside), 1 / self.rate_quantile(outside)

    def least_mean_seconds(self, probability: float) -> float:
        """Return the mean time between failures, in seconds, that is exceeded with a probability."""
        return 1 / self.rate_quantile(probability)

    def draw(self, rng: random.Random) -> float:
        """Return a random rate, in failures a second."""
        return rng.gammavariate(self.shape, 1.0) / self.uptime_seconds


def regularized_gamma(shape: float, x: float) -> float:
    """Return P(shape, x), the distribution function of the gamma distribution with rate 1.

    A series below the mean, and a continued fraction above it: https://dlmf.nist.gov/8.11#E4 and 8.9#E2.

    Args:
        shape: Above zero.
        x: At least zero.
    """
    if x <= 0:
        return 0.0
    if math.isinf(x):
        return 1.0
    scale = math.exp(shape * math.log(x) - x - math.lgamma(shape))
    if x < shape + 1:
        term = total = 1 / shape
        for number in range(1, _MOST_TERMS):
            term *= x / (shape + number)
            total += term
            if term < total * _PRECISION:
                break
        return total * scale
    return 1 - scale * _upper_fraction(shape, x)


def _upper_fraction(shape: float, x: float) -> float:
    """Return the continued fraction of the upper incomplete function, by the method of Lentz."""
    tiny = 1e-300
    b = x + 1 - shape
    c, d = 1 / tiny, 1 / b
    value = d
    for number in range(1, _MOST_TERMS):
        a = -number * (number - shape)
        b += 2
        d = 1 / (a * d + b or tiny)
        c = b + a / c or tiny
        value *= c * d
        if abs(c * d - 1) < _PRECISION:
            break
    return value


def gamma_quantile(probability: float, shape: float) -> float:
    """Return the quantile of the gamma distribution with rate 1.

    Args:
        probability: Above 0 and below 1.
        shape: Above zero.

    Raises:
        ValueError: An argument is outside of its range.
    """
    if not 0 < probability < 1 or not 0 < shape < math.inf:
        raise ValueError(f"expected 0 < probability < 1 and shape > 0, got {probability} and {shape}")
    low, high = 0.0, max(1.0, shape)
    while regularized_gamma(shape, high) < probability:
        low, high = high, 2 * high
    x = _start(probability, shape)
    for _ in range(_MOST_STEPS):
        if not low < x < high:
            x = (low + high) / 2
        value = regularized_gamma(shape, x)
        low, high = (x, high) if value < probability else (low, x)
        density = math.exp((shape - 1) * math.log(x) - x - math.lgamma(shape)) if x > 0 else 0.0
        following = x - (value - probability) / density if density > 0 else (low + high) / 2
        if abs(following - x) <= 1e-14 * x or high - low <= 1e-15 * high:
            return following if low <= following <= high else x
        x = following
    return x


def _start(probability: float, shape: float) -> float:
    """Return a first guess: that of Wilson and Hilferty, or the leading term near zero."""
    z = _normal_quantile(probability)
    x = shape * (1 - 1 / (9 * shape) + z / (3 * math.sqrt(shape))) ** 3
    near_zero = math.exp((math.log(probability) + math.lgamma(shape + 1)) / shape)
    return x if x > 0 and shape >= 1 else near_zero


def _normal_quantile(probability: float) -> float:
    from statistics import NormalDist

    return NormalDist().inv_cdf(probability)
