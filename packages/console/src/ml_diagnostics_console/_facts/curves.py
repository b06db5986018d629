"""Metrics over steps and time, in bounded memory: of a run's own metrics, and of all its hosts. Pure.

A metric of the host is recorded every few seconds by each host for weeks: of such a curve at most 2,048 points are
kept, every second, fourth, eighth one, and the extremes and the last one exactly. Of the state of a device, which has
few levels, each change is kept as well, so that a short bad state is not lost. A metric with steps, such as a loss,
keeps up to a million points, since a rule needs the step at which it went wrong.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from ml_diagnostics_common.entry import EntryContext, LogEntry

from ml_diagnostics_console.verdict import Ref

__all__ = ["Curve", "CurveKey", "Curves", "NotFinite"]

_MOST_POINTS: Final = 2_048
_MOST_POINTS_WITH_STEPS: Final = 1_048_576
_MOST_CHANGES: Final = 1_024
"""A metric that changes more often is not the state of a device: its kept points show it."""
_NO_STEP: Final = -1
_LARGEST_STEP: Final = 2**62
_ELEMENTS: Final[Mapping[str, str]] = {
    "accelerator_labels": "chip",
    "links": "link",
    "trays": "tray",
    "chips": "chip",
    "ports": "port",
    "sizes": "size",
    "operations": "operation",
    "tensorcores": "tensorcore",
    "paths": "path",
    "series": "series",
}
"""Lists beside the values that name each of them, and the label of such a name."""
_LABELS: Final = frozenset(_ELEMENTS.values())
_OF_ENTRY: Final = frozenset(
    {"values", "step_index", "unit", "not_finite", "hostname", "process_index", "accelerator_type", "mean"}
)
_TEXTS: Final[Mapping[str, float]] = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


class CurveKey(NamedTuple):
    """The identity of a curve."""

    name: str
    host: str
    pid: str
    labels: tuple[tuple[str, str], ...]
    """The user's labels, and the name of the chip if there is a value for each."""
    writer: str = ""
    """The journal's writer: a pid alone is used again, in a container always, so that attempts would share a curve."""


class NotFinite(NamedTuple):
    """A value that is not a finite number."""

    time_ns: int
    step: int | None
    value: float
    ref: Ref


class Curve:
    """One metric of one process, with the same labels: its points in the order of their arrival.

    Attributes:
        key: Its name, host, pid and labels.
        unit: The unit of its values.
        process_index: The index of its process; empty if it is not known.
        times_ns: The kept points' times, in ns since 1970, by the clock of the host.
        steps: Their steps; -1 for none.
        values: Their values: the mean over chips, if there is one for each.
        count: The number of all points, also of those that are not kept.
        first_not_finite: The first value that is not a finite number; None if there is none.
        element: Its position in the values of the last entry.
    """

    def __init__(self, key: CurveKey, unit: str = "1", process_index: str = "") -> None:
        self.key = key
        self.unit = unit
        self.process_index = process_index
        self.times_ns: array[int] = array("q")
        self.steps: array[int] = array("q")
        self.values: array[float] = array("d")
        self.count = 0
        self.first_not_finite: NotFinite | None = None
        self.element = 0
        self._changes: list[tuple[int, float]] | None = []
        self._stride = 1
        self._first: LogEntry | None = None
        self._last: LogEntry | None = None
        self._highest: LogEntry | None = None
        self._lowest: LogEntry | None = None
        self._highest_value = -math.inf
        self._lowest_value = math.inf

    def add(self, entry: LogEntry, step: int, value: float) -> None:
        """Take a point; -1 if there is none."""
        # With a million entries each comparison counts; most values are no extremes.
        if not self._lowest_value <= value <= self._highest_value and not self._is_new_extreme(entry, step, value):
            return
        self._last = entry
        if not self.count % self._stride:
            self.times_ns.append(entry.timestamp_ns)
            self.steps.append(step)
            self.values.append(value)
            if len(self.values) >= (_MOST_POINTS if step == _NO_STEP else _MOST_POINTS_WITH_STEPS):
                self._halve()
        changes = self._changes
        if changes is not None and step == _NO_STEP and (not changes or changes[-1][1] != value):
            changes.append((entry.timestamp_ns, value))
            if len(changes) > _MOST_CHANGES:
                self._changes = None
        self.count += 1

    def _is_new_extreme(self, entry: LogEntry, step: int, value: float) -> bool:
        """Keep a value outside of those before it; return False for one that is not a finite number."""
        if not math.isfinite(value):
            if self.first_not_finite is None or entry.timestamp_ns < self.first_not_finite.time_ns:
                known = None if step == _NO_STEP else step
                self.first_not_finite = NotFinite(entry.timestamp_ns, known, value, self._ref(entry, value))
            return False
        if self._first is None:
            self._first = entry
        if value > self._highest_value:
            self._highest_value, self._highest = value, entry
        if value < self._lowest_value:
            self._lowest_value, self._lowest = value, entry
        return True

    def _halve(self) -> None:
        self._stride *= 2
        self.times_ns, self.steps, self.values = self.times_ns[::2], self.steps[::2], self.values[::2]

    def __len__(self) -> int:
        return self.count

    @property
    def labels(self) -> Mapping[str, str]:
        """The labels of its points."""
        return dict(self.key.labels)

    @property
    def last(self) -> float:
        """The last finite value; NaN without one."""
        return self._value(self._last)

    @property
    def last_ns(self) -> int:
        """The time of the last finite value; 0 without one."""
        return self._last.timestamp_ns if self._last is not None else 0

    @property
    def first_ns(self) -> int:
        """The time of the first finite value; 0 without one."""
        return self._first.timestamp_ns if self._first is not None else 0

    @property
    def highest(self) -> float:
        """The highest finite value; NaN without one."""
        return self._highest_value if self._highest is not None else math.nan

    @property
    def lowest(self) -> float:
        """The lowest finite value; NaN without one."""
        return self._lowest_value if self._lowest is not None else math.nan

    def ref(self, which: str = "last", shows: str = "") -> Ref:
        """Return the entry of a point.

        Args:
            which: `first`, `last`, `highest` or `lowest`.
            shows: The sentence of it; empty takes the metric and its value.
        """
        extremes = {"highest": (self._highest, self._highest_value), "lowest": (self._lowest, self._lowest_value)}
        entry, value = extremes.get(which, (None, math.nan))
        if entry is None:
            entry = self._first if which == "first" else self._last
            value = self._value(entry)
        if entry is None:
            return Ref("", "ml_diagnostics_metric", None, self.key.host, shows)
        return self._ref(entry, value, shows)

    def beside(self, name: str) -> float | None:
        """Return a number that the last entry has beside its value, such as `total_bytes`; None without one."""
        value = None if self._last is None else self._last.payload.get(name)
        mean = _mean(value if isinstance(value, list) else [value])
        return mean if mean is not None and math.isfinite(mean) else None

    def detail(self, name: str) -> Any:
        """Return what the last entry has of this value in a further list, such as `reasons`; None if it has nothing."""
        values = self._last.payload.get(name) if self._last is not None else None
        return values[self.element] if isinstance(values, list) and self.element < len(values) else None

    def between(self, start_ns: int, end_ns: int) -> list[float]:
        """Return the kept values of a time range."""
        pairs = zip(self.times_ns, self.values, strict=True)
        return [value for time_ns, value in pairs if start_ns <= time_ns <= end_ns]

    def points(self) -> list[tuple[int, float]]:
        """Return the kept points by time, with the last one, and of a state each change: time and value."""
        last = [(self.last_ns, self.last)] if self._last is not None else []
        return sorted({*zip(self.times_ns, self.values, strict=True), *(self._changes or ()), *last})

    def _value(self, entry: LogEntry | None) -> float:
        numbers = entry.payload.get("values") if entry is not None else None
        if not isinstance(numbers, list):
            return math.nan
        is_one_of_many = self.element < len(numbers) and any(label in _LABELS for label, _ in self.key.labels)
        value = _number(numbers[self.element]) if is_one_of_many else _mean(numbers)
        return math.nan if value is None else value

    def _ref(self, entry: LogEntry, value: float, shows: str = "") -> Ref:
        unit = "" if self.unit in ("", "1") else f" {self.unit}"
        text = shows or f"{self.key.name} {value:.6g}{unit}"
        return Ref(entry.insert_id, entry.context.log_id, entry.timestamp_ns, self.key.host, text)


class _Known(NamedTuple):
    """The curves of entries of one form: of one writer, with the same keys."""

    keys: frozenset[str]
    curves: tuple[Curve, ...]
    context: EntryContext
    """Kept, so that its identity is not reused."""


class Curves:
    """All metrics of a run."""

    def __init__(self) -> None:
        self._curves: dict[CurveKey, Curve] = {}
        # By the identity of the context, which all entries of a writer share: with a million entries each search in
        # labels counts.
        self._known: dict[tuple[int, str], _Known] = {}

    def add(self, name: str, entry: LogEntry) -> None:
        """Take an entry of a metric; one of another form is skipped."""
        payload = entry.payload
        numbers = payload.get("values")
        if type(numbers) is not list or not numbers:
            return
        step = payload.get("step_index", _NO_STEP)
        if type(step) is not int or not 0 <= step < _LARGEST_STEP:
            step = int(step) if type(step) is float and step.is_integer() and 0 <= step < _LARGEST_STEP else _NO_STEP
        known = self._known.get((id(entry.context), name))
        if known is not None and payload.keys() == known.keys and len(known.curves) == len(numbers):
            curves: Sequence[Curve] = known.curves
        else:
            curves = self._curves_of(name, entry, len(numbers))
        if len(numbers) == 1:  # Of nearly all entries.
            value = _number(numbers[0])
            if value is not None:
                curves[0].add(entry, step, value)
        elif len(curves) == len(numbers):
            for curve, number in zip(curves, numbers, strict=True):
                value = _number(number)
                if value is not None:
                    curve.add(entry, step, value)
        else:
            mean = _mean(numbers)
            if mean is not None:
                curves[0].add(entry, step, mean)

    def _curves_of(self, name: str, entry: LogEntry, count: int) -> tuple[Curve, ...]:
        """Return the curve of each value, if lists beside the values name each one, else one curve."""
        payload = entry.payload
        # Labels of users are texts; numbers beside the values, such as `total_bytes`, are of the entry alone.
        labels = {key: value for key, value in payload.items() if key not in _OF_ENTRY and isinstance(value, str)}
        named = {
            label: values
            for key, label in _ELEMENTS.items()
            if isinstance(values := payload.get(key), list) and len(values) == count
        }
        if named:
            curves = tuple(
                self._curve(name, entry, {**labels, **{label: str(values[n]) for label, values in named.items()}}, n)
                for n in range(count)
            )
        else:
            curves = (self._curve(name, entry, labels, 0),)
        if not labels and not named and count == 1:
            self._known[id(entry.context), name] = _Known(frozenset(payload), curves, entry.context)
        return curves

    def _curve(self, name: str, entry: LogEntry, labels: Mapping[str, str], element: int) -> Curve:
        payload, of_writer = entry.payload, entry.context.labels
        host = str(payload.get("hostname") or of_writer.get("host", ""))
        writer = entry.context.writer or ""
        key = CurveKey(name, host, of_writer.get("pid", ""), tuple(sorted(labels.items())), writer)
        curve = self._curves.get(key)
        if curve is None:
            index = str(payload.get("process_index") or of_writer.get("process_index", ""))
            curve = self._curves[key] = Curve(key, str(payload.get("unit", "1")), index)
        curve.element = element
        return curve

    def __iter__(self) -> Iterator[Curve]:
        return iter(self._curves.values())

    def __len__(self) -> int:
        return len(self._curves)

    def within(self, spans: Mapping[str, tuple[int, int]]) -> Curves:
        """Return the curves that started on some hosts within some times.

        Args:
            spans: The start and end for each host, by its clock; a curve starts before the end.
        """
        found = Curves()
        for key, curve in self._curves.items():
            first = curve.first_not_finite
            starts_ns = [curve.first_ns] if curve.first_ns else []
            starts_ns += [first.time_ns] if first is not None else []
            span = spans.get(key.host)
            if span is not None and starts_ns and span[0] <= min(starts_ns) < span[1]:
                found._curves[key] = curve
        return found

    def names(self) -> set[str]:
        """Return the names of all metrics."""
        return {key.name for key in self._curves}

    def of(self, name: str, *, host: str | None = None, pid: int | None = None) -> tuple[Curve, ...]:
        """Return the curves of a metric, of one host or process if given."""
        return tuple(
            curve
            for key, curve in self._curves.items()
            if key.name == name and host in (None, key.host) and (pid is None or key.pid == str(pid))
        )


def _number(value: object) -> float | None:
    """Return a number, also one that is not finite; None for a value that is missing, or of another form."""
    if type(value) is float:
        return value
    if type(value) is int:
        try:
            return float(value)
        except OverflowError:
            return None
    return _TEXTS.get(value) if isinstance(value, str) else None


def _mean(numbers: Sequence[object]) -> float | None:
    """Return the mean of the finite numbers; without one, the first that is not finite; None without any number."""
    known = [number for number in map(_number, numbers) if number is not None]
    finite = [number for number in known if math.isfinite(number)]
    return math.fsum(finite) / len(finite) if finite else next(iter(known), None)
