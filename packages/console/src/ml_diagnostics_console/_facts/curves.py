"""The metrics of a run, and of all its hosts: one curve for each process, name and set of labels. Pure."""

from __future__ import annotations

import itertools
import math
from array import array
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from ml_diagnostics_common.entry import EntryContext, LogEntry

from ml_diagnostics_console._facts.curve import (
    LABELS_OF_ELEMENTS,
    NO_STEP,
    Curve,
    CurveKey,
    NotFinite,
    as_number,
    mean_of,
)

__all__ = ["Curve", "CurveKey", "Curves", "NotFinite"]

_LARGEST_STEP: Final = 2**62
_OF_ENTRY: Final = frozenset(
    {"values", "step_index", "unit", "not_finite", "hostname", "process_index", "accelerator_type", "mean"}
)


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
        step = payload.get("step_index", NO_STEP)
        if type(step) is not int or not 0 <= step < _LARGEST_STEP:
            step = int(step) if type(step) is float and step.is_integer() and 0 <= step < _LARGEST_STEP else NO_STEP
        known = self._known.get((id(entry.context), name))
        if known is not None and payload.keys() == known.keys and len(known.curves) == len(numbers):
            curves: Sequence[Curve] = known.curves
        else:
            curves = self._curves_of(name, entry, len(numbers))
        if len(numbers) == 1:  # Of nearly all entries.
            value = as_number(numbers[0])
            if value is not None:
                curves[0].add(entry, step, value)
        elif len(curves) == len(numbers):
            for curve, number in zip(curves, numbers, strict=True):
                value = as_number(number)
                if value is not None:
                    curve.add(entry, step, value)
        else:
            mean = mean_of(numbers)
            if mean is not None:
                curves[0].add(entry, step, mean)

    def add_all(self, name: str, entries: Sequence[LogEntry]) -> None:
        """Take entries of a metric of one writer, in the order of time, as `add` does one.

        With a million entries each operation counts. Nearly all are plain: of the same form, with one finite number.
        Those are checked and packed together, which takes a third of the time.
        """
        form = id(entries[0].context), name
        if form not in self._known:
            self.add(name, entries[0])
            entries = entries[1:]
        known = self._known.get(form)
        points = _plain_points(entries, known.keys) if known is not None and entries else None
        if known is not None and points is not None:
            known.curves[0].add_all(entries, *points)
        else:
            for entry in entries:
                self.add(name, entry)

    def sort(self) -> None:
        """Order the curves by their first entries, as if the entries of all writers were added in the order of time."""
        ordered = sorted(self._curves.values(), key=lambda curve: (curve.started_ns, f"{curve.key.writer}."))
        self._curves = {curve.key: curve for curve in ordered}

    def _curves_of(self, name: str, entry: LogEntry, count: int) -> tuple[Curve, ...]:
        """Return the curve of each value, if lists beside the values name each one, else one curve."""
        payload = entry.payload
        # Labels of users are texts; numbers beside the values, such as `total_bytes`, are of the entry alone.
        labels = {key: value for key, value in payload.items() if key not in _OF_ENTRY and isinstance(value, str)}
        named = {
            label: values
            for key, label in LABELS_OF_ELEMENTS.items()
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
            curve = self._curves[key] = Curve(key, str(payload.get("unit", "1")), index, entry.timestamp_ns)
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


def _plain_points(entries: Sequence[LogEntry], keys: frozenset[str]) -> tuple[array[int] | None, array[float]] | None:
    """Return the steps, if they have any, and the values of entries with the same keys; None if one is not plain."""
    payloads = [entry.payload for entry in entries]
    if any(frozenset(form) != keys for form in set(map(tuple, payloads))):
        return None
    lists = [payload["values"] for payload in payloads]
    if set(map(type, lists)) != {list} or set(map(len, lists)) != {1}:
        return None
    numbers = list(itertools.chain.from_iterable(lists))
    if not {float, int}.issuperset(map(type, numbers)):
        return None
    steps = [payload["step_index"] for payload in payloads] if "step_index" in keys else None
    if steps is not None and (set(map(type, steps)) != {int} or min(steps) < 0 or max(steps) >= _LARGEST_STEP):
        return None
    try:
        values = array("d", numbers)
    except OverflowError:  # A whole number beyond all floats.
        return None
    return (None if steps is None else array("q", steps), values) if math.isfinite(sum(values)) else None
