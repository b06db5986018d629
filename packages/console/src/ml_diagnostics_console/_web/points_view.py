"""The values of a metric for a drawing: real points with both extremes of each pixel, and the band of all values."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from ml_diagnostics_console._web.answers import Answer, NotThereError, binary_answer
from ml_diagnostics_console._web.columns import Column
from ml_diagnostics_console._web.curve import Curve
from ml_diagnostics_console._web.extremes import distinct, extremes
from ml_diagnostics_console._web.host_matrix import host_matrix
from ml_diagnostics_console._web.quantiles import quantile
from ml_diagnostics_console._web.queries import Query, quoted
from ml_diagnostics_console._web.replaced_points import header_of, replaced_points
from ml_diagnostics_console._web.run_data import RunData
from ml_diagnostics_console._web.wire import encode

__all__ = ["columns_of", "points"]

Floats: TypeAlias = npt.NDArray[np.float64]
Rows: TypeAlias = npt.NDArray[np.int64]

_POINTS_A_PIXEL: Final = 4
_PIXELS_A_BUCKET: Final = 3
_LOW, _HIGH = 0.05, 0.95
_ROBUST: Final = (0.01, 0.985)
_MOST_RANGES: Final = 200


class _Axis(NamedTuple):
    """The values of one column on an axis.

    Attributes:
        name: step, time or elapsed.
        curve: The values by their position; on the axis of time, also for elapsed.
        origin: The number that is subtracted from the positions in the answer.
    """

    name: str
    curve: Curve
    origin: float

    def rows(self, span: tuple[float, float] | None) -> tuple[int, int]:
        """Return the first value of a span, and the first one behind it."""
        return (0, len(self.curve)) if span is None else self.curve.rows(span[0] + self.origin, span[1] + self.origin)


def columns_of(run: RunData, metric: str) -> list[Column]:
    """Return the columns of a metric by process.

    Raises:
        NotThereError: The run has no such metric.
    """
    columns = run.columns.of(metric)
    if not columns:
        raise NotThereError(f"The run has no metric {quoted(metric)}.")
    return columns


def points(run: RunData, query: Query) -> Answer:
    """Answer the points of a metric: of one process (`series`), or the spread of all hosts (`hosts=spread`).

    With `replaced`, only the values of steps that were done again are answered, which the curve by step has no more.

    Raises:
        NotThereError: The run has no such metric or process.
        BadQueryError: A parameter is not valid.
    """
    columns = columns_of(run, query.text("metric"))
    axis, span, width = query.choice("x", ("step", "time", "elapsed")), query.span(), query.width()
    is_spread = query.choice("hosts", ("", "spread")) == "spread"
    is_replaced = query.choice("replaced", ("", "1")) == "1"
    series, after = query.natural("series", 0), query.natural("after", -1) if query.text("after") else None
    if series >= len(columns):
        raise NotThereError(f"The metric has {len(columns)} series.")
    if axis == "step" and not any(column.has_steps for column in (columns if is_spread else [columns[series]])):
        axis, span = "time", None
    key = ("points", columns[0].metric, axis, span, width, is_spread, is_replaced, series, after)

    def made() -> bytes:
        if is_replaced:
            return replaced_points(columns[series], axis, span, width)
        if is_spread:
            return _spread(run, columns, axis, span, width)
        if after is not None:
            return _appended(run, columns[series], axis, after, width)
        return _points(run, columns[series], axis, span, width)

    return binary_answer(run.cached(key, made))


def _axis(run: RunData, column: Column, name: str) -> _Axis:
    if name == "step":
        return _Axis(name, column.by_step(), 0.0)
    return _Axis(name, column.by_time(), run.started_s if name == "elapsed" else 0.0)


def _points(run: RunData, column: Column, name: str, span: tuple[float, float] | None, width: int) -> bytes:
    axis = _axis(run, column, name)
    curve = axis.curve
    first, last = axis.rows(span)
    # With the points before and after the window, so that the line reaches its edges.
    start, end = max(0, first - 1), min(len(curve), last + 1)
    x, y = curve.positions(start, end), curve.values(start, end)
    inside_x, inside_y = x[first - start : last - start], y[first - start : last - start]
    is_exact = last - first <= _POINTS_A_PIXEL * width
    if is_exact:
        rows = np.arange(end - start)
        finite = _finite(inside_y)
    else:
        found = extremes(inside_y, _edges(inside_x, width))
        finite = inside_y[found]
        ends = np.array((0, first - start, last - start - 1, end - start - 1), np.int64)
        rows = distinct(np.concatenate((found + (first - start), ends)))
    band = _band(inside_x, inside_y, max(1, width // _PIXELS_A_BUCKET))
    header = {
        **header_of(column, name, width),
        "points": last - first,
        "exact": is_exact,
        "from": None if span is None else span[0],
        "to": None if span is None else span[1],
        "replaced": len(column) - len(curve) if name == "step" and column.has_steps else 0,
        "attempt_marks": _attempt_marks(run, column, axis),
        "nonfinite": _nonfinite(inside_x - axis.origin, inside_y, width),
        **_limits(finite, band),
    }
    return encode(header, [x[rows] - axis.origin, y[rows], band[0] - axis.origin, *band[1:]])


def _appended(run: RunData, column: Column, name: str, after: int, width: int) -> bytes:
    """Return the points that were appended to the first `after` ones.

    `reset` in the header is true if these do not follow the others, or are too many: then all are to be read again.
    """
    count = len(column)
    first = min(after, count)
    new = column.steps_of(first, count) if name == "step" else column.time[first:]
    if name == "step":
        is_in_order = bool((new[1:] > new[:-1]).all())
        if is_in_order and first and len(new):
            is_in_order = bool(new[0] > np.nanmax(column.steps_of(0, first)))
    else:
        is_in_order = after >= column.sorted_rows
    is_reset = not is_in_order or len(new) > _POINTS_A_PIXEL * width
    if is_reset:
        first, new = count, new[:0]
    x, y = new - (run.started_s if name == "elapsed" else 0.0), column.value[first:]
    nothing = np.empty(0)
    header = {
        **header_of(column, name, width),
        "points": len(y),
        "exact": True,
        "reset": is_reset,
        "nonfinite": _nonfinite(x, y, width),
        **_limits(_finite(y), [nothing] * 4),
    }
    return encode(header, [x, y, nothing, nothing, nothing, nothing])


def _edges(positions: Floats, count: int) -> Rows:
    """Return the rows at which pieces of equal length of the axis start, and the row after the last."""
    limits = np.linspace(positions[0], positions[-1], count + 1)[1:-1]
    return np.concatenate(([0], np.searchsorted(positions, limits), [len(positions)])).astype(np.int64)


def _band(positions: Floats, values: Floats, buckets: int) -> list[Floats]:
    """Return position, mean, 5th and 95th percentile of all finite values in each bucket; empty if few."""
    if len(values) <= buckets:
        return [np.empty(0)] * 4
    limits = distinct(_edges(positions, buckets)).tolist()
    is_all_finite = bool(np.isfinite(values).all())
    found = []
    with np.errstate(over="ignore"):
        for start, end in itertools.pairwise(limits):
            part = values[start:end] if is_all_finite else _finite(values[start:end])
            if len(part):
                middle = float(positions[start:end].sum()) / (end - start)
                found.append((middle, float(part.sum()) / len(part), *_percentiles(part)))
    return list(np.array(found).reshape(-1, 4).T)


def _finite(values: Floats) -> Floats:
    """Return the values that are finite."""
    return values[np.isfinite(values)]


def _percentiles(values: Floats) -> tuple[float, float]:
    """Return the 5th and the 95th percentile of at least one finite value: two of these."""
    low, high = int(_LOW * (len(values) - 1)), math.ceil(_HIGH * (len(values) - 1))
    ordered = values.copy()
    ordered.partition(low)  # One after the other: for two at once, numpy has no fast way.
    if high > low:
        ordered[low + 1 :].partition(high - low - 1)
    return float(ordered[low]), float(ordered[high])


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


def _nonfinite(positions: Floats, values: Floats, width: int) -> list[list[Any]]:
    """Return where values are not finite: start, end, number and NaN or inf; neighbours within a pixel are one."""
    rows = np.flatnonzero(~np.isfinite(values))
    if not len(rows):
        return []
    found = positions[rows]
    pixel = max(float(positions[-1] - positions[0]) / min(width, _MOST_RANGES), 0.0)
    is_nan = np.isnan(values[rows])
    is_far = (np.diff(found) > pixel) & (np.diff(rows) > 1)
    starts = np.concatenate(([0], 1 + np.flatnonzero(is_far)))
    ends = np.append(starts[1:], len(rows))
    return [
        [float(found[start]), float(found[end - 1]), int(end - start), "NaN" if is_nan[start:end].any() else "inf"]
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
            position = float(column.steps_of(row, row + 1)[0])
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
