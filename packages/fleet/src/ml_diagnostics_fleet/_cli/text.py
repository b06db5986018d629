"""The reports of a fleet as text for people."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction

from ml_diagnostics_common.command.formats import format_table
from ml_diagnostics_common.texts import format_clock, format_count

from ml_diagnostics_fleet._amounts import (
    amount_range,
    amounts,
    amounts_alike,
    goodput,
    hours,
    lost_or_time,
    per_thousand_steps,
    percent,
    percents,
    points,
)
from ml_diagnostics_fleet._notes import host_notes, quality_notes
from ml_diagnostics_fleet.answers import GroupSums, JobSums
from ml_diagnostics_fleet.lemons import FALSE_SHARE, LemonHosts
from ml_diagnostics_fleet.overview import Change, FleetOverview, Unit, cause_name
from ml_diagnostics_fleet.saving import RareSaver, SavingAdvice

__all__ = ["format_hosts", "format_overview", "format_worst"]

_MOST_CHANGES = 2
_MOST_SAVERS = 5


def format_overview(view: FleetOverview, width: int | None) -> str:
    """Format the report of a fleet.

    Args:
        view: The answers.
        width: The columns of the terminal; None if there is no limit.
    """
    sections = [
        list(_headline(view)),
        _group_table(view, width),
        _cause_table(view, width),
        _change_lines(view, width),
        _saving_lines(view.saving, view, width),
        [f"Hosts: {note}" for note in host_notes(view.hosts)],
        [f"Note: {note}" for note in quality_notes(view.quality)],
    ]
    return "\n\n".join("\n".join(lines) for lines in sections if lines)


def _headline(view: FleetOverview) -> Iterator[str]:
    spent = f"{hours([view.unit.of(view.all)])[0]} {view.unit.name}"
    lost = lost_or_time(view, [view.all.minus(view.productive)])[0]
    lost = lost if view.currency is not None else f"{lost} {view.unit.name}"
    yield f"{format_count(view.snapshot.jobs, 'job')}: {goodput(view.unit, view.productive, view.all)} goodput"
    yield ""
    yield f"  as of  {format_clock(view.snapshot.as_of_ns)}, rules {view.snapshot.rules}"
    yield f"  time   {spent}"
    yield f"  lost   {lost}"


def _group_table(view: FleetOverview, width: int | None) -> list[str]:
    groups = view.ordered_groups
    lost = lost_or_time(view, [group.lost for group in groups])
    times = hours([view.unit.of(group.all) for group in groups])

    def per_step(group: GroupSums) -> str:
        return per_thousand_steps(group.all.cost, view.unit.of(group.all), group.steps_kept, view.currency)

    rows = []
    for group, time, loss in zip(groups, times, lost, strict=True):
        causes = view.lost_to(group.key)
        rows.append(
            (
                *group.key,
                f"{group.jobs:,}",
                goodput(view.unit, group.productive, group.all),
                time,
                loss,
                *([per_step(group)] if view.has_steps else []),
                cause_name(causes[0][0]) if causes else "-",
            )
        )
    lost_name = "lost in money" if view.currency is not None else f"lost {view.unit.name}"
    steps_name = ["per 1,000 steps"] if view.has_steps else []
    headers = (*view.by, "jobs", "goodput", view.unit.name, lost_name, *steps_name, "largest cause")
    align = "<" * len(view.by) + ">" * (len(headers) - len(view.by) - 1) + "<"
    cut = ["per 1,000 steps", "largest cause", *reversed(view.by)]
    return format_table(headers, rows, align, width=width, cut=cut, indent="  ")


def _cause_table(view: FleetOverview, width: int | None) -> list[str]:
    causes = view.lost_to()
    if not causes:
        return []
    times = hours([view.unit.of(lost) for _, lost in causes])
    money = amounts([lost.cost for _, lost in causes], view.currency) if view.currency is not None else []
    shares = percents([view.unit.share(lost, view.all) or Fraction(0) for _, lost in causes])
    rows = [
        (cause_name(cause), share, time, *money[number : number + 1])
        for number, ((cause, _), share, time) in enumerate(zip(causes, shares, times, strict=True))
    ]
    headers = ["cause", "of all", view.unit.name, *(["lost in money"] if money else [])]
    lines = format_table(headers, rows, "<" + ">" * (len(headers) - 1), width=width, cut=["cause"], indent="  ")
    return ["Lost to", "", *lines]


def _change_lines(view: FleetOverview, width: int | None) -> list[str]:
    whole = view.changes[0]
    if whole.before is None or whole.now is None:
        return []
    first = (
        f"The last 7 days against the 7 days before: {percent(whole.before)} -> {percent(whole.now)} "
        f"({points(whole.now - whole.before)} points)"
    )
    rows = [_change_row(change, "whole fleet") for change in view.changes if change.before is not None or change.now]
    names = [group for group in view.by if group != "week"] or ["team"]
    headers = (", ".join(names), "before", "now", "points", "what changed most, in points")
    table = format_table(
        headers, rows, "<>>><", width=width, cut=["what changed most, in points", headers[0]], indent="  "
    )
    return [first, "", *table]


def _change_row(change: Change, name: str) -> tuple[str, ...]:
    moved = [f"{cause_name(cause)} {points(share)}" for cause, share in change.causes if points(share) != "0.0"]
    both = change.before is not None and change.now is not None
    return (
        ", ".join(change.key) or name,
        percent(change.before),
        percent(change.now),
        points((change.now or Fraction(0)) - (change.before or Fraction(0))) if both else "-",
        ", ".join(moved[:_MOST_CHANGES]) or "-",
    )


def _saving_lines(saving: SavingAdvice, view: FleetOverview, width: int | None) -> list[str]:
    lines = []
    if saving.rare:
        teams: dict[str, list[RareSaver]] = {}
        for one in saving.rare:
            teams.setdefault(one.job.team, []).append(one)
        ordered = sorted(teams.items(), key=lambda item: (-sum(_certain(view, one) for one in item[1]), item[0]))
        rows = [
            (
                team,
                f"{len(members):,} of {saving.jobs[team]:,}",
                _lost_range(view, members),
                _seconds(_median([one.advice.now_seconds or 0.0 for one in members])),
                " to ".join(_seconds(_median([one.advice.interval_seconds[end] for one in members])) for end in (0, 1)),
            )
            for team, members in ordered[:_MOST_SAVERS]
        ]
        headers = ("team", "jobs", "lost by it", "save every", "best (80 % range)")
        lines = [
            f"{format_count(len(saving.rare), 'job saves', 'jobs save')} too rarely, outside of the 80 % range of the "
            "best interval",
            "",
            *format_table(headers, rows, "<>>>>", width=width, cut=["best (80 % range)", "team"], indent="  "),
        ]
    never = sum(saving.never.values())
    if never:
        lines.append(f"{'' if not lines else '  '}{format_count(never, 'job')} failed and recorded no save")
    return lines


def _certain(view: FleetOverview, one: RareSaver) -> Fraction:
    return one.lost_cost[0] if view.currency is not None else one.lost_chip_ns[0] or one.lost_share[0]


def _lost_range(view: FleetOverview, members: Sequence[RareSaver]) -> str:
    if view.currency is not None:
        return amount_range(
            (_total(one.lost_cost[0] for one in members), _total(one.lost_cost[1] for one in members)), view.currency
        )
    if view.unit.has_chips:
        low, high = (hours([int(_total(one.lost_chip_ns[end] for one in members))])[0] for end in (0, 1))
        return f"{low} to {high} {view.unit.name}"
    low, high = (f"{float(100 * _total(one.lost_share[end] for one in members) / len(members)):.1f}" for end in (0, 1))
    return f"{low} to {high} points"


def _total(parts: Iterable[Fraction]) -> Fraction:
    return sum(parts, Fraction(0))


def _median(values: Sequence[float]) -> float:
    import statistics

    return statistics.median(values)


def _seconds(value: float) -> str:
    return f"{value:,.0f} s"


def format_worst(jobs: Sequence[JobSums], unit: Unit, currency: str | None, width: int | None) -> str:
    """Format the worst jobs.

    Args:
        jobs: The jobs, the worst first.
        unit: The measure of time.
        currency: The currency; None without prices.
        width: The columns of the terminal; None if there is no limit.
    """
    money = [] if currency is None else amounts_alike([job.lost.cost for job in jobs], currency)
    rows = [
        (
            job.key.job,
            job.team,
            job.accelerator,
            "-" if job.chips is None else f"{job.chips:,}",
            f"{job.attempts:,}",
            goodput(unit, job.productive, job.all),
            hours([unit.of(job.lost)])[0],
            *money[number : number + 1],
        )
        for number, job in enumerate(jobs)
    ]
    headers = ["job", "team", "accelerator", "chips", "attempts", "goodput", f"lost {unit.name}"]
    headers += [] if currency is None else ["lost in money"]
    align = "<<<" + ">" * (len(headers) - 3)
    cut = ["accelerator", f"lost {unit.name}" if currency is not None else "attempts", "team", "job"]
    return "\n".join(format_table(headers, rows, align, width=width, cut=cut))


def format_hosts(hosts: LemonHosts, width: int | None) -> str:
    """Format the hosts that fail too often, with what the data can show."""
    sections = []
    lemons = hosts.lemons
    if lemons:
        rows = [
            (
                one.host.host,
                one.host.accelerator,
                one.host.zone,
                hours([int(one.host.chip_ns)])[0],
                f"{one.host.blamed:,}",
                f"{one.expected:,.1f}",
                f"{one.p:.2g}",
                f"{one.q:.2g}",
            )
            for one in lemons
        ]
        headers = ("host", "accelerator", "zone", "chip-hours", "blamed", "expected", "p", "q")
        cut = ["zone", "accelerator", "p", "chip-hours", "host"]
        sections.append(format_table(headers, rows, "<<<>>>>>", width=width, cut=cut))
        sections.append([f"listed with at most {FALSE_SHARE:.0%} false among them".replace("%", " %")])
    sections.append([f"Hosts: {note}" for note in host_notes(hosts)])
    if hosts.blamed:
        groups = [
            (
                group.accelerator,
                group.zone,
                f"{group.hosts:,}",
                f"{group.blamed:,}",
                "too few hosts or disruptions" if group.findable is None else f"{group.findable:g} x as often or more",
            )
            for group in hosts.groups
        ]
        names = ("accelerator", "zone", "hosts", "blamed", "could find a host failing")
        sections.append(
            format_table(names, groups, "<<>><", width=width, cut=["zone", "blamed", "accelerator"], indent="  ")
        )
    return "\n\n".join("\n".join(lines) for lines in sections if lines)
