"""Entries of a run to series of its metrics: by name and process, over steps and over time. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ml_diagnostics_common.entry import LogEntry

from google_cloud_mldiagnostics.finite import mean_of_finite

__all__ = ["MetricSeries", "Point", "Series"]

_NAMESPACE = "namespace"
_NOT_METRICS = "mlrun_"
_OF_ENTRY = frozenset(
    {
        "values",
        "step_index",
        "unit",
        "not_finite",
        "hostname",
        "process_index",
        "accelerator_type",
        "accelerator_labels",
    }
)


class Point(NamedTuple):
    """One entry of a metric.

    Attributes:
        timestamp_ns: When it was measured, in ns since 1970.
        step: Which step it is of; None where it was not said.
        value: The mean of its values, of those that are finite where some are.
        values: One, or one a chip.
        attempt: Of the run, from 1; empty where it is not known.
        labels: What the user gave beside the value.
    """

    timestamp_ns: int
    step: int | None
    value: float
    values: tuple[float, ...]
    attempt: str
    labels: Mapping[str, Any]


@dataclass
class Series:
    """The points of one metric of one process.

    Attributes:
        metric: The metric's name.
        host: The host's name; empty where it is not known.
        process_index: Among all of the run; empty where it is not known.
        unit: Of the values.
        chips: What the values of a point are of, where there is one a chip.
    """

    metric: str
    host: str
    process_index: str
    unit: str = "1"
    chips: tuple[str, ...] = ()
    _points: list[Point] = field(default_factory=list, repr=False)
    _is_in_order: bool = field(default=True, repr=False)

    def add(self, point: Point) -> None:
        """Takes a point, in any order."""
        if self._points and point.timestamp_ns < self._points[-1].timestamp_ns:
            self._is_in_order = False
        self._points.append(point)

    @property
    def points(self) -> list[Point]:
        """All points, by time."""
        if not self._is_in_order:
            self._points.sort(key=lambda point: point.timestamp_ns)
            self._is_in_order = True
        return self._points

    def by_step(self) -> list[Point]:
        """The points that have a step, by step. Of a step that was done again, after a restart, the last one."""
        last = {point.step: point for point in self.points if point.step is not None}
        return [last[step] for step in sorted(last)]

    @property
    def has_steps(self) -> bool:
        """Whether each point has a step: then that is the axis that people look for."""
        return bool(self._points) and all(point.step is not None for point in self._points)


class MetricSeries:
    """The series of a run's metrics, brought up to date with what a reader finds new."""

    def __init__(self) -> None:
        self._series: dict[tuple[str, str, str], Series] = {}

    def add(self, entries: Iterable[LogEntry]) -> None:
        """Takes entries, in any order; those that are no metrics are passed over."""
        for entry in entries:
            metric = entry.resource_label(_NAMESPACE)
            payload = entry.payload
            if not metric or metric.startswith(_NOT_METRICS) or "values" not in payload:
                continue
            point = _point(entry)
            if point is not None:
                self._series_of(metric, entry).add(point)

    def names(self) -> list[str]:
        """The metrics, by name."""
        return sorted({series.metric for series in self._series.values()})

    def __iter__(self) -> Iterator[Series]:
        """All series, by metric and process."""
        return iter(sorted(self._series.values(), key=_order))

    def of(self, metric: str) -> list[Series]:
        """The series of a metric, one a process that recorded it, by process."""
        return [series for series in self if series.metric == metric]

    def _series_of(self, metric: str, entry: LogEntry) -> Series:
        labels, payload = entry.context.labels, entry.payload
        host = str(payload.get("hostname") or labels.get("host") or "")
        process_index = str(payload.get("process_index") or labels.get("process_index") or "")
        series = self._series.get((metric, host, process_index))
        if series is None:
            chips = payload.get("accelerator_labels")
            series = self._series[metric, host, process_index] = Series(
                metric,
                host,
                process_index,
                str(payload.get("unit") or "1"),
                tuple(map(str, chips)) if isinstance(chips, list) else (),
            )
        return series


def _point(entry: LogEntry) -> Point | None:
    payload = entry.payload
    values = payload["values"]
    try:
        numbers = tuple(map(float, values)) if isinstance(values, list) else (float(values),)
    except (TypeError, ValueError):
        return None
    if not numbers:
        return None
    labels = {name: value for name, value in payload.items() if name not in _OF_ENTRY}
    attempt = entry.context.labels.get("attempt", "")
    step = _step(payload.get("step_index"))
    return Point(entry.timestamp_ns, step, mean_of_finite(numbers), numbers, attempt, labels)


def _step(step: Any) -> int | None:
    """The step of an entry: a whole number, as float where Cloud Logging gave it back; in entries of others text."""
    try:
        number = float(step)
        return int(step) if isinstance(step, int) else int(number) if number.is_integer() else None
    except (TypeError, ValueError, OverflowError):
        return None


def _order(series: Series) -> tuple[str, int, str, str]:
    index = int(series.process_index) if series.process_index.isdecimal() else -1
    return series.metric, index, series.host, series.process_index
