"""The positions of the least and the greatest value of each piece of a column.

A drawing of a million values in a thousand pixels needs both extremes of each pixel. numpy finds them in half a
millisecond, by one pass over the values: an index over them, however small, would not be faster.
"""

from __future__ import annotations

import itertools
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = ["distinct", "extremes"]

Floats: TypeAlias = npt.NDArray[np.float64]
Rows: TypeAlias = npt.NDArray[np.int64]


def extremes(values: Floats, edges: Rows) -> Rows:
    """Return the rows of the least and the greatest finite value between each edge and the next, in order.

    Args:
        values: The values, which may be NaN or infinite.
        edges: Rows, ascending; equal ones enclose nothing.
    """
    is_all_finite = bool(np.isfinite(values).all())
    found = []
    for start, end in itertools.pairwise(distinct(edges).tolist()):
        part = values[start:end]
        if is_all_finite or np.isfinite(part).all():
            found += [start + int(part.argmin()), start + int(part.argmax())]
        elif len(rows := np.flatnonzero(np.isfinite(part))):
            found += [start + int(rows[part[rows].argmin()]), start + int(rows[part[rows].argmax()])]
    return distinct(np.array(found, np.int64))


def distinct(rows: Rows) -> Rows:
    """Return rows in order, each once; `numpy.unique` imports `numpy.ma` for that, which takes 15 ms."""
    ordered = np.sort(rows, kind="stable")
    found: Rows = ordered[np.append(True, ordered[1:] != ordered[:-1])[: len(ordered)]]
    return found
