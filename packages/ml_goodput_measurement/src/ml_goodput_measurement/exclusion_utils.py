"""Intervals to exclude from a job's goodput: a holiday of the cluster, a planned stop."""

from __future__ import annotations

import datetime
import json
import math
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ml_diagnostics_common.exceptions import ConfigurationError
from ml_diagnostics_common.guard import warn_once
from ml_diagnostics_common.texts import one_line

from ml_goodput_measurement._record.arguments import Moment, posix_seconds, shown

__all__ = ["ExclusionInterval", "get_exclusion_overlap", "normalize_intervals", "read_exclusions"]

ExclusionInterval = tuple[datetime.datetime, datetime.datetime]
"""Start and end; naive datetimes are local time."""

Interval = tuple[float, float]
"""Start and end, in seconds since 1970."""

_EXAMPLE = '[{"start_time_utc": "2026-11-21T05:00:00Z", "end_time_utc": "2026-11-21T07:30:00Z"}]'
_START, _END = "start_time_utc", "end_time_utc"
_FRACTION = re.compile(r"[.,](\d+)")


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
        start: Start of the interval: seconds since 1970, or a datetime (naive: local time).
        end: End of the interval.
        exclusions: The result of `normalize_intervals`, or any other pairs of moments.

    Returns:
        Seconds; time in two exclusions counts once. 0.0 if the end is not after the start.
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
            raise TypeError("expected datetimes")
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


def read_exclusions(path: str | Path) -> list[ExclusionInterval]:
    """Return the intervals of a JSON file, in its order, with their time zones.

        [{"start_time_utc": "2026-11-21T05:00:00Z", "end_time_utc": "2026-11-21T07:30:00Z"}]

    It has the form of the file for the public package's script for exclusions.

    A time is ISO 8601, to the microsecond, with Z or an offset from UTC; without either it is UTC. Other keys, such as
    a reason, are ignored.

    Args:
        path: A JSON file in UTF-8: a list of objects that have `start_time_utc` and `end_time_utc`.

    Raises:
        ConfigurationError: The file is not such a list; the message names the interval, counted from 1.
        OSError: The file cannot be read.
    """
    name = one_line(str(path), 200)
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8-sig"))
    except json.JSONDecodeError as error:
        raise ConfigurationError(f"{name}, line {error.lineno}, column {error.colno}: not JSON: {error.msg}") from None
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"{name}: not JSON: {one_line(str(error), 200)}") from None
    if not isinstance(content, list):
        raise ConfigurationError(f"{name}: expected a list of intervals; write {_EXAMPLE}")
    return [_parsed_interval(f"{name}, interval {number}", entry) for number, entry in enumerate(content, 1)]


def _parsed_interval(position: str, entry: Any) -> ExclusionInterval:
    if not isinstance(entry, dict):
        raise ConfigurationError(f"{position}: expected an interval, got {_as_json(entry)}; write {_EXAMPLE}")
    start, end = _parsed_moment(position, entry, _START), _parsed_moment(position, entry, _END)
    if start >= end:
        raise ConfigurationError(
            f"{position}: {_START} {_as_json(entry[_START])} is not before {_END} {_as_json(entry[_END])}"
        )
    return start, end


def _parsed_moment(position: str, entry: dict[str, Any], key: str) -> datetime.datetime:
    if key not in entry:
        raise ConfigurationError(f"{position}: {key} is missing; write {_EXAMPLE}")
    text = entry[key]
    try:
        # Python 3.10 accepts neither Z nor a fraction of other than three or six digits; JSON reports have nine.
        plain = _FRACTION.sub(lambda match: f".{match[1][:6]:0<6}", text.strip().upper(), count=1)
        moment = datetime.datetime.fromisoformat(plain[:-1] + "+00:00" if plain.endswith("Z") else plain)
        if moment.tzinfo is None:
            return moment.replace(tzinfo=datetime.timezone.utc)
        return moment.astimezone(datetime.timezone.utc)
    except (AttributeError, ValueError, OverflowError):
        raise ConfigurationError(
            f"{position}: {key} is {_as_json(text)}; write a time such as 2026-11-21T05:00:00Z"
        ) from None


def _as_json(value: Any) -> str:
    return one_line(json.dumps(value), 80)
