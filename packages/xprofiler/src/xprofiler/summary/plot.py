"""A summary as a picture, drawn by matplotlib."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

from ml_diagnostics_common.command.plotting import FAINT, INK, new_figure, save_figure, style_axes
from ml_diagnostics_common.texts import format_percent

from xprofiler.summary.summary import mean_parts
from xprofiler.summary.text import PART_COLOURS, headline, identity

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from xprofiler.summary.summary import Summary

__all__ = ["save_plot"]

_OPERATIONS = 12
_TITLE_WIDTH = 120  # Characters that fit into the width.


def save_plot(summary: Summary, file: Path, *, dark: bool = False) -> None:
    """Draw the steps' times above the slowest operations.

    Args:
        summary: The summary.
        file: The output file; its suffix selects the format.
        dark: True for light on dark.

    Raises:
        OSError: The file cannot be written.
    """
    figure = new_figure(11, 7.5, layout="constrained")
    title = [*textwrap.wrap(headline(summary), _TITLE_WIDTH), identity(summary)]
    figure.suptitle("\n".join(title), x=0.01, ha="left", fontsize=12, color=INK, parse_math=False)
    above, below = figure.subplots(2, 1, height_ratios=(1, 1.1))
    _draw_steps(above, summary)
    _draw_operations(below, summary)
    save_figure(figure, file, dark=dark)


def _draw_steps(axes: Axes, summary: Summary) -> None:
    positions = range(len(summary.steps))
    bottoms = [0.0] * len(summary.steps)
    for part in mean_parts(summary.steps):
        heights = [step.parts_us.get(part, 0.0) / 1e3 for step in summary.steps]
        axes.bar(positions, heights, 0.85, bottom=bottoms, label=_plain(part), color=PART_COLOURS.get(part, FAINT))
        bottoms = [bottom + height for bottom, height in zip(bottoms, heights, strict=True)]
    busy = "" if summary.busy_percent is None else f", {summary.busy_on}s {format_percent(summary.busy_percent)} busy"
    style_axes(axes, f"Steps, in ms on the slowest core{busy}")
    every = max(1, len(summary.steps) // 20)
    axes.set_xticks(list(positions)[::every], [_plain(step.name) for step in summary.steps][::every])
    if summary.steps:
        axes.legend(frameon=False, labelcolor=INK, fontsize=8, loc="upper left", bbox_to_anchor=(1, 1))
    else:
        axes.text(0.5, 0.5, "the program marks no steps", transform=axes.transAxes, ha="center", color=FAINT)


def _draw_operations(axes: Axes, summary: Summary) -> None:
    shown = summary.operations[:_OPERATIONS]
    names = [_plain(f"{operation.name[:40]}  ({operation.category})") for operation in shown]
    axes.barh(range(len(shown)), [operation.percent for operation in shown], 0.7, color=PART_COLOURS["Device compute"])
    axes.set_yticks(range(len(shown)), names, fontsize=8)
    axes.set_ylim(max(len(shown), 6) - 0.4, -0.6)  # The slowest on top; with few bars, limit their thickness.
    style_axes(axes, "Slowest operations, in % of the time of all")
    if not shown:
        axes.text(0.5, 0.5, "no operations were profiled", transform=axes.transAxes, ha="center", color=FAINT)


def _plain(text: str) -> str:
    """Escape dollar signs, since matplotlib typesets text between them as a formula."""
    return text.replace("$", r"\$")
