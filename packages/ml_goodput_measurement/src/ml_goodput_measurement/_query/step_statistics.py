"""Statistics of step times: the ideal one, anomalous ones, and the deviation of the latest from the usual.

All times are in seconds. Arguments with step times are sequences, or mappings by step.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Reversible, Sequence
from itertools import islice
from statistics import fmean, median

from ml_diagnostics_common.exceptions import ConfigurationError

from ml_goodput_measurement._record.arguments import shown
from ml_goodput_measurement.metric_details import MonitoringWindowType

__all__ = [
    "compute_ideal_step_time",
    "compute_percentile",
    "compute_step_deviation_from_baseline",
    "get_anomalous_and_normal_step_times",
    "get_extra_time_from_anomalous_steps",
]

StepTimes = Iterable[float] | Mapping[int, float]

_ANOMALOUS_DEVIATIONS = 3
"""A step is anomalous if it exceeds the median by more than this number of median absolute deviations."""


def compute_percentile(values: Iterable[float], percentile: float) -> float:
    """Return a percentile, interpolated linearly between the two nearest values, as by numpy.

    Args:
        values: In any order.
        percentile: 0 to 100.

    Returns:
        The percentile; 0.0 without values.

    Raises:
        ConfigurationError: The percentile is not between 0 and 100.
    """
    if not 0 <= percentile <= 100:
        raise ConfigurationError(f"percentile is {shown(percentile)}; give a number from 0 to 100")
    ordered = sorted(values)
    if not ordered:
        return 0.0
    position = (len(ordered) - 1) * percentile / 100
    below = math.floor(position)
    above = min(below + 1, len(ordered) - 1)
    return float(ordered[below] + (ordered[above] - ordered[below]) * (position - below))


def compute_ideal_step_time(step_times: StepTimes) -> float | None:
    """Return the mean of the step times that are not anomalous, also if it is below a second.

    Args:
        step_times: In seconds; values that are not positive numbers are skipped.

    Returns:
        Seconds; None without step times.
    """
    times = [time for time in _values(step_times) if 0 < time < math.inf]
    return fmean(get_anomalous_and_normal_step_times(times)[1]) if times else None


def get_anomalous_and_normal_step_times(step_times: StepTimes) -> tuple[list[float], list[float]]:
    """Separate the step times that are far above the median from the others, and keep their order.

    Far is more than three times the median absolute deviation (MAD, not scaled to a standard deviation), so at most
    half of the steps can be anomalous. If more than half of the times are equal, the MAD is 0, and every longer time is
    anomalous.

    Args:
        step_times: In seconds.

    Returns:
        The anomalous times, and the normal ones; both empty without step times.
    """
    times = list(_values(step_times))
    if not times:
        return [], []
    middle = median(times)
    limit = middle + _ANOMALOUS_DEVIATIONS * median(abs(time - middle) for time in times)
    return [time for time in times if time > limit], [time for time in times if time <= limit]


def get_extra_time_from_anomalous_steps(step_times: StepTimes) -> float:
    """Return the additional time of all anomalous steps, compared with normal ones.

    Args:
        step_times: In seconds.

    Returns:
        Seconds; 0.0 if no step is anomalous.
    """
    anomalous, normal = get_anomalous_and_normal_step_times(step_times)
    return math.fsum(anomalous) - len(anomalous) * fmean(normal) if anomalous else 0.0


def compute_step_deviation_from_baseline(
    step_time_deviation: Mapping[int, float] | Sequence[float],
    mode: MonitoringWindowType | str = MonitoringWindowType.CUMULATIVE,
    recent_window_size: int = 100,
    baseline_window_size: int = 1000,
    spike_percentile: float = 90,
) -> float:
    """Return the deviation of the latest steps from the usual ones: one number to watch, or to alert on.

    It is a high percentile of the deviations of the recent steps. For the whole life of a job, the median of the steps
    before them is subtracted, once there are enough of these for the baseline: then the number rises if the job becomes
    slower, and is about zero or below if it was always as slow.

    Args:
        step_time_deviation: Seconds by step, or in a sequence, oldest first; their sign is ignored. Of a reversible
            mapping or sequence, only the two windows are read.
        mode: `INTERVAL` does not compare with a baseline.
        recent_window_size: Number of recent steps. With fewer, the result is the mean of their deviations.
        baseline_window_size: Number of steps before the recent ones.
        spike_percentile: 0 to 100, of the recent steps.

    Returns:
        Seconds; 0.0 without steps.

    Raises:
        ConfigurationError: The mode is unknown, a window has no size, or the percentile is not between 0 and 100.
    """
    try:
        mode = MonitoringWindowType(mode)
    except ValueError:
        raise ConfigurationError(f"Unsupported MonitoringWindowType mode: {mode}") from None
    for name, size in (("recent_window_size", recent_window_size), ("baseline_window_size", baseline_window_size)):
        if size < 1:
            raise ConfigurationError(f"{name} is {shown(size)}; give a number of steps, at least 1")
    latest = _latest(step_time_deviation, recent_window_size + baseline_window_size)
    recent, before = latest[:recent_window_size], latest[recent_window_size:]
    if not recent:
        return 0.0
    if len(recent) < recent_window_size:
        return fmean(recent)
    spike = compute_percentile(recent, spike_percentile)
    if mode is MonitoringWindowType.CUMULATIVE and len(before) >= baseline_window_size:
        return spike - median(before)
    return spike


def _values(numbers: StepTimes) -> Iterable[float]:
    return numbers.values() if isinstance(numbers, Mapping) else numbers


def _latest(deviations: Mapping[int, float] | Collection[float], count: int) -> list[float]:
    """Return the absolute values of the last deviations, the latest first."""
    if isinstance(deviations, Mapping):
        steps = deviations if isinstance(deviations, Reversible) else list(deviations)
        return [abs(deviations[step]) for step in islice(reversed(steps), count)]
    values = deviations if isinstance(deviations, Reversible) else list(deviations)
    return list(map(abs, islice(reversed(values), count)))
