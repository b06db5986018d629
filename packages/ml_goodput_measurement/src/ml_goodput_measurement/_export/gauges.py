"""Gauges by type and labels: the part of a snapshot that Cloud Monitoring shows.

Types and labels are those of the public package ml-goodput-measurement, so its dashboards keep working; see
docs/reference/wire-format.md. The only difference: `performance` is the ideal step time and nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterator, Mapping
from typing import NamedTuple

from ml_goodput_measurement.gcp_metrics import ValueType
from ml_goodput_measurement.metric_details import (
    ACTIVITY_EXCLUSION_LIST,
    BadputType,
    GoodputType,
    MonitoringWindowType,
    UnproductiveTimeDict,
)
from ml_goodput_measurement.snapshot import Cumulative, RollingWindow, SliceEfficiency, Snapshot

__all__ = ["OTHER_EVENTS", "Gauge", "GaugeKey", "event_seconds", "gauges_of"]

OTHER_EVENTS = "ALL_OTHER_TYPES"
"""The event type of the sum of all types without a series of their own."""

_PREFIX = "compute.googleapis.com/workload/"
_EVENTS = BadputType.CUSTOM_BADPUT_EVENTS.name
_LONGEST_LABEL = 1024
_CUMULATIVE, _INTERVAL = MonitoringWindowType.CUMULATIVE.name, MonitoringWindowType.INTERVAL.name


GaugeKey = tuple[str, tuple[tuple[str, str], ...]]
"""Metric type and labels."""


class Gauge(NamedTuple):
    """One time series and its value."""

    metric_type: str
    labels: tuple[tuple[str, str], ...]
    """Labels of the metric, sorted by name."""
    value_type: ValueType
    value: float

    @property
    def key(self) -> GaugeKey:
        """Identifies this series among those of the job."""
        return self.metric_type, self.labels


def gauges_of(
    snapshot: Snapshot,
    *,
    accelerator_type: str,
    cluster_name: str,
    own_events: Container[str],
    include_slice_efficiency: bool = False,
) -> list[Gauge]:
    """Return the gauges of a snapshot.

    Args:
        snapshot: The snapshot.
        accelerator_type: The label of that name, of every metric but `performance`.
        cluster_name: The same; empty for no label.
        own_events: The types of custom events that have series of their own. All others are summed.
        include_slice_efficiency: True to include the efficiencies of slices, if they are known.

    Returns:
        The gauges, each series once.
    """
    common = {"accelerator_type": accelerator_type}
    if cluster_name:
        common["cluster_name"] = cluster_name
    parts = _Parts(common, own_events, include_slice_efficiency)
    found: list[Gauge] = []
    if snapshot.cumulative is not None:
        found += parts.cumulative(snapshot.cumulative)
    if snapshot.deviation is not None and snapshot.deviation.from_baseline_seconds is not None:
        found.append(parts.double("step_time_deviation", snapshot.deviation.from_baseline_seconds))
    for window in snapshot.windows:
        found += parts.window(window)
    return list({gauge.key: gauge for gauge in found if math.isfinite(gauge.value)}.values())


def event_seconds(snapshot: Snapshot) -> dict[str, float]:
    """Return the types of custom events of a snapshot with their time, to compare them with each other."""
    found: dict[str, float] = {}
    badput = [window.badput_percent for window in snapshot.windows]
    if snapshot.cumulative is not None:
        badput.append(snapshot.cumulative.badput_seconds)
    for kinds in badput:
        events = kinds.get(BadputType.CUSTOM_BADPUT_EVENTS)
        if isinstance(events, Mapping):
            found.update(events)
    return found


class _Parts(NamedTuple):
    """The arguments that all gauges of a snapshot share."""

    common: Mapping[str, str]
    own_events: Container[str]
    include_slice_efficiency: bool

    def cumulative(self, known: Cumulative) -> Iterator[Gauge]:
        so_far = MonitoringWindowType.CUMULATIVE.value
        yield self.double("goodput_time", known.goodput_seconds, goodput_source=GoodputType.TOTAL.name)
        yield from self.badput("badput_time", known.badput_seconds)
        yield self.integer("disruptions", known.disruptions, window_type=so_far)
        yield self.integer("max_productive_steps", known.max_productive_step)
        yield self.double("total_elapsed_time", known.total_elapsed_seconds, window_type=so_far)
        if known.ideal_step_seconds is not None:
            yield Gauge(f"{_PREFIX}performance", (), ValueType.DOUBLE, float(known.ideal_step_seconds))
        yield from self.slices(known.slice_efficiency, window_type=_CUMULATIVE, rolling_window_size="0")

    def window(self, known: RollingWindow) -> Iterator[Gauge]:
        size = str(known.window_seconds)
        yield self.double(
            "interval_goodput", known.goodput_percent, goodput_source=GoodputType.TOTAL.name, rolling_window_size=size
        )
        yield from self.badput("interval_badput", known.badput_percent, rolling_window_size=size)
        yield from self.slices(known.slice_efficiency, window_type=_INTERVAL, rolling_window_size=size)

    def badput(self, name: str, kinds: UnproductiveTimeDict, **labels: str) -> Iterator[Gauge]:
        for source, value in self._by_source(kinds).items():
            yield self.double(name, value, badput_source=source, **labels)

    def slices(self, known: SliceEfficiency | None, **labels: str) -> Iterator[Gauge]:
        if known is None or not self.include_slice_efficiency:
            return
        yield self.double("stepping_slice_efficiency", known.stepping, **labels)
        yield self.double("available_slice_efficiency", known.available, **labels)

    def double(self, name: str, value: float, **labels: str) -> Gauge:
        return self._gauge(name, ValueType.DOUBLE, float(value), labels)

    def integer(self, name: str, value: int, **labels: str) -> Gauge:
        return self._gauge(name, ValueType.INT, int(value), labels)

    def _gauge(self, name: str, value_type: ValueType, value: float, labels: Mapping[str, str]) -> Gauge:
        return Gauge(f"{_PREFIX}{name}", tuple(sorted({**self.common, **labels}.items())), value_type, value)

    def _by_source(self, kinds: UnproductiveTimeDict) -> dict[str, float]:
        found: dict[str, float] = {}
        for kind, value in kinds.items():
            if kind.name in ACTIVITY_EXCLUSION_LIST:
                continue
            if not isinstance(value, Mapping):
                found[kind.name] = float(value)
                continue
            for event, part in value.items():
                shown = event if event in self.own_events else OTHER_EVENTS
                source = f"{_EVENTS}.{shown}"[:_LONGEST_LABEL]
                found[source] = found.get(source, 0.0) + float(part)
        return found
