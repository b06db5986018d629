"""The answers of a fleet's reports: integers, and fractions of them. No float."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from fractions import Fraction
from typing import NamedTuple

from ml_goodput_measurement.money import HOUR_NS
from ml_goodput_measurement.partition import Bucket

from ml_diagnostics_fleet.schemas import JobKey

__all__ = [
    "CauseSums",
    "GroupSums",
    "HostSums",
    "JobProblems",
    "JobSums",
    "PeriodSums",
    "SaveSums",
    "Sums",
    "money_of",
    "total",
]


def money_of(cost: int | Fraction) -> Fraction:
    """Return the exact amount of a cost, in units of the currency.

    Args:
        cost: The cost, as in `Sums`.
    """
    return Fraction(cost) / (HOUR_NS * 10**6)


class Sums(NamedTuple):
    """Time of some jobs in three measures."""

    job_ns: int
    """Nanoseconds of jobs."""
    chip_ns: int
    """Nanoseconds of chips, without the jobs of which the chips are not known."""
    cost: int
    """Millionths of the currency times nanoseconds, for the price of an hour: `money_of` has the amount."""

    def plus(self, other: Sums) -> Sums:
        """Return the sum of both."""
        return Sums(self.job_ns + other.job_ns, self.chip_ns + other.chip_ns, self.cost + other.cost)

    def minus(self, other: Sums) -> Sums:
        """Return the difference of both."""
        return Sums(self.job_ns - other.job_ns, self.chip_ns - other.chip_ns, self.cost - other.cost)


_NOTHING = Sums(0, 0, 0)


def total(parts: Iterable[Sums]) -> Sums:
    """Return the sum of some sums."""
    result = _NOTHING
    for part in parts:
        result = result.plus(part)
    return result


class GroupSums(NamedTuple):
    """A group of jobs. Excluded time is in none of its sums."""

    key: tuple[str, ...]
    jobs: int
    jobs_without_chips: int
    all: Sums
    productive: Sums
    unpriced_chip_ns: int
    """Chip-time without a price, which is not in `cost`."""
    steps_kept: int

    @property
    def lost(self) -> Sums:
        """The time that was not productive."""
        return self.all.minus(self.productive)


class CauseSums(NamedTuple):
    """The time that a group lost to one cause."""

    key: tuple[str, ...]
    bucket: Bucket
    label: str
    """Type of the custom event; empty for other buckets."""
    lost: Sums


class PeriodSums(NamedTuple):
    """Time of a group in one bucket and period."""

    key: tuple[str, ...]
    period: str
    """`now`: the last 7 days; `before`: the 7 days before."""
    bucket: Bucket
    label: str
    spent: Sums


class JobSums(NamedTuple):
    """A job."""

    key: JobKey
    team: str
    zone: str
    accelerator: str
    chips: int | None
    attempts: int
    disruptions: int
    all: Sums
    productive: Sums

    @property
    def lost(self) -> Sums:
        """The time that was not productive."""
        return self.all.minus(self.productive)


@dataclass(slots=True)
class HostSums:
    """A host of an accelerator in a zone.

    Attributes:
        accelerator: The accelerator.
        zone: The zone.
        host: The name of the host.
        chip_ns: Its share of the chip-time of all attempts that it was part of.
        blamed: The number of disruptions of which it is the cause, likely or proven.
    """

    accelerator: str
    zone: str
    host: str
    chip_ns: Fraction = field(default_factory=Fraction)
    blamed: int = 0


@dataclass(frozen=True, slots=True)
class SaveSums:
    """The times and counts of a job that advice on saves needs.

    Attributes:
        key: The job.
        team: Its team.
        zone: Its zone.
        accelerator: Its accelerator.
        saves: The number of its saves.
        steps_kept: The number of steps with a lasting result.
        stepping_attempts: The number of attempts with steps.
        steps_made: The number of steps, also those that were lost.
        uptime_ns: The time from the first step of each attempt to its end.
        disruptions: The number of disruptions.
        failures: The number of disruptions that the job did not start itself.
        restart_ns: The cost of all disruptions, without the repetition of lost steps.
        job_ns: The wall time, without excluded time.
        productive_ns: The productive time.
        save_ns: The time of saves.
        startup_ns: The additional time of first steps.
        chip_ns: The chip-time.
        cost: The cost, as in `Sums`.
    """

    key: JobKey
    team: str
    zone: str
    accelerator: str
    saves: int
    steps_kept: int
    stepping_attempts: int
    steps_made: int
    uptime_ns: int
    disruptions: int
    failures: int
    restart_ns: int
    job_ns: int
    productive_ns: int
    save_ns: int
    startup_ns: int
    chip_ns: int
    cost: int


@dataclass(frozen=True, slots=True)
class JobProblems:
    """The gaps in a job's data.

    Attributes:
        key: The job.
        rules: `error: ...` if its map failed.
        missing: Entries that did not arrive.
        lost: Entries that its processes could not record.
        skipped: Entries that were not valid.
        open_writers: Processes without a recorded end, of a job that does not run.
        is_without_time: 1 if no time of it is known.
        is_without_chips: 1 if its chips are not known, at least for a part of its life.
        is_without_team: 1 if its team is not known.
        is_without_price: 1 if it has chips, and no price.
    """

    key: JobKey
    rules: str
    missing: int
    lost: int
    skipped: int
    open_writers: int
    is_without_time: int
    is_without_chips: int
    is_without_team: int
    is_without_price: int
