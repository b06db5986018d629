"""The drawings of a fleet's page, as inline SVG in the colours of the page."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from fractions import Fraction
from html import escape

from ml_diagnostics_common.texts import format_count, one_line
from ml_goodput_measurement.partition import Bucket
from ml_goodput_measurement.reading import BUCKET_KEYS, BUCKET_NAMES

from ml_diagnostics_fleet._amounts import goodput, lost_or_time, percent
from ml_diagnostics_fleet.answers import GroupSums
from ml_diagnostics_fleet.overview import FleetOverview

__all__ = ["bars", "spread", "trend"]

_WIDTH, _HEIGHT = 640, 190
_LEFT, _RIGHT, _TOP, _BOTTOM = 36, 20, 14, 24
_DATE = 112
"""The least distance between names of weeks; the first and the last are not centred."""
_MOST_WEEKS = 26
_MOST_GROUPS = 30


def bars(view: FleetOverview) -> str:
    """Draw a bar for each group, with the shares of its buckets."""
    groups = view.largest_groups(_MOST_GROUPS)
    lost = lost_or_time(view, [group.lost for group in groups])
    rows = "".join(
        f'<div class="bar-name cut" title="{escape(_name(group))}">{escape(_name(group))}</div>'
        f"{_bar(view, group)}"
        f'<div class="bar-text number">{goodput(view.unit, group.productive, group.all)}</div>'
        f'<div class="bar-text number soft">{escape(loss)} lost</div>'
        for group, loss in zip(groups, lost, strict=True)
    )
    legend = "".join(
        '<li><svg class="swatch" viewBox="0 0 10 10" aria-hidden="true"><rect width="10" height="10" '
        f'fill="{_colour(bucket)}"/></svg> {escape(BUCKET_NAMES[bucket])}</li>'
        for bucket in view.buckets
    )
    if len(groups) < len(view.groups):
        note = f"the {len(groups):,} of {len(view.groups):,} groups that lost most; all are in the table"
        legend += f"<li>{note}</li>"
    return f'<div class="bars">{rows}</div><ul class="legend second">{legend}</ul>'


def _bar(view: FleetOverview, group: GroupSums) -> str:
    left, parts = Fraction(0), []
    for bucket, share in view.shares(group).items():
        parts.append(
            f'<rect x="{float(1000 * left):.2f}" y="0" width="{float(1000 * share):.2f}" height="18" '
            f'fill="{_colour(bucket)}"><title>{escape(BUCKET_NAMES[bucket])}: {percent(share)}</title></rect>'
        )
        left += share
    label = escape(f"{_name(group)}: {goodput(view.unit, group.productive, group.all)} goodput")
    return (
        f'<svg viewBox="0 0 1000 18" width="100%" height="18" preserveAspectRatio="none" role="img" '
        f'aria-label="{label}">{"".join(parts)}</svg>'
    )


def trend(view: FleetOverview) -> str:
    """Draw the goodput of each week."""
    weeks = [group for group in view.weeks if view.unit.of(group.all)][-_MOST_WEEKS:]
    if not weeks:
        return '<p class="empty">There is no time yet.</p>'
    shares = [float(Fraction(view.unit.of(group.productive), view.unit.of(group.all))) for group in weeks]
    span, height = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM
    days = [datetime.date.fromisoformat(group.key[0]).toordinal() for group in weeks]
    # By date, so that a week without jobs leaves a gap.
    xs = [_LEFT + span * (day - days[0]) / (days[-1] - days[0]) if len(days) > 1 else _LEFT + span / 2 for day in days]
    ys = [_TOP + height * (1 - share) for share in shares]
    lines = "".join(
        f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{_TOP + height * (1 - part / 100):.1f}" '
        f'y2="{_TOP + height * (1 - part / 100):.1f}" class="grid"/>'
        f'<text x="{_LEFT - 6}" y="{_TOP + height * (1 - part / 100) + 4:.1f}" class="axis end">{part}</text>'
        for part in (0, 25, 50, 75, 100)
    )
    named = spread(xs, _DATE)
    dots = "".join(
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" class="dot"><title>week of {escape(group.key[0])}: '
        f"{100 * share:.1f} %, {format_count(group.jobs, 'job')}</title></circle>"
        for x, y, share, group in zip(xs, ys, shares, weeks, strict=True)
    )
    names = "".join(
        f'<text x="{x:.1f}" y="{_HEIGHT - 6}" class="axis {_anchor(number, len(weeks))}">{escape(group.key[0])}</text>'
        for number, (x, group) in enumerate(zip(xs, weeks, strict=True))
        if number in named
    )
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in zip(xs, ys, strict=True))
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" class="trend" role="img" aria-label="goodput by week, in '
        f'percent">{lines}<polyline points="{path}" class="curve"/>{dots}{names}</svg>'
    )


def spread(positions: Sequence[float], least: float) -> list[int]:
    """Return the indices of positions that are far enough from each other to have a name, from the first on.

    Args:
        positions: Positions, in their order.
        least: The least distance.
    """
    found: list[int] = []
    for index, position in enumerate(positions):
        if not found or position - positions[found[-1]] >= least:
            found.append(index)
    return found


def _anchor(number: int, count: int) -> str:
    if count == 1:
        return "middle alone"
    return "start" if number == 0 else "end" if number == count - 1 else "middle"


def _colour(bucket: Bucket) -> str:
    return f"var(--bucket-{BUCKET_KEYS[bucket].replace('_', '-')})"


def _name(group: GroupSums) -> str:
    return one_line(", ".join(group.key))
