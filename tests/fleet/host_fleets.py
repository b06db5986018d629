"""Simulated hosts of which some fail more often, and a doctor that blames the right one four times of five."""

from __future__ import annotations

from fractions import Fraction
from typing import NamedTuple

import numpy as np
from ml_diagnostics_fleet.answers import HostSums
from ml_diagnostics_fleet.lemons import LemonHosts, find_lemons

HOSTS = 400
LEMONS = 0.05
HOSTS_OF_JOB = 16
JOBS_OF_HOST = 20
RIGHT_BLAME = 0.8


class Score(NamedTuple):
    """The share of bad hosts that were found, and the share of good ones among those listed."""

    recall: float
    false: float
    findable: set[float | None]


def simulated(failures: float, factor: float, seed: int) -> tuple[list[HostSums], set[str]]:
    """Return hosts and the names of those that fail more often.

    Args:
        failures: The mean number of failures of a good host.
        factor: How many times as often the others fail.
        seed: The same seed has the same hosts.
    """
    random = np.random.default_rng(seed)
    lemons = set(random.choice(HOSTS, int(HOSTS * LEMONS), replace=False).tolist())
    rates = np.array([factor if host in lemons else 1.0 for host in range(HOSTS)]) * failures / JOBS_OF_HOST
    blamed = np.zeros(HOSTS, int)
    for _ in range(JOBS_OF_HOST):
        order = random.permutation(HOSTS)
        for members in order.reshape(-1, HOSTS_OF_JOB):
            for host, count in zip(members, random.poisson(rates[members]), strict=True):
                for _ in range(count):
                    blamed[host if random.random() < RIGHT_BLAME else random.choice(members)] += 1
    hour_ns = 3_600 * 10**9
    hosts = [
        HostSums("tpu", "zone", f"host-{number}", Fraction(JOBS_OF_HOST * 4 * hour_ns), int(count))
        for number, count in enumerate(blamed)
    ]
    return hosts, {f"host-{number}" for number in lemons}


def score(failures: float, factor: float, fleets: int = 6) -> Score:
    """Return the score of some simulated fleets."""
    found = right = listed = 0
    lemons = 0
    findable = set()
    for seed in range(fleets):
        hosts, bad = simulated(failures, factor, seed)
        result: LemonHosts = find_lemons(hosts)
        names = {one.host.host for one in result.lemons}
        right += len(names & bad)
        listed += len(names)
        lemons += len(bad)
        found += len(names & bad)
        findable.add(result.groups[0].findable)
    return Score(found / lemons, (listed - right) / listed if listed else 0.0, findable)
