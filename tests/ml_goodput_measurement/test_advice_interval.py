"""The intervals of the literature, and the one with the least regret."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ml_goodput_measurement.advice.interval import Costs, availability_optimal, daly, young

saves = st.floats(0.5, 120)
restarts = st.floats(0, 1800)
means = st.floats(600, 1e6)


def test_the_formulas_are_those_of_the_papers() -> None:
    assert young(10, 7200) == pytest.approx(math.sqrt(2 * 10 * 7200))
    # Daly 2006, equation 37: sqrt(2 d M) (1 + 1/3 (d / 2 M)^(1/2) + 1/9 (d / 2 M)) - d
    half = 10 / 14400
    assert daly(10, 7200) == pytest.approx(math.sqrt(144_000) * (1 + math.sqrt(half) / 3 + half / 9) - 10)
    assert daly(10, 5) == 5
    assert availability_optimal(10, 7200, 400) == pytest.approx(10 + math.sqrt(2 * 7600 * 10 + 100))


@given(saves, restarts, means)
def test_the_best_interval_is_the_best(save: float, restart: float, between: float) -> None:
    costs = Costs(save, restart)
    best = costs.best_interval(between)
    top = costs.share(best, between)
    assert all(costs.share(best * factor, between) <= top + 1e-12 for factor in (0.5, 0.9, 0.99, 1.01, 1.1, 2))


@given(st.floats(0.5, 60), means)
def test_dalys_interval_is_near_the_best(save: float, between: float) -> None:
    costs = Costs(save, 0)
    assert costs.regret(daly(save, between), between) < 0.001


@given(saves, restarts, means, st.floats(1.05, 20))
def test_the_advised_interval_has_the_least_largest_regret(
    save: float, restart: float, low: float, ratio: float
) -> None:
    costs, high = Costs(save, restart), low * ratio
    advised = costs.least_regret(low, high)
    worst = max(costs.regret(advised, low), costs.regret(advised, high))
    assert costs.best_interval(low) <= advised <= costs.best_interval(high)
    for factor in (0.7, 0.95, 1.05, 1.4):
        other = advised * factor
        assert max(costs.regret(other, low), costs.regret(other, high)) >= worst - 1e-9


@given(saves, restarts, means, st.floats(1.05, 20), st.floats(1, 1e5))
def test_no_regret_in_the_range_is_larger_than_its_end(
    save: float, restart: float, low: float, ratio: float, interval: float
) -> None:
    costs, high = Costs(save, restart), low * ratio
    least, most = costs.regret_range(interval, low, high)
    for number in range(11):
        regret = costs.regret(interval, low * ratio ** (number / 10))
        assert least - 1e-9 <= regret <= most + 1e-3


def test_an_interval_that_never_ends_makes_no_progress() -> None:
    assert Costs(10, 100).share(1e9, 600) == 0.0
