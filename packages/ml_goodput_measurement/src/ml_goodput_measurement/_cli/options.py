"""The arguments that several subcommands have. Parsers import it, so imports are lazy."""

from __future__ import annotations

import argparse
import calendar
import datetime
import re
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from ml_diagnostics_common.command.options import seconds, whole_number
from ml_diagnostics_common.exceptions import ConfigurationError

if TYPE_CHECKING:
    from ml_diagnostics_common.command.console import Console

    from ml_goodput_measurement.money import Price

__all__ = ["add_cost_options", "add_job_arguments", "chips_of", "moment", "price"]

_MOST_CHIPS = 10**7
_DURATION = re.compile(r"[\d.]+[smhd]?", re.ASCII)
_TIME = re.compile(r"(\d{4}-\d\d-\d\d)(?:[T ](\d\d:\d\d(?::\d\d)?)(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d)?)?", re.ASCII)


def add_job_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the job, and the option for its log."""
    parser.add_argument(
        "job",
        metavar="JOB",
        help="the job's name, as given to its recorder; last: the job that started last on this machine",
    )
    add_logger_option(parser)


def add_logger_option(parser: argparse.ArgumentParser) -> None:
    """Add the option for the log of a job."""
    parser.add_argument(
        "--logger",
        metavar="NAME",
        help="the log of the job (default: goodput_JOB, else the only log of this job in the journal)",
    )


def add_cost_options(
    parser: argparse.ArgumentParser, what: str = "also show time as money", subject: str = "the job has"
) -> None:
    """Add the options for the price of chips, and for their number.

    Args:
        parser: The parser.
        what: The start of the sentence on the price: its purpose.
        subject: The end of the sentence on the chips: which jobs have them.
    """
    parser.add_argument(
        "--cost",
        metavar="PRICE",
        type=price,
        help=f"{what}: 3.22/chip-hour, or with a currency 2.95 EUR/chip-hour",
    )
    parser.add_argument(
        "--chips",
        metavar="N",
        type=whole_number(1, _MOST_CHIPS),
        help=f"how many chips {subject} (default: as recorded)",
    )


def price(text: str) -> Price:
    """Parse a price, such as 3.22/chip-hour."""
    from ml_goodput_measurement.money import Price

    try:
        return Price.parse(text)
    except ConfigurationError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def moment(text: str) -> int:
    """Parse a time: how long ago (7d), a day in UTC (2026-11-21), or a time (2026-11-21T05:00:00Z).

    Returns:
        Nanoseconds since 1970.
    """
    if _DURATION.fullmatch(text):
        return time.time_ns() - int(seconds(text) * 1e9)
    parts = _TIME.fullmatch(text)
    try:
        if parts is None:
            raise ValueError(text)
        date, clock, fraction, zone = parts.groups()
        zone = "+00:00" if zone in (None, "Z") else zone
        found = datetime.datetime.fromisoformat(f"{date}T{clock or '00:00'}{zone}")
        # Not timestamp(): a float has no nanoseconds. Python 3.10 parses only fractions of 3 or 6 digits.
        return calendar.timegm(found.utctimetuple()) * 10**9 + int((fraction or "").ljust(9, "0"))
    except (ValueError, OverflowError):  # OverflowError: an offset from the first or the last day of the calendar.
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a time: give how long ago (7d), or in UTC a day (2026-11-21) or 2026-11-21T05:00:00Z"
        ) from None


def chips_of(given: int | None, recorded: int | None, job: str, log: str, console: Console) -> int:
    """Return the number of a job's chips.

    Args:
        given: The option `--chips`.
        recorded: The number that the job's newest process recorded.
        job: The job's name.
        log: Its log.
        console: Prints that earlier processes recorded other numbers.

    Raises:
        ConfigurationError: Neither is known.
    """
    if given is not None:
        return given
    if recorded is None:
        raise ConfigurationError(f"the number of chips of job {job[:200]!r} was not recorded: give it as --chips N")
    from ml_goodput_measurement._query.job_state import recorded_chips

    others = [f"{chips:,}" for chips in recorded_chips(log, job) if chips != recorded]
    if others:
        console.warn(
            f"job {job[:200]!r} also ran with {', '.join(others)} chips: all of its time is priced with {recorded:,}, "
            "or with what --chips N gives"
        )
    return recorded


def label(labels: Mapping[str, str], name: str) -> str:
    """Return a label, or a dash."""
    return labels.get(name) or "-"
