"""Entries of a run to the points of TensorBoard: one line for each metric. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from ml_diagnostics_common.entry import LogEntry
from ml_diagnostics_common.event_files import STEPS, Scalar, event_record, marker_record

from google_cloud_mldiagnostics._entries import mean_of_finite

__all__ = ["MOST_TAGS", "Batch", "tag_of"]

MOST_TAGS: Final = 10_000

_NAMESPACE: Final = "namespace"
_NOT_METRICS: Final = "mlrun_"
_PLAIN: Final = frozenset({"values", "step_index", "unit", "not_finite", "hostname", "process_index"})
_SYSTEM_PREFIXES: Final = ("host_", "container_", "process_")
_LONGEST_TAG: Final = 600
_SAME_EVENT_NS: Final = 10_000_000  # Values of one step within 10 ms have the same time: they share an event.


class _Point(NamedTuple):
    step: int
    time_ns: int
    tag: str
    value: float


class Batch:
    """Values to write, at most one for each step of a tag.

    A metric is a tag; its values with different labels are different tags. A value for each chip becomes their mean. A
    value without a step gets the number after the last one of its tag. Where steps go back, as after a restart, the
    later values replace the earlier ones.

    Args:
        last_steps: The last written step of each tag.

    Attributes:
        last_steps: The same, with the values of this batch.
        dropped: The number of values that are not written, since there are too many tags.
    """

    def __init__(self, last_steps: Mapping[str, int]) -> None:
        self.last_steps = dict(last_steps)
        self.dropped = 0
        self._written = last_steps
        self._points: dict[str, list[_Point]] = {}

    def add(self, entries: Iterable[LogEntry]) -> None:
        """Add the metrics among entries; those of the system are left out, since they belong to no step."""
        for entry in entries:
            payload = entry.payload
            own = entry.own_resource_labels
            metric = own.get(_NAMESPACE, "") if own else ""
            if not metric or metric.startswith(_NOT_METRICS) or _is_of_system(metric, payload):
                continue
            value = _value(payload.get("values"))
            if value is None:
                continue
            tag = metric if payload.keys() <= _PLAIN else tag_of(metric, payload)
            last = self.last_steps.get(tag)
            if last is None and len(self.last_steps) >= MOST_TAGS:
                self.dropped += 1
                continue
            step = payload.get("step_index")
            if type(step) is not int or step not in STEPS:
                step = 0 if last is None else min(last + 1, STEPS[-1])
            points = self._points.setdefault(tag, [])
            while points and points[-1].step >= step:
                points.pop()
            points.append(_Point(step, entry.timestamp_ns, tag, value))
            self.last_steps[tag] = step

    def records(self) -> bytes:
        """Return the events of the batch, for a file of version 1."""
        points = sorted(point for points in self._points.values() for point in points)
        records: list[bytes] = []
        replaced = [
            self._written[tag]
            for tag, points_of_tag in self._points.items()
            if tag in self._written and points_of_tag[0].step <= self._written[tag]
        ]
        if replaced:
            records.append(marker_record(min(max(replaced) + 1, STEPS[-1]), points[0].time_ns))
        first = 0
        for index in range(1, len(points) + 1):
            if index == len(points) or not _share_an_event(points[first], points[index]):
                group = points[first:index]
                scalars = [Scalar(point.tag, point.value) for point in group]
                records.append(event_record(scalars, step=group[0].step, time_ns=group[0].time_ns))
                first = index
        return b"".join(records)


def tag_of(metric: str, payload: Mapping[str, Any]) -> str:
    """Return the tag of a value with labels: `loss/split=train,task=a`.

    Args:
        metric: The metric's name.
        payload: The payload of its entry.
    """
    labels = ",".join(f"{name}={payload[name]}" for name in sorted(payload.keys() - _PLAIN))
    tag = f"{metric}/{labels}" if labels else metric
    if len(tag) <= _LONGEST_TAG:
        return tag
    digest = hashlib.sha256(tag.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"{tag[: _LONGEST_TAG - 9]}.{digest}"


def _share_an_event(first: _Point, other: _Point) -> bool:
    return first.step == other.step and other.time_ns - first.time_ns < _SAME_EVENT_NS


def _is_of_system(metric: str, payload: Mapping[str, Any]) -> bool:
    """Return True for what `_system_metrics` measures: it has the host's name and no step."""
    if "hostname" not in payload or "step_index" in payload:
        return False
    return "accelerator_type" in payload or metric.startswith(_SYSTEM_PREFIXES)


def _value(values: Any) -> float | None:
    try:
        if len(values) == 1:
            return float(values[0])
        return mean_of_finite([float(value) for value in values]) if values else None
    except (TypeError, ValueError, OverflowError):
        return None
