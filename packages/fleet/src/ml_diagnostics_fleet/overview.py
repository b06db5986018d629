"""All answers of a fleet at one moment: what the report, the page and the picture show."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Final

from ml_goodput_measurement.partition import Bucket
from ml_goodput_measurement.reading import BUCKET_NAMES

from ml_diagnostics_fleet.answers import CauseSums, GroupSums, JobProblems, JobSums, PeriodSums, Sums, total
from ml_diagnostics_fleet.job_rows import ERROR
from ml_diagnostics_fleet.lemons import LemonHosts, find_lemons
from ml_diagnostics_fleet.manifest import Gap, RowsSnapshot
from ml_diagnostics_fleet.reports import FleetReports
from ml_diagnostics_fleet.saving import SavingAdvice, saving_advice

__all__ = [
    "Cause",
    "Change",
    "DataQuality",
    "FleetOverview",
    "Unit",
    "cause_name",
    "overview_of",
    "quality_of",
    "worst_jobs",
]

Cause = tuple[Bucket, str]
"""A bucket, and the type of the custom event."""

_BY_TEAM: Final = ("team",)
_EXAMPLES: Final = 3
_LEAST_NS: Final = 3_600 * 10**9
"""A job is among the worst by share only if it has run for an hour."""
_MOST_ERRORS: Final = Fraction(1, 100)


class Unit:
    """The measure of time: chip-hours, or job-hours if no job's chips are known.

    Args:
        has_chips: True for chip-hours.
    """

    def __init__(self, has_chips: bool) -> None:
        self.has_chips = has_chips
        self.name = "chip-hours" if has_chips else "job-hours"

    def of(self, sums: Sums) -> int:
        """Return nanoseconds in this measure."""
        return sums.chip_ns if self.has_chips else sums.job_ns

    def share(self, part: Sums, whole: Sums) -> Fraction | None:
        """Return the share of a part; None of nothing."""
        return Fraction(self.of(part), self.of(whole)) if self.of(whole) else None


@dataclass(frozen=True, slots=True)
class Change:
    """The change of a group's shares: the last 7 days against the 7 days before.

    Attributes:
        key: The group; empty for the whole fleet.
        before: The goodput before, as a share; None without time.
        now: The goodput now.
        causes: The change of each cause's share, the largest first.
    """

    key: tuple[str, ...]
    before: Fraction | None
    now: Fraction | None
    causes: tuple[tuple[Cause, Fraction], ...]


@dataclass(slots=True)
class DataQuality:
    """The problems of a fleet's data: numbers of jobs, and some names of each kind.

    Attributes:
        counts: The number of jobs by kind of problem.
        examples: The first names.
        missing: The number of entries that did not arrive.
        gaps: Their writers and numbers, as far as a manifest has them.
    """

    counts: dict[str, int] = field(default_factory=dict)
    examples: dict[str, list[str]] = field(default_factory=dict)
    missing: int = 0
    gaps: list[Gap] = field(default_factory=list)

    def add(self, kind: str, job: str) -> None:
        """Count a job."""
        self.counts[kind] = self.counts.get(kind, 0) + 1
        names = self.examples.setdefault(kind, [])
        if len(names) < _EXAMPLES:
            names.append(job)

    @property
    def is_incomplete(self) -> bool:
        """True if entries are missing."""
        return "gaps" in self.counts


@dataclass(frozen=True, slots=True)
class FleetOverview:
    """All answers of a fleet.

    Attributes:
        snapshot: The rows that they are of.
        currency: The currency of amounts; None without prices.
        by: The names of the groups.
        unit: The measure of time.
        groups: The groups.
        causes: The time that each group lost to each cause.
        weeks: The whole fleet, by week.
        changes: The changes, first of the whole fleet, then of each group.
        by_money: The jobs that lost most money, or most time without prices.
        by_share: The jobs that lost the largest share of their time, of those that ran for an hour.
        saving: The jobs that save too rarely.
        hosts: The hosts that fail too often.
        quality: The problems of the data.
    """

    snapshot: RowsSnapshot
    currency: str | None
    by: tuple[str, ...]
    unit: Unit
    groups: list[GroupSums]
    causes: list[CauseSums]
    weeks: list[GroupSums]
    changes: list[Change]
    by_money: list[JobSums]
    by_share: list[JobSums]
    saving: SavingAdvice
    hosts: LemonHosts
    quality: DataQuality
    _causes_of: dict[tuple[str, ...], list[CauseSums]] = field(init=False, repr=False, default_factory=dict)

    def __post_init__(self) -> None:
        for one in self.causes:
            self._causes_of.setdefault(one.key, []).append(one)

    @property
    def all(self) -> Sums:
        """The whole time."""
        return total(group.all for group in self.groups)

    @property
    def productive(self) -> Sums:
        """The productive time."""
        return total(group.productive for group in self.groups)

    def lost_to(self, key: tuple[str, ...] | None = None) -> list[tuple[Cause, Sums]]:
        """Return what was lost to each cause, most first.

        Args:
            key: A group; None for the whole fleet.
        """
        sums: dict[Cause, Sums] = {}
        for one in self.causes if key is None else self._causes_of.get(key, ()):
            cause = one.bucket, one.label
            sums[cause] = one.lost.plus(sums[cause]) if cause in sums else one.lost
        return sorted(sums.items(), key=lambda item: (-self.unit.of(item[1]), item[0][0].value, item[0][1]))

    def lost(self, sums: Sums) -> int:
        """Return what counts as lost: money where there are prices, else time."""
        return sums.cost if self.currency is not None else self.unit.of(sums)

    @property
    def ordered_groups(self) -> list[GroupSums]:
        """The groups, those first that lost most; by time if there are weeks."""
        if "week" in self.by:
            return list(self.groups)
        return sorted(self.groups, key=lambda group: (-self.lost(group.lost), group.key))

    def largest_groups(self, most: int) -> list[GroupSums]:
        """Return the groups that lost most, in the order of all groups."""
        lost = sorted(self.groups, key=lambda group: (-self.lost(group.lost), group.key))[:most]
        keys = {group.key for group in lost}
        return [group for group in self.ordered_groups if group.key in keys]

    def shares(self, group: GroupSums) -> dict[Bucket, Fraction]:
        """Return the shares of the buckets in the time of a group, in the order of reports."""
        whole = self.unit.of(group.all)
        if not whole:
            return {}
        sums = {Bucket.PRODUCTIVE: self.unit.of(group.productive)}
        for (bucket, _), part in self.lost_to(group.key):
            sums[bucket] = sums.get(bucket, 0) + self.unit.of(part)
        return {bucket: Fraction(sums[bucket], whole) for bucket in BUCKET_NAMES if sums.get(bucket)}

    @property
    def buckets(self) -> list[Bucket]:
        """The buckets with any time, in the order of reports."""
        found = {bucket for (bucket, _), part in self.lost_to() if self.unit.of(part)} | {Bucket.PRODUCTIVE}
        return [bucket for bucket in BUCKET_NAMES if bucket in found]

    @property
    def has_steps(self) -> bool:
        """True if the kept steps of a group belong to its time: rows have the steps of an attempt, not of its weeks."""
        return "week" not in self.by

    @property
    def has_failed(self) -> bool:
        """True if the map of more than 1 % of the jobs failed."""
        return self.snapshot.errors > _MOST_ERRORS * self.snapshot.jobs


def overview_of(reports: FleetReports, by: Sequence[str] = _BY_TEAM, *, most: int = 10) -> FleetOverview:
    """Return all answers of a fleet.

    Args:
        reports: The reports.
        by: Names of `queries.GROUPS`.
        most: The number of worst jobs.
    """
    groups = reports.goodput(by)
    unit = Unit(any(group.all.chip_ns for group in groups))
    by_money, by_share = worst_jobs(reports.jobs(), unit, most)
    quality = quality_of(reports.problems(), has_prices=reports.currency is not None)
    if quality.is_incomplete:
        quality.gaps = reports.gaps()
    return FleetOverview(
        snapshot=reports.snapshot,
        currency=reports.currency,
        by=tuple(by),
        unit=unit,
        groups=groups,
        causes=reports.causes(by),
        weeks=reports.goodput(["week"]),
        changes=_changes(reports.trend([group for group in by if group != "week"] or _BY_TEAM), unit),
        by_money=by_money,
        by_share=by_share,
        saving=saving_advice(reports.saves()),
        hosts=find_lemons(reports.hosts()),
        quality=quality,
    )


def cause_name(cause: Cause) -> str:
    """Return the name of a cause for people."""
    bucket, label = cause
    return f"custom: {label.lower()}" if label else BUCKET_NAMES[bucket]


def worst_jobs(jobs: Iterable[JobSums], unit: Unit, most: int) -> tuple[list[JobSums], list[JobSums]]:
    """Return the jobs that lost most money, or time without prices, and those that lost the largest share.

    Args:
        jobs: All jobs.
        unit: The measure of time.
        most: The number of each.
    """
    by_money, by_share = _Largest(most), _Largest(most)
    for job in jobs:
        lost = unit.of(job.lost)
        by_money.add((job.lost.cost, lost), job)
        if job.all.job_ns >= _LEAST_NS:
            share = unit.share(job.lost, job.all)
            by_share.add((-1 if share is None else share, lost), job)
    return by_money.jobs, by_share.jobs


class _Largest:
    """The jobs with the largest keys, without holding all jobs of a fleet.

    Args:
        most: The number of jobs that are kept.
    """

    def __init__(self, most: int) -> None:
        self._most, self._count = most, 0
        self._heap: list[tuple[tuple[Fraction | int, int], int, JobSums]] = []

    def add(self, key: tuple[Fraction | int, int], job: JobSums) -> None:
        """Add a job; of equal keys, the first is kept."""
        self._count -= 1
        if len(self._heap) < self._most:
            heapq.heappush(self._heap, (key, self._count, job))
        else:
            heapq.heappushpop(self._heap, (key, self._count, job))

    @property
    def jobs(self) -> list[JobSums]:
        """The jobs, the largest first."""
        return [job for _, _, job in sorted(self._heap, reverse=True)]


def quality_of(problems: Iterable[JobProblems], *, has_prices: bool = True) -> DataQuality:
    """Return how complete the data are.

    Args:
        problems: The jobs with a problem.
        has_prices: False if there are no prices, so that none is missing.
    """
    quality = DataQuality()
    for job in problems:
        quality.missing += job.missing
        kinds = {
            "failed": job.rules.startswith(ERROR),
            "gaps": job.missing,
            "lost": job.lost,
            "skipped": job.skipped,
            "no end": job.open_writers,
            "no time": job.is_without_time and not job.rules.startswith(ERROR),
            "no chips": job.is_without_chips,
            "no team": job.is_without_team,
            "no price": job.is_without_price and has_prices,
        }
        for kind, found in kinds.items():
            if found:
                quality.add(kind, job.key.job)
    return quality


def _changes(trend: Sequence[PeriodSums], unit: Unit) -> list[Change]:
    groups: dict[tuple[str, ...], list[PeriodSums]] = {(): list(trend)}
    for one in trend:
        groups.setdefault(one.key, []).append(one)
    return [_change(key, members, unit) for key, members in groups.items()]


def _change(key: tuple[str, ...], members: Iterable[PeriodSums], unit: Unit) -> Change:
    spent: dict[str, dict[Cause, int]] = {"before": {}, "now": {}}
    for one in members:
        causes, cause = spent[one.period], (one.bucket, one.label)
        causes[cause] = causes.get(cause, 0) + unit.of(one.spent)
    before, now = (
        {cause: Fraction(ns, sum(causes.values())) for cause, ns in causes.items() if ns} for causes in spent.values()
    )
    productive = Bucket.PRODUCTIVE, ""
    changes: list[tuple[Cause, Fraction]] = []
    if before and now:
        nothing = Fraction(0)
        names = {*before, *now} - {productive}
        changes = [(cause, now.get(cause, nothing) - before.get(cause, nothing)) for cause in names]
        changes.sort(key=lambda item: (-abs(item[1]), item[0][0].value, item[0][1]))
    shares = [causes.get(productive, Fraction(0)) if causes else None for causes in (before, now)]
    return Change(key, shares[0], shares[1], tuple(changes))
