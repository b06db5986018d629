"""Entries of a run to series of its metrics: by name and process, over steps and over time. Pure."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping, MutableSequence, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from ml_diagnostics_common.entry import EntryContext, LogEntry

from google_cloud_mldiagnostics._entries import mean_of_finite

__all__ = ["MetricSeries", "Point", "Series"]

_NAMESPACE = "namespace"
_PLAIN: Final = {"values", "step_index", "unit"}
_LARGEST: Final = 2**63
_NO_STEP: Final = -_LARGEST  # No step is as small.
_NO_LABELS: Final[Mapping[str, Any]] = MappingProxyType({})
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
        timestamp_ns: The time of the measurement, in ns since 1970.
        step: The step; None if none was given.
        value: The mean of the finite values; the last value if none is finite.
        values: One value, or one for each chip.
        attempt: The attempt of the run, from 1; empty if it is not known.
        labels: The labels that the user gave.
    """

    timestamp_ns: int
    step: int | None
    value: float
    values: tuple[float, ...]
    attempt: str
    labels: Mapping[str, Any]


class Series:
    """The points of one metric of one process, in columns: a million points take 30 MB.

    Attributes:
        metric: The metric's name.
        host: The host's name; empty if it is not known.
        process_index: The index of the process in the run; empty if it is not known.
        unit: The unit of the values.
        chips: The chip of each value of a point, if it has a value for each chip.
    """

    def __init__(
        self, metric: str, host: str, process_index: str, unit: str = "1", chips: tuple[str, ...] = ()
    ) -> None:
        self.metric = metric
        self.host = host
        self.process_index = process_index
        self.unit = unit
        self.chips = chips
        # Lists, once they contain a number of more than 64 bits.
        self._times: MutableSequence[int] = array("q")
        self._steps: MutableSequence[int] = array("q")
        self._values: MutableSequence[float] = array("d")
        self._attempts: MutableSequence[int] = array("i")
        self._attempt_names: list[str] = []
        self._extras: dict[int, tuple[tuple[float, ...], Mapping[str, Any]]] = {}
        self._latest_ns = -1
        self._is_in_order = True
        self._points: list[Point] | None = None

    def add(self, point: Point) -> None:
        """Take a point, in any order."""
        if len(point.values) > 1 or point.labels or point.values[0] != point.value:
            self._extras[len(self._times)] = point.values, point.labels
        step = _NO_STEP if point.step is None else point.step
        try:
            self.append(point.timestamp_ns, step, point.value, self.attempt_number(point.attempt))
        except OverflowError:
            self._times, self._steps = list(self._times), list(self._steps)
            self._times[len(self._values) :] = [point.timestamp_ns]
            self._steps[len(self._values) :] = [step]
            self._is_in_order = False
            self._values.append(point.value)
            self._attempts.append(self.attempt_number(point.attempt))
            self._points = None

    def append(self, timestamp_ns: int, step: int, value: float, attempt: int) -> None:
        """Take a point of one value, without labels: with a million of them each call counts."""
        self._times.append(timestamp_ns)
        self._steps.append(step)
        self._values.append(value)
        self._attempts.append(attempt)
        if timestamp_ns < self._latest_ns:
            self._is_in_order = False
        else:
            self._latest_ns = timestamp_ns
        self._points = None

    def attempt_number(self, attempt: str) -> int:
        """Return what `append` takes for an attempt's name."""
        if attempt not in self._attempt_names:
            self._attempt_names.append(attempt)
        return self._attempt_names.index(attempt)

    def __len__(self) -> int:
        return len(self._times)

    def __iter__(self) -> Iterator[Point]:
        """Yield all points, by time, without keeping them."""
        self._sort()
        return map(self._point, range(len(self)))

    @property
    def points(self) -> list[Point]:
        """All points, by time."""
        if self._points is None:
            self._points = list(self)
        return self._points

    @property
    def values(self) -> Sequence[float]:
        """The value of each point, by time."""
        self._sort()
        return self._values

    def ends(self, count: int) -> list[Point]:
        """Return the last points, by time."""
        self._sort()
        return [self._point(index) for index in range(max(0, len(self) - count), len(self))]

    def by_step(self) -> list[Point]:
        """Return the points that have a step, by step; for a step repeated after a restart, the last one."""
        last = {point.step: point for point in self.points if point.step is not None}
        return [last[step] for step in sorted(last)]

    @property
    def has_steps(self) -> bool:
        """True if each point has a step: then the step is the axis that users expect."""
        return bool(self._steps) and _NO_STEP not in self._steps

    def _point(self, index: int) -> Point:
        value, step = self._values[index], self._steps[index]
        values, labels = self._extras.get(index) or ((value,), _NO_LABELS)
        attempt = self._attempt_names[self._attempts[index]]
        return Point(self._times[index], None if step == _NO_STEP else step, value, values, attempt, labels)

    def _sort(self) -> None:
        if self._is_in_order:
            return
        order = sorted(range(len(self)), key=self._times.__getitem__)
        for column in (self._times, self._steps, self._values, self._attempts):
            _rearrange(column, order)
        if self._extras:
            self._extras = {new: self._extras[old] for new, old in enumerate(order) if old in self._extras}
        self._is_in_order = True


def _rearrange(column: MutableSequence[Any], order: Sequence[int]) -> None:
    in_order = [column[index] for index in order]
    for index, item in enumerate(in_order):
        column[index] = item


class MetricSeries:
    """The series of a run's metrics, brought up to date with what a reader finds new."""

    def __init__(self) -> None:
        self._series: dict[tuple[str, str, str], Series] = {}
        # By writer and metric: the series of entries that have only a value and a step.
        self._plain: dict[int, tuple[EntryContext, dict[str, tuple[Series, int]]]] = {}

    def add(self, entries: Iterable[LogEntry]) -> None:
        """Take entries, in any order; those that are not metrics are passed over."""
        context: EntryContext | None = None
        plain: dict[str, tuple[Series, int]] = {}
        for entry in entries:
            if entry.context is not context:
                context = entry.context
                plain = self._plain.setdefault(id(context), (context, {}))[1]
            own, payload = entry.own_resource_labels, entry.payload
            metric = own[_NAMESPACE] if own and _NAMESPACE in own else entry.resource_label(_NAMESPACE)
            known = plain.get(metric)
            if known is not None and payload.keys() == _PLAIN:
                values, step = payload["values"], payload["step_index"]
                if type(step) is int and -_LARGEST < step < _LARGEST and len(values) == 1 and type(values[0]) is float:
                    known[0].append(entry.timestamp_ns, step, values[0], known[1])
                    continue
            if not metric or metric.startswith(_NOT_METRICS) or "values" not in payload:
                continue
            point = _point(entry)
            if point is not None:
                series = self._series_of(metric, entry)
                series.add(point)
                if payload.keys() == _PLAIN:
                    plain[metric] = series, series.attempt_number(point.attempt)

    def names(self) -> list[str]:
        """Return the metrics, by name."""
        return sorted({series.metric for series in self._series.values()})

    def __iter__(self) -> Iterator[Series]:
        """All series, by metric and process."""
        return iter(sorted(self._series.values(), key=_order))

    def of(self, metric: str) -> list[Series]:
        """Return the series of a metric by process, one for each process that recorded it."""
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
    """Return the step of an entry: an integer, a float from Cloud Logging, or a text in entries of other programs."""
    try:
        number = float(step)
        return int(step) if isinstance(step, int) else int(number) if number.is_integer() else None
    except (TypeError, ValueError, OverflowError):
        return None


def _order(series: Series) -> tuple[str, int, str, str]:
    index = int(series.process_index) if series.process_index.isdecimal() else -1
    return series.metric, index, series.host, series.process_index
