"""The values of steps that were done again after a restart: the curve by step has the last value of each step alone."""

from __future__ import annotations

import math
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from ml_diagnostics_console._web.columns import Column
from ml_diagnostics_console._web.extremes import extremes
from ml_diagnostics_console._web.wire import encode

__all__ = ["header_of", "replaced_points"]

Floats: TypeAlias = npt.NDArray[np.float64]

_MOST_PIECES: Final = 200


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
    """Return the values that were replaced, as an answer with the columns x and y.

    One curve follows the other, by time, each with a NaN behind it. Of many values, both extremes of each pixel are
    answered; of more than 200 curves, the last ones.

    Args:
        column: The values.
        axis: The axis; by time all values are in the curve itself.
        span: The steps that are shown; None for all.
        width: The width of the drawing, in pixels.
    """
    curves = [] if axis != "step" else _curves(column, span or (-math.inf, math.inf))
    count = sum(len(steps) for steps, _ in curves)
    shown = [_thinned(*curve, width) for curve in curves[-_MOST_PIECES:]]
    nothing = np.empty(0)
    finite = np.concatenate([values[np.isfinite(values)] for _, values in shown]) if shown else nothing
    header = {
        **header_of(column, axis, width),
        "columns": ["x", "y"],
        "points": count,
        "curves": len(curves),
        "exact": sum(len(steps) for steps, _ in shown) == count,
        "from": None if span is None else span[0],
        "to": None if span is None else span[1],
        "least": float(finite.min()) if len(finite) else None,
        "greatest": float(finite.max()) if len(finite) else None,
    }
    end = np.array([np.nan])
    columns = [np.concatenate([part for curve in shown for part in (curve[at], end)] or [nothing]) for at in (0, 1)]
    return encode(header, columns)


def _curves(column: Column, span: tuple[float, float]) -> list[tuple[Floats, Floats]]:
    """Return steps and values of each stretch that was replaced, in which the steps ascend."""
    found = []
    for first, last in column.replaced():
        steps, values = column.steps_of(first, last), column.value[first:last]
        for part in np.split(np.arange(last - first), 1 + np.flatnonzero(np.diff(steps) <= 0)):
            own = steps[part]
            start, end = np.searchsorted(own, span[0]), np.searchsorted(own, span[1], side="right")
            if start < end:
                # With the points before and after the window, so that the line reaches its edges.
                inside = part[max(0, int(start) - 1) : int(end) + 1]
                found.append((steps[inside], values[inside]))
    return found


def _thinned(steps: Floats, values: Floats, width: int) -> tuple[Floats, Floats]:
    if len(steps) <= 2 * width:
        return steps, values
    edges = np.searchsorted(steps, np.linspace(steps[0], steps[-1], width + 1)[1:-1])
    rows = extremes(values, np.concatenate(([0], edges, [len(steps)])).astype(np.int64))
    return steps[rows], values[rows]
