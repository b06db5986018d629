"""The file of `goodput report --exclude`: intervals of time that do not count, as JSON.

    [{"start_time_utc": "2026-11-21T05:00:00Z", "end_time_utc": "2026-11-21T07:30:00Z"}]

It has the form of the file for the public package's script for exclusions.
"""

from __future__ import annotations

import datetime
import json
import re
from pathlib import Path
from typing import Any

from ml_diagnostics_common.exceptions import ConfigurationError
from ml_diagnostics_common.texts import one_line

__all__ = ["Exclusion", "read_exclusions"]

Exclusion = tuple[datetime.datetime, datetime.datetime]
"""Start and end, with their time zones."""

_EXAMPLE = '[{"start_time_utc": "2026-11-21T05:00:00Z", "end_time_utc": "2026-11-21T07:30:00Z"}]'
_START, _END = "start_time_utc", "end_time_utc"
_FRACTION = re.compile(r"[.,](\d+)")


def read_exclusions(path: str | Path) -> list[Exclusion]:
    """Return the intervals of a file, in its order, with their time zones.

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
    return [_interval(f"{name}, interval {number}", entry) for number, entry in enumerate(content, 1)]


def _interval(where: str, entry: Any) -> Exclusion:
    if not isinstance(entry, dict):
        raise ConfigurationError(f"{where}: expected an interval, got {_shown(entry)}; write {_EXAMPLE}")
    start, end = _moment(where, entry, _START), _moment(where, entry, _END)
    if start >= end:
        raise ConfigurationError(
            f"{where}: {_START} {_shown(entry[_START])} is not before {_END} {_shown(entry[_END])}"
        )
    return start, end


def _moment(where: str, entry: dict[str, Any], key: str) -> datetime.datetime:
    if key not in entry:
        raise ConfigurationError(f"{where}: {key} is missing; write {_EXAMPLE}")
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
            f"{where}: {key} is {_shown(text)}; write a time such as 2026-11-21T05:00:00Z"
        ) from None


def _shown(value: Any) -> str:
    return one_line(json.dumps(value), 80)
