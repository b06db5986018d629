"""Hosts that fail too often are found as far as the data can show them, and hardly any good one is listed."""

from __future__ import annotations

from fractions import Fraction

import pytest
from ml_diagnostics_fleet.answers import HostSums
from ml_diagnostics_fleet.lemons import find_lemons
from ml_diagnostics_fleet.synthetic import AS_OF_NS, SyntheticFleet, dimension_tables

from .host_fleets import score

HOUR_NS = 3_600 * 10**9


@pytest.mark.parametrize(
    ("failures", "factor", "least", "most"),
    [(0.6, 3, 0.0, 0.06), (0.6, 6, 0.05, 0.3), (4, 3, 0.12, 0.4), (4, 6, 0.93, 1), (11, 3, 0.79, 1), (11, 6, 0.99, 1)],
)
def test_recall_is_that_of_the_number_of_failures(failures: float, factor: float, least: float, most: float) -> None:
    found = score(failures, factor)
    assert least <= found.recall <= most
    assert found.false <= 0.06


def test_what_could_be_found_is_what_is_found() -> None:
    assert score(4, 6).findable <= {5, 6}
    assert score(11, 3).findable <= {3}
    assert min(factor or 100 for factor in score(0.6, 6).findable) >= 8


def hosts(*blamed: int, hours: int = 100, **values: str) -> list[HostSums]:
    group = {"accelerator": "tpu", "zone": "zone", **values}
    return [
        HostSums(host=f"host-{number}", chip_ns=Fraction(hours * HOUR_NS), blamed=count, **group)
        for number, count in enumerate(blamed)
    ]


def test_without_causes_nothing_is_listed() -> None:
    found = find_lemons(hosts(*[0] * 50))
    assert (found.lemons, found.blamed, found.groups[0].findable) == ([], 0, None)


def test_a_host_that_is_clearly_worse_is_listed_with_what_was_expected() -> None:
    (lemon,) = find_lemons(hosts(*[2] * 40, 20)).lemons
    assert (lemon.host.host, lemon.host.blamed) == ("host-40", 20)
    assert lemon.expected == pytest.approx(2)
    assert lemon.p <= lemon.q < 1e-9


def test_a_host_is_compared_with_those_of_its_accelerator_and_zone() -> None:
    good, bad = hosts(*[1] * 30), hosts(*[20] * 30, zone="other")
    assert find_lemons([*good, *bad]).lemons == []


def test_a_host_without_others_cannot_be_found() -> None:
    found = find_lemons(hosts(100))
    assert (found.lemons, found.blamed, found.groups[0].findable) == ([], 100, None)
    assert find_lemons(hosts(100, 100)).groups[0].findable is not None


def test_exposure_counts() -> None:
    long = hosts(40, hours=2000)
    for host in long:
        host.host = "long"
    assert find_lemons([*hosts(*[2] * 40), *long]).lemons == []


def test_hosts_that_were_part_of_no_attempt_are_counted_and_left_out() -> None:
    ghost = HostSums("tpu", "zone", "ghost", Fraction(0), 7)
    found = find_lemons([*hosts(*[2] * 40), ghost])
    assert (found.lemons, found.absent, found.blamed) == ([], 7, 87)


def test_the_order_of_hosts_changes_nothing() -> None:
    given = hosts(*[2] * 40, 20, 14)
    assert find_lemons(given) == find_lemons(given[::-1])


def test_the_host_planted_in_a_synthetic_fleet_is_blamed_most() -> None:
    fleet = SyntheticFleet(seed=1, jobs=60, events=30_000, all_hosts=True)
    causes = dimension_tables(fleet)["causes"]["cause_host"].to_pylist()
    assert max(set(causes), key=causes.count) == fleet.lemon
    assert AS_OF_NS % HOUR_NS == 0
