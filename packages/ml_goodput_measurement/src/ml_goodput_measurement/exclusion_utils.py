"""Intervals to exclude from a job's goodput: a holiday of the cluster, a planned stop."""

from __future__ import annotations

import datetime
import math
from collections.abc import Iterable
from typing import Any

from ml_diagnostics_common.guard import warn_once

from ml_goodput_measurement._record.arguments import Moment, posix_seconds, shown

__all__ = ["get_exclusion_overlap", "normalize_intervals"]

Interval = tuple[float, float]
"""Start and end, in seconds since 1970."""


def normalize_intervals(intervals: Iterable[Any]) -> list[Interval]:
    """Return the intervals in seconds since 1970, sorted and merged; those that touch become one.

    Args:
        intervals: Pairs of a start and an end, both datetimes; naive ones are local time. Pairs with a start
            that is not before the end, and other values, are skipped with one WARNING that names them.

    Returns:
        Pairs of seconds that neither overlap nor touch.
    """
    return _merged(filter(None, map(_in_seconds, intervals)))


def get_exclusion_overlap(start: Moment, end: Moment, exclusions: Iterable[tuple[Moment, Moment]]) -> float:
    """Return how much of an interval is excluded.

    Args:
        start: Start of the stretch: seconds since 1970, or a datetime (naive: local time).
        end: End of the stretch.
        exclusions: What is excluded, as `normalize_intervals` returns it, or any other pairs of moments.

    Returns:
        Seconds; what lies in two exclusions counts once. 0.0 where the end is not after the start.
    """
    first, last = posix_seconds(start), posix_seconds(end)
    excluded = _merged((posix_seconds(lower), posix_seconds(upper)) for lower, upper in exclusions)
    return math.fsum(max(0.0, min(last, upper) - max(first, lower)) for lower, upper in excluded)


def _merged(intervals: Iterable[Interval]) -> list[Interval]:
    merged: list[Interval] = []
    for start, end in sorted(intervals):
        if merged and start <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(end, merged[-1][1])
        else:
            merged.append((start, end))
    return merged


def _in_seconds(interval: Any) -> Interval | None:
    try:
        start, end = interval
        if not isinstance(start, datetime.datetime) or not isinstance(end, datetime.datetime):
            raise TypeError("no datetimes")
        seconds = posix_seconds(start), posix_seconds(end)
    except (TypeError, ValueError, OverflowError, OSError):
        _warn(f"{shown(interval)} is skipped: expected a pair of datetimes (start, end)")
        return None
    if seconds[0] >= seconds[1]:
        _warn(f"from {start} to {end} is skipped: its start is not before its end")
        return None
    return seconds


def _warn(what: str) -> None:
    warn_once(("exclusion", what), "The exclusion %s.", what)  # Once: a monitor repeats the query every minute.
