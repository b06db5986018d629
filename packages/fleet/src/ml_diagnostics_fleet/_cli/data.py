"""The reports of a fleet as data for programs: integers, in nanoseconds and in millionths of the currency's unit."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from ml_diagnostics_common.entry import format_timestamp

from ml_diagnostics_fleet._amounts import micro, sums_as_dict
from ml_diagnostics_fleet.answers import GroupSums, JobSums
from ml_diagnostics_fleet.lemons import LemonHosts
from ml_diagnostics_fleet.overview import Change, FleetOverview, Unit, cause_name
from ml_diagnostics_fleet.saving import RareSaver

__all__ = [
    "GROUP_FIELDS",
    "HOST_FIELDS",
    "JOB_FIELDS",
    "group_as_row",
    "hosts_as_dict",
    "job_as_dict",
    "job_as_row",
    "overview_as_dict",
]

_SUMS = ("job_ns", "chip_ns", "micro")
GROUP_FIELDS = (
    "jobs",
    "goodput_percent",
    "jobs_without_chips",
    *_SUMS,
    *(f"productive_{name}" for name in _SUMS),
    "unpriced_chip_ns",
    "steps_kept",
)
"""The columns of CSV after those of the groups."""
JOB_FIELDS = (
    "job",
    "log",
    "team",
    "zone",
    "accelerator",
    "chips",
    "attempts",
    "disruptions",
    "goodput_percent",
    *_SUMS,
    *(f"lost_{name}" for name in _SUMS),
)
HOST_FIELDS = ("host", "accelerator", "zone", "chip_hours", "blamed", "expected", "p", "q")


def overview_as_dict(view: FleetOverview) -> dict[str, Any]:
    """Return the report of a fleet in the types of JSON."""
    currency = view.currency
    return {
        "as_of": format_timestamp(view.snapshot.as_of_ns),
        "rules": view.snapshot.rules,
        "jobs": view.snapshot.jobs,
        "errors": view.snapshot.errors,
        "currency": currency,
        "goodput_percent": _percent(view.unit.share(view.productive, view.all)),
        "all": sums_as_dict(view.all, currency),
        "productive": sums_as_dict(view.productive, currency),
        "by": list(view.by),
        "groups": [_group_as_dict(group, view.by, view) for group in view.groups],
        "causes": [
            {"bucket": bucket.value, "name": cause_name((bucket, label)), "lost": sums_as_dict(lost, currency)}
            for (bucket, label), lost in view.lost_to()
        ],
        "weeks": [_group_as_dict(group, ("week",), view) for group in view.weeks],
        "changes": [_change_as_dict(change) for change in view.changes],
        "worst_by_money": [job_as_dict(job, view.unit, currency) for job in view.by_money],
        "worst_by_share": [job_as_dict(job, view.unit, currency) for job in view.by_share],
        "saving": {
            "jobs": dict(view.saving.jobs),
            "never": dict(view.saving.never),
            "rare": [_saver_as_dict(one, currency) for one in view.saving.rare],
        },
        "hosts": hosts_as_dict(view.hosts),
        "quality": {
            "counts": dict(view.quality.counts),
            "examples": {kind: list(names) for kind, names in view.quality.examples.items()},
            "missing_entries": view.quality.missing,
            "gaps": [
                {"log": gap.log, "writer": gap.writer, "first": gap.first, "last": gap.last}
                for gap in view.quality.gaps
            ],
        },
    }


def group_as_row(group: GroupSums, view: FleetOverview) -> dict[str, Any]:
    """Return a group as a row of CSV."""
    found = _group_as_dict(group, view.by, view)
    productive = {f"productive_{name}": value for name, value in found["productive"].items()}
    return {**found, **found["key"], **found["all"], **productive}


def job_as_dict(job: JobSums, unit: Unit, currency: str | None) -> dict[str, Any]:
    """Return a job in the types of JSON."""
    return {
        "job": job.key.job,
        "log": job.key.log,
        "team": job.team,
        "zone": job.zone,
        "accelerator": job.accelerator,
        "chips": job.chips,
        "attempts": job.attempts,
        "disruptions": job.disruptions,
        "goodput_percent": _percent(unit.share(job.productive, job.all)),
        "all": sums_as_dict(job.all, currency),
        "lost": sums_as_dict(job.lost, currency),
    }


def job_as_row(found: dict[str, Any]) -> dict[str, Any]:
    """Return a job of `job_as_dict` as a row of CSV."""
    return {**found, **found["all"], **{f"lost_{name}": value for name, value in found["lost"].items()}}


def hosts_as_dict(hosts: LemonHosts) -> dict[str, Any]:
    """Return the hosts that fail too often in the types of JSON."""
    return {
        "blamed": hosts.blamed,
        "absent": hosts.absent,
        "listed": [
            {
                "host": one.host.host,
                "accelerator": one.host.accelerator,
                "zone": one.host.zone,
                "chip_hours": float(one.host.chip_ns / (3_600 * 10**9)),
                "blamed": one.host.blamed,
                "expected": one.expected,
                "p": one.p,
                "q": one.q,
            }
            for one in hosts.lemons
        ],
        "groups": [
            {
                "accelerator": group.accelerator,
                "zone": group.zone,
                "hosts": group.hosts,
                "blamed": group.blamed,
                "findable_factor": group.findable,
            }
            for group in hosts.groups
        ],
    }


def _group_as_dict(group: GroupSums, by: tuple[str, ...], view: FleetOverview) -> dict[str, Any]:
    return {
        "key": dict(zip(by, group.key, strict=True)),
        "jobs": group.jobs,
        "goodput_percent": _percent(view.unit.share(group.productive, group.all)),
        "jobs_without_chips": group.jobs_without_chips,
        "all": sums_as_dict(group.all, view.currency),
        "productive": sums_as_dict(group.productive, view.currency),
        "unpriced_chip_ns": group.unpriced_chip_ns,
        "steps_kept": group.steps_kept,
    }


def _change_as_dict(change: Change) -> dict[str, Any]:
    return {
        "group": list(change.key),
        "before_percent": _percent(change.before),
        "now_percent": _percent(change.now),
        "causes": [{"name": cause_name(cause), "points": float(100 * share)} for cause, share in change.causes],
    }


def _saver_as_dict(one: RareSaver, currency: str | None) -> dict[str, Any]:
    return {
        "job": one.job.key.job,
        "team": one.job.team,
        "failures": one.job.failures,
        "now_seconds": one.advice.now_seconds,
        "interval_seconds": list(one.advice.interval_seconds),
        "recommended_seconds": one.advice.recommended_seconds,
        "lost_points": [float(100 * share) for share in one.lost_share],
        "lost_micro": None if currency is None else [micro(cost) for cost in one.lost_cost],
    }


def _percent(share: Fraction | None) -> float | None:
    return None if share is None else float(100 * share)
