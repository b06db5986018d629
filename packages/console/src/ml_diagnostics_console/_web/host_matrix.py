"""The values of a metric of all hosts on one axis: the mean of each host in each piece of it."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from ml_diagnostics_console._web.columns import Column
from ml_diagnostics_console._web.odd_host import OddHost, find_odd_host
from ml_diagnostics_console._web.run_data import RunData

__all__ = ["HostMatrix", "axis_of", "host_matrix"]

Floats: TypeAlias = npt.NDArray[np.float64]


class HostMatrix(NamedTuple):
    """The means of each host.

    Attributes:
        means: One row a host, one column a piece of the axis; NaN where there is no value.
        hosts: The names of the hosts.
        edges: The limits of the pieces, one more than there are pieces.
        odd: The host that differs.
    """

    means: Floats
    hosts: list[str]
    edges: Floats
    odd: OddHost | None


def axis_of(column: Column, axis: str) -> tuple[Floats, Floats]:
    """Return the positions of a column's values on an axis, ascending, and the values.

    Args:
        column: The column.
        axis: step or time.
    """
    curve = column.by_step() if axis == "step" else column.by_time()
    return curve.positions(), curve.values()


def host_matrix(
    run: RunData, columns: Sequence[Column], axis: str, span: tuple[float, float] | None, most: int
) -> HostMatrix:
    """Return the means of all hosts in pieces of equal length; fewer pieces than asked for if there are few values.

    Args:
        run: The run, which keeps the result.
        columns: The columns of a metric.
        axis: step or time.
        span: The part of the axis; None for all.
        most: The most pieces.
    """
    key = ("hosts", columns[0].metric, axis, span, most)
    return run.cached(key, lambda: _host_matrix(columns, axis, span, most))


def _host_matrix(columns: Sequence[Column], axis: str, span: tuple[float, float] | None, most: int) -> HostMatrix:
    hosts = [column.host or column.process for column in columns]
    series = [axis_of(column, axis) for column in columns]
    filled = [positions for positions, _ in series if len(positions)]
    first = min((float(positions[0]) for positions in filled), default=0.0)
    last = max((float(positions[-1]) for positions in filled), default=0.0)
    if span is not None:
        first = span[0] if math.isfinite(span[0]) else first
        last = span[1] if math.isfinite(span[1]) else last
    last = max(last, first)
    windows = [np.searchsorted(positions, (first, np.nextafter(last, np.inf))) for positions, _ in series]
    longest = max((int(end - start) for start, end in windows), default=0)
    pieces = max(1, min(most, longest))
    edges = np.linspace(first, last, pieces + 1)
    means = np.full((len(columns), pieces), np.nan)
    for row, ((positions, values), (start, end)) in enumerate(zip(series, windows, strict=True)):
        if end > start:
            means[row] = _means(positions[start:end], values[start:end], edges)
    if pieces < most:  # Hosts do not record at the same moments: a piece without a value has that of the one before.
        _fill(means)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # Of pieces without any value.
        odd = find_odd_host(means, hosts, columns[0].unit)
    return HostMatrix(means, hosts, edges, odd)


def _means(positions: Floats, values: Floats, edges: Floats) -> Floats:
    """Return the mean of the finite values in each piece; NaN where there are none."""
    pieces = len(edges) - 1
    cuts = np.searchsorted(positions, edges[1:-1])
    starts = np.concatenate(([0], cuts))
    lengths = np.diff(np.append(starts, len(positions)))
    full = np.flatnonzero(lengths)
    finite = np.isfinite(values)
    means = np.full(pieces, np.nan)
    with np.errstate(over="ignore", invalid="ignore"):
        sums = np.add.reduceat(np.where(finite, values, 0.0), starts[full])
        counts = np.add.reduceat(finite.astype(np.float64), starts[full])
        means[full] = np.where(counts > 0, sums / np.maximum(counts, 1.0), np.nan)
    return means


def _fill(means: Floats) -> None:
    """Fill single pieces without a value, which lie between two with one, in position."""
    missing = np.isnan(means)
    alone = missing[:, 1:-1] & ~missing[:, :-2] & ~missing[:, 2:]
    means[:, 1:-1] = np.where(alone, means[:, :-2], means[:, 1:-1])
