"""The values of steps that were done again after a restart: the curve by step has the last value of each step alone."""

from __future__ import annotations

import itertools
import math
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from ml_diagnostics_console._web.columns import Column
from ml_diagnostics_console._web.extremes import distinct
from ml_diagnostics_console._web.wire import encode

__all__ = ["header_of", "replaced_points"]

Floats: TypeAlias = npt.NDArray[np.float64]

_MOST_PIECES: Final = 200
_PIXELS_A_BUCKET: Final = 3


def header_of(column: Column, axis: str, width: int) -> dict[str, Any]:
    """Return what the headers of all answers on a column have in common."""
    return {
        "columns": ["x", "y", "mean_x", "mean_y", "p5", "p95"],
        "metric": column.metric,
        "unit": column.unit,
        "host": column.host,
        "process": column.process,
        "x": axis,
        "total": len(column),
        "cursor": len(column),
        "size": width,
    }


def replaced_points(column: Column, axis: str, span: tuple[float, float] | None, width: int) -> bytes:
    """Return the values that were replaced, as an answer with the columns x, y, low and high.

    One curve follows the other, by time, each with a NaN behind it. Of many values, `y` is the mean of those in a
    bucket of three pixels, and `low` and `high` are its extremes. Of more than 200 curves, the last ones are answered.

    Args:
        column: The values.
        axis: The axis; by time all values are in the curve itself.
        span: The steps that are shown; None for all.
        width: The width of the drawing, in pixels.
    """
    curves = [] if axis != "step" else _curves(column, span or (-math.inf, math.inf))
    shown = curves[-_MOST_PIECES:]
    bucket = _length(column, span) / max(1, width // _PIXELS_A_BUCKET)
    parts = [_in_buckets(*curve, bucket) for curve in shown]
    answered = np.concatenate(parts, axis=1) if parts else np.empty((4, 0))
    finite = np.isfinite(answered[1])
    header = {
        **header_of(column, axis, width),
        "columns": ["x", "y", "low", "high"],
        "points": sum(len(steps) for steps, _ in curves),
        "curves": len(curves),
        "from": None if span is None else span[0],
        "to": None if span is None else span[1],
        "least": float(answered[2, finite].min()) if finite.any() else None,
        "greatest": float(answered[3, finite].max()) if finite.any() else None,
    }
    return encode(header, list(answered))


def _length(column: Column, span: tuple[float, float] | None) -> float:
    """Return the length of the axis that is shown."""
    curve = column.by_step()
    if not len(curve):
        return 0.0
    first, last = float(curve.positions(0, 1)[0]), float(curve.positions(len(curve) - 1)[0])
    low, high = span or (first, last)
    return (last if math.isinf(high) else high) - (first if math.isinf(low) else low)


def _curves(column: Column, span: tuple[float, float]) -> list[tuple[Floats, Floats]]:
    """Return steps and values of each stretch that was replaced, in which the steps ascend."""
    found = []
    for first, last in column.replaced():
        steps, values = column.steps_of(first, last), column.value[first:last]
        cuts = [0, *(1 + np.flatnonzero(np.diff(steps) <= 0)).tolist(), last - first]
        for start, end in itertools.pairwise(cuts):
            own = steps[start:end]
            low, high = int(np.searchsorted(own, span[0])), int(np.searchsorted(own, span[1], side="right"))
            if low < high:
                # With the points before and after the window, so that the line reaches its edges.
                inside = slice(start + max(0, low - 1), min(end, start + high + 1))
                found.append((steps[inside], values[inside]))
    return found


def _in_buckets(steps: Floats, values: Floats, bucket: float) -> Floats:
    """Return position, mean, least and greatest value of each bucket as lines, with a NaN behind."""
    count = len(steps)
    buckets = math.ceil((float(steps[-1]) - float(steps[0])) / bucket) if bucket > 0 else count
    if count <= buckets:
        return np.array([np.append(line, np.nan) for line in (steps, values, values, values)])
    limits = np.linspace(steps[0], steps[-1], max(1, buckets) + 1)[1:-1]
    edges = distinct(np.concatenate(([0], np.searchsorted(steps, limits), [count])).astype(np.int64)).tolist()
    lines = np.full((4, len(edges)), np.nan)
    for number, (start, end) in enumerate(itertools.pairwise(edges)):
        part = values[start:end]
        part = part[np.isfinite(part)]
        lines[0, number] = steps[start:end].mean()
        if len(part):
            lines[1:, number] = part.mean(), part.min(), part.max()
    return lines
