"""A fleet's report as one page: a file that opens anywhere, without a server and without any other file.

Its colours and elements are those of the other pages (`ml_diagnostics_common.page`); its drawings are inline SVG, and
its one script sorts tables. `mldiagnostics ui` shows the content of its `<main>`, with the same style sheet and script:
so no element has a style or a script of its own, and the names of jobs, which become links there, have a class.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from fractions import Fraction
from html import escape
from importlib.resources import files
from pathlib import Path

from ml_diagnostics_common.page import FOLDER, policy_hash
from ml_diagnostics_common.texts import format_clock, format_count, one_line

from ml_diagnostics_fleet._amounts import (
    amount,
    amount_range,
    amounts_alike,
    goodput,
    hours,
    lost_or_time,
    micro,
    per_thousand_steps,
    percent,
    percents,
    points,
)
from ml_diagnostics_fleet._drawings import bars, trend
from ml_diagnostics_fleet._notes import host_notes, quality_notes
from ml_diagnostics_fleet.answers import GroupSums, JobSums, Sums
from ml_diagnostics_fleet.overview import FleetOverview, cause_name
from ml_diagnostics_fleet.queries import GROUPS

__all__ = ["page_of", "write_page"]

_MOST_SAVERS = 20
_LONGEST_TEXT = 80
_TITLES = {
    "blamed": "disruptions of which the doctor names this host as the cause",
    "expected": "the number that the median host of its accelerator and zone would have in its time",
    "p": "the chance of the median host to have at least as many (Poisson)",
    "q": "the least expected share of good hosts in a list that has this one (Benjamini and Hochberg)",
    "points": "change of goodput, in percentage points",
    "per 1,000 steps": "per 1,000 steps that were kept, not trained again",
    "lost by it": "points of goodput that it loses against the best interval, as an 80 % range",
}
"""The meaning of headers that are not everyday words."""


def write_page(view: FleetOverview, path: str | os.PathLike[str]) -> None:
    """Write the page of a fleet.

    Args:
        view: The answers.
        path: The file to write.

    Raises:
        OSError: The file cannot be written.
    """
    Path(path).write_text(page_of(view), encoding="utf-8")


def page_of(view: FleetOverview) -> str:
    """Return the page of a fleet as HTML.

    Args:
        view: The answers.
    """
    styles = "\n" + "".join((FOLDER / name).read_text(encoding="utf-8") for name in ("tokens.css", "elements.css"))
    ours = files("ml_diagnostics_fleet").joinpath("page_parts")
    styles += ours.joinpath("fleet.css").read_text(encoding="utf-8")
    script = "\n" + ours.joinpath("sorting.js").read_text(encoding="utf-8")
    policy = (
        f"default-src 'none'; style-src {policy_hash(styles)}; script-src {policy_hash(script)}; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    title = f"Fleet goodput, {format_clock(view.snapshot.as_of_ns)}"
    body = "".join(
        section
        for section in (
            _head(view),
            _tiles(view),
            _card("Where the time went", f"by {', '.join(view.by)}", bars(view)),
            _pair(
                _card("Goodput by week", "whole fleet", trend(view)),
                _card("The last 7 days", "against the 7 days before", _changes(view)),
            ),
            _card("Groups", f"by {', '.join(view.by)}", _groups(view)),
            _pair(
                _card("Lost to", f"of all {view.unit.name}", _causes(view)),
                _card("Hosts that fail too often", "at most 5 % false among them", _hosts(view)),
            ),
            _card("Jobs that save too rarely", "outside of the 80 % range of their best interval", _savers(view)),
            _card("Jobs that lost most", _most(view), _jobs(view.by_money, view)),
            _card("Jobs with the largest share lost", "of jobs that ran for an hour", _jobs(view.by_share, view)),
            _card("Data", "how complete they are", _quality(view)),
        )
    )
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        f"<title>{escape(title)}</title>\n<style>{styles}</style>\n</head>\n<body>\n"
        f'<main class="fleet-page">\n<div class="fleet stack" data-by="{",".join(view.by)}" '
        f'data-groups="{",".join(GROUPS)}">{body}</div>\n</main>\n<script>{script}</script>\n</body>\n</html>\n'
    )


def _most(view: FleetOverview) -> str:
    return "in money" if view.currency is not None else "in time"


def _head(view: FleetOverview) -> str:
    snapshot = view.snapshot
    return (
        f'<header><h1>Fleet goodput</h1><p class="soft">as of <time>{format_clock(snapshot.as_of_ns)}</time>, '
        f"{format_count(snapshot.jobs, 'job')}, {format_count(snapshot.events, 'event')}, rules "
        f"{escape(snapshot.rules)}</p></header>"
    )


def _tiles(view: FleetOverview) -> str:
    lost = view.all.minus(view.productive)
    whole = view.changes[0]
    change = "" if whole.before is None or whole.now is None else f"{points(whole.now - whole.before)} points in 7 days"
    time_name = view.unit.name
    tiles = [("Goodput", goodput(view.unit, view.productive, view.all), change)]
    tiles.append((time_name.capitalize(), hours([view.unit.of(view.all)])[0], f"{hours([view.unit.of(lost)])[0]} lost"))
    if view.currency is not None:
        tiles.append(("Lost in money", amount(lost.cost, view.currency), f"of {amount(view.all.cost, view.currency)}"))
    steps = sum(group.steps_kept for group in view.groups)
    cost = per_thousand_steps(view.all.cost, view.unit.of(view.all), steps, view.currency)
    tiles.append(("Per 1,000 kept steps", cost, f"{steps:,} steps"))
    causes = view.lost_to()
    if causes:
        cause, part = causes[0]
        tiles.append(("Largest cause", percent(view.unit.share(part, view.all)), cause_name(cause)))
    cells = "".join(
        f'<div class="tile"><div class="tile-name">{escape(name)}</div><div class="tile-figure">{escape(value)}</div>'
        f'<div class="tile-second">{escape(second)}</div></div>'
        for name, value, second in tiles
    )
    return f'<section class="tiles">{cells}</section>'


def _card(title: str, second: str, content: str) -> str:
    return (
        f'<section class="card"><div class="card-head"><h2>{escape(title)}<span class="second">{escape(second)}</span>'
        f"</h2></div>{content}</section>"
    )


def _pair(*cards: str) -> str:
    return f'<div class="pair">{"".join(cards)}</div>'


# --- Tables -----------------------------------------------------------------------------------------------------------


class _Cell:
    """A cell with what it is sorted by.

    Args:
        text: The text.
        key: A number to sort by; None for the text.
    """

    def __init__(self, text: str, key: float | Fraction | int | None = None) -> None:
        self.text, self.key = text, key

    @property
    def shown(self) -> str:
        """The text in one line, as HTML: a name of thousands of characters would hide all other columns."""
        text = one_line(self.text)
        if len(text) <= _LONGEST_TEXT:
            return escape(text)
        return f'<span title="{escape(text)}">{escape(one_line(text, _LONGEST_TEXT))}</span>'

    def html(self) -> str:
        """Return the cell."""
        if self.key is None:
            return f"<td>{self.shown}</td>"
        return f'<td class="number" data-key="{float(self.key)!r}">{escape(self.text)}</td>'


class _JobCell(_Cell):
    """A cell with the name of a job."""

    def html(self) -> str:
        """Return the cell."""
        return f'<td><span class="job">{self.shown}</span></td>'


def _table(headers: Sequence[str], rows: Iterable[Sequence[_Cell]]) -> str:
    """Return a table that is sorted by a click on a header."""
    lines = list(rows)
    numbers = [cell.key is not None for cell in lines[0]] if lines else [False] * len(headers)
    head = "".join(
        f'<th scope="col"{" class=number" if number else ""}{_title(header)}><button type="button" class="sort">'
        f"{escape(header)}</button></th>"
        for header, number in zip(headers, numbers, strict=True)
    )
    body = "".join(f"<tr>{''.join(cell.html() for cell in line)}</tr>" for line in lines)
    return (
        f'<div class="scroll-x"><table class="table sortable"><thead><tr>{head}</tr></thead><tbody>{body}</tbody>'
        "</table></div>"
    )


def _title(header: str) -> str:
    text = _TITLES.get(header)
    return f' title="{escape(text)}"' if text else ""


def _groups(view: FleetOverview) -> str:
    groups = view.ordered_groups
    times, lost = hours([view.unit.of(group.all) for group in groups]), lost_or_time(view, [one.lost for one in groups])
    rows = []
    for group, time, loss in zip(groups, times, lost, strict=True):
        causes = view.lost_to(group.key)
        spent = view.unit.of(group.all)
        rows.append(
            [
                *map(_Cell, group.key),
                _Cell(f"{group.jobs:,}", group.jobs),
                _Cell(
                    goodput(view.unit, group.productive, group.all), view.unit.share(group.productive, group.all) or 0
                ),
                _Cell(time, spent),
                _Cell(loss, view.lost(group.lost)),
                *([_steps(view, group)] if view.has_steps else []),
                _Cell(cause_name(causes[0][0]) if causes else "-"),
            ]
        )
    lost_name = "lost in money" if view.currency is not None else f"lost {view.unit.name}"
    steps_name = ["per 1,000 steps"] if view.has_steps else []
    headers = [*view.by, "jobs", "goodput", view.unit.name, lost_name, *steps_name, "largest cause"]
    return _table(headers, rows) if rows else _empty("There are no jobs.")


def _steps(view: FleetOverview, group: GroupSums) -> _Cell:
    spent = view.unit.of(group.all)
    text = per_thousand_steps(group.all.cost, spent, group.steps_kept, view.currency)
    per_step = group.all.cost if view.currency is not None else spent
    return _Cell(text, Fraction(per_step, group.steps_kept) if group.steps_kept else 0)


def _goodput(view: FleetOverview, productive: Sums, whole: Sums) -> _Cell:
    return _Cell(goodput(view.unit, productive, whole), view.unit.share(productive, whole) or 0)


def _causes(view: FleetOverview) -> str:
    causes = view.lost_to()
    if not causes:
        return _empty("Nothing was lost.")
    lost, times = lost_or_time(view, [part for _, part in causes]), hours([view.unit.of(part) for _, part in causes])
    shares = [view.unit.share(part, view.all) or Fraction(0) for _, part in causes]
    rows = []
    for (cause, part), share, shown, time, loss in zip(causes, shares, percents(shares), times, lost, strict=True):
        money = [_Cell(loss, part.cost)] if view.currency is not None else []
        rows.append([_Cell(cause_name(cause)), _Cell(shown, share), _Cell(time, view.unit.of(part)), *money])
    return _table(["cause", "share", view.unit.name, *(["lost in money"] if view.currency is not None else [])], rows)


def _changes(view: FleetOverview) -> str:
    rows = []
    for change in view.changes:
        if change.before is None or change.now is None:
            continue
        moved = [f"{cause_name(cause)} {points(share)}" for cause, share in change.causes if points(share) != "0.0"]
        difference = change.now - change.before
        rows.append(
            [
                _Cell(_name(change.key) or "whole fleet"),
                _Cell(percent(change.before), change.before),
                _Cell(percent(change.now), change.now),
                _Cell(points(difference), difference),
                _Cell(", ".join(moved[:2]) or "-"),
            ]
        )
    if not rows:
        return _empty("There is nothing to compare with yet: it takes time in both weeks.")
    names = [group for group in view.by if group != "week"] or ["team"]
    return _table([", ".join(names), "before", "now", "points", "what changed most, in points"], rows)


def _hosts(view: FleetOverview) -> str:
    rows = [
        [
            _Cell(one.host.host),
            _Cell(one.host.accelerator),
            _Cell(one.host.zone),
            _Cell(f"{one.host.blamed:,}", one.host.blamed),
            _Cell(f"{one.expected:,.1f}", one.expected),
            _Cell(f"{one.p:.2g}", one.p),
            _Cell(f"{one.q:.2g}", one.q),
        ]
        for one in view.hosts.lemons
    ]
    table = _table(["host", "accelerator", "zone", "blamed", "expected", "p", "q"], rows) if rows else ""
    return table + _notes(host_notes(view.hosts))


def _savers(view: FleetOverview) -> str:
    rows = []
    for one in view.saving.rare[:_MOST_SAVERS]:
        low, high = one.advice.interval_seconds
        lost = [100 * float(share) for share in one.lost_share]
        money = []
        if view.currency is not None:
            money = [_Cell(amount_range(one.lost_cost, view.currency), micro(one.lost_cost[0]))]
        rows.append(
            [
                _JobCell(one.job.key.job),
                _Cell(one.job.team),
                _Cell(f"{one.job.failures:,}", one.job.failures),
                _Cell(f"{one.advice.now_seconds or 0:,.0f} s", one.advice.now_seconds or 0),
                _Cell(f"{low:,.0f} to {high:,.0f} s", low),
                _Cell(f"{lost[0]:.1f} to {lost[1]:.1f} points", lost[0]),
                *money,
            ]
        )
    if not rows:
        return _empty("No job does, as far as its failures show.")
    headers = ["job", "team", "failures", "saves every", "best interval", "lost by it"]
    more = len(view.saving.rare) - _MOST_SAVERS
    table = _table([*headers, *(["in money"] if view.currency is not None else [])], rows)
    return table + _notes([f"{format_count(more, 'more job')}: --format json has all"] if more > 0 else [])


def _jobs(jobs: Sequence[JobSums], view: FleetOverview) -> str:
    amounts = [] if view.currency is None else amounts_alike([job.lost.cost for job in jobs], view.currency)
    rows = []
    for number, job in enumerate(jobs):
        money = [_Cell(text, job.lost.cost) for text in amounts[number : number + 1]]
        rows.append(
            [
                _JobCell(job.key.job),
                _Cell(job.team),
                _Cell(job.accelerator),
                _Cell("-" if job.chips is None else f"{job.chips:,}", job.chips or 0),
                _Cell(f"{job.attempts:,}", job.attempts),
                _goodput(view, job.productive, job.all),
                _Cell(hours([view.unit.of(job.lost)])[0], view.unit.of(job.lost)),
                *money,
            ]
        )
    headers = ["job", "team", "accelerator", "chips", "attempts", "goodput", f"lost {view.unit.name}"]
    if not rows:
        return _empty("There is no such job.")
    return _table([*headers, *(["lost in money"] if view.currency is not None else [])], rows)


def _quality(view: FleetOverview) -> str:
    return _notes(quality_notes(view.quality)) or _empty("No gap, and every job has an end, chips and a team.")


def _notes(texts: Iterable[str]) -> str:
    lines = "".join(f"<li>{escape(text)}</li>" for text in texts)
    return f'<ul class="notes soft">{lines}</ul>' if lines else ""


def _empty(text: str) -> str:
    return f'<p class="empty">{escape(text)}</p>'


def _name(key: tuple[str, ...]) -> str:
    return ", ".join(key)
