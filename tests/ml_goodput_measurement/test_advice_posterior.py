"""The quantiles of the gamma distribution are those of published tables."""

from __future__ import annotations

import math
import random
import statistics

import pytest
from ml_goodput_measurement.advice.posterior import FailureRate, gamma_quantile, regularized_gamma

CHI_SQUARED = [
    # NIST/SEMATECH e-Handbook of Statistical Methods, 1.3.6.7.4: degrees of freedom, probability, quantile.
    (1, 0.90, 2.706),
    (1, 0.10, 0.016),
    (3, 0.90, 6.251),
    (3, 0.10, 0.584),
    (10, 0.95, 18.307),
    (10, 0.05, 3.940),
    (21, 0.90, 29.615),
    (21, 0.10, 13.240),
    (50, 0.99, 76.154),
    (100, 0.01, 70.065),
]


@pytest.mark.parametrize(("degrees", "probability", "quantile"), CHI_SQUARED)
def test_quantiles_are_those_of_tables(degrees: int, probability: float, quantile: float) -> None:
    assert 2 * gamma_quantile(probability, degrees / 2) == pytest.approx(quantile, abs=6e-4)


@pytest.mark.parametrize("shape", [0.5, 1.0, 1.5, 2.5, 10.5, 72.5, 1000.5, 1e6 + 0.5])
@pytest.mark.parametrize("probability", [1e-9, 0.001, 0.1, 0.5, 0.9, 0.999, 1 - 1e-9])
def test_the_quantile_inverts_the_distribution(shape: float, probability: float) -> None:
    assert regularized_gamma(shape, gamma_quantile(probability, shape)) == pytest.approx(probability, rel=1e-6)


def test_an_exponential_distribution_has_its_closed_form() -> None:
    for probability in (0.01, 0.5, 0.99):
        assert gamma_quantile(probability, 1.0) == pytest.approx(-math.log1p(-probability), rel=1e-12)


def test_quantiles_agree_with_scipy() -> None:
    gammaincinv = pytest.importorskip("scipy.special").gammaincinv
    rng = random.Random(0)
    for _ in range(300):
        shape, probability = rng.choice([0.5, 1.5, 2.5, 7.5, 30.5, 500.5]), rng.uniform(0.001, 0.999)
        assert gamma_quantile(probability, shape) == pytest.approx(float(gammaincinv(shape, probability)), rel=1e-9)


@pytest.mark.parametrize(
    ("probability", "shape"), [(0.0, 1.0), (1.0, 1.0), (0.5, 0.0), (0.5, math.inf), (math.nan, 1.0)]
)
def test_arguments_outside_of_their_range_are_an_error(probability: float, shape: float) -> None:
    with pytest.raises(ValueError, match="expected 0 < probability < 1"):
        gamma_quantile(probability, shape)


def test_the_distribution_has_its_limits() -> None:
    assert regularized_gamma(2.5, 0.0) == 0.0
    assert regularized_gamma(2.5, math.inf) == 1.0


def test_the_range_of_the_mean_time_holds_it_as_often_as_it_states() -> None:
    """The truth lies in the 80 % range in 80 % of jobs, for any number of failures that they happen to have."""
    rng = random.Random(4)
    held = 0
    for _ in range(1000):
        between, uptime, at, failures = 3600.0, 3600.0 * rng.uniform(2, 20), 0.0, 0
        while (at := at + rng.expovariate(1 / between)) < uptime:
            failures += 1
        low, high = FailureRate(failures, uptime).mean_seconds_between(0.8)
        held += low <= between <= high
    assert 0.76 <= held / 1000 <= 0.86


def test_without_failures_the_mean_time_has_a_least_value() -> None:
    # 2 E rate has the chi-squared distribution with one degree of freedom.
    assert FailureRate(0, 1000.0).least_mean_seconds(0.9) == pytest.approx(2000 / 2.70554, rel=1e-5)


def test_draws_have_the_mean_of_the_distribution() -> None:
    rng = random.Random(1)
    rate = FailureRate(10, 84_000.0)
    assert statistics.fmean(rate.draw(rng) for _ in range(5000)) == pytest.approx(10.5 / 84_000, rel=0.02)
