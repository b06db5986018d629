"""The values of a metric for a drawing: real points with both extremes of each pixel, and the band of all values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from ml_diagnostics_console._web.answers import Answer, NotThereError, binary_answer
from ml_diagnostics_console._web.columns import Column
from ml_diagnostics_console._web.host_matrix import host_matrix
from ml_diagnostics_console._web.quantiles import quantile
from ml_diagnostics_console._web.queries import Query
from ml_diagnostics_console._web.run_data import RunData
from ml_diagnostics_console._web.tiles import Tiles, distinct
from ml_diagnostics_console._web.wire import encode

__all__ = ["columns_of", "points"]

Floats: TypeAlias = npt.NDArray[np.float64]
Rows: TypeAlias = npt.NDArray[np.int64]

_POINTS_A_PIXEL: Final = 4
_PIXELS_A_BUCKET: Final = 3
_LOW, _HIGH = 0.05, 0.95
_ROBUST: Final = (0.01, 0.985)
_MOST_RANGES: Final = 200
_LONGEST_NAME: Final = 80


class _Axis(NamedTuple):
    """The values of one column on an axis.

    Attributes:
        name: step, time or elapsed.
        positions: The positions of the values, ascending; on the axis of time, also for elapsed.
        values: The values.
        tiles: Their tiles.
        origin: The number that is subtracted from the positions in the answer.
    """

    name: str
    positions: Floats
    values: Floats
    tiles: Tiles
    origin: float


def columns_of(run: RunData, metric: str) -> list[Column]:
    """Return the columns of a metric by process.

    Raises:
        NotThereError: The run has no such metric.
    """
    columns = run.columns.of(metric)
    if not columns:
        shown = metric if len(metric) <= _LONGEST_NAME else metric[:_LONGEST_NAME] + "..."
        raise NotThereError(f"The run has no metric {shown!r}.")
    return columns


def points(run: RunData, query: Query) -> Answer:
    """Answer the points of a metric: of one process (`series`), or the spread of all hosts (`hosts=spread`).

    Raises:
        NotThereError: The run has no such metric or process.
        BadQueryError: A parameter is not valid.
    """
    columns = columns_of(run, query.text("metric"))
    axis, span, width = query.choice("x", ("step", "time", "elapsed")), query.span(), query.width()
    is_spread = query.choice("hosts", ("", "spread")) == "spread"
    series, after = query.natural("series", 0), query.natural("after", -1) if query.text("after") else None
    if series >= len(columns):
        raise NotThereError(f"The metric has {len(columns)} series.")
    if axis == "step" and not any(column.has_steps for column in (columns if is_spread else [columns[series]])):
        axis, span = "time", None
    key = ("points", columns[0].metric, axis, span, width, is_spread, series, after)

    def made() -> bytes:
        if is_spread:
            return _spread(run, columns, axis, span, width)
        if after is not None:
            return _appended(run, columns[series], axis, after, width)
        return _points(run, columns[series], axis, span, width)

    return binary_answer(run.cached(key, made))


def _axis(run: RunData, column: Column, name: str) -> _Axis:
    if name == "step":
        positions, values, tiles = column.by_step()
        return _Axis(name, positions, values, tiles, 0.0)
    return _Axis(name, column.time, column.value, column.tiles, run.started_s if name == "elapsed" else 0.0)


def _points(run: RunData, column: Column, name: str, span: tuple[float, float] | None, width: int) -> bytes:
    axis = _axis(run, column, name)
    rows_in_all = len(axis.positions)
    low, high = (-math.inf, math.inf) if span is None else (span[0] + axis.origin, span[1] + axis.origin)
    first, last = (int(row) for row in np.searchsorted(axis.positions, (low, np.nextafter(high, math.inf))))
    is_exact = last - first <= _POINTS_A_PIXEL * width
    if is_exact:
        # With the points before and after the window, so that the line reaches its edges.
        rows = np.arange(max(0, first - 1), min(rows_in_all, last + 1))
        inside = axis.values[first:last]
        finite = inside[np.isfinite(inside)]
    else:
        rows = axis.tiles.extremes(_edges(axis.positions, first, last, width))
        finite = axis.values[rows]
        ends = np.array((max(0, first - 1), first, last - 1, min(rows_in_all, last + 1) - 1), np.int64)
        rows = distinct(np.concatenate((rows, ends)))
    band = _band(axis, first, last, max(1, width // _PIXELS_A_BUCKET))
    header = {
        **_header(column, name, width),
        "points": last - first,
        "exact": is_exact,
        "from": None if span is None else span[0],
        "to": None if span is None else span[1],
        "attempt_marks": _attempt_marks(run, column, axis),
        "nonfinite": _nonfinite(axis, first, last, width),
        **_limits(finite, band),
    }
    x, mean_x = axis.positions[rows] - axis.origin, band[0] - axis.origin
    return encode(header, [x, axis.values[rows], mean_x, *band[1:]])


def _appended(run: RunData, column: Column, name: str, after: int, width: int) -> bytes:
    """Return the points that were appended to the first `after` ones.

    `reset` in the header is true if these do not follow the others, or are too many: then all are to be read again.
    """
    axis = _axis(run, column, name)
    positions, values = column.step if name == "step" else column.time, column.value
    first = min(after, len(values))
    new, before = positions[first:], positions[:first]
    is_in_order = bool((new[1:] > new[:-1]).all()) if name == "step" else after >= column.sorted_rows
    if name == "step" and len(new) and len(before):
        is_in_order = is_in_order and bool(new[0] > np.nanmax(before))
    is_reset = not is_in_order or len(new) > _POINTS_A_PIXEL * width
    if is_reset:
        first = len(values)
    added = _Axis(name, positions, values, axis.tiles, axis.origin)
    part = values[first:]
    nothing = np.empty(0)
    header = {
        **_header(column, name, width),
        "points": len(part),
        "exact": True,
        "reset": is_reset,
        "nonfinite": _nonfinite(added, first, len(values), width),
        **_limits(part[np.isfinite(part)], [nothing] * 4),
    }
    return encode(header, [positions[first:] - axis.origin, part, nothing, nothing, nothing, nothing])


def _header(column: Column, name: str, width: int) -> dict[str, Any]:
    return {
        "columns": ["x", "y", "mean_x", "mean_y", "p5", "p95"],
        "metric": column.metric,
        "unit": column.unit,
        "host": column.host,
        "process": column.process,
        "x": name,
        "total": len(column),
        "cursor": len(column),
        "size": width,
    }


def _edges(positions: Floats, first: int, last: int, count: int) -> Rows:
    """Return the rows at which pieces of equal length of the axis start, and the row after the last."""
    limits = np.linspace(positions[first], positions[last - 1], count + 1)[1:-1]
    cuts = first + np.searchsorted(positions[first:last], limits)
    return np.concatenate(([first], cuts, [last])).astype(np.int64)


def _band(axis: _Axis, first: int, last: int, buckets: int) -> list[Floats]:
    """Return position, mean, 5th and 95th percentile of all finite values in each bucket; empty if few."""
    if last - first <= buckets:
        return [np.empty(0)] * 4
    edges = distinct(_edges(axis.positions, first, last, buckets))
    values = axis.values[first:last]
    finite = np.isfinite(values)
    is_all_finite = bool(finite.all())
    starts = edges[:-1] - first
    counts = np.diff(edges) if is_all_finite else np.add.reduceat(finite.astype(np.int64), starts)
    full = np.flatnonzero(counts)
    with np.errstate(over="ignore"):
        sums = np.add.reduceat(values if is_all_finite else np.where(finite, values, 0.0), starts)
        # Relative to the first position: a sum of a million times of 1.7e9 s would lose microseconds.
        origin = axis.positions[first]
        positions = origin + np.add.reduceat(axis.positions[first:last] - origin, starts) / np.diff(edges)
    low, high = np.empty(len(full)), np.empty(len(full))
    for number, bucket in enumerate(full):
        part = values[starts[bucket] : edges[bucket + 1] - first]
        if not is_all_finite:
            part = part[np.isfinite(part)]
        lowest, highest = int(_LOW * (len(part) - 1)), math.ceil(_HIGH * (len(part) - 1))
        ordered = np.partition(part, (lowest, highest))
        low[number], high[number] = ordered[lowest], ordered[highest]
    return [positions[full], sums[full] / counts[full], low, high]


def _limits(values: Floats, band: Sequence[Floats]) -> dict[str, float | None]:
    """Return the robust range of a drawing (`lo`, `hi`), and the least and greatest finite value."""
    if not len(values):
        return {"lo": None, "hi": None, "least": None, "greatest": None}
    lows, highs = (band[2], band[3]) if len(band[2]) else (values, values)
    return {
        "lo": quantile(lows, _ROBUST[0]),
        "hi": quantile(highs, _ROBUST[1]),
        "least": float(values.min()),
        "greatest": float(values.max()),
    }


def _nonfinite(axis: _Axis, first: int, last: int, width: int) -> list[list[Any]]:
    """Return where values are not finite: start, end, number and NaN or inf; neighbours within a pixel are one."""
    values = axis.values[first:last]
    rows = first + np.flatnonzero(~np.isfinite(values))
    if not len(rows):
        return []
    positions = axis.positions[rows]
    pixel = max(float(axis.positions[last - 1] - axis.positions[first]) / min(width, _MOST_RANGES), 0.0)
    is_nan = np.isnan(axis.values[rows])
    is_far = (np.diff(positions) > pixel) & (np.diff(rows) > 1)
    starts = np.concatenate(([0], 1 + np.flatnonzero(is_far)))
    ends = np.append(starts[1:], len(rows))
    return [
        [
            float(positions[start] - axis.origin),
            float(positions[end - 1] - axis.origin),
            int(end - start),
            "NaN" if is_nan[start:end].any() else "inf",
        ]
        for start, end in zip(starts, ends, strict=True)
    ]


def _attempt_marks(run: RunData, column: Column, axis: _Axis) -> list[list[float]]:
    """Return where on the axis each attempt starts, with its number."""
    marks = []
    for attempt in run.attempts:
        position = attempt.started_s - axis.origin
        if axis.name == "step":
            row = int(np.searchsorted(column.time, attempt.started_s))
            if row >= len(column):
                continue
            position = float(column.step[row])
        if math.isfinite(position):
            marks.append([position, attempt.number])
    return marks


def _spread(run: RunData, columns: Sequence[Column], name: str, span: tuple[float, float] | None, width: int) -> bytes:
    origin = run.started_s if name == "elapsed" else 0.0
    shifted = None if span is None else (span[0] + origin, span[1] + origin)
    axis = "step" if name == "step" else "time"
    matrix = host_matrix(run, columns, axis, shifted, max(1, width // _PIXELS_A_BUCKET))
    middles = (matrix.edges[1:] + matrix.edges[:-1]) / 2 - origin
    known = np.flatnonzero(np.isfinite(matrix.means).any(axis=0))
    least, low, mean, high, greatest = _across_hosts(matrix.means[:, known])
    names = ["x", "min", "p10", "mean", "p90", "max"]
    arrays = [middles[known], least, low, mean, high, greatest]
    if matrix.odd is not None:
        own = matrix.means[matrix.odd.row]
        is_known = np.isfinite(own)
        names += ["odd_x", "odd_y"]
        arrays += [middles[is_known], own[is_known]]
    header = {
        "columns": names,
        "metric": columns[0].metric,
        "unit": columns[0].unit,
        "x": name,
        "hosts": len(columns),
        "total": sum(map(len, columns)),
        "exact": False,
        "size": width,
        "from": None if span is None else span[0],
        "to": None if span is None else span[1],
        "attempt_marks": _attempt_marks(run, columns[0], _axis(run, columns[0], name)),
        "nonfinite": [],
        "odd": None if matrix.odd is None else matrix.odd.to_json(),
        **_limits(np.concatenate((least, greatest)), (least, least, low, high)),
    }
    return encode(header, arrays)


def _across_hosts(means: Floats) -> tuple[Floats, Floats, Floats, Floats, Floats]:
    """Return minimum, 10th percentile, mean, 90th percentile and maximum of the hosts in each column with a value."""
    if not means.shape[1]:
        return (np.empty(0),) * 5
    values = np.where(np.isfinite(means), means, np.nan)
    ordered = np.sort(values, axis=0)  # NaN is last.
    counts = (~np.isnan(values)).sum(axis=0)
    columns = np.arange(values.shape[1])
    low = ordered[np.floor(0.1 * (counts - 1)).astype(np.int64), columns]
    high = ordered[np.ceil(0.9 * (counts - 1)).astype(np.int64), columns]
    return ordered[0], low, np.nansum(values, axis=0) / counts, high, ordered[counts - 1, columns]
