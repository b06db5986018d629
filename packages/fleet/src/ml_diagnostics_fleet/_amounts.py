"""Time and money of a fleet as people read them: one unit for a column, and parts that sum to the whole."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from ml_diagnostics_common.texts import format_percent
from ml_goodput_measurement.money import HOUR_NS, apportion, format_amount, rounded, unit_of

from ml_diagnostics_fleet.answers import Sums, money_of
from ml_diagnostics_fleet.overview import FleetOverview, Unit

__all__ = [
    "amount",
    "amount_range",
    "amounts",
    "amounts_alike",
    "goodput",
    "hours",
    "lost_or_time",
    "micro",
    "per_thousand_steps",
    "percent",
    "percents",
    "points",
    "sums_as_dict",
]

_MICRO = Fraction(1, 10**6)


def micro(cost: int | Fraction) -> int:
    """Return a cost in millionths of the currency's unit."""
    return rounded(money_of(cost), _MICRO)


def amount(cost: int | Fraction, currency: str) -> str:
    """Format a cost."""
    exact = money_of(cost)
    unit = unit_of(exact)
    return format_amount(rounded(exact, unit), unit, currency)


def amount_range(costs: tuple[Fraction, Fraction], currency: str) -> str:
    """Format a range of costs in one unit: $40 to $125."""
    unit = unit_of(money_of(costs[1]))
    low, high = (format_amount(rounded(money_of(cost), unit), unit, currency) for cost in costs)
    return low if low == high else f"{low} to {high}"


def amounts(costs: Sequence[int], currency: str) -> list[str]:
    """Format the costs of a column, so that they sum to the whole."""
    exact = [money_of(cost) for cost in costs]
    unit = unit_of(sum(exact, Fraction(0)))
    return [format_amount(units, unit, currency) for units in apportion(exact, unit)]


def amounts_alike(costs: Sequence[int], currency: str) -> list[str]:
    """Format the costs of a column in one unit; each is rounded by itself, since they are not the parts of a whole."""
    exact = [money_of(cost) for cost in costs]
    unit = unit_of(max(exact, key=abs, default=Fraction(0)))
    return [format_amount(rounded(one, unit), unit, currency) for one in exact]


def hours(times: Sequence[int]) -> list[str]:
    """Format the times of a column in hours, so that they sum to the whole.

    Args:
        times: Nanoseconds.
    """
    exact = [Fraction(ns, HOUR_NS) for ns in times]
    unit = Fraction(1) if sum(exact, Fraction(0)) >= 1000 else Fraction(1, 10)
    return [f"{units:,}" if unit == 1 else f"{units / 10:,.1f}" for units in apportion(exact, unit)]


def percent(share: Fraction | None, digits: int = 1) -> str:
    """Format a share; a dash if there is none."""
    return format_percent(None if share is None else float(100 * share), digits)


def percents(shares: Sequence[Fraction]) -> list[str]:
    """Format the shares of a column, so that they sum to the whole."""
    return [f"{units // 10}.{units % 10} %" for units in apportion(shares, Fraction(1, 1000))]


def points(share: Fraction) -> str:
    """Format a difference of shares: +1.5."""
    text = f"{float(100 * share):+.1f}"
    return "0.0" if float(text) == 0 else text


def per_thousand_steps(cost: int, time_ns: int, steps: int, currency: str | None) -> str:
    """Format what a thousand kept steps cost, in money or in hours; a dash without steps."""
    if not steps:
        return "-"
    if currency is None:
        return f"{float(Fraction(1000 * time_ns, HOUR_NS * steps)):,.1f} h"
    return amount(Fraction(1000 * cost, steps), currency)


def sums_as_dict(sums: Sums, currency: str | None) -> dict[str, int | None]:
    """Return time and money in the types of JSON: nanoseconds, and millionths of the currency's unit."""
    money = None if currency is None else micro(sums.cost)
    return {"job_ns": sums.job_ns, "chip_ns": sums.chip_ns, "micro": money}


def lost_or_time(view: FleetOverview, sums: Sequence[Sums]) -> list[str]:
    """Format what was lost, in money where there are prices, else in time."""
    if view.currency is not None:
        return amounts([one.cost for one in sums], view.currency)
    return hours([view.unit.of(one) for one in sums])


def goodput(unit: Unit, productive: Sums, whole: Sums) -> str:
    """Format the goodput of a group."""
    return percent(unit.share(productive, whole))
