"""A job's time as a picture: one colored timeline, a column for each moment, a color for each bucket."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ml_diagnostics_common.command.plotting import ALARM, FAINT, INK, PAPER, new_figure, save_figure
from ml_diagnostics_common.texts import format_clock, format_count, format_percent, one_line

from ml_goodput_measurement._cli.buckets import BUCKET_NAMES, COLORS, column_shares
from ml_goodput_measurement._cli.report import format_ns, percent, rows
from ml_goodput_measurement.partition import AttemptSummary, Bucket, JobReport, Piece

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["plot_timeline", "ticks", "with_straight_edges"]

_WIDTH = 12.0  # inches; the height depends on the legend
_LEFT, _RIGHT = 0.035, 0.965  # of the width
_TIMELINE_HEIGHT = 0.8  # inches, as all heights below
_ABOVE_TIMELINE = 1.35
_BELOW_TIMELINE = 0.75
_LEGEND_LINE = 0.29
_LEGEND_COLUMNS = 3
_COLUMNS, _ROWS = 1674, 120  # of colored cells: a column for each dot
_CHARACTER = 0.0062  # of the timeline's width, at the size of the attempts' labels

_HATCH = "///////"
_SECOND_NS = 1_000_000_000
_TICK_SECONDS = tuple(
    count * unit
    for unit, counts in (
        (1, (1, 2, 5, 10, 15, 30)),
        (60, (1, 2, 5, 10, 15, 30)),
        (3_600, (1, 2, 3, 6, 12)),
        (86_400, (1, 2, 5, 10, 20, 50, 100, 200, 500)),
    )
    for count in counts
)


def plot_timeline(report: JobReport, path: str | Path, *, dark: bool = False) -> None:
    """Draw a job's timeline with its attempts and disruptions.

    Args:
        report: The job.
        path: The picture to write; its suffix selects the format (.png, .svg, .pdf).
        dark: True for light on dark.

    Raises:
        OSError: The file cannot be written.
    """
    legend_lines = -(-len(rows(report)) // _LEGEND_COLUMNS)
    height = _ABOVE_TIMELINE + _TIMELINE_HEIGHT + _BELOW_TIMELINE + _LEGEND_LINE * legend_lines
    figure = new_figure(_WIDTH, height)
    page = figure.add_axes((0, 0, 1, 1), xlim=(0, 1), ylim=(height, 0))  # in inches from the top
    page.axis("off")
    _write_headline(page, report)
    _write_legend(page, report, top=_ABOVE_TIMELINE + _TIMELINE_HEIGHT + _BELOW_TIMELINE)

    bottom = 1 - (_ABOVE_TIMELINE + _TIMELINE_HEIGHT) / height
    timeline = figure.add_axes((_LEFT, bottom, _RIGHT - _LEFT, _TIMELINE_HEIGHT / height))
    timeline.autoscale(False)
    timeline.set(xlim=(0, _wall_seconds(report)), ylim=(0, 1), yticks=[])
    _paint_pieces(timeline, report)
    _hatch_excluded(timeline, report)
    _draw_attempts(timeline, report)
    _draw_clock(timeline, report)
    save_figure(figure, path, dark=dark)


def ticks(wall_seconds: float) -> Iterator[tuple[float, str]]:
    """Yield the marks of an axis that starts at 0: seconds, and a label in a unit that suits the length."""
    shortest = wall_seconds / 12
    step = next((float(step) for step in _TICK_SECONDS if step >= shortest), _TICK_SECONDS[-1])
    if wall_seconds < 4:
        step = wall_seconds / 4
    unit, name = next((pair for pair in ((86_400, "d"), (3_600, "h"), (60, "min")) if step >= pair[0]), (1, "s"))
    for index in range(int(wall_seconds / step) + 1):
        yield index * step, f"{index * step / unit:g} {name}" if wall_seconds >= 4 else f"{index * step:.3g} s"


def _paint_pieces(axes: Axes, report: JobReport) -> None:
    """Paint each column from the bottom up: productive time, then the rest in the order of the legend."""
    import numpy as np
    from matplotlib.colors import to_rgb

    order = list(BUCKET_NAMES)
    pieces = with_straight_edges(report.timeline, report.start_ns, (report.wall_ns or 1) / _COLUMNS)
    shares = column_shares(pieces, report.start_ns, report.end_ns, _COLUMNS)
    tops = np.cumsum([[column.get(bucket, 0.0) for bucket in order] for column in shares], axis=1)
    middles = (np.arange(_ROWS) + 0.5) / _ROWS
    owners = (tops[None, :, :] <= middles[:, None, None]).sum(axis=2)  # the first bucket with its top above the row
    palette = np.array([to_rgb(COLORS[bucket]) for bucket in order] + [(1.0, 1.0, 1.0)])
    axes.imshow(
        palette[owners],
        extent=(0.0, _wall_seconds(report), 0.0, 1.0),
        origin="lower",
        aspect="auto",
        interpolation="none",
    )


def with_straight_edges(pieces: Sequence[Piece], start_ns: int, column_ns: float) -> list[Piece]:
    """Move the border between two long pieces to the nearest column, by half a dot at most; others stay exact."""
    cuts = [piece.start_ns for piece in pieces]
    for index, (before, after) in enumerate(pairwise(pieces), start=1):
        if min(before.end_ns - before.start_ns, after.end_ns - after.start_ns) > 2 * column_ns:
            cuts[index] = start_ns + round(round((after.start_ns - start_ns) / column_ns) * column_ns)
    ends = [*cuts[1:], *(piece.end_ns for piece in pieces[-1:])]
    return [replace(piece, start_ns=cut, end_ns=end) for piece, cut, end in zip(pieces, cuts, ends, strict=True)]


def _hatch_excluded(axes: Axes, report: JobReport) -> None:
    """Hatch each stretch of excluded time that is wide enough to be visible."""
    from matplotlib.patches import Rectangle

    stretches: list[tuple[int, int]] = []
    for piece in report.timeline:
        if piece.bucket is Bucket.EXCLUDED:
            is_next = stretches and stretches[-1][1] == piece.start_ns
            stretches.append((stretches.pop()[0] if is_next else piece.start_ns, piece.end_ns))
    for start_ns, end_ns in stretches:
        left, right = _offset(report, start_ns), _offset(report, end_ns)
        if (right - left) * _COLUMNS >= _wall_seconds(report):
            axes.add_patch(Rectangle((left, 0.0), right - left, 1.0, linewidth=0.4, **_style(Bucket.EXCLUDED)))


def _draw_attempts(axes: Axes, report: JobReport) -> None:
    """Draw a line above the timeline for each attempt, and a mark where one was cut short."""
    wall = _wall_seconds(report)
    for attempt in report.attempts:
        left, right = (_offset(report, time_ns) for time_ns in (attempt.start_ns, attempt.end_ns))
        axes.plot([left, right], [1.14, 1.14], color=INK, linewidth=2.5, solid_capstyle="butt", clip_on=False)
        label = _attempt_label(attempt, width=(right - left) / wall)
        axes.text((left + right) / 2, 1.21, label, ha="center", va="bottom", fontsize=9, color=INK)
    for disruption in report.disruptions:
        lost = _offset(report, disruption.last_event_ns)
        axes.plot([lost], [1.14], marker="X", markersize=9, color=ALARM, markeredgecolor=PAPER, clip_on=False)


def _attempt_label(attempt: AttemptSummary, width: float) -> str:
    """Return as much of an attempt's label as fits into its width, a share of the timeline's."""
    number = str(attempt.number)
    labels = [f"attempt {number}", number, ""]
    if attempt.last_step is not None:
        labels.insert(0, f"attempt {number}: steps {attempt.first_step} to {attempt.last_step}")
    return next(label for label in labels if len(label) * _CHARACTER <= width or not label)


def _draw_clock(axes: Axes, report: JobReport) -> None:
    """Label the time since the job's start."""
    positions, labels = zip(*ticks(_wall_seconds(report)), strict=True)
    axes.set_xticks(positions, labels)
    axes.tick_params(axis="x", length=4, color=FAINT, labelcolor=FAINT, labelsize=9)
    axes.spines[:].set_visible(False)


def _write_headline(page: Axes, report: JobReport) -> None:
    excluded_ns = report.buckets[Bucket.EXCLUDED]
    facts = [
        format_ns(report.wall_ns) + (" so far" if report.running else ""),
        *([f"{format_ns(excluded_ns)} of it excluded"] if excluded_ns else []),
        format_count(len(report.attempts), "attempt"),
    ]
    if report.disruptions:
        cost = format_ns(sum(disruption.cost_ns for disruption in report.disruptions))
        facts.append(f"{format_count(len(report.disruptions), 'disruption')} (cost {cost})")
    if report.steps_kept:
        facts.append(f"last step {report.last_step}")
    facts.append(f"started {format_clock(report.start_ns)}")
    page.text(_LEFT, 0.42, one_line(report.job_name, 60), fontsize=16, weight="bold", color=INK, parse_math=False)
    page.text(
        _RIGHT,
        0.42,
        f"{format_percent(report.goodput_percent)} goodput",
        fontsize=16,
        weight="bold",
        color=INK,
        ha="right",
    )
    page.text(_LEFT, 0.72, "   \N{MIDDLE DOT}   ".join(facts), fontsize=10, color=FAINT)


def _write_legend(page: Axes, report: JobReport, top: float) -> None:
    """Write the meaning and the time of each color, down one column after the other."""
    from matplotlib.patches import Rectangle

    entries = rows(report)
    lines = -(-len(entries) // _LEGEND_COLUMNS)
    column_width = (_RIGHT - _LEFT) / _LEGEND_COLUMNS
    for index, (bucket, name, duration_ns) in enumerate(entries):
        left = _LEFT + column_width * (index // lines)
        middle = top + _LEGEND_LINE * (index % lines)
        page.add_patch(Rectangle((left, middle - 0.08), 0.015, 0.16, linewidth=0.4, **_style(bucket)))
        share = percent(report, bucket, duration_ns)
        style: dict[str, Any] = {"fontsize": 10, "va": "center_baseline", "parse_math": False}
        page.text(left + 0.022, middle, one_line(name, 32), color=INK, **style)
        page.text(left + 0.222, middle, format_percent(share), color=INK, ha="right", **style)
        page.text(left + 0.232, middle, format_ns(duration_ns), color=FAINT, **style)


def _style(bucket: Bucket) -> dict[str, Any]:
    """Return the style of a rectangle of a bucket."""
    hatch = _HATCH if bucket is Bucket.EXCLUDED else None
    return {"facecolor": COLORS[bucket], "edgecolor": FAINT, "hatch": hatch}


def _offset(report: JobReport, time_ns: int) -> float:
    return (time_ns - report.start_ns) / _SECOND_NS


def _wall_seconds(report: JobReport) -> float:
    return max(report.wall_ns, 1) / _SECOND_NS
