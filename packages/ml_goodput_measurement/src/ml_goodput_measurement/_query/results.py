"""Conversion of the ledger's nanoseconds to public results: details by name, parts of snapshots, step deviations."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from ml_goodput_measurement._ledger import Summary, Window
from ml_goodput_measurement.metric_details import (
    BadputType,
    GoodputType,
    IntervalWorkloadMetricDetails,
    UnproductiveTimeDict,
    WorkloadMetricDetails,
)
from ml_goodput_measurement.partition import Bucket
from ml_goodput_measurement.snapshot import Cumulative, RollingWindow, SliceEfficiency

__all__ = [
    "NOTHING",
    "StepDeviations",
    "badput_percent",
    "cumulative",
    "details",
    "efficiencies",
    "interval_details",
    "rolling_window",
]

NOTHING = Summary(
    start_ns=0,
    end_ns=0,
    running=False,
    buckets=dict.fromkeys(Bucket, 0),
    custom={},
    data_loading_async_ns=0,
    estimated_ns=0,
    last_step=0,
    steps_kept=0,
    disruptions=0,
    ideal_step_seconds=None,
    slice_shares=None,
)
"""The summary of a job of which nothing is known."""

_OTHER = (Bucket.UNKNOWN, Bucket.IN_FLIGHT)
_KINDS = [
    (kind, Bucket(kind.name) if kind.name in Bucket._value2member_map_ else None)
    for kind in BadputType
    if kind is not BadputType.CUSTOM_BADPUT_EVENTS
]
_ELASTIC = {BadputType.ELASTIC_SLICE_DOWN, BadputType.ELASTIC_SCALE_UP, BadputType.ELASTIC_REINITIALIZATION}


def badput_percent(part: Summary | Window, *, elastic: bool) -> UnproductiveTimeDict:
    """Return every kind of badput in percent of the counted time; custom events by their type.

    Args:
        part: A job or a window of it.
        elastic: True to include the kinds of elastic jobs also if they took no time.
    """
    return _badput(part, part.counted_ns / 100, elastic=elastic)


def details(
    summary: Summary, step_deviations: Mapping[int, float], ideal_seconds: float | None, *, elastic: bool
) -> WorkloadMetricDetails:
    """Return the details of a job, in seconds."""
    return WorkloadMetricDetails(
        goodput_time={GoodputType.TOTAL: summary.buckets[Bucket.PRODUCTIVE] / 1e9},
        badput_time=_badput(summary, 1e9, elastic=elastic),
        max_productive_step=summary.last_step,
        total_elapsed_time=summary.counted_ns / 1e9,
        disruption_count=summary.disruptions,
        step_time_deviation=step_deviations,
        ideal_step_time=ideal_seconds or 0.0,
        total_excluded_time=summary.buckets[Bucket.EXCLUDED] / 1e9,
    )


def interval_details(window: Window | None, *, elastic: bool) -> IntervalWorkloadMetricDetails:
    """Return the details of a window; empty ones for None."""
    if window is None:
        return IntervalWorkloadMetricDetails(interval_goodput={}, interval_badput={}, interval_size=0)
    return IntervalWorkloadMetricDetails(
        interval_goodput={GoodputType.TOTAL: window.goodput_percent},
        interval_badput=badput_percent(window, elastic=elastic),
        interval_size=window.counted_ns / 1e9,
    )


def efficiencies(part: Summary | Window | None) -> dict[str, float]:
    """Return the details that only elastic jobs have; 0.0 without reports of slices."""
    stepping, available = (part.slice_shares if part is not None else None) or (0.0, 0.0)
    return {"stepping_slice_efficiency": stepping, "available_slice_efficiency": available}


def cumulative(summary: Summary, ideal_seconds: float | None, *, elastic: bool) -> Cumulative:
    """Return the part of a snapshot on the whole life of a job."""
    return Cumulative(
        goodput_seconds=summary.buckets[Bucket.PRODUCTIVE] / 1e9,
        goodput_percent=summary.goodput_percent,
        badput_seconds=_badput(summary, 1e9, elastic=elastic),
        badput_percent=badput_percent(summary, elastic=elastic),
        max_productive_step=summary.last_step,
        total_elapsed_seconds=summary.wall_ns / 1e9,
        disruptions=summary.disruptions,
        ideal_step_seconds=ideal_seconds,
        slice_efficiency=_slice_efficiency(summary),
    )


def rolling_window(window_seconds: int, window: Window, *, elastic: bool) -> RollingWindow:
    """Return the part of a snapshot on a rolling window."""
    return RollingWindow(
        window_seconds=window_seconds,
        goodput_percent=window.goodput_percent,
        badput_percent=badput_percent(window, elastic=elastic),
        slice_efficiency=_slice_efficiency(window),
    )


def _slice_efficiency(part: Summary | Window) -> SliceEfficiency | None:
    return None if part.slice_shares is None else SliceEfficiency(*part.slice_shares)


def _badput(part: Summary | Window, unit_ns: float, *, elastic: bool) -> UnproductiveTimeDict:
    """Return every kind of badput in a unit: 1e9 for seconds, a hundredth of the whole for percent."""
    result: UnproductiveTimeDict = {}
    for kind, bucket in _KINDS:
        length = part.buckets[bucket] if bucket is not None else _other_ns(part, kind)
        if length or elastic or kind not in _ELASTIC:
            result[kind] = length / unit_ns
    result[BadputType.CUSTOM_BADPUT_EVENTS] = {
        label: length / unit_ns for label, length in part.custom.items() if length
    }
    return result


def _other_ns(part: Summary | Window, kind: BadputType) -> int:
    """Return the time of a kind without a bucket of its own."""
    if kind is BadputType.DATA_LOADING_ASYNC:
        return part.data_loading_async_ns
    outside_ns = part.outside_ns if isinstance(part, Window) else 0
    return outside_ns + sum(part.buckets[bucket] for bucket in _OTHER)


class StepDeviations(Mapping[int, float]):
    """Absolute deviation from the ideal step time, in seconds, by step.

    Computed at first use, from the calculator's data at that time: it costs time and memory in proportion to the steps,
    and most callers that read a job's details do not use it.
    """

    def __init__(self, step_seconds: Callable[[], Mapping[int, float]], ideal_seconds: float | None) -> None:
        """Take a function that returns the step times, and the ideal step time, if any."""
        self._step_seconds = step_seconds
        self._ideal_seconds = ideal_seconds
        self._deviations: dict[int, float] | None = None

    def __getitem__(self, step: int) -> float:
        return self._computed()[step]

    def __iter__(self) -> Iterator[int]:
        return iter(self._computed())

    def __reversed__(self) -> Iterator[int]:
        return reversed(self._computed())

    def __len__(self) -> int:
        return len(self._computed())

    def __repr__(self) -> str:
        return repr(self._computed())

    def __reduce__(self) -> tuple[type[dict[int, float]], tuple[dict[int, float]]]:
        return dict, (self._computed(),)  # A copy, in this process or another, needs no ledger.

    def _computed(self) -> dict[int, float]:
        if self._deviations is None:
            ideal = self._ideal_seconds
            steps = {} if ideal is None else self._step_seconds()
            self._deviations = {step: abs(seconds - (ideal or 0.0)) for step, seconds in steps.items()}
        return self._deviations
