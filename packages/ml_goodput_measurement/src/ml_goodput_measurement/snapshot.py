"""Snapshots of a job: the input of exporters, which are functions of a snapshot.

Parts that were not requested, or are unknown, are None or empty; times are in seconds, shares in percent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from ml_goodput_measurement.metric_details import UnproductiveTimeDict

__all__ = ["Cumulative", "DeviatingStep", "Deviation", "RollingWindow", "SliceEfficiency", "Snapshot"]


class DeviatingStep(NamedTuple):
    """A kept step, and by how much its time differs from the ideal step time."""

    step: int
    start_ns: int
    """Start; later steps start later, also if the job repeats their numbers."""
    deviation_seconds: float
    """Absolute."""


class SliceEfficiency(NamedTuple):
    """Means over time of the slices of an elastic job, 0 to 1, since their first report."""

    stepping: float
    """Slices that trained, of all."""
    available: float
    """Slices that were available, of all."""


@dataclass(frozen=True, slots=True)
class Cumulative:
    """The whole life of the job."""

    goodput_seconds: float
    goodput_percent: float
    badput_seconds: UnproductiveTimeDict
    badput_percent: UnproductiveTimeDict
    max_productive_step: int
    total_elapsed_seconds: float
    disruptions: int
    ideal_step_seconds: float | None
    """The configured time, else the mean of the steps that are not anomalous; None until a step is complete."""
    slice_efficiency: SliceEfficiency | None


@dataclass(frozen=True, slots=True)
class Deviation:
    """Differences of step times from the ideal one."""

    from_baseline_seconds: float | None
    """Result of `compute_step_deviation_from_baseline`; None until a step is complete."""
    steps_since: Callable[[int], Iterator[DeviatingStep]]
    """Yields, oldest first, the complete kept steps that started after a moment (nanoseconds; -1 for all of them). Call
    it before the next snapshot is taken."""


@dataclass(frozen=True, slots=True)
class RollingWindow:
    """The last seconds of the job's life, or all of it if it is shorter."""

    window_seconds: int
    goodput_percent: float
    badput_percent: UnproductiveTimeDict
    slice_efficiency: SliceEfficiency | None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state of a job at one moment."""

    job_name: str
    time_ns: int
    """Wall clock of the query."""
    cumulative: Cumulative | None = None
    deviation: Deviation | None = None
    windows: tuple[RollingWindow, ...] = ()
