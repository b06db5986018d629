"""The memory of a host before the end of a process: how full, how fast it grew, and the limit. Pure."""

from __future__ import annotations

import math
from typing import Final, NamedTuple

from ml_diagnostics_common.texts import format_duration

from ml_diagnostics_console._facts.curves import Curve
from ml_diagnostics_console._facts.facts import Facts, ProcessFacts
from ml_diagnostics_console.verdict import Ref

__all__ = ["AT_LIMIT_PERCENT", "LEAST_GROWTH_PERCENT", "MemoryUse", "is_at_limit", "memory_use", "shown_memory"]

AT_LIMIT_PERCENT: Final = 95.0
"""Samples are 10 s apart: a process that grows by some % in that time is killed before a sample shows 100 %."""
RECENT_SECONDS: Final = 60.0
"""The last sample before an end is at most so old: six intervals."""
WINDOW_SECONDS: Final = 3_600.0
"""The growth is that of the last hour."""
_LEAST_POINTS: Final = 2
LEAST_GROWTH_PERCENT: Final = 1.0
_SECOND_NS: Final = 1_000_000_000
_GIB: Final = 2**30
_METRICS: Final = ("container_memory_utilization", "host_memory_utilization")
"""That of the container is the one at which the kernel kills; without a limit there is only that of the host."""


class MemoryUse(NamedTuple):
    """The memory of a host over the last hour before an end.

    Attributes:
        metric: The metric that shows it.
        first_percent: At the start of that hour, or of the process.
        last_percent: In the last sample.
        seconds: The time between both.
        limit_bytes: The memory of the host, or the limit of the container; None if it is not recorded.
        mb_per_minute: The growth; None if it did not grow, or the limit is not known.
        is_recent: True if the last sample is from just before the end.
        refs: The samples.
    """

    metric: str
    first_percent: float
    last_percent: float
    seconds: float
    limit_bytes: float | None
    mb_per_minute: float | None
    is_recent: bool
    refs: tuple[Ref, ...]


def memory_use(facts: Facts, process: ProcessFacts) -> MemoryUse | None:
    """Return the memory of the host of a process before its end; None if it is not recorded."""
    end_ns = process.last_event_ns
    if process.end.ended_ns is not None:  # Samples are on the clock of the host, ends on that of the job.
        offsets = facts.attempt.clock_offsets_ns if facts.attempt is not None else {}
        end_ns = process.end.ended_ns + offsets.get(process.host, 0)
    for metric in _METRICS:
        for curve in facts.metrics.of(metric, host=process.host):
            use = _use(metric, curve, process, end_ns)
            if use is not None:
                return use
    return None


def is_at_limit(facts: Facts, process: ProcessFacts) -> bool:
    """Return True if the memory was nearly used up in the last sample before the end of a process."""
    use = memory_use(facts, process)
    return use is not None and use.is_recent and use.last_percent >= AT_LIMIT_PERCENT


def shown_memory(size: float) -> str:
    """Return a size of memory as machines are sold: 512 GiB."""
    return f"{size / _GIB:,.0f} GiB" if size >= 10 * _GIB else f"{size / _GIB:.2f} GiB"


def _use(metric: str, curve: Curve, process: ProcessFacts, end_ns: int) -> MemoryUse | None:
    points = [
        (time_ns, value)
        for time_ns, value in zip(curve.times_ns, curve.values, strict=True)
        if max(process.started_ns, end_ns - round(WINDOW_SECONDS * _SECOND_NS)) <= time_ns <= end_ns + _SECOND_NS
    ]
    if process.started_ns <= curve.last_ns <= end_ns + _SECOND_NS and (not points or points[-1][0] < curve.last_ns):
        points.append((curve.last_ns, curve.last))  # Of a long curve, not every point is kept.
    if not points:
        return None
    limit = curve.beside("total_bytes")
    (first_ns, first), (last_ns, last) = points[0], points[-1]
    slope = _slope(points)
    grows = slope is not None and last - first >= LEAST_GROWTH_PERCENT
    rate = slope * 60 / 100 * limit / 1e6 if grows and slope is not None and limit is not None else None
    seconds = (last_ns - first_ns) / 1e9
    name = metric.removesuffix("_utilization")
    shows = f"{name} {first:.0f} -> {last:.0f} % in {format_duration(seconds)}" if seconds else f"{name} {last:.0f} %"
    shows += f" (+{rate:,.0f} MB/min)" if rate is not None else ""
    shows += f"; limit {shown_memory(limit)}" if limit is not None else ""
    is_recent = end_ns - last_ns <= RECENT_SECONDS * _SECOND_NS
    return MemoryUse(metric, first, last, seconds, limit, rate, is_recent, (curve.ref("last", shows),))


def _slope(points: list[tuple[int, float]]) -> float | None:
    """Return the slope of the line of least squares, per second."""
    if len(points) < _LEAST_POINTS:
        return None
    start_ns = points[0][0]
    times = [(time_ns - start_ns) / 1e9 for time_ns, _ in points]
    mean_time = math.fsum(times) / len(times)
    mean_value = math.fsum(value for _, value in points) / len(points)
    spread = math.fsum((time - mean_time) ** 2 for time in times)
    if spread <= 0:
        return None
    return (
        math.fsum((time - mean_time) * (value - mean_value) for time, (_, value) in zip(times, points, strict=True))
        / spread
    )
