"""Metrics over steps and time, in bounded memory: of a run's own metrics, and of all its hosts. Pure.

A metric of the host is recorded every few seconds by each host for weeks: of such a curve at most 2,048 points are
kept, every second, fourth, eighth one, and the extremes and the last one exactly. A metric with steps, such as a loss,
keeps up to a million points, since a rule needs the step at which it went wrong.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from ml_diagnostics_common.entry import LogEntry

from ml_diagnostics_console.verdict import Ref

__all__ = ["Curve", "CurveKey", "Curves", "NotFinite"]

_MOST_POINTS: Final = 2_048
_MOST_POINTS_WITH_STEPS: Final = 1_048_576
_NO_STEP: Final = -1
_OF_ENTRY: Final = frozenset(
    {"values", "step_index", "unit", "not_finite", "hostname", "process_index", "accelerator_type", "mean"}
)
_TEXTS: Final[Mapping[str, float]] = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


class CurveKey(NamedTuple):
    """What makes a curve one of its own."""

    name: str
    host: str
    pid: str
    labels: tuple[tuple[str, str], ...]
    """The user's labels, and the name of the chip if there is a value for each."""


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
        self._stride = 1
        self._first: LogEntry | None = None
        self._last: LogEntry | None = None
        self._highest: tuple[float, LogEntry] | None = None
        self._lowest: tuple[float, LogEntry] | None = None

    def add(self, entry: LogEntry, step: int, value: float) -> None:
        """Take a point; -1 is no step."""
        if not math.isfinite(value):
            if self.first_not_finite is None or entry.timestamp_ns < self.first_not_finite.time_ns:
                known = None if step == _NO_STEP else step
                self.first_not_finite = NotFinite(entry.timestamp_ns, known, value, self._ref(entry, value))
            return
        if self._first is None:
            self._first = entry
        self._last = entry
        if self._highest is None or value > self._highest[0]:
            self._highest = value, entry
        if self._lowest is None or value < self._lowest[0]:
            self._lowest = value, entry
        if self.count % self._stride == 0:
            self.times_ns.append(entry.timestamp_ns)
            self.steps.append(step)
            self.values.append(value)
            if len(self.values) >= (_MOST_POINTS if step == _NO_STEP else _MOST_POINTS_WITH_STEPS):
                self._halve()
        self.count += 1

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
        return self._highest[0] if self._highest is not None else math.nan

    @property
    def lowest(self) -> float:
        """The lowest finite value; NaN without one."""
        return self._lowest[0] if self._lowest is not None else math.nan

    def ref(self, which: str = "last", says: str = "") -> Ref:
        """Return the entry of a point.

        Args:
            which: `first`, `last`, `highest` or `lowest`.
            says: The sentence of it; empty takes the metric and its value.
        """
        extremes = {"highest": self._highest, "lowest": self._lowest}
        extreme = extremes.get(which)
        entry = extreme[1] if extreme is not None else self._first if which == "first" else self._last
        value = extreme[0] if extreme is not None else self._value(entry)
        if entry is None:
            return Ref("", "ml_diagnostics_metric", None, self.key.host, says)
        return self._ref(entry, value, says)

    def beside(self, name: str) -> float | None:
        """Return a number that the last entry has beside its value, such as `total_bytes`; None without one."""
        value = None if self._last is None else self._last.payload.get(name)
        mean = _mean(value if isinstance(value, list) else [value])
        return mean if math.isfinite(mean) else None

    def between(self, start_ns: int, end_ns: int) -> list[float]:
        """Return the kept values of a time range."""
        pairs = zip(self.times_ns, self.values, strict=True)
        return [value for time_ns, value in pairs if start_ns <= time_ns <= end_ns]

    def _value(self, entry: LogEntry | None) -> float:
        return math.nan if entry is None else _mean(entry.payload.get("values"))

    def _ref(self, entry: LogEntry, value: float, says: str = "") -> Ref:
        unit = "" if self.unit in ("", "1") else f" {self.unit}"
        text = says or f"{self.key.name} {value:.6g}{unit}"
        return Ref(entry.insert_id, entry.context.log_id, entry.timestamp_ns, self.key.host, text)


class Curves:
    """All metrics of a run."""

    def __init__(self) -> None:
        self._curves: dict[CurveKey, Curve] = {}
        self._found: dict[tuple[int, str, Any, Any], tuple[LogEntry, Curve]] = {}

    def add(self, name: str, entry: LogEntry) -> None:
        """Take an entry of a metric."""
        payload = entry.payload
        numbers = payload.get("values")
        if not isinstance(numbers, list) or not numbers:
            return
        step = payload.get("step_index", _NO_STEP)
        if type(step) is not int:
            step = int(step) if isinstance(step, float) and step.is_integer() else _NO_STEP
        if not -1 <= step < 2**62:
            step = _NO_STEP
        chips = payload.get("accelerator_labels")
        if isinstance(chips, list) and len(chips) == len(numbers) > 1:
            for chip, number in zip(chips, numbers, strict=True):
                self._curve(name, entry, str(chip)).add(entry, step, _number(number))
            return
        number = numbers[0] if len(numbers) == 1 else _mean(numbers)
        self._curve(name, entry, "").add(entry, step, number if type(number) is float else _number(number))

    def _curve(self, name: str, entry: LogEntry, chip: str) -> Curve:
        payload = entry.payload
        # Found by the identity of the context, which all entries of a writer share: with a million entries each
        # dictionary of labels counts. The entry is kept, so that the identity is not reused.
        is_plain = not chip and len(payload) <= 3
        quick = (id(entry.context), name, payload.get("hostname"), chip)
        if is_plain or chip:
            known = self._found.get(quick)
            if known is not None and (is_plain or len(known[0].payload) == len(payload)):
                return known[1]
        # Labels of users are texts; numbers and lists beside the values, such as `used_bytes`, are of the entry alone.
        labels = {key: value for key, value in payload.items() if key not in _OF_ENTRY and isinstance(value, str)}
        if chip:
            labels["chip"] = chip
        of_writer = entry.context.labels
        host = str(payload.get("hostname") or of_writer.get("host", ""))
        key = CurveKey(name, host, of_writer.get("pid", ""), tuple(sorted(labels.items())))
        curve = self._curves.get(key)
        if curve is None:
            index = str(payload.get("process_index") or of_writer.get("process_index", ""))
            curve = self._curves[key] = Curve(key, str(payload.get("unit", "1")), index)
        if is_plain or chip:
            self._found[quick] = entry, curve
        return curve

    def __iter__(self) -> Iterator[Curve]:
        return iter(self._curves.values())

    def __len__(self) -> int:
        return len(self._curves)

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


def _number(value: object) -> float:
    if isinstance(value, bool) or value is None:
        return math.nan
    if isinstance(value, str):
        return _TEXTS.get(value, math.nan)
    return float(value) if isinstance(value, (int, float)) else math.nan


def _mean(numbers: object) -> float:
    """Return the mean of the finite numbers; NaN without one."""
    if not isinstance(numbers, Sequence) or isinstance(numbers, str):
        return math.nan
    finite = [number for number in map(_number, numbers) if math.isfinite(number)]
    return math.fsum(finite) / len(finite) if finite else math.nan
