"""The curves of a run's metrics as a picture: a panel for each metric, over steps if it has them, else over time."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from ml_diagnostics_common.command.plotting import (
    ALARM,
    FAINT,
    GRID,
    INK,
    PALE,
    new_figure,
    save_figure,
    style_axes,
)
from ml_diagnostics_common.texts import one_line

from google_cloud_mldiagnostics._reading.metric_series import Point, Series

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["Curve", "Limits", "curve_of", "limits_of", "plot_metrics"]

_COLORS: Final = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#bbbbbb", "#222255")
"""Paul Tol's "bright" scheme; people with any kind of color vision can distinguish them."""
_PANEL_WIDTH, _PANEL_HEIGHT = 5.2, 2.75  # inches
_TITLE_HEIGHT: Final = 0.65
_MOST_PANELS: Final = 30
_MOST_LINES: Final = len(_COLORS)
_BINS: Final = 400
_MARKED_BELOW: Final = 40  # points
_CUT_BEYOND: Final = 3.0  # times the range of all other values
_SECOND_NS: Final = 1_000_000_000


class Curve(NamedTuple):
    """A line and its band; if there are many points, each represents several.

    Attributes:
        x: Steps, or seconds.
        mean: The mean of the finite values at x.
        low: The smallest finite value at x.
        high: The largest finite value at x.
    """

    x: list[float]
    mean: list[float]
    low: list[float]
    high: list[float]


class Limits(NamedTuple):
    """The limits of a panel, which leave out a few values that would flatten the rest.

    Attributes:
        low: The smallest value inside.
        high: The largest value inside.
        below: The smallest value below the limits; None if there is none.
        above: The largest value above the limits; None if there is none.
    """

    low: float
    high: float
    below: float | None
    above: float | None


def plot_metrics(
    run_id: str,
    by_metric: Mapping[str, Sequence[Series]],
    path: str | Path,
    *,
    dark: bool = False,
    most_panels: int = _MOST_PANELS,
) -> None:
    """Draw metrics, a panel for each.

    Args:
        run_id: The run, for the title.
        by_metric: Series by metric, in the order of the panels.
        path: The picture to write; its suffix selects the format (.png, .svg, .pdf).
        dark: True for light on dark.
        most_panels: The most metrics to draw; a note has the number of the others.

    Raises:
        OSError: The file cannot be written.
    """
    shown = list(by_metric.items())[:most_panels]
    across = min(3 if len(shown) > 4 else 2, max(1, len(shown)))
    down = max(1, -(-len(shown) // across))
    width, height = _PANEL_WIDTH * across, _TITLE_HEIGHT + _PANEL_HEIGHT * down
    figure = new_figure(width, height, layout="constrained")
    below_title = (0, 0, 1, 1 - _TITLE_HEIGHT / height)
    figure.get_layout_engine().set(rect=below_title, w_pad=0.12, h_pad=0.1)  # type: ignore[union-attr, call-arg]
    points = [point for series in by_metric.values() for one in series for point in one.points[:1] + one.points[-1:]]
    times_ns = [point.timestamp_ns for point in points]
    start_ns = min(times_ns, default=0)
    _write_title(figure, run_id, times_ns, left_out=len(by_metric) - len(shown))
    for number, (metric, series) in enumerate(shown, start=1):
        _draw_panel(figure.add_subplot(down, across, number), metric, series, start_ns)
    save_figure(figure, path, dark=dark)


def curve_of(points: Sequence[tuple[float, Sequence[float]]], bins: int = _BINS) -> Curve:
    """Return the line through points by x, each with its values; of many points, those of a bin are drawn as one.

    Args:
        points: x and its values; values that are not finite are left out.
        bins: The most points of the line.
    """
    known = [(x, [value for value in values if math.isfinite(value)]) for x, values in points]
    known = [(x, values) for x, values in known if values]
    if len(known) > bins:
        first, span = known[0][0], (known[-1][0] - known[0][0]) or 1.0
        gathered: dict[int, tuple[list[float], list[float]]] = {}
        for x, values in known:
            xs, all_values = gathered.setdefault(min(bins - 1, int((x - first) / span * bins)), ([], []))
            xs.append(x)
            all_values.extend(values)
        known = [(math.fsum(xs) / len(xs), values) for _, (xs, values) in sorted(gathered.items())]
    return Curve(
        x=[x for x, _ in known],
        mean=[math.fsum(value / len(values) for value in values) for _, values in known],
        low=[min(values) for _, values in known],
        high=[max(values) for _, values in known],
    )


def limits_of(values: Sequence[float]) -> Limits | None:
    """Return limits that leave out the one or two values in a hundred that are far from all others.

    The first step of a job compiles and takes a hundred times as long, and would make all others seem equal.
    """
    ordered = sorted(value for value in values if math.isfinite(value))
    if not ordered:
        return None
    few = max(2, len(ordered) // 100) if len(ordered) >= 20 else 0
    core = ordered[few : len(ordered) - few] if few else ordered
    span = core[-1] - core[0] or math.inf  # Equal values cannot be flattened.
    reach_low, reach_high = core[0] - _CUT_BEYOND * span, core[-1] + _CUT_BEYOND * span
    kept = [value for value in ordered if reach_low <= value <= reach_high]
    return Limits(
        low=kept[0],
        high=kept[-1],
        below=ordered[0] if ordered[0] < reach_low else None,
        above=ordered[-1] if ordered[-1] > reach_high else None,
    )


def _write_title(figure: Figure, run_id: str, times_ns: Sequence[int], *, left_out: int) -> None:
    """Write the run on the left, and its time on the right."""
    width, height = figure.get_size_inches()
    x, y = 0.15 / width, 1 - 0.3 / height
    figure.text(x, y, one_line(run_id, 70), fontsize=13, weight="bold", color=INK, va="center", parse_math=False)
    remarks = [f"{left_out} more metrics are not drawn"] if left_out else []
    if times_ns:
        first, last = (_minute(time_ns) for time_ns in (min(times_ns), max(times_ns)))
        remarks.append(f"{first} to {last if first[:10] != last[:10] else last[11:]} UTC")
    figure.text(1 - x, y, "; ".join(remarks), fontsize=9, color=FAINT, ha="right", va="center")


def _minute(time_ns: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.gmtime(time_ns // _SECOND_NS))


def _draw_panel(axes: Axes, metric: str, series: Sequence[Series], start_ns: int) -> None:
    over_steps = all(one.has_steps for one in series)
    seconds_a_unit, unit = (1.0, "") if over_steps else _time_unit(series, start_ns)

    def position(point: Point) -> float:
        if over_steps and point.step is not None:
            return float(point.step)
        return (point.timestamp_ns - start_ns) / _SECOND_NS / seconds_a_unit

    kept = {id(one): one.by_step() if over_steps else one.points for one in series}
    drawn = list(series) if len(series) <= _MOST_LINES else []
    for color, one in zip(_COLORS, drawn, strict=False):
        last = kept[id(one)]
        if len(last) < len(one.points):
            last_ids = set(map(id, last))
            _draw_undone(axes, [point for point in one.points if id(point) not in last_ids], position)
        label = f"{one_line(one.host, 24)} ({one.process_index})" if len(series) > 1 else None
        # Over time, a line across a restart would show values that were not measured.
        for part in [last] if over_steps else _by_attempt(last):
            _draw_curve(axes, curve_of([(position(point), point.values) for point in part]), color, label)
            label = None
    if not drawn:  # Too many lines to distinguish: all of them as one, with a band.
        everything = sorted((position(point), point.values) for one in series for point in kept[id(one)])
        _draw_curve(axes, curve_of(everything), _COLORS[0], f"{len(series)} processes")
    _draw_attempts(axes, series, position)
    shown = [point for one in series for point in kept[id(one)]]
    _set_limits(axes, shown, position, "step {:.0f}" if over_steps else "{:.3g} " + unit, has_legend=len(series) > 1)
    _label(axes, metric, series, "step" if over_steps else f"time ({unit})")


def _draw_curve(axes: Axes, curve: Curve, color: str, label: str | None) -> None:
    if curve.low != curve.high:
        axes.fill_between(curve.x, curve.low, curve.high, color=color, alpha=0.22, linewidth=0)
    marker = "o" if len(curve.x) < _MARKED_BELOW else None
    axes.plot(curve.x, curve.mean, color=color, linewidth=1.3, marker=marker, markersize=2.5, label=label)


def _draw_undone(axes: Axes, points: Iterable[Point], position: Callable[[Point], float]) -> None:
    """Draw steps that were repeated after a restart, with their first values."""
    for part in _by_attempt(points):
        curve = curve_of([(position(point), point.values) for point in part])
        axes.plot(curve.x, curve.mean, color=PALE, linewidth=1.0, zorder=1)


def _by_attempt(points: Iterable[Point]) -> list[list[Point]]:
    attempts: dict[str, list[Point]] = {}
    for point in points:
        attempts.setdefault(point.attempt, []).append(point)
    return list(attempts.values())


def _draw_attempts(axes: Axes, series: Sequence[Series], position: Callable[[Point], float]) -> None:
    """Draw a line at the start of each attempt but the first."""
    first: dict[str, Point] = {}
    for one in series:
        for point in one.points:
            if point.attempt not in first or point.timestamp_ns < first[point.attempt].timestamp_ns:
                first[point.attempt] = point
    starts = sorted(first.values(), key=lambda point: point.timestamp_ns)[1:]
    for point in starts:
        axes.axvline(position(point), color=FAINT, linewidth=0.8, linestyle=(0, (3, 3)), zorder=1)
        axes.annotate(
            f"attempt {point.attempt}",
            (position(point), 1.0),
            xycoords=("data", "axes fraction"),
            xytext=(3, -3),
            textcoords="offset points",
            fontsize=6.5,
            color=FAINT,
            va="top",
        )


def _set_limits(
    axes: Axes, shown: Sequence[Point], position: Callable[[Point], float], at: str, *, has_legend: bool
) -> None:
    """Set the limits, write a remark about values outside, and mark values that are not finite."""
    remarks = []
    limits = limits_of([value for point in shown for value in point.values])
    if limits is not None:
        margin = 0.06 * ((limits.high - limits.low) or abs(limits.high) or 1.0)
        # Space for the legend below, and for the numbers of attempts above.
        axes.set_ylim(limits.low - margin * (2.5 if has_legend else 1), limits.high + margin * 1.5)
        for value, arrow in ((limits.above, "\N{UPWARDS ARROW}"), (limits.below, "\N{DOWNWARDS ARROW}")):
            if value is not None:
                where = next(position(point) for point in shown if value in point.values)
                remarks.append(f"{arrow} {_tick(value)} at {at.format(where)}")
    odd = [position(point) for point in shown if not all(map(math.isfinite, point.values))]
    if odd:
        axes.plot(odd, [0.03] * len(odd), "x", color=ALARM, markersize=5, transform=axes.get_xaxis_transform())
        remarks.append(f"{len(odd)} not finite")
    axes.set_title("; ".join(remarks), loc="right", fontsize=7.5, color=ALARM)


def _tick(value: float) -> str:
    """Format a number on an axis: 0.0003, 12.5k, 3M."""
    for size, suffix in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= size and abs(value) < 1e15:
            return f"{value / (1e3 if suffix == 'k' else size):.4g}{suffix}"
    return f"{value:.4g}"


def _label(axes: Axes, metric: str, series: Sequence[Series], x_label: str) -> None:
    unit = series[0].unit
    title = one_line(metric, 44) + (f" ({one_line(unit, 12)})" if unit not in ("", "1") else "")
    style_axes(axes, title)
    axes.set_xlabel(x_label, fontsize=8, color=FAINT)
    axes.yaxis.set_major_formatter(lambda value, _: _tick(value))
    axes.grid(color=GRID, linewidth=0.7)
    axes.set_axisbelow(True)
    axes.margins(x=0.02)
    if len(series) > 1:
        legend = axes.legend(
            fontsize=6.5,
            loc="lower left",  # The search for the best position takes longer than everything else.
            ncols=min(4, len(series)),
            columnspacing=1.0,
            handlelength=1.2,
            framealpha=0.75,
            edgecolor="none",
            labelcolor=INK,
        )
        for text in legend.get_texts():
            text.set_parse_math(False)


def _time_unit(series: Sequence[Series], start_ns: int) -> tuple[float, str]:
    last_ns = max((one.points[-1].timestamp_ns for one in series if one.points), default=start_ns)
    seconds = (last_ns - start_ns) / _SECOND_NS
    units = ((2 * 86_400.0, 86_400.0, "days"), (2 * 3_600.0, 3_600.0, "h"), (180.0, 60.0, "min"))
    return next(((size, name) for least, size, name in units if seconds >= least), (1.0, "s"))
