"""Synthetic fleets: thousands of jobs with restarts, from a seed, for trials and benchmarks.

Every job is made by itself from the seed and its index, so a fleet of any size takes the memory of one job.

Planted are a host that fails eight times as often as the others, and a team that saves eight times too rarely.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa

from ml_diagnostics_fleet.schemas import DIMENSIONS
from ml_diagnostics_fleet.synthetic_job import HOUR_US, SECOND_US, SyntheticJob

__all__ = ["AS_OF_NS", "SyntheticFleet", "SyntheticJob", "dimension_tables"]

AS_OF_NS: Final = 1_795_305_600 * 10**9
"""2026-11-22 00:00 UTC: the end of the history of a fleet."""
_TEAMS = ("ranking", "speech", "vision", "language", "science")
_RARELY_SAVING = "speech"
_PLACES = (
    ("us-east5", "us-east5-a", "tpu-v5p", "4x4x4"),
    ("us-west4", "us-west4-b", "tpu-v5e", "8x8"),
    ("europe-west4", "europe-west4-a", "tpu-v6e", "8x8"),
)
_PRICES = {"tpu-v5p": 4_200_000, "tpu-v5e": 1_200_000, "tpu-v6e": 2_700_000}
"""Micro-dollars for a chip and hour: made up, like the fleet."""
_CHIPS = (16, 32, 64)
_CHIPS_OF_HOST = 4
_SAVES_RARELY_BY = 8
_RIGHT_BLAME = 0.8


@dataclass(frozen=True, slots=True)
class SyntheticFleet:
    """A fleet of synthetic jobs.

    Attributes:
        seed: The same seed makes the same fleet.
        jobs: The number of jobs.
        events: About as many events in all.
        days: The jobs end in the last so many days before `AS_OF_NS`.
        failures_per_job: The mean number of failures of a job without a bad host.
        all_hosts: True if every host reports the saves.
    """

    seed: int = 1
    jobs: int = 200
    events: int = 1_000_000
    days: int = 14
    failures_per_job: float = 3.0
    all_hosts: bool = False

    @property
    def lemon(self) -> str:
        """The host that fails often."""
        return _host(_PLACES[0][1], 3)

    @property
    def rarely_saving_team(self) -> str:
        """The team that saves too rarely."""
        return _RARELY_SAVING

    def __iter__(self) -> Iterator[SyntheticJob]:
        return (self.job(index) for index in range(self.jobs))

    def job(self, index: int) -> SyntheticJob:
        """Return a job by its index."""
        random = np.random.default_rng([self.seed, index, 1])
        region, zone, accelerator, topology = _PLACES[int(random.integers(len(_PLACES)))]
        team = _TEAMS[int(random.integers(len(_TEAMS)))]
        chips = int(random.choice(_CHIPS))
        count = chips // _CHIPS_OF_HOST
        pool = max(16, self.jobs // 12)
        first = int(random.integers(pool))
        hosts = tuple(_host(zone, (first + number) % pool) for number in range(count))
        events = max(30, int(self.events / self.jobs * random.uniform(0.6, 1.4)))
        step_us = int(random.uniform(1, 6) * SECOND_US)
        # A restart takes minutes: a short job must have time for its steps, too.
        hours = events / 3 * step_us / HOUR_US + (self.failures_per_job + 1) / 6
        save_every = max(2, min(500, events // 60))
        ends = AS_OF_NS // 1000 - int(random.uniform(2 * 3600, self.days * 86_400) * SECOND_US)
        end = str(random.choice(["ended", "running", "killed"], p=[0.85, 0.08, 0.07]))
        return SyntheticJob(
            index=index,
            seed=self.seed,
            team=team,
            owner=f"{team}-{int(random.integers(1, 4))}",
            region=region,
            zone=zone,
            accelerator=accelerator,
            topology=topology,
            chips=chips,
            spot=bool(random.random() < 0.2),
            hosts=hosts,
            lemon=self.lemon,
            events=events,
            step_us=step_us,
            save_every=save_every * (_SAVES_RARELY_BY if team == _RARELY_SAVING else 1),
            save_us=int(random.uniform(2, 8) * SECOND_US),
            host_rate=self.failures_per_job / hours / count,
            end=end,
            end_us=AS_OF_NS // 1000 - int(random.uniform(1, 20) * SECOND_US) if end == "running" else ends,
            all_hosts=self.all_hosts,
        )


def _host(zone: str, number: int) -> str:
    return f"{zone}-h{number:03d}"


def dimension_tables(fleet: SyntheticFleet) -> Mapping[str, pa.Table]:
    """Return the tables of `DIMENSIONS` of a fleet: as its platform team would write them, and the doctor.

    Of five causes, one names another host than the one that failed.
    """
    names = [field.name for field in DIMENSIONS["jobs"]]
    always = {"valid_from_ns": 0, "valid_to_ns": 2**62, "project": "demo", "labels_json": "{}"}
    jobs = [
        {
            **always,
            "log": job.key.log,
            "job": job.key.job,
            "cluster": f"{job.region}-1",
            **{name: getattr(job, name) for name in names if hasattr(job, name)},
        }
        for job in fleet
    ]
    prices = [
        {
            "accelerator": accelerator,
            "zone": zone,
            "spot": spot,
            "valid_from_ns": 0,
            "valid_to_ns": 2**62,
            "micro_per_chip_hour": _PRICES[accelerator] // (2 if spot else 1),
            "currency": "USD",
        }
        for _, zone, accelerator, _ in _PLACES
        for spot in (False, True)
    ]
    return {
        "jobs": pa.Table.from_pylist(jobs, DIMENSIONS["jobs"]),
        "prices": pa.Table.from_pylist(prices, DIMENSIONS["prices"]),
        "causes": pa.Table.from_pylist([row for job in fleet for row in _causes(job)], DIMENSIONS["causes"]),
    }


def _causes(job: SyntheticJob) -> Iterator[dict[str, Any]]:
    random = np.random.default_rng([job.seed, job.index, 2])
    for failure in job.failures():
        host = failure.host if random.random() < _RIGHT_BLAME else str(random.choice(job.hosts))
        if failure.disruption:
            known = {"log": job.key.log, "job": job.key.job, "number": failure.disruption}
            yield {**known, "cause": "host_failed", "cause_host": host, "confidence": "likely"}
