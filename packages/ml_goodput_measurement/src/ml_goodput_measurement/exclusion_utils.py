"""Stretches of time that a user wants to leave out of a job's goodput: a holiday of the cluster, a planned stop."""

from __future__ import annotations

import datetime
from collections.abc import Iterable
from typing import Any

from ml_diagnostics_common.guard import warn_once

from ml_goodput_measurement.moments import Moment, in_utc
from ml_goodput_measurement.names import shown

__all__ = ["get_exclusion_overlap", "normalize_intervals"]

Interval = tuple[datetime.datetime, datetime.datetime]


def normalize_intervals(intervals: Iterable[Any]) -> list[Interval]:
    """Returns the intervals sorted and merged, in UTC; those that touch become one.

    Args:
        intervals: Pairs of a start and an end, both datetimes; naive ones are local time. A pair whose start is not
            before its end, or that is no pair of datetimes, is passed over with one WARNING that names it.

    Returns:
        Pairs of aware datetimes that neither overlap nor touch.
    """
    merged: list[Interval] = []
    for start, end in sorted(pair for pair in map(_in_utc, intervals) if pair is not None):
        if merged and start <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(end, merged[-1][1])
        else:
            merged.append((start, end))
    return merged


def get_exclusion_overlap(start: Moment, end: Moment, exclusions: Iterable[tuple[Moment, Moment]]) -> float:
    """Returns how much of a stretch of time is excluded.

    Args:
        start: Begin of the stretch: a datetime (naive: local time) or seconds since 1970.
        end: End of the stretch.
        exclusions: What is excluded; they need not be sorted or disjoint.

    Returns:
        Seconds; what lies in two exclusions counts once. 0.0 where the end is not after the start.
    """
    start, end = in_utc(start), in_utc(end)
    total = datetime.timedelta()
    for begin, finish in normalize_intervals(map(_as_datetimes, exclusions)):
        total += max(datetime.timedelta(), min(end, finish) - max(start, begin))
    return total.total_seconds()


def _in_utc(interval: Any) -> Interval | None:
    try:
        start, end = interval
        if not isinstance(start, datetime.datetime) or not isinstance(end, datetime.datetime):
            raise TypeError("no datetimes")
        start, end = in_utc(start), in_utc(end)
    except (TypeError, ValueError, OverflowError, OSError):
        _warn(f"{shown(interval)} is passed over: it is no pair of datetimes; give (start, end)")
        return None
    if start >= end:
        _warn(f"from {start} to {end} is passed over: its start is not before its end")
        return None
    return start, end


def _as_datetimes(interval: Any) -> Any:
    """Returns a pair of seconds since 1970 as datetimes, and anything else as it is."""
    try:
        return tuple(map(in_utc, interval))
    except (TypeError, ValueError, OverflowError, OSError):
        return interval


def _warn(what: str) -> None:
    warn_once(("exclusion", what), "The exclusion %s.", what)  # Asked again every minute, it need not be said again.
