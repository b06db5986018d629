"""The values of a column on an axis."""

from __future__ import annotations

import bisect
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ml_diagnostics_console._web.step_order import StepOrder

__all__ = ["Curve"]

Floats: TypeAlias = npt.NDArray[np.float64]


class Curve:
    """Values by their position on an axis, ascending; nothing is copied until a part is taken.

    Args:
        positions: The position of each row of a column: step or time.
        values: The value of each row.
        order: The rows in the order of their positions; None if they are in it.
    """

    __slots__ = ("_order", "_positions", "_values")

    def __init__(self, positions: npt.NDArray[Any], values: Floats, order: StepOrder | None = None) -> None:
        self._positions, self._values, self._order = positions, values, order

    def __len__(self) -> int:
        return len(self._values) if self._order is None else len(self._order)

    def rows(self, low: float, high: float) -> tuple[int, int]:
        """Return the first index in the order at `low` or behind it, and the first one behind `high`."""
        if self._order is None and self._positions.dtype == np.float64:
            first = np.searchsorted(self._positions, low)
            return int(first), int(np.searchsorted(self._positions, high, side="right"))
        indices, at = range(len(self)), self._position
        return bisect.bisect_left(indices, low, key=at), bisect.bisect_right(indices, high, key=at)

    def _position(self, index: int) -> float:
        return float(self._taken(self._positions, index, index + 1)[0])

    def positions(self, first: int = 0, last: int | None = None) -> Floats:
        """Return the positions between two indices in the order, as floats."""
        return self._taken(self._positions, first, len(self) if last is None else last).astype(np.float64, copy=False)

    def values(self, first: int = 0, last: int | None = None) -> Floats:
        """Return the values between two indices in the order."""
        return self._taken(self._values, first, len(self) if last is None else last)

    def _taken(self, column: npt.NDArray[Any], first: int, last: int) -> npt.NDArray[Any]:
        return column[first:last] if self._order is None else self._order.take(column, first, last)
