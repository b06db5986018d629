"""Quantiles and medians of small arrays: those of numpy import `numpy.ma` when they are first called, for 20 ms."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = ["column_medians", "median", "quantile"]

Floats: TypeAlias = npt.NDArray[np.float64]


def quantile(values: Floats, share: float) -> float:
    """Return a quantile of at least one finite value, between two of them by their distance.

    Args:
        values: The values, in any order.
        share: The part of the values below it, from 0 for the least value to 1 for the greatest one.
    """
    ordered = np.sort(values)
    position = share * (len(ordered) - 1)
    lower = int(position)
    low, high = float(ordered[lower]), float(ordered[min(lower + 1, len(ordered) - 1)])
    part = position - lower
    return low * (1 - part) + high * part


def median(values: Floats) -> float:
    """Return the median of at least one finite value."""
    return quantile(values, 0.5)


def column_medians(values: Floats) -> Floats:
    """Return the median of each column of a matrix without its NaN; each column has at least one other value."""
    ordered = np.sort(values, axis=0)  # NaN is last.
    counts = (~np.isnan(ordered)).sum(axis=0)
    columns = np.arange(values.shape[1])
    medians: Floats = (ordered[(counts - 1) // 2, columns] + ordered[counts // 2, columns]) / 2
    return medians
