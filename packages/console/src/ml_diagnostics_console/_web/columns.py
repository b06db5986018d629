"""The values of metrics in columns: step, time and value of each metric and process, 20 bytes a point.

Values are appended to arrays one by one, and moved to numpy's from time to time: a view of those stays as it is while
more is appended.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from ml_diagnostics_console._web.curve import Curve
from ml_diagnostics_console._web.step_order import StepOrder

__all__ = ["Column", "Floats", "RunColumns"]

Floats: TypeAlias = npt.NDArray[np.float64]

_LEAST_ROWS: Final = 16
_GROWTH: Final = 1.0625
_LARGEST_SHORT_STEP: Final = 2**31 - 1


class Column:
    """The points of one metric of one process, by time.

    Attributes:
        metric: The metric's name.
        process: The index of the process in the run as text; its host, if the index is not known.
        host: The host that recorded the last value.
        unit: The unit of the values.
        sorted_rows: The number of rows when they were sorted the last time, since an entry was late; 0 before.
    """

    __slots__ = (
        "_has_steps",
        "_order",
        "_pending",
        "_rows",
        "_step",
        "_time",
        "_value",
        "host",
        "metric",
        "process",
        "sorted_rows",
        "steps",
        "times",
        "unit",
        "values",
    )

    def __init__(self, metric: str, process: str, host: str = "", unit: str = "1") -> None:
        self.metric, self.process, self.host, self.unit = metric, process, host, unit
        self.sorted_rows = 0
        # Appended to by the store without a call: with a million values each call counts.
        self.steps, self.times, self.values = array("d"), array("d"), array("d")
        self._step: npt.NDArray[np.int32] | Floats = np.empty(0, np.int32)
        self._time, self._value = np.empty(0), np.empty(0)
        self._rows = 0
        self._has_steps = True
        self._order: StepOrder | None = None

    @classmethod
    def restored(
        cls, names: tuple[str, str, str, str], arrays: tuple[npt.NDArray[Any], Floats, Floats], sorted_rows: int
    ) -> Column:
        """Return a column with what another one had.

        Args:
            names: Its metric, process, host and unit.
            arrays: Its `arrays`.
            sorted_rows: Its `sorted_rows`.
        """
        column = cls(*names)
        column._step, column._time, column._value = arrays
        column._rows, column.sorted_rows = len(column._value), sorted_rows
        column._has_steps = column._step.dtype == np.int32 or not np.isnan(column._step).any()
        return column

    @property
    def arrays(self) -> tuple[npt.NDArray[Any], Floats, Floats]:
        """The steps, as they are kept, times and values of all points."""
        self.settle()
        return self._step[: self._rows], self._time[: self._rows], self._value[: self._rows]

    def append(self, step: float, time_s: float, value: float) -> None:
        """Add a point.

        Args:
            step: The step; NaN if it has none.
            time_s: The time, in seconds since 1970.
            value: The value, which may be NaN or infinite.
        """
        self.steps.append(step)
        self.times.append(time_s)
        self.values.append(value)

    def __len__(self) -> int:
        return self._rows + len(self.values)

    def settle(self) -> None:
        """Move what was appended to numpy's arrays; sort by time if an entry is late."""
        count = len(self.values)
        if not count:
            return
        rows = self._rows
        end = rows + count
        if end > len(self._value):
            capacity = max(_LEAST_ROWS, end, int(end * _GROWTH) if rows else 0)
            self._step = _grown(self._step, rows, capacity)
            self._time, self._value = _grown(self._time, rows, capacity), _grown(self._value, rows, capacity)
        self._move_steps(rows, end)
        self._time[rows:end] = self.times
        self._value[rows:end] = self.values
        for pending in (self.steps, self.times, self.values):
            del pending[:]  # The same array: the store has its `append`.
        self._rows = end
        times = self._time[max(0, rows - 1) : end]
        if (times[1:] < times[:-1]).any():
            order = np.argsort(self._time[:end], kind="stable")
            self._step = self._step[:end][order]
            self._time, self._value = self._time[:end][order], self._value[:end][order]
            self.sorted_rows = end
            self._order = None

    def _move_steps(self, first: int, last: int) -> None:
        """Move steps, as integers of 4 bytes while all of them are such."""
        steps = np.frombuffer(self.steps)
        if self._step.dtype == np.int32:
            with np.errstate(invalid="ignore"):
                is_short = (np.abs(steps) <= _LARGEST_SHORT_STEP).all() and (steps == np.floor(steps)).all()
            if not is_short:  # NaN, or very large.
                self._step = self._step.astype(np.float64)
        self._step[first:last] = steps
        if self._step.dtype != np.int32:
            self._has_steps = self._has_steps and not np.isnan(steps).any()

    @property
    def has_steps(self) -> bool:
        """True if each point has a step: then the step is the axis that users expect."""
        self.settle()
        return self._rows > 0 and self._has_steps

    @property
    def step(self) -> Floats:
        """The step of each point, by time; NaN where there is none. A copy, most often."""
        self.settle()
        return self._step[: self._rows].astype(np.float64, copy=False)

    @property
    def time(self) -> Floats:
        """The time of each point, in seconds since 1970."""
        self.settle()
        return self._time[: self._rows]

    @property
    def value(self) -> Floats:
        """The value of each point."""
        self.settle()
        return self._value[: self._rows]

    def steps_of(self, first: int, last: int) -> Floats:
        """Return the steps of some points, by time; NaN where there is none."""
        self.settle()
        return self._step[first : min(last, self._rows)].astype(np.float64, copy=False)

    def by_time(self) -> Curve:
        """Return the values by time."""
        return Curve(self.time, self.value)

    def by_step(self) -> Curve:
        """Return the values by step.

        Of a step that was done again after a restart, the last value counts. Points without a step are left out.
        """
        return Curve(self._kept_steps(), self.value, self._step_order())

    def replaced(self) -> list[tuple[int, int]]:
        """Return the points of steps that were done again, as first row and row after the last of each piece."""
        return self._step_order().replaced() if self.has_steps else []

    def _kept_steps(self) -> npt.NDArray[np.int32] | Floats:
        self.settle()
        return self._step[: self._rows]

    def _step_order(self) -> StepOrder:
        if self._order is None:
            self._order = StepOrder()
        self._order.extend(self._kept_steps())
        return self._order

    @property
    def last(self) -> float | None:
        """The last value; None if there is none."""
        if self.values:
            return self.values[-1]
        return float(self._value[self._rows - 1]) if self._rows else None

    @property
    def last_step(self) -> int | None:
        """The step of the last value; None if it has none."""
        step = self.steps[-1] if self.steps else float(self._step[self._rows - 1]) if self._rows else np.nan
        return int(step) if np.isfinite(step) else None


def _grown(column: npt.NDArray[Any], rows: int, capacity: int) -> npt.NDArray[Any]:
    grown = np.empty(capacity, column.dtype)
    grown[:rows] = column[:rows]
    return grown


class RunColumns:
    """The columns of a run, by metric and process."""

    def __init__(self) -> None:
        self._by_metric: dict[str, dict[str, Column]] = {}
        self._names: list[str] = []

    def column(self, metric: str, process: str, host: str, unit: str) -> Column:
        """Return the column of a metric and a process, a new one for its first value."""
        columns = self._by_metric.setdefault(metric, {})
        column = columns.get(process)
        if column is None:
            column = columns[process] = Column(metric, process, host, unit)
        column.host = host or column.host
        return column

    def put(self, column: Column) -> None:
        """Take a column in place of one of the same metric and process."""
        self._by_metric.setdefault(column.metric, {})[column.process] = column

    def names(self) -> list[str]:
        """Return the metrics, by name."""
        if len(self._names) != len(self._by_metric):
            self._names = sorted(self._by_metric)
        return list(self._names)

    def of(self, metric: str) -> list[Column]:
        """Return the columns of a metric by process; empty if there is no such metric."""
        return sorted(self._by_metric.get(metric, {}).values(), key=_order)

    def first(self, metric: str) -> Column | None:
        """Return the column of a metric's first process."""
        columns = self._by_metric.get(metric)
        if not columns:
            return None
        return next(iter(columns.values())) if len(columns) == 1 else min(columns.values(), key=_order)

    def points(self, metric: str) -> int:
        """Return the number of points of a metric, of all processes."""
        return sum(map(len, self._by_metric.get(metric, {}).values()))

    def __contains__(self, metric: object) -> bool:
        return metric in self._by_metric

    def __iter__(self) -> Iterator[Column]:
        """All columns."""
        for columns in self._by_metric.values():
            yield from columns.values()

    def __len__(self) -> int:
        return len(self._by_metric)


def _order(column: Column) -> tuple[int, int, str]:
    is_index = column.process.isascii() and column.process.isdecimal() and len(column.process) < 10
    return (0, int(column.process), "") if is_index else (1, 0, column.process)
