"""When something happened, as callers may say it."""

from __future__ import annotations

import datetime
import logging
import math
from typing import Any, TypeAlias

from ml_diagnostics_common.exceptions import ConfigurationError
from ml_diagnostics_common.guard import log_once

from ml_goodput_measurement.names import shown

__all__ = ["LONGEST_SECONDS", "Moment", "in_utc", "nanoseconds", "posix_seconds", "retention_ns", "seconds_of"]

Moment: TypeAlias = datetime.datetime | float
"""A datetime (naive: local time), or seconds since 1970."""

LONGEST_SECONDS = 1e10
"""Three centuries: a longer time is a mistake, such as nanoseconds, and would soon fit no integer."""


def posix_seconds(moment: Any) -> float:
    """Returns the seconds since 1970 of a datetime (naive: local time) or of anything that is a number.

    Raises:
        TypeError: It is neither.
        ValueError: It is not a finite number.
    """
    if isinstance(moment, datetime.datetime):
        if moment.tzinfo is None:
            log_once(
                logging.INFO,
                "naive datetime",
                "A datetime without a time zone was given, and taken as local time; "
                "datetime.datetime.now(datetime.timezone.utc) leaves no doubt.",
            )
        return moment.timestamp()
    if isinstance(moment, (str, bytes, bool)):
        raise TypeError(f"{moment!r} is no time; give a datetime, or seconds since 1970")
    seconds = float(moment)
    if not math.isfinite(seconds):
        raise ValueError(f"{seconds} is no time; give a datetime, or seconds since 1970")
    return seconds


def nanoseconds(moment: Any) -> int:
    """Returns the nanoseconds since 1970, rounded to the microsecond as the ledger's are; raises as `posix_seconds`."""
    return round(posix_seconds(moment) * 1e6) * 1000


def in_utc(moment: Any) -> datetime.datetime:
    """Returns the moment as a datetime in UTC; raises as `posix_seconds`, and where no calendar has it."""
    if isinstance(moment, datetime.datetime) and moment.tzinfo is not None:
        return moment.astimezone(datetime.timezone.utc)
    return datetime.datetime.fromtimestamp(posix_seconds(moment), datetime.timezone.utc)


def seconds_of(value: Any) -> float | None:
    """Returns a number of seconds of any type as a float, numpy's too; None for what is no number."""
    if isinstance(value, (str, bytes, bool)) or not hasattr(value, "__float__"):
        return None
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return None


def retention_ns(max_logs_retention_period: Any) -> int | None:
    """Returns how far back is read, in nanoseconds: of a timedelta or a number of seconds; None for all there is.

    Raises:
        ConfigurationError: It is neither, or not above zero.
    """
    if max_logs_retention_period is None:
        return None
    if isinstance(max_logs_retention_period, datetime.timedelta):
        seconds: float | None = max_logs_retention_period.total_seconds()
    else:
        seconds = seconds_of(max_logs_retention_period)
    if seconds is None or not 0 < seconds < LONGEST_SECONDS:
        raise ConfigurationError(
            f"max_logs_retention_period is {shown(max_logs_retention_period)}; give a timedelta or a number of seconds "
            f"above zero and below {LONGEST_SECONDS:g}"
        )
    return int(seconds * 1e9)
