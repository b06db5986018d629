"""The options that several parts of `goodput fleet` have. Parsers import it, so imports are lazy."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING

from ml_diagnostics_common.command.errors import UsageError

from ml_diagnostics_fleet.queries import GROUPS

if TYPE_CHECKING:
    from ml_diagnostics_fleet.reports import FleetReports

__all__ = [
    "add_by_option",
    "add_mirror_option",
    "add_mirror_options",
    "add_report_options",
    "add_since_option",
    "groups",
    "mirror_of",
    "open_reports",
]

_MIRROR = "ML_DIAGNOSTICS_MIRROR"
_OF_TABLE = "table"
"""`--cost` without a price: that of the table of prices."""


def add_mirror_options(parser: argparse.ArgumentParser, as_of: str) -> None:
    """Add the options for the mirror, and for the moment.

    Args:
        parser: The parser.
        as_of: The help text of the moment.
    """
    add_mirror_option(parser)
    parser.add_argument("--as-of", metavar="TIME", type=_moment, help=as_of)


def add_mirror_option(parser: argparse.ArgumentParser) -> None:
    """Add the option for the mirror."""
    parser.add_argument("--mirror", metavar="URL", help=f"gs://bucket/prefix, or a folder (default: {_MIRROR})")


def add_since_option(parser: argparse.ArgumentParser, since: str) -> None:
    """Add the option for a first moment.

    Args:
        parser: The parser.
        since: Its help text.
    """
    parser.add_argument("--since", metavar="TIME", type=_moment, help=since)


def add_report_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of everything that reads rows."""
    add_mirror_options(parser, "the newest rows that are not after this time, such as 2026-11-22 (default: the newest)")
    parser.add_argument(
        "--cost",
        nargs="?",
        const=_OF_TABLE,
        metavar="PRICE",
        type=_price,
        help="a price for all chips, such as 3.22/chip-hour (default: dimensions/prices.parquet, if there is one); "
        "without PRICE, fail if there is none",
    )


def add_by_option(parser: argparse.ArgumentParser) -> None:
    """Add the option for groups."""
    parser.add_argument(
        "--by",
        metavar="GROUP,...",
        type=groups,
        default=("team",),
        help=f"what jobs are grouped by: one or more of {', '.join(GROUPS)} (default: team)",
    )


def groups(text: str) -> tuple[str, ...]:
    """Parse groups, such as `team,zone`."""
    names = tuple(name.strip() for name in text.split(","))
    unknown = [name for name in names if name not in GROUPS]
    if unknown or len(set(names)) < len(names):
        raise argparse.ArgumentTypeError(f"{text!r}: expected different groups of {', '.join(GROUPS)}")
    return names


def mirror_of(options: argparse.Namespace) -> str:
    """Return the mirror.

    Raises:
        UsageError: None is given.
    """
    mirror: str = options.mirror or os.environ.get(_MIRROR, "")
    if not mirror.strip():
        raise UsageError(f"give the mirror as --mirror gs://bucket/prefix or a folder, or set {_MIRROR}")
    return mirror


def open_reports(options: argparse.Namespace) -> FleetReports:
    """Return the reports of a mirror, with the prices that are given.

    Raises:
        UsageError: `--cost` has no price, and there is no table of prices.
    """
    from ml_diagnostics_fleet.reports import FleetReports

    is_of_table = options.cost == _OF_TABLE
    reports = FleetReports(mirror_of(options), options.as_of, price=None if is_of_table else options.cost)
    if is_of_table and reports.currency is None:
        reports.close()
        raise UsageError("there are no prices: give one as --cost 3.22/chip-hour, or write dimensions/prices.parquet")
    return reports


def _price(text: str) -> object:
    from ml_goodput_measurement.reading import price

    return text if text == _OF_TABLE else price(text)


def _moment(text: str) -> int:
    from ml_goodput_measurement.reading import moment

    return moment(text)
