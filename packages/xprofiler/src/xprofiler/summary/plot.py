"""A summary as a picture, by matplotlib."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ml_diagnostics_common.exceptions import MissingExtraError

from xprofiler.exceptions import UsageError, XprofilerError
from xprofiler.summary.colours import PART_COLOURS
from xprofiler.summary.summary import mean_parts
from xprofiler.summary.text import headline, identity
from xprofiler.summary.units import format_percent

if TYPE_CHECKING:
    from xprofiler.summary.summary import Summary

__all__ = ["check_target", "save_plot"]

_SUFFIXES = (".png", ".svg", ".pdf")
_OPERATIONS = 12
_TITLE_WIDTH = 120  # Characters of the figure's width.
_INK, _FAINT = "#1f2933", "#8a94a3"


def check_target(file: Path) -> None:
    """Says before any work whether a picture can be drawn there.

    Raises:
        MissingExtraError: There is no matplotlib.
        UsageError: The file's suffix is not that of a picture that is drawn here, or there is no such folder.
    """
    from importlib.util import find_spec

    if find_spec("matplotlib") is None:
        raise MissingExtraError("--plot", "cloud-diagnostics-xprof", "plot")
    if file.suffix.lower() not in _SUFFIXES:
        raise UsageError(f"--plot {file}: a picture's name ends in one of {', '.join(_SUFFIXES)}")
    if not file.parent.is_dir():
        raise UsageError(f"--plot {file}: there is no folder {file.parent}; make it first")


def save_plot(summary: Summary, file: Path) -> None:
    """Draw each step's time above the slowest operations.

    Args:
        summary: Of what.
        file: Where the picture goes; its suffix says the format.

    Raises:
        XprofilerError: It cannot be written there.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 7.5), layout="constrained")
    title = [*textwrap.wrap(headline(summary), _TITLE_WIDTH), identity(summary)]
    figure.suptitle(_plain("\n".join(title)), x=0.01, ha="left", fontsize=12, color=_INK)
    above, below = figure.subplots(2, 1, height_ratios=(1, 1.1))
    _draw_steps(above, summary)
    _draw_operations(below, summary)
    try:
        figure.savefig(file, dpi=130)
    except (OSError, ValueError) as error:  # ValueError: a suffix that matplotlib does not know.
        raise XprofilerError(f"cannot write the plot to {file}: {error}") from error


def _draw_steps(axes: Any, summary: Summary) -> None:
    positions = range(len(summary.steps))
    bottoms = [0.0] * len(summary.steps)
    for part in mean_parts(summary.steps):
        heights = [step.parts_us.get(part, 0.0) / 1e3 for step in summary.steps]
        axes.bar(positions, heights, 0.85, bottom=bottoms, label=_plain(part), color=PART_COLOURS.get(part, _FAINT))
        bottoms = [bottom + height for bottom, height in zip(bottoms, heights, strict=True)]
    busy = "" if summary.busy_percent is None else f", {summary.busy_on}s {format_percent(summary.busy_percent)} busy"
    _label(axes, f"Steps, in ms on the slowest core{busy}")
    every = max(1, len(summary.steps) // 20)
    axes.set_xticks(list(positions)[::every], [_plain(step.name) for step in summary.steps][::every])
    if summary.steps:
        axes.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1, 1))
    else:
        axes.text(0.5, 0.5, "the program marks no steps", transform=axes.transAxes, ha="center", color=_FAINT)


def _draw_operations(axes: Any, summary: Summary) -> None:
    shown = summary.operations[:_OPERATIONS]
    names = [_plain(f"{operation.name[:40]}  ({operation.category})") for operation in shown]
    axes.barh(range(len(shown)), [operation.percent for operation in shown], 0.7, color=PART_COLOURS["Device compute"])
    axes.set_yticks(range(len(shown)), names, fontsize=8)
    axes.set_ylim(max(len(shown), 6) - 0.4, -0.6)  # The slowest on top; few bars are no thicker than many.
    _label(axes, "Slowest operations, in % of the time of all")
    if not shown:
        axes.text(0.5, 0.5, "no operations were profiled", transform=axes.transAxes, ha="center", color=_FAINT)


def _label(axes: Any, title: str) -> None:
    axes.set_title(title, loc="left", fontsize=10, color=_INK)
    axes.tick_params(colors=_INK, labelsize=8)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _plain(text: str) -> str:
    """A name that is no formula: matplotlib typesets what stands between dollar signs."""
    return text.replace("$", r"\$")
