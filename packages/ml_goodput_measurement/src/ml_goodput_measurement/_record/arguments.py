"""Arguments of recorders and calculators: names, moments of time, and copies that are rebuilt from them.

Copies and pickles of objects with threads, locks and open files are made from the arguments of the constructor: a
spawned process receives its arguments as a pickle, and programs copy configs and callbacks that contain a recorder.
"""

from __future__ import annotations

import datetime
import logging
import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, TypeAlias

from ml_diagnostics_common.exceptions import ConfigurationError
from ml_diagnostics_common.guard import log_once
from ml_diagnostics_common.payload import printable

__all__ = [
    "LONGEST_SECONDS",
    "Moment",
    "RebuiltFromArguments",
    "checked_name",
    "event_type",
    "in_utc",
    "nanoseconds",
    "posix_seconds",
    "retention_ns",
    "seconds_of",
    "shown",
]


def checked_name(argument: str, value: object) -> str:
    """Return a name as recorders write it.

    Raises:
        ConfigurationError: The value is not a str, or blank.
    """
    if not isinstance(value, str) or not value.strip():
        raise ConfigurationError(
            f"expected {argument} to be text that is not empty, such as the run's name; got {shown(value)}"
        )
    return printable(value)


def shown(value: object) -> str:
    """Return the value for an error message: short, also if its `repr` raises."""
    try:
        return repr(value)[:100]
    except Exception:
        return f"an object of {type(value).__name__}"


def event_type(name: object) -> str:
    """Return the name of a custom event as it is recorded: without secrets.

    Most names are words, for which the redactor is not imported: a trainer may not need it for anything else.
    """
    text = str(name)
    return text if text.replace("_", "").isalpha() else _redacted(text)


@lru_cache(maxsize=256)
def _redacted(text: str) -> str:
    from ml_diagnostics_common.redaction import redact_text

    return redact_text(text)


Moment: TypeAlias = datetime.datetime | float
"""A datetime (naive: local time), or seconds since 1970."""

LONGEST_SECONDS = 1e10
"""Three centuries: a longer time is a mistake, such as nanoseconds, and would soon overflow an integer."""


def posix_seconds(moment: Any) -> float:
    """Return the seconds since 1970 of a datetime (naive: local time) or of any number.

    Raises:
        TypeError: The value is neither.
        ValueError: The number is not finite.
    """
    if type(moment) is float and math.isfinite(moment):  # As nearly always.
        return moment
    if isinstance(moment, datetime.datetime):
        if moment.tzinfo is None:
            log_once(
                logging.INFO,
                "naive datetime",
                "A datetime without a time zone was taken as local time; "
                "datetime.datetime.now(datetime.timezone.utc) has one.",
            )
        return moment.timestamp()
    if isinstance(moment, (str, bytes, bool)):
        raise TypeError(f"expected a datetime or seconds since 1970, got {moment!r}")
    seconds = float(moment)
    if not math.isfinite(seconds):
        raise ValueError(f"expected a datetime or seconds since 1970, got {seconds}")
    return seconds


def nanoseconds(moment: Any) -> int:
    """Return the nanoseconds since 1970, rounded to the microsecond like the ledger's; raises like `posix_seconds`."""
    return round(posix_seconds(moment) * 1e6) * 1000


def in_utc(moment: Any) -> datetime.datetime:
    """Return the moment as a datetime in UTC; raises like `posix_seconds`, and for years outside the calendar."""
    if isinstance(moment, datetime.datetime) and moment.tzinfo is not None:
        return moment.astimezone(datetime.timezone.utc)
    return datetime.datetime.fromtimestamp(posix_seconds(moment), datetime.timezone.utc)


def seconds_of(value: Any) -> float | None:
    """Return a number of any type as a float, also one of numpy's; None for other values."""
    if isinstance(value, (str, bytes, bool)) or not hasattr(value, "__float__"):
        return None
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return None


def retention_ns(max_logs_retention_period: Any) -> int | None:
    """Return a retention period, a timedelta or a number of seconds, in nanoseconds; None for no limit.

    Raises:
        ConfigurationError: The value is neither, or not above zero.
    """
    if max_logs_retention_period is None:
        return None
    if isinstance(max_logs_retention_period, datetime.timedelta):
        seconds: float | None = max_logs_retention_period.total_seconds()
    else:
        seconds = seconds_of(max_logs_retention_period)
    if seconds is None or not 0 < seconds < LONGEST_SECONDS:
        raise ConfigurationError(
            "expected max_logs_retention_period to be a timedelta or a number of seconds above zero and below "
            f"{LONGEST_SECONDS:g}, got {shown(max_logs_retention_period)}"
        )
    return int(seconds * 1e9)


class RebuiltFromArguments:
    """Base of classes with copies and pickles that start like a new object, as a recorder does in a forked child."""

    __constructor: tuple[type, dict[str, Any]]
    __own_names: frozenset[str]

    def _remember(self, constructor: type, arguments: Mapping[str, Any], names_before: frozenset[str]) -> None:
        """Remember how to rebuild the object; called at the end of its constructor.

        Args:
            constructor: The class of the constructor; a subclass may have another one.
            arguments: Values by name; names that are not parameters of the constructor are ignored.
            names_before: The attributes that the object had before: those are a subclass's, and are copied.
        """
        parameters = constructor.__init__.__code__  # type: ignore[misc]
        names = parameters.co_varnames[1 : parameters.co_argcount + parameters.co_kwonlyargcount]
        self.__constructor = constructor, {name: arguments[name] for name in names}
        self.__own_names = frozenset(vars(self)) - names_before | {"_RebuiltFromArguments__own_names"}

    def __getstate__(self) -> tuple[type, dict[str, Any], dict[str, Any]]:
        import inspect  # Only here: most recorders are never copied.

        constructor, arguments = self.__constructor
        # A default may be an object that cannot be pickled, such as os.environ.
        defaults = {name: parameter.default for name, parameter in inspect.signature(constructor).parameters.items()}
        given = {name: value for name, value in arguments.items() if value is not defaults[name]}
        others = {name: value for name, value in vars(self).items() if name not in self.__own_names}
        return constructor, given, others

    def __setstate__(self, state: tuple[type, dict[str, Any], dict[str, Any]]) -> None:
        constructor, arguments, others = state
        vars(self).update(others)
        constructor.__init__(self, **arguments)  # type: ignore[misc]
