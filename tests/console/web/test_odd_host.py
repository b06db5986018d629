"""The odd host: found where one is shifted, none in fleets that are alike."""

from __future__ import annotations

import numpy as np
import pytest
from ml_diagnostics_console._web.odd_host import find_odd_host


def names(count: int) -> list[str]:
    return [f"vm-{index}" for index in range(count)]


def fleet(generator: np.random.Generator, hosts: int, columns: int, kind: str) -> np.ndarray:
    """Return the means of hosts that are alike, with noise of some kind."""
    noise = generator.normal(0, 1, (hosts, columns))
    if kind == "heavy tails":
        noise = generator.standard_t(3, (hosts, columns))
    elif kind == "common moves":
        noise += 20 * np.sin(np.arange(columns) / 9)
    elif kind == "hosts differ a little":
        noise += generator.normal(0, 1, (hosts, 1))
    elif kind == "slow drift":
        noise = noise * 0.3 + np.cumsum(generator.normal(0, 0.2, (hosts, columns)), axis=1)
    elif kind == "gaps":
        noise[generator.random((hosts, columns)) < 0.3] = np.nan
    return 100 + noise


@pytest.mark.parametrize("columns", [20, 400])
@pytest.mark.parametrize(
    ("hosts", "kind"),
    [
        *((hosts, kind) for hosts in (3, 8, 64) for kind in ("normal", "heavy tails", "common moves", "gaps")),
        # Of three hosts that each are a little different, one always is the most different.
        *((hosts, kind) for hosts in (8, 64) for kind in ("hosts differ a little", "slow drift")),
    ],
)
@pytest.mark.filterwarnings("ignore:.*(empty slice|All-NaN|Degrees of freedom).*:RuntimeWarning")
def test_a_fleet_that_is_alike_has_no_odd_host(hosts: int, columns: int, kind: str) -> None:
    generator = np.random.default_rng(hosts * columns)
    count = 300
    fleets = (fleet(generator, hosts, columns, kind) for _ in range(count))
    assert sum(find_odd_host(means, names(hosts)) is not None for means in fleets) <= 0.01 * count


def test_of_a_thousand_flat_fleets_at_most_one_in_a_hundred_has_an_odd_host() -> None:
    generator = np.random.default_rng(17)
    found = sum(find_odd_host(fleet(generator, 64, 200, "normal"), names(64)) is not None for _ in range(1000))
    assert found <= 10


@pytest.mark.parametrize("hosts", [4, 8, 64])
@pytest.mark.parametrize("shift", [-4.0, 4.0, 40.0])
def test_a_host_that_is_shifted_at_the_end_is_found(hosts: int, shift: float) -> None:
    generator = np.random.default_rng(3)
    for _ in range(50):
        means = fleet(generator, hosts, 300, "normal")
        means[hosts - 2, -60:] += shift
        odd = find_odd_host(means, names(hosts), "ms")
        assert odd is not None
        assert (odd.row, odd.host) == (hosts - 2, f"vm-{hosts - 2}")
        assert odd.deviation == pytest.approx(shift, abs=1)
        assert odd.text[0] == ("+" if shift > 0 else "-")


def test_a_host_that_was_shifted_long_ago_is_not_odd_now() -> None:
    means = fleet(np.random.default_rng(4), 64, 300, "normal")
    means[5, :100] += 50
    assert find_odd_host(means, names(64)) is None


def test_a_difference_that_does_not_matter_is_not_named() -> None:
    means = fleet(np.random.default_rng(4), 64, 300, "normal")
    means[:, :50] += 500  # The range is 500, and a shift of 4 is less than 3 % of it.
    means[5] += 4
    assert find_odd_host(means, names(64)) is None


def test_how_it_differs_is_in_percent_of_the_others_or_in_points() -> None:
    means = np.full((8, 100), 0.44) + np.random.default_rng(1).normal(0, 1e-3, (8, 100))
    means[2] *= 1.1
    odd = find_odd_host(means, names(8), "s")
    assert odd is not None
    assert odd.text == "+10.0 %"
    percent = np.full((8, 100), 90.0) + np.random.default_rng(1).normal(0, 0.1, (8, 100))
    percent[2] -= 18.5
    odd = find_odd_host(percent, names(8), "%")
    assert odd is not None
    assert odd.text == "-18.5 %"
    zero = np.random.default_rng(1).normal(0, 1e-9, (8, 100)) * 0
    zero[2] = 3
    odd = find_odd_host(zero, names(8), "GB")
    assert odd is not None
    assert odd.text == "+3.00 GB"


@pytest.mark.parametrize("shape", [(0, 0), (0, 5), (2, 100), (64, 0), (64, 1)])
def test_too_few_values_have_no_odd_host(shape: tuple[int, int]) -> None:
    assert find_odd_host(np.arange(shape[0] * shape[1], dtype=float).reshape(shape) ** 2, names(shape[0])) is None


def test_values_that_are_missing_or_not_finite_are_left_out() -> None:
    means = fleet(np.random.default_rng(9), 8, 200, "normal")
    means[3] = np.nan
    means[4, ::2] = np.inf
    means[5, -40:] += 30
    odd = find_odd_host(means, names(8))
    assert odd is not None
    assert odd.row == 5
