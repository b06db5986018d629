"""A fleet as a picture: a stacked bar of buckets for each group, and the goodput of each week."""

from __future__ import annotations

import datetime
import os
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Final

from ml_diagnostics_common.command.plotting import (
    FAINT,
    GRID,
    INK,
    PAPER,
    new_figure,
    save_figure,
    style_axes,
)
from ml_diagnostics_common.texts import format_clock, format_count, one_line
from ml_goodput_measurement.partition import Bucket
from ml_goodput_measurement.reading import BUCKET_NAMES, COLORS

from ml_diagnostics_fleet._amounts import goodput, lost_or_time
from ml_diagnostics_fleet._drawings import spread
from ml_diagnostics_fleet.answers import GroupSums
from ml_diagnostics_fleet.overview import FleetOverview

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["draw_fleet"]

_WIDTH: Final = 12.0
_BAR: Final = 0.36
_TREND: Final = 1.9
_LEGEND_LINE: Final = 0.21
_LEGEND_COLUMNS: Final = 4
_ABOVE, _BETWEEN, _BELOW = 0.9, 0.6, 0.4
"""Inches, as all heights."""
_RIGHT: Final = 0.82
_CHARACTER: Final = 0.0059
"""Shares of the width, the second for a character of a name."""
_MOST_GROUPS: Final = 24
_NAME: Final = 44
_MOST_NAMED_WEEKS: Final = 12
_GOODPUT, _LOST = 42, 140
"""The ends of texts, in points after the bars."""


def draw_fleet(view: FleetOverview, path: str | os.PathLike[str], *, dark: bool = False) -> None:
    """Draw a fleet.

    Args:
        view: The answers.
        path: The picture to write; its suffix selects the format (.png, .svg, .pdf).
        dark: True for light on dark.

    Raises:
        OSError: The file cannot be written.
    """
    groups = view.largest_groups(_MOST_GROUPS)
    buckets = view.buckets
    legend = _LEGEND_LINE * -(-len(buckets) // _LEGEND_COLUMNS)
    bars = _BAR * max(1, len(groups))
    height = _ABOVE + bars + legend + _BETWEEN + _TREND + _BELOW
    figure = new_figure(_WIDTH, height)
    left = 0.05 + _CHARACTER * max((len(_name(group)) for group in groups), default=0)
    top = 1 - _ABOVE / height
    axes = figure.add_axes((left, top - bars / height, _RIGHT - left, bars / height))
    _draw_bars(axes, view, groups)
    _draw_legend(figure, axes, buckets, top - bars / height - 0.06 / height)
    _draw_trend(figure.add_axes((left, _BELOW / height, _RIGHT - left, _TREND / height)), view)
    whole = goodput(view.unit, view.productive, view.all)
    title = f"{format_count(view.snapshot.jobs, 'job')}: {whole} goodput, as of {format_clock(view.snapshot.as_of_ns)}"
    figure.text(0.02, 1 - 0.32 / height, title, fontsize=12, color=INK, va="center", parse_math=False)
    figure.text(
        0.02,
        1 - 0.6 / height,
        f"share of {view.unit.name} by {', '.join(view.by)}{_left_out(view, groups)}",
        fontsize=9,
        color=FAINT,
        va="center",
        parse_math=False,
    )
    save_figure(figure, os.fspath(path), dark=dark)


def _name(group: GroupSums) -> str:
    return one_line(", ".join(group.key), _NAME)


def _left_out(view: FleetOverview, groups: list[GroupSums]) -> str:
    """Return a note on groups that are not drawn."""
    count = len(view.groups)
    return "" if len(groups) == count else f": the {len(groups):,} of {count:,} that lost most"


def _draw_bars(axes: Axes, view: FleetOverview, groups: list[GroupSums]) -> None:
    lost = lost_or_time(view, [group.lost for group in groups])
    for row, group in enumerate(groups):
        left = 0.0
        for bucket, share in view.shares(group).items():
            axes.barh(row, float(share), left=left, height=0.68, color=COLORS[bucket], edgecolor=PAPER, linewidth=0.4)
            left += float(share)
        suffix = "" if view.currency is not None else f" {view.unit.name}"
        for x, text in (
            (_GOODPUT, goodput(view.unit, group.productive, group.all)),
            (_LOST, f"{lost[row]}{suffix} lost"),
        ):
            axes.annotate(
                text, (1, row), (x, 0), textcoords="offset points", va="center", ha="right", fontsize=8.5, color=INK
            ).set_parse_math(False)
    axes.set_yticks(range(len(groups)))
    names: Any = axes.set_yticklabels([_name(group) for group in groups])
    for name in names:
        name.set(fontsize=9, color=INK, parse_math=False)
    axes.set_ylim(max(1, len(groups)) - 0.5, -0.5)
    axes.set_xlim(0, 1)
    axes.set_xticks([])
    axes.tick_params(length=0)
    for side in ("top", "right", "bottom", "left"):
        axes.spines[side].set_visible(False)


def _draw_legend(figure: Figure, axes: Axes, buckets: list[Bucket], top: float) -> None:
    from matplotlib.patches import Patch

    figure.legend(
        handles=[Patch(color=COLORS[bucket], label=BUCKET_NAMES[bucket]) for bucket in buckets],
        loc="upper left",
        bbox_to_anchor=(axes.get_position().x0 - 0.005, top),
        ncols=_LEGEND_COLUMNS,
        frameon=False,
        fontsize=8.5,
        labelcolor=INK,
        handlelength=1.0,
        handleheight=1.0,
        borderaxespad=0.2,
        columnspacing=1.8,
    )


def _draw_trend(axes: Axes, view: FleetOverview) -> None:
    style_axes(axes, "goodput by week, of the whole fleet")
    weeks = [group for group in view.weeks if view.unit.of(group.all)]
    days: Any = [datetime.date.fromisoformat(group.key[0]) for group in weeks]
    shares = [100 * float(Fraction(view.unit.of(group.productive), view.unit.of(group.all))) for group in weeks]
    axes.plot(days, shares, color=COLORS[Bucket.PRODUCTIVE], linewidth=2, marker="o", markersize=5, clip_on=False)
    span = (days[-1] - days[0]).days if days else 0
    margin = datetime.timedelta(days=max(3, span // 20))
    named = spread([(day - days[0]).days for day in days], span / _MOST_NAMED_WEEKS)
    for day, share in [(days[index], shares[index]) for index in named]:
        axes.annotate(
            f"{share:.1f} %", (day, share), (0, 7), textcoords="offset points", ha="center", fontsize=8, color=INK
        )
    axes.set_ylim(0, 100)
    axes.set_ylabel("percent", fontsize=8, color=FAINT)
    axes.grid(axis="y", color=GRID, linewidth=0.6)
    axes.set_axisbelow(True)
    ticks = [days[index] for index in named]
    axes.set_xticks(ticks)
    form = "%d %b" if len({day.year for day in days}) < 2 else "%d %b\n%Y"
    axes.set_xticklabels([day.strftime(form) for day in ticks])
    if days:
        axes.set_xlim(days[0] - margin, days[-1] + margin)
