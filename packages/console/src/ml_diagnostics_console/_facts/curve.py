"""One metric of one process over steps and time, in bounded memory. Pure.

A metric of the host is recorded every few seconds by each host for weeks: of such a curve at most 2,048 points are
kept, every second, fourth, eighth one, and the extremes and the last one exactly. Of the state of a device, which has
few levels, each change is kept as well, so that a short bad state is not lost. A metric with steps, such as a loss,
keeps up to a million points, since a rule needs the step at which it went wrong.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any, Final, NamedTuple

from ml_diagnostics_common.entry import LogEntry

from ml_diagnostics_console.verdict import Ref

__all__ = ["LABELS_OF_ELEMENTS", "NO_STEP", "Curve", "CurveKey", "NotFinite", "as_number", "mean_of"]

_MOST_POINTS: Final = 2_048
_MOST_POINTS_WITH_STEPS: Final = 1_048_576
_MOST_CHANGES: Final = 1_024
"""A metric that changes more often is not the state of a device: its kept points show it."""
NO_STEP: Final = -1
_NO_STEPS: Final = array("q", [NO_STEP])
LABELS_OF_ELEMENTS: Final[Mapping[str, str]] = {
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
_LABELS: Final = frozenset(LABELS_OF_ELEMENTS.values())
_TEXTS: Final[Mapping[str, float]] = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_timestamp_ns = attrgetter("timestamp_ns")


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
        started_ns: The time of its first entry, also of one without a finite value.
        times_ns: The kept points' times, in ns since 1970, by the clock of the host.
        steps: Their steps; -1 for none.
        values: Their values: the mean over chips, if there is one for each.
        count: The number of all points, also of those that are not kept.
        first_not_finite: The first value that is not a finite number; None if there is none.
        element: Its position in the values of the last entry.
    """

    def __init__(self, key: CurveKey, unit: str = "1", process_index: str = "", started_ns: int = 0) -> None:
        self.key = key
        self.unit = unit
        self.process_index = process_index
        self.started_ns = started_ns
        self.times_ns: array[int] = array("q")
        self.steps: array[int] = array("q")
        self.values: array[float] = array("d")
        self.count = 0
        self.first_not_finite: NotFinite | None = None
        self.element = 0
        # Of a state: the time and value of each change. Thousands of curves have them, so they are packed.
        self._changes: tuple[array[int], array[float]] | None = (array("q"), array("d"))
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
            if len(self.values) >= (_MOST_POINTS if step == NO_STEP else _MOST_POINTS_WITH_STEPS):
                self._halve()
        if step == NO_STEP and self._changes is not None:
            self._add_changes(self._changes, (entry.timestamp_ns,), (value,))
        self.count += 1

    def add_all(self, entries: Sequence[LogEntry], steps: array[int] | None, values: array[float]) -> None:
        """Take points with finite values, as `add` does one: together they cost less.

        Args:
            entries: Their entries, at least one.
            steps: Their steps; None if they have none.
            values: Their values.
        """
        kept = slice(-self.count % self._stride, None, self._stride)
        most = _MOST_POINTS if steps is None else _MOST_POINTS_WITH_STEPS
        if len(self.values) + len(values[kept]) >= most:  # Some of them are halved with those before.
            of_entries = steps if steps is not None else _NO_STEPS * len(values)
            for entry, step, value in zip(entries, of_entries, values, strict=True):
                self.add(entry, step, value)
            return
        highest, lowest = max(values), min(values)
        if highest > self._highest_value:
            self._highest_value, self._highest = highest, entries[values.index(highest)]
        if lowest < self._lowest_value:
            self._lowest_value, self._lowest = lowest, entries[values.index(lowest)]
        if self._first is None:
            self._first = entries[0]
        self._last = entries[-1]
        times_ns = array("q", map(_timestamp_ns, entries))
        self.times_ns += times_ns[kept]
        self.values += values[kept]
        if steps is None:
            self.steps += _NO_STEPS * len(values[kept])
            if self._changes is not None:
                self._add_changes(self._changes, times_ns, values)
        else:
            self.steps += steps[kept]
        self.count += len(values)

    def _add_changes(
        self, changes: tuple[array[int], array[float]], times_ns: Iterable[int], values: Iterable[float]
    ) -> None:
        """Keep the values that differ from those before them, unless there are too many."""
        changed_ns, changed = changes
        last = changed[-1] if changed else math.nan
        for time_ns, value in zip(times_ns, values, strict=True):
            if value != last:
                changed_ns.append(time_ns)
                changed.append(value)
                last = value
        if len(changed) > _MOST_CHANGES:
            self._changes = None

    def _is_new_extreme(self, entry: LogEntry, step: int, value: float) -> bool:
        """Keep a value outside of those before it; return False for one that is not a finite number."""
        if not math.isfinite(value):
            if self.first_not_finite is None or entry.timestamp_ns < self.first_not_finite.time_ns:
                known = None if step == NO_STEP else step
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
        mean = mean_of(value if isinstance(value, list) else [value])
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
        changes = zip(*self._changes, strict=True) if self._changes is not None else ()
        return sorted({*zip(self.times_ns, self.values, strict=True), *changes, *last})

    def _value(self, entry: LogEntry | None) -> float:
        numbers = entry.payload.get("values") if entry is not None else None
        if not isinstance(numbers, list):
            return math.nan
        is_one_of_many = self.element < len(numbers) and any(label in _LABELS for label, _ in self.key.labels)
        value = as_number(numbers[self.element]) if is_one_of_many else mean_of(numbers)
        return math.nan if value is None else value

    def _ref(self, entry: LogEntry, value: float, shows: str = "") -> Ref:
        unit = "" if self.unit in ("", "1") else f" {self.unit}"
        text = shows or f"{self.key.name} {value:.6g}{unit}"
        return Ref(entry.insert_id, entry.context.log_id, entry.timestamp_ns, self.key.host, text)


def as_number(value: object) -> float | None:
    """Return a number, also one that is not finite; None for a value that is missing, or of another form."""
    if type(value) is float:
        return value
    if type(value) is int:
        try:
            return float(value)
        except OverflowError:
            return None
    return _TEXTS.get(value) if isinstance(value, str) else None


def mean_of(numbers: Sequence[object]) -> float | None:
    """Return the mean of the finite numbers; without one, the first that is not finite; None without any number."""
    known = [number for number in map(as_number, numbers) if number is not None]
    finite = [number for number in known if math.isfinite(number)]
    # Each divided before they are added, so that no sum is too large for a float.
    return math.fsum(number / len(finite) for number in finite) if finite else next(iter(known), None)
