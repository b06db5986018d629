"""Hosts that fail too often, from the disruptions of which the doctor names a host. Pure.

The expected number of a host is its exposure, in chip-hours, times the rate of the median host of its accelerator and
zone. The chance to have at least as many as it has is the tail of a Poisson distribution, and the procedure of
Benjamini and Hochberg keeps the share of good hosts among those that are listed below 5 %, in expectation.
https://en.wikipedia.org/wiki/False_discovery_rate#Benjamini%E2%80%93Hochberg_procedure
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from ml_goodput_measurement.advice.posterior import regularized_gamma

from ml_diagnostics_fleet.answers import HostSums

__all__ = ["FALSE_SHARE", "HostGroup", "Lemon", "LemonHosts", "find_lemons"]

FALSE_SHARE: Final = 0.05
"""The expected share of good hosts among those that are listed is below this."""
_FACTORS: Final = (1.5, 2, 3, 4, 5, 6, 8, 10, 15, 20, 30, 50, 100)
_POWER: Final = 0.8
_ROUNDS: Final = 20
_HOUR_NS: Final = 3_600 * 10**9
_MOST_COUNT: Final = 100_000


@dataclass(frozen=True, slots=True)
class Lemon:
    """A host that fails too often.

    Attributes:
        host: The host, with its exposure and the disruptions that it is blamed for.
        expected: The number that the median host would have in its exposure.
        p: The chance of the median host to have at least as many.
        q: The least share of good hosts at which it would be listed.
    """

    host: HostSums
    expected: float
    p: float
    q: float


@dataclass(frozen=True, slots=True)
class HostGroup:
    """The hosts of one accelerator in one zone, and what their data can show.

    Attributes:
        accelerator: The accelerator.
        zone: The zone.
        hosts: The number of hosts with exposure.
        blamed: The number of disruptions that they are blamed for.
        per_chip_hour: The rate of the median host.
        findable: A host that fails so many times as often would be listed with a chance of 80 %; None if none would.
        lemons: The hosts that are listed, the clearest first.
    """

    accelerator: str
    zone: str
    hosts: int
    blamed: int
    per_chip_hour: float
    findable: float | None
    lemons: tuple[Lemon, ...]


@dataclass(frozen=True, slots=True)
class LemonHosts:
    """The hosts of a fleet that fail too often.

    Attributes:
        groups: The hosts by accelerator and zone.
        blamed: The number of disruptions with a host that is named as their cause.
        absent: The number of disruptions with a host that was part of no attempt: they are left out.
    """

    groups: tuple[HostGroup, ...]
    blamed: int
    absent: int

    @property
    def lemons(self) -> list[Lemon]:
        """All hosts that are listed, the clearest first."""
        return sorted((one for group in self.groups for one in group.lemons), key=_clearest)


def find_lemons(hosts: Iterable[HostSums]) -> LemonHosts:
    """Return the hosts that fail too often; none without hosts that are named as causes.

    Args:
        hosts: All hosts, see `FleetReports.hosts`.
    """
    by_group: dict[tuple[str, str], list[HostSums]] = {}
    absent = 0
    for host in hosts:
        if host.chip_ns > 0:
            by_group.setdefault((host.accelerator, host.zone), []).append(host)
        else:
            absent += host.blamed
    groups = tuple(_group(*key, members) for key, members in sorted(by_group.items()))
    return LemonHosts(groups, sum(group.blamed for group in groups) + absent, absent)


def _group(accelerator: str, zone: str, hosts: Sequence[HostSums]) -> HostGroup:
    blamed = sum(host.blamed for host in hosts)
    if not blamed:
        return HostGroup(accelerator, zone, len(hosts), 0, 0.0, None, ())
    hours = {id(host): float(host.chip_ns / _HOUR_NS) for host in hosts}
    median = statistics.median(host.blamed / hours[id(host)] for host in hosts)
    listed: list[Lemon] = []
    rate = 0.0
    for _ in range(_ROUNDS):
        # The median of counts near zero is too low: it may be 0. So it is at least the mean of those not listed.
        names = {one.host.host for one in listed}
        rest = [host for host in hosts if host.host not in names] or hosts
        mean = sum(host.blamed for host in rest) / sum(hours[id(host)] for host in rest)
        rate = max(median, mean)
        found = _listed(hosts, [rate * hours[id(host)] for host in hosts])
        listed = found
        if {one.host.host for one in found} == names:
            break
    usual = rate * statistics.median(hours.values())
    findable = _findable(usual, len(hosts)) if rate and len(hosts) > 1 else None  # One is compared with none.
    return HostGroup(accelerator, zone, len(hosts), blamed, rate, findable, tuple(sorted(listed, key=_clearest)))


def _clearest(lemon: Lemon) -> tuple[float, float, str]:
    return lemon.p, -lemon.host.blamed, lemon.host.host


def _listed(hosts: Sequence[HostSums], expected: Sequence[float]) -> list[Lemon]:
    """Return the hosts that Benjamini and Hochberg's procedure lists."""
    tails = [_tail(host.blamed, mean) for host, mean in zip(hosts, expected, strict=True)]
    order = sorted(range(len(hosts)), key=lambda index: tails[index])
    q = [0.0] * len(hosts)
    least = 1.0
    for rank in range(len(order), 0, -1):
        index = order[rank - 1]
        least = min(least, tails[index] * len(hosts) / rank)
        q[index] = least
    return [Lemon(hosts[index], expected[index], tails[index], q[index]) for index in order if q[index] <= FALSE_SHARE]


def _tail(count: int, mean: float) -> float:
    """Return the chance of at least so many events."""
    return 1.0 if count <= 0 else regularized_gamma(count, mean) if mean > 0 else 0.0


def _findable(usual: float, hosts: int) -> float | None:
    """Return how many times as often one host must fail to be listed with a chance of 80 %.

    Args:
        usual: The number that the median host has.
        hosts: The number of hosts.
    """
    needed = next((count for count in range(1, _MOST_COUNT) if _tail(count, usual) <= FALSE_SHARE / hosts), None)
    if needed is None:
        return None
    return next((factor for factor in _FACTORS if _tail(needed, factor * usual) >= _POWER), None)
